"""Preparation of a claimed compaction: one task for each of its ranges.

1. Find the views of its sources in the manifest, newest source first, and their objects. Refuse sources with
   filters that outputs cannot have (`policies`).
2. Split the key space into ranges (`split`), or use the ranges that an earlier worker recorded.
3. Give each range those SSTs of each source that can show one of its keys, in their order (`narrowed`). A
   source without any is left out: a task reads nothing of it. So the request for one range stays small,
   however many SSTs the whole compaction has. Each SST comes with what is known of it here: the position of
   its blocks, so that the first request of a task is for rows, or its whole content.

This imports the compiler, which few commands need.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from lithify.base.errors import Refused
from lithify.base.ids import ulid_ms
from lithify.coordination.sidecar import Reporting
from lithify.datasets.slatedb.compaction import split
from lithify.datasets.slatedb.compaction.execute import execute_merge
from lithify.datasets.slatedb.compaction.sources import Locator, source_views
from lithify.datasets.slatedb.compaction.task import (
    SENT_BYTES,
    MergeTask,
    RowRules,
    SourceSst,
    SstOptions,
    as_output,
    as_source,
)
from lithify.datasets.slatedb.compaction.validate import older_l0, older_l0_left, why_unclaimable
from lithify.datasets.slatedb.format.block_size import read_block_size
from lithify.datasets.slatedb.format.ledger import SlateCompaction
from lithify.datasets.slatedb.format.paths import DatabasePaths
from lithify.datasets.slatedb.format.policies import filters_like, newest_filtered, read_stored_filter
from lithify.datasets.slatedb.kernel.block_ranges import bounds_of, sent_blocks
from lithify.datasets.slatedb.model import KeyRange, Manifest, Sst, TieredSpec, Tree, tree_label
from lithify.datasets.slatedb.options import SlateOptions
from lithify.protocol.work import RangeJob, RangeWork
from lithify.store.objects import ObjectStore

LARGE_BYTES = 1 << 30
"""If a compaction reads more than this, its uploads are sent in larger and fewer parts: it takes seconds, and
the last request of an upload is a small share of that."""
LARGE_PART_BYTES = 12 << 20

Sources = tuple[tuple[SourceSst, ...], ...]
"""Newest first; the SSTs of each in key order."""


class CompactionPreparer:
    """Prepares compactions of the database at `paths`."""

    def __init__(
        self,
        store: ObjectStore,
        paths: DatabasePaths,
        store_options: Mapping[str, str],
        options: SlateOptions,
    ) -> None:
        self._store = store
        self._paths = paths
        self._store_options = store_options
        self._options = options
        self._foreseen = split.Foreseen()

    def prefetch(self, compaction: SlateCompaction, manifest: Manifest) -> None:
        """Begin to read the data that preparing this compaction needs."""
        _, _, sources = self._sources(compaction, manifest)
        if sources:
            self._foreseen.begin(self._store, sources, self._sst_options(sources))

    def prepare(
        self,
        compaction: SlateCompaction,
        manifest: Manifest,
        reporting: Callable[[int], Reporting | None],
        slots: int,
        parallel: Sequence[SlateCompaction] = (),
    ) -> RangeJob:
        """Return all ranges of the compaction. The task of a range reports its progress to `reporting`;
        `slots` is how many run at once (0: not known). `parallel` are other compactions of L0 SSTs of the
        same tree, which may read older ones."""
        spec, tree, sources = self._sources(compaction, manifest, parallel)
        if not sources:
            return RangeJob(())
        cut, outputs = self._cut(compaction, sources, slots)
        ranges = cut.ranges
        progress = compaction.progress
        horizon = (
            progress.horizon
            if progress is not None and progress.horizon is not None
            else manifest.recent_snapshot_min_seq
        )
        rules = RowRules(
            is_last_run=is_last_run(spec, tree),
            clock_tick_ms=manifest.last_l0_clock_tick,
            retention_min_seq=horizon,
            merge_operator=self._options.merge_operator,
            compaction_filter=self._options.compaction_filter,
            segment=spec.segment,
            destination=spec.destination,
        )
        total_bytes = sum(s.sst.info.data_end for group in sources for s in group)
        cost_bytes = total_bytes // len(ranges)
        read = narrowed(sources, ranges)
        works = tuple(
            RangeWork(
                key_range,
                execute_merge,
                MergeTask(
                    store_url=self._store.url,
                    store_options=self._store_options,
                    output_folder=self._paths.compacted_folder,
                    min_output_ms=ulid_ms(compaction.id),
                    sources=with_known(read[index], key_range, cut),
                    range=key_range,
                    rules=rules,
                    options=cut.options,
                    resume_outputs=tuple(map(as_output, outputs[index])),
                    part_bytes=LARGE_PART_BYTES if total_bytes >= LARGE_BYTES else None,
                    reporting=reporting(index),
                ),
                cost_bytes,
            )
            for index, key_range in enumerate(ranges)
        )
        return RangeJob(works, horizon)

    def _sources(
        self, compaction: SlateCompaction, manifest: Manifest, parallel: Sequence[SlateCompaction] = ()
    ) -> tuple[TieredSpec, Tree, Sources]:
        """Return the spec, its tree, and the sources to read. Raise `Refused` if any of them is missing."""
        spec = compaction.spec
        if not isinstance(spec, TieredSpec):
            raise Refused(f"compaction {compaction.id} drains a segment, which only the coordinator does")
        tree = manifest.tree(spec.segment)
        if tree is None:
            raise Refused(f"compaction {compaction.id}: {tree_label(spec.segment)} is gone from the manifest")
        groups = source_views(tree, spec)
        if groups is None:
            raise Refused(f"compaction {compaction.id}: its sources are gone from the manifest")
        why = why_unclaimable(compaction, parallel, manifest) if parallel else older_l0_left(spec, tree)
        if why is not None:
            raise Refused(f"compaction {compaction.id}: {why}; it is not carried out")
        locate = Locator(self._store, self._paths, manifest)
        sources = tuple(
            tuple(SourceSst(locate(v), v.sst, v.visible_range or KeyRange()) for v in group)
            for group in groups
            if group
        )
        return spec, tree, sources

    def _cut(
        self, compaction: SlateCompaction, sources: Sources, slots: int
    ) -> tuple[split.CompactionSplit, Sequence[tuple[Sst, ...]]]:
        """Return the ranges, and the existing outputs of each."""
        options = self._with_filters(self._sst_options(sources), sources)
        recorded = () if compaction.progress is None else compaction.progress.ranges
        if not recorded:
            cut = split.plan_ranges(self._store, sources, options, slots, self._foreseen)
            return cut, [()] * len(cut.ranges)
        _check_cover(compaction, [done.range for done in recorded])
        if options.block_size is None:
            found = read_block_size(self._store, split.shown_parts(sources))
            options = replace(options, block_size=found)
        ranges = tuple(done.range for done in recorded)
        return split.CompactionSplit(options, ranges), [done.outputs for done in recorded]

    def _with_filters(self, options: SstOptions, sources: Sources) -> SstOptions:
        """Return the options with the filters of outputs, unless a task that reads everything at once finds
        them out itself. Raise `Refused` for filters that cannot be written."""
        if split.is_small(split.shown_parts(sources), options):
            return options
        part = newest_filtered(sources)
        stored = b"" if part is None else self._foreseen.take(read_stored_filter, self._store, part)
        return replace(options, filters=filters_like(self._store, part, stored, options.filter_rules))

    def _sst_options(self, sources: Sources) -> SstOptions:
        compression = self._options.compression
        return SstOptions(
            self._options.block_size,
            max_sst_size=self._options.max_sst_size,
            compression=sources[0][0].sst.info.compression if compression is None else compression,
            min_filter_keys=self._options.min_filter_keys,
            filters=None,
            filter_rules=self._options.filter_rules,
        )


def is_last_run(spec: TieredSpec, tree: Tree) -> bool:
    """Return whether no older data remain below the outputs, so that their tombstones may be dropped. Older
    L0 SSTs remain while another compaction reads them."""
    return not older_l0(spec, tree) and (not tree.runs or tree.runs[-1].id == spec.destination)


def with_known(sources: Sources, key_range: KeyRange, cut: split.CompactionSplit) -> Sources:
    """Return the sources of a range, with their contents or the positions of their blocks, as far as these
    are known and the request stays small."""
    left_bytes = SENT_BYTES
    keys: dict[bytes, bytes] = {}  # equal keys travel once

    def once(shown: KeyRange) -> KeyRange:
        start, end = (None if key is None else keys.setdefault(key, key) for key in (shown.start, shown.end))
        return KeyRange(start, end, shown.end_inclusive)

    def sent(part: SourceSst) -> SourceSst:
        nonlocal left_bytes
        part = replace(part, sst=as_source(part.sst), visible=once(part.visible))
        content = cut.contents.get(part.key)
        if content is not None and len(content) <= left_bytes:
            left_bytes -= len(content)
            return replace(part, content=content)
        index, bounds = cut.indexes.get(part.key), bounds_of(part, key_range)
        blocks = None if index is None or bounds is None else sent_blocks(part, index, bounds)
        if blocks is None or len(blocks.sizes) > left_bytes:
            return part
        left_bytes -= len(blocks.sizes)
        return replace(part, blocks=blocks)

    return tuple(tuple(map(sent, source)) for source in sources)


def narrowed(sources: Sources, ranges: Sequence[KeyRange]) -> list[Sources]:
    """Return for each range the sources with only those SSTs that can show one of its keys; no source is
    empty.

    A task opens SSTs by the same rule (`bounds_of`), so no result changes. `ranges` ascend and are disjoint:
    an SST is checked only against the ranges from the first that may hold its first key to the last that its
    keys reach, so the cost is not the product of SSTs and ranges.
    """
    ends = [key_range.end for key_range in ranges if key_range.end is not None]
    found: list[list[tuple[SourceSst, ...]]] = [[] for _ in ranges]
    for source in sources:
        parts: dict[int, list[SourceSst]] = {}
        for part in source:
            shown = split.effective_range(part)
            for index in range(bisect_left(ends, shown.start or b""), len(ranges)):
                start = ranges[index].start
                if start is not None and shown.end is not None and start > shown.end:
                    break
                if bounds_of(part, ranges[index]) is not None:
                    parts.setdefault(index, []).append(part)
        for index, read in parts.items():
            found[index].append(tuple(read))
    return [tuple(groups) for groups in found]


def _check_cover(compaction: SlateCompaction, ranges: Sequence[KeyRange]) -> None:
    """Check that the recorded ranges cover the key space: rows between two ranges would be lost, and rows in
    both would be duplicated."""
    follow = all(a.end == b.start and a.end is not None and not a.end_inclusive for a, b in pairwise(ranges))
    if ranges[0].start or ranges[-1].end is not None or not follow:
        raise Refused(
            f"compaction {compaction.id}: the ranges recorded for it do not cover all keys once, in order; "
            "it is not carried out"
        )
