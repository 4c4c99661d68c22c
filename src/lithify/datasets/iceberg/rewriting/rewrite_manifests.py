"""One run of rewriting a table's manifests, so that a query opens few of them.

1. Read the manifest list of the branch's head, and plan by its values (`manifest_plan`).
2. Rewrite the manifests of each group (`manifest_merge`). Every entry keeps its sequence numbers and the
   snapshot that added it.
3. Commit a `replace` snapshot whose list has the new manifests and, as they are, all others. The commit
   asserts the table's UUID and the head.
4. If another commit came first, read the new head: a group is still valid if the head has all its manifests,
   and only the list is written again. Invalid groups are deleted; if none is left, start again from 1. All
   groups are invalid if the table's format version has changed.

| outcome       | when                                                |
|---------------|-----------------------------------------------------|
| REWRITTEN     | manifests were rewritten                            |
| NOTHING_TO_DO | nothing is worth rewriting                          |
| LOST_RACE     | another commit came first in every attempt          |

Skipped, with a note: manifests that are encrypted, that the list names more than once, or whose spec is
made from columns that no schema of the table has together.

Invariants: the new snapshot has the same live entries as its parent, each with the same numbers; only
REWRITTEN changes the table; uncommitted files have names that garbage collection recognises (`ownership`),
and are never older than half of the age that it spares. Any number of runs may be active at once, and a
second one finds nothing to do. A dry run writes nothing.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.types import NestedField

from lithify.base.clock import Clock
from lithify.base.concurrency import all_of
from lithify.base.errors import Refused, StoreError
from lithify.base.scratch import Scratch
from lithify.datasets.iceberg.compaction.support_checks import check_manifests, count_notes
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.format.entry_order import EntryOrder, schema_for
from lithify.datasets.iceberg.format.fetching import MAX_READERS
from lithify.datasets.iceberg.format.listing import check_listed
from lithify.datasets.iceberg.format.manifest_list import write_list
from lithify.datasets.iceberg.format.manifest_plan import Facts, ManifestPlan, plan_manifests
from lithify.datasets.iceberg.format.manifests import (
    ManifestKey,
    counted,
    gets_row_ids,
    is_counted,
    manifest_key,
    manifests_of,
)
from lithify.datasets.iceberg.format.ownership import manifest_prefix, mark_of
from lithify.datasets.iceberg.format.properties import whole_number
from lithify.datasets.iceberg.format.publish import (
    PreparedSnapshot,
    Uncommitted,
    discard,
    prepare,
    tries,
)
from lithify.datasets.iceberg.format.table_properties import locations_of, properties_of
from lithify.datasets.iceberg.format.time_column import find_axis
from lithify.datasets.iceberg.rewriting.head_rewrite import RewriteOutcome, Rewriting, published
from lithify.datasets.iceberg.rewriting.manifest_merge import ManifestMerge

MAX_SLOW_TRIES = 2
"""The maximum attempts whose manifests are too old when they could be committed: the store was unavailable,
or writing always takes that long."""
_ENCRYPTED = "are encrypted"
_REPEATED = "are listed more than once in the manifest list"
_UNTYPED = "belong to a partition spec whose columns were dropped"
_LEFT = "manifest(s)"


@dataclass(slots=True)
class RewritingManifests(Rewriting):
    """The changes of a run, or of a dry run's plan."""

    rewritten: int = 0
    """Manifests that were replaced, or dropped because they had no live entry."""
    added: int = 0
    """New manifests; an estimate in a dry run."""
    entries: int = 0
    """The number of entries in the new manifests."""
    manifests: int = 0
    """The number of manifests in the resulting snapshot, or in the current one if nothing was done."""
    plan: ManifestPlan = field(default_factory=ManifestPlan)
    """The latest plan."""


@dataclass(slots=True)
class _Written:
    """A rewritten group."""

    replaced: tuple[str, ...]
    keys: frozenset[ManifestKey]
    """Of the replaced manifests, as they were read."""
    new: list[ManifestFile]
    entries: int


@dataclass(slots=True)
class _PendingCommit:
    """A pending commit, valid for changing heads."""

    snapshot_id: int
    format_version: int
    prefix: str
    groups: list[_Written]
    empty: set[str]
    uncommitted: Uncommitted
    lists: int = 0

    def kept_in(self, head: Sequence[ManifestFile]) -> list[_Written]:
        """Remove the groups that are no longer valid, and return them."""
        there = set(map(manifest_key, head))
        lost = [group for group in self.groups if not there.issuperset(group.keys)]
        self.groups = [group for group in self.groups if there.issuperset(group.keys)]
        self.empty &= {manifest.manifest_path for manifest in head}
        return lost


