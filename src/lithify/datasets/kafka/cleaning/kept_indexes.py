"""Indexes of segments, kept for later rounds, so that an unchanged object is read only once.

    index/<partition>/<base offset>-<stamp>.facts, .transactions, -<number>.run   (`segment_stats.py`)

1. The *stamp* is a hash of the object's name, size, time and etag as listed, and of `VERSION`. So an index is
   never used for another object or version.
2. Names and bytes of an index depend on the object alone, so repeated or concurrent writers write the same.
   The facts are written last; without them there is no index.
3. Before that, the object's metadata are checked again: if it was replaced meanwhile, the index would carry
   the old object's stamp.
4. A reader rebuilds an index of which a part is missing, damaged or written under another name (`index_of`,
   `run_of`). Everything read has a checksum.
5. Indexes of objects that are not listed any more are garbage (`garbage.py`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from lithify.base.errors import CorruptObject, ObjectNotFound, Refused, Unsupported
from lithify.datasets.kafka.cleaning.index import Run, entries, ordered, slices
from lithify.datasets.kafka.cleaning.partitioned_arrays import get_parts, put_fenced
from lithify.datasets.kafka.cleaning.retention import NO_BOUND, last_records
from lithify.datasets.kafka.cleaning.segment_stats import (
    FACTS_SUFFIX,
    HEADERS_SUFFIX,
    RUN_SUFFIX,
    SegmentFacts,
    StoredRun,
    get_facts,
    get_transactional,
    no_facts,
    put_facts,
    run_key,
)
from lithify.datasets.kafka.format.chunked_decode import decoded
from lithify.datasets.kafka.format.kernel.keys import ENTRY
from lithify.datasets.kafka.format.kernel.layout import BATCH, CONTROL, TRANSACTIONAL, Records
from lithify.datasets.kafka.format.transactions import Fates
from lithify.datasets.kafka.layouts.contract import ObjectChunk, Segment
from lithify.datasets.kafka.layouts.reading import pieces, whole_bytes
from lithify.datasets.kafka.layouts.segments import is_segment
from lithify.store.keys import join
from lithify.store.objects import ObjectMeta, ObjectStore

VERSION = 2
"""The version of the indexes' content. A change makes every index be rebuilt."""
_SUFFIXES = "|".join(map(re.escape, (FACTS_SUFFIX, HEADERS_SUFFIX)))
_INDEX = re.compile(rf"(.*/[0-9]{{20}}-[0-9a-f]{{32}})(?:{_SUFFIXES}|-[0-9]+{re.escape(RUN_SUFFIX)})")
_MS_PER_S = 1000
Moved = Callable[[int, int], None]
"""Receives the numbers of bytes read and written."""


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """The index of a segment without its runs, which stay in the store."""

    facts: SegmentFacts
    transactional: Records
    """Headers of its transactional and control batches (`BATCH`)."""


def _nothing(read: int, written: int) -> None:
    """Ignore the numbers."""


def index_key(folder: str, segment: Segment) -> str:
    """Return the key, without a suffix, of this object's index; `folder` is its partition's."""
    what = [VERSION, segment.key, segment.size_bytes, segment.modified_ms, segment.etag]
    stamp = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]
    return join(folder, f"{segment.base_offset:020d}-{stamp}")


def is_facts(key: str) -> bool:
    """Return whether this is the key of an index's facts."""
    return key.endswith(FACTS_SUFFIX)


def index_of_object(key: str) -> str | None:
    """Return the key of the index that an object belongs to; `None` if it belongs to none."""
    found = _INDEX.fullmatch(key)
    return None if found is None else found[1]


def index_of(
    source: ObjectStore,
    own: ObjectStore,
    segment: Segment,
    key: str,
    moved: Moved = _nothing,
    *,
    is_newest: bool = False,
) -> SegmentIndex:
    """Return the kept index of a segment, or build it. Only the newest segment may have a torn end.

    Raises `CorruptObject` if the segment is damaged, `Refused` if it was replaced meanwhile.
    """
    try:
        facts = get_facts(own, key)
        if facts.size_bytes != segment.size_bytes and not is_newest:
            raise CorruptObject(segment.key, "was the newest segment, and has a torn end")
        return SegmentIndex(facts, get_transactional(own, key, facts))
    except CorruptObject:  # the index is missing, damaged or another object's
        return _make(source, own, segment, key, moved, is_newest=is_newest)


def run_of(
    source: ObjectStore,
    own: ObjectStore,
    segment: Segment,
    key: str,
    run: StoredRun,
    parts: tuple[int, int],
    moved: Moved,
    *,
    is_newest: bool = False,
) -> Run:
    """Return the parts `parts[0]` to `parts[1] - 1` of a run of this segment's index. Rebuild the index if
    the run is missing or damaged.

    Raises `CorruptObject` and `Refused` like `index_of`.
    """
    try:
        found = get_parts(own, run.key, ENTRY, run.parts, *parts)
    except CorruptObject:  # the run is missing or damaged
        _make(source, own, segment, key, moved, is_newest=is_newest)
        found = get_parts(own, run.key, ENTRY, run.parts, *parts)
    moved(found.nbytes, 0)
    return found


def _make(
    source: ObjectStore, own: ObjectStore, segment: Segment, key: str, moved: Moved, *, is_newest: bool
) -> SegmentIndex:
    try:
        facts, headers = _index(source, own, segment, key, moved)
    except (CorruptObject, Unsupported):
        whole = whole_bytes(source, segment) if is_newest else segment.size_bytes
        if whole == segment.size_bytes:
            raise
        facts, headers = _index(source, own, replace(segment, size_bytes=whole), key, moved)
    _check_same(source, segment)
    moved(0, put_facts(own, key, facts, headers))
    return SegmentIndex(facts, headers)


def _index(
    source: ObjectStore, own: ObjectStore, segment: Segment, key: str, moved: Moved
) -> tuple[SegmentFacts, Records]:
    """Write the runs of a segment, and return its facts and the headers of its transactional batches."""
    facts = replace(no_facts(segment.base_offset), size_bytes=segment.size_bytes)
    transactional = [np.empty(0, BATCH)]
    for piece in pieces(source, segment):
        parts = [np.empty(0, ENTRY)]
        for found, size in decoded([piece], after=facts.end_offset - 1):
            batches, nothing = found.batches, np.zeros(len(found.batches), np.bool_)
            parts.append(entries(found, Fates(nothing, nothing), NO_BOUND))
            moved(size, 0)
            is_control = batches["attributes"] & CONTROL != 0
            unkeyed = len(found.records) - int(batches["count"][is_control].sum()) - len(parts[-1])
            transactional.append(batches[batches["attributes"] & (TRANSACTIONAL | CONTROL) != 0])
            facts = replace(
                facts,
                end_offset=int(batches["last_offset"][-1]) + 1,
                max_timestamp_ms=max(facts.max_timestamp_ms, int(batches["max_timestamp"].max())),
                records=facts.records + len(found.records),
                tombstones=facts.tombstones + int((parts[-1]["flags"] != 0).sum()),
                producers=last_records(batches, facts.producers),
                unkeyed=facts.unkeyed + unkeyed,
            )
        run = ordered(np.concatenate(parts))
        stored = StoredRun(run_key(key, len(facts.runs)), len(run))
        fences = np.array([one.end - 1 for one in slices(stored.parts)], np.uint64)
        ends = np.searchsorted(run["high"], fences, side="right")
        moved(0, put_fenced(own, stored.key, run, ends))
        facts = replace(facts, runs=(*facts.runs, stored))
    return facts, np.concatenate(transactional)


def _check_same(source: ObjectStore, segment: Segment) -> None:
    if isinstance(segment, ObjectChunk):
        if is_segment(segment.key):  # others were compared when they were read, whole
            for one in segment.objects:
                _check_same(source, one)
        return
    try:
        meta = source.head(segment.key)
    except ObjectNotFound:
        meta = None
    if meta is None or not _is_same(segment, meta):
        raise Refused(f"{segment.key}: has changed while it was read; it is planned again")


def _is_same(segment: Segment, meta: ObjectMeta) -> bool:
    """Compare etags; without them whole seconds, since some stores return only these for a single object."""
    if meta.size != segment.size_bytes:
        return False
    if segment.etag is not None and meta.etag is not None:
        return segment.etag == meta.etag
    return segment.modified_ms // _MS_PER_S == meta.last_modified_ms // _MS_PER_S