class ManifestRewriter:
    """A rewriter of one table's manifests."""

    def __init__(self, dataset: IcebergDataset, clock: Clock) -> None:
        self._dataset = dataset
        self._clock = clock
        self._rng = random.Random()

    def run(self, *, dry_run: bool = False, unasked: bool = False) -> RewritingManifests:
        """Rewrite manifests where it is worthwhile. With `unasked`, only if it is worth a snapshot without a
        request, by the table's `commit.manifest.min-count-to-merge`. Raise `Refused` for a table whose
        manifests cannot be rewritten."""
        done = RewritingManifests(dry_run)
        slow_tries = 0
        work: _PendingCommit | None = None
        for _ in tries(self._clock, self._rng):
            table = self._dataset.load()
            policy = self._dataset.policy(table, of_data=False)
            branch = check_manifests(table.metadata, policy.branch, self._dataset.url)
            self._dataset.lineage.check(table, self._dataset.load)
            parent = table.metadata.snapshot_by_name(branch)
            if parent is None:
                return done
            with translated(f"listing the manifests of {self._dataset.url}"):
                head = manifests_of(table.io, parent)
                check_listed(table, parent, head)
                head = self._counted(table, head)
            done.manifests = len(head)
            work = self._still(table, work, head)
            if work is None:
                layout = _ManifestLayout(table, self._time_column(table))
                plan, done.notes = layout.plan(head)
                done.plan = plan
                if not plan.manifests or (unasked and not plan.is_worth(_min_count(table.metadata))):
                    return done
                if dry_run:
                    done.outcome = RewriteOutcome.REWRITTEN
                    done.rewritten, done.added = plan.manifests, plan.new
                    done.manifests += plan.new - plan.manifests
                    return done
                self._dataset.begin_state(table)  # garbage of a killed run must be newer than the state
                work = self._write(table, layout, plan, head)
            if self._commit(table, branch, parent, head, work, done):
                return done
            if self._is_old(work):
                slow_tries += 1
                if slow_tries == MAX_SLOW_TRIES:
                    discard(table.io, _paths(work.groups))
                    raise StoreError(
                        f"{self._dataset.url}: writing the new manifests took so long that they might be "
                        "collected as garbage before they are committed, so nothing was changed; run it "
                        "again"
                    )
        if work is not None:
            discard(table.io, _paths(work.groups))
        done.lose()
        return done

    @staticmethod
    def _counted(table: Table, head: list[ManifestFile]) -> list[ManifestFile]:
        """Return the manifests with all numbers. A list from before the table was upgraded may lack some."""
        version = table.metadata.format_version
        if version == 1 or not any(gets_row_ids(m, version) or not is_counted(m) for m in head):
            return head
        return all_of((partial(counted, table.io, manifest, version) for manifest in head), MAX_READERS)

    def _time_column(self, table: Table) -> NestedField | None:
        """Return the time column. Without one, entries are sorted only by their partitions."""
        try:
            policy = self._dataset.policy(table)
            return find_axis(table.metadata, policy.axis, policy.time_column, self._dataset.url)[0]
        except Refused:
            return None

    def _still(
        self, table: Table, work: _PendingCommit | None, head: Sequence[ManifestFile]
    ) -> _PendingCommit | None:
        """Return the part of the work that is still valid for this head; `None` if there is none."""
        if work is None:
            return None
        lost = work.kept_in(head)
        # Manifests of version 1 have no sequence numbers, and a list of version 2 would assign some.
        if self._is_old(work) or work.format_version != table.metadata.format_version:
            lost, work.groups, work.empty = [*lost, *work.groups], [], set()
        discard(table.io, _paths(lost))
        return work if work.groups or work.empty else None

    def _is_old(self, work: _PendingCommit) -> bool:
        """Return whether garbage collection could soon delete its manifests."""
        return work.uncommitted.is_too_late(self._clock)

    def _write(
        self, table: Table, layout: _ManifestLayout, plan: ManifestPlan, head: Sequence[ManifestFile]
    ) -> _PendingCommit:
        metadata, locations = table.metadata, locations_of(table.metadata, table.io.properties)
        prefix = manifest_prefix(mark_of(metadata), uuid.uuid4().hex)
        snapshot_id = metadata.new_snapshot_id()
        by_path = {manifest.manifest_path: manifest for manifest in head}
        numbers = iter(range(1 << 31))

        def new_path() -> str:
            return locations.new_metadata_location(f"{prefix}-m{next(numbers)}.avro")

        groups = []
        with Scratch() as scratch, translated(f"rewriting the manifests of {self._dataset.url}"):
            merge = ManifestMerge(
                table.io, scratch.path, new_path, snapshot_id, metadata.format_version, layout.target_bytes
            )
            for group in plan.groups:
                spec, schema, order = layout.of(group.kind[0])
                replaced = [by_path[path] for path in group.manifests]
                new, entries = merge.merge(replaced, spec, schema, order)
                keys = frozenset(map(manifest_key, replaced))
                groups.append(_Written(group.manifests, keys, new, entries))
            uncommitted = Uncommitted.from_now(self._clock)
            merge.upload()
        return _PendingCommit(
            snapshot_id, metadata.format_version, prefix, groups, set(plan.empty), uncommitted
        )

    def _commit(
        self,
        table: Table,
        branch: str,
        parent: Snapshot,
        head: Sequence[ManifestFile],
        work: _PendingCommit,
        done: RewritingManifests,
    ) -> bool:
        gone = {*work.empty, *(path for group in work.groups for path in group.replaced)}
        new = [manifest for group in work.groups for manifest in group.new]
        kept = [manifest for manifest in head if manifest.manifest_path not in gone]
        entries = sum(group.entries for group in work.groups)
        counts = {
            "manifests-created": len(new),
            "manifests-kept": len(kept),
            "manifests-replaced": len(gone),
            "entries-processed": entries,
        }
        prepared = self._prepare(table, branch, parent, work, [*new, *kept], counts)
        if not published(self._dataset, self._clock, table, prepared, work.uncommitted, prepared.written):
            return False
        done.outcome, done.rewritten, done.added = RewriteOutcome.REWRITTEN, len(gone), len(new)
        done.entries, done.manifests = entries, len(new) + len(kept)
        return True

    def _prepare(
        self,
        table: Table,
        branch: str,
        parent: Snapshot,
        work: _PendingCommit,
        manifests: list[ManifestFile],
        counts: Mapping[str, int],
    ) -> PreparedSnapshot:
        metadata = table.metadata
        name = f"{work.prefix}-snap-{work.snapshot_id}-{work.lists}.avro"
        path = locations_of(table.metadata, table.io.properties).new_metadata_location(name)
        work.lists += 1
        with translated(f"writing a snapshot of {self._dataset.url}"):
            output = table.io.new_output(path)
            listed = write_list(metadata, output, work.snapshot_id, parent.snapshot_id, manifests)
        summary = Summary(
            operation=Operation.REPLACE,
            **{name: str(count) for name, count in counts.items()},
            **{"changed-partition-count": "0"},
            **_totals(parent),
        )
        now_ms = self._dataset.dated_ms()
        named = _paths(work.groups)
        return prepare(table, branch, parent, work.snapshot_id, listed, summary, now_ms, [path], named)


class _ManifestLayout:
    """The target layout of a table's manifests."""

    def __init__(self, table: Table, time_column: NestedField | None) -> None:
        self._metadata = table.metadata
        self._specs: dict[int, tuple[PartitionSpec, Schema, EntryOrder]] = {}
        for spec_id, spec in table.metadata.specs().items():
            schema = schema_for(table.metadata, spec)
            if schema is not None:
                self._specs[spec_id] = spec, schema, EntryOrder(spec, schema, time_column)
        name, default = (
            TableProperties.MANIFEST_TARGET_SIZE_BYTES,
            TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT,
        )
        self.target_bytes = whole_number(properties_of(table.metadata), name, default)

    def of(self, spec_id: int) -> tuple[PartitionSpec, Schema, EntryOrder]:
        return self._specs[spec_id]

    def plan(self, head: Sequence[ManifestFile]) -> tuple[ManifestPlan, tuple[str, ...]]:
        """Return the plan for these manifests, and which of them are skipped."""
        times = Counter(manifest.manifest_path for manifest in head)
        facts, left = [], []
        for manifest in head:
            reason = self._why_left(manifest, times[manifest.manifest_path])
            if reason is None:
                facts.append(self._facts(manifest))
            else:
                left.append(reason)
        return plan_manifests(facts, self.target_bytes), count_notes(left, of=_LEFT)

    def _why_left(self, manifest: ManifestFile, times: int) -> str | None:
        if manifest.key_metadata is not None:
            return _ENCRYPTED
        if times > 1:
            return _REPEATED
        return None if manifest.partition_spec_id in self._specs else _UNTYPED

    def _facts(self, manifest: ManifestFile) -> Facts:
        _, _, order = self._specs[manifest.partition_spec_id]
        added, existing = manifest.added_files_count, manifest.existing_files_count
        low, high = order.bounds(manifest)
        return Facts(
            path=manifest.manifest_path,
            kind=(manifest.partition_spec_id, ManifestContent(manifest.content).name),
            size_bytes=manifest.manifest_length,
            live=None if added is None or existing is None else added + existing,
            deleted=manifest.deleted_files_count or 0,
            low=low,
            high=high,
        )


def _min_count(metadata: TableMetadata) -> int:
    name, default = (
        TableProperties.MANIFEST_MIN_MERGE_COUNT,
        TableProperties.MANIFEST_MIN_MERGE_COUNT_DEFAULT,
    )
    return whole_number(properties_of(metadata), name, default)


def _paths(groups: Sequence[_Written]) -> Iterator[str]:
    return (manifest.manifest_path for group in groups for manifest in group.new)


def _totals(parent: Snapshot) -> dict[str, str]:
    """Return the parent's totals: rows and files do not change."""
    known = parent.summary.additional_properties if parent.summary is not None else {}
    return {name: value for name, value in known.items() if name.startswith("total-")}
