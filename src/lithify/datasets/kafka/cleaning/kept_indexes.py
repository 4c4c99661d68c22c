"""Indexes of segments, kept for the rounds to come: an object that has not changed is read once.

    index/<partition>/<base offset>-<stamp>.facts, .transactions, -<number>.run   (`facts.py`)

1. The *stamp* is a hash of the object's name, size, time and etag as they were listed, and of what an index
   is in this version. So an index is of one very object, and another object is never taken for it.
2. What is written has a name and bytes that depend on the object alone: whoever makes the same index, twice
   or at once, writes the same. Facts come last; without them there is no index.
3. Before the facts are written the object is asked for once more: had it been replaced while it was read,
   its index would stand under another's stamp.
4. Nothing here has to be there. What is missing, damaged or was written under another name is made anew from
   the object, by whoever needs it (`index_of`, `run_of`). Checksums are of all that is read.
5. Indexes of objects that are not listed any more are garbage (`garbage.py`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from lithify.base.errors import CorruptObject, ObjectNotFound, Refused
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
from lithify.datasets.kafka.layouts.reading import pieces
from lithify.store.keys import join
from lithify.store.objects import ObjectMeta, ObjectStore

VERSION = 1
"""Of what an index says of a segment: another one makes all of them anew."""
_SUFFIXES = "|".join(map(re.escape, (FACTS_SUFFIX, HEADERS_SUFFIX)))
_INDEX = re.compile(rf"(.*/[0-9]{{20}}-[0-9a-f]{{32}})(?:{_SUFFIXES}|-[0-9]+{re.escape(RUN_SUFFIX)})")
_MS_PER_S = 1000
Moved = Callable[[int, int], None]
"""Told how many bytes were read and written."""


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """What is known of a segment besides its runs, which stay in the store."""

    facts: SegmentFacts
    transactional: Records
    """Headers of its transactional and control batches (`BATCH`)."""


def _nothing(read: int, written: int) -> None:
    """Nobody asks how many bytes moved."""


def index_key(folder: str, segment: Segment) -> str:
    """Key, without a suffix, of the index of this very object; `folder` is of its partition."""
    what = [VERSION, segment.key, segment.size_bytes, segment.modified_ms, segment.etag]
    stamp = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]
    return join(folder, f"{segment.base_offset:020d}-{stamp}")


def is_facts(key: str) -> bool:
    """Whether an object says that there is an index."""
    return key.endswith(FACTS_SUFFIX)


def index_of_object(key: str) -> str | None:
    """The key of the index that an object belongs to; `None` for what is none of an index."""
    found = _INDEX.fullmatch(key)
    return None if found is None else found[1]


def index_of(
    source: ObjectStore, own: ObjectStore, segment: Segment, key: str, moved: Moved = _nothing
) -> SegmentIndex:
    """The index of a segment: the one that was kept, or a new one.

    Raises `CorruptObject` for a damaged segment, `Refused` for one that is another object by now.
    """
    try:
        facts = get_facts(own, key)
        return SegmentIndex(facts, get_transactional(own, key, facts))
    except CorruptObject:  # of the index: it is missing, damaged, or another's
        return _make(source, own, segment, key, moved)


def run_of(
    source: ObjectStore,
    own: ObjectStore,
    segment: Segment,
    key: str,
    run: StoredRun,
    parts: tuple[int, int],
    moved: Moved,
) -> Run:
    """The parts from the first of `parts` up to, and without, the last of a run of this segment's index. If
    it is not what was written, the index is made anew.

    Raises `CorruptObject` for a damaged segment, `Refused` for one that is another object by now.
    """
    try:
        found = get_parts(own, run.key, ENTRY, run.parts, *parts)
    except CorruptObject:  # of the run
        _make(source, own, segment, key, moved)
        found = get_parts(own, run.key, ENTRY, run.parts, *parts)
    moved(found.nbytes, 0)
    return found


def _make(source: ObjectStore, own: ObjectStore, segment: Segment, key: str, moved: Moved) -> SegmentIndex:
    """Read a segment, checking everything, a piece at a time."""
    facts = replace(no_facts(segment.base_offset), size_bytes=segment.size_bytes)
    transactional = [np.empty(0, BATCH)]
    for piece in pieces(source, segment):
        parts = [np.empty(0, ENTRY)]
        for found, size in decoded([piece], after=facts.end_offset - 1):
            batches, nothing = found.batches, np.zeros(len(found.batches), np.bool_)
            parts.append(entries(found, Fates(nothing, nothing), NO_BOUND))
            moved(size, 0)
            transactional.append(batches[batches["attributes"] & (TRANSACTIONAL | CONTROL) != 0])
            facts = replace(
                facts,
                end_offset=int(batches["last_offset"][-1]) + 1,
                max_timestamp_ms=max(facts.max_timestamp_ms, int(batches["max_timestamp"].max())),
                records=facts.records + len(found.records),
                tombstones=facts.tombstones + int((parts[-1]["flags"] != 0).sum()),
                producers=last_records(batches, facts.producers),
            )
        run = ordered(np.concatenate(parts))
        stored = StoredRun(run_key(key, len(facts.runs)), len(run))
        fences = np.array([one.end - 1 for one in slices(stored.parts)], np.uint64)
        ends = np.searchsorted(run["high"], fences, side="right")
        moved(0, put_fenced(own, stored.key, run, ends))
        facts = replace(facts, runs=(*facts.runs, stored))
    _check_same(source, segment)
    headers = np.concatenate(transactional)
    moved(0, put_facts(own, key, facts, headers))
    return SegmentIndex(facts, headers)


def _check_same(source: ObjectStore, segment: Segment) -> None:
    if isinstance(segment, ObjectChunk):  # each object was compared while it was read, whole as it was
        return
    try:
        meta = source.head(segment.key)
    except ObjectNotFound:
        meta = None
    if meta is None or not _is_same(segment, meta):
        raise Refused(f"{segment.key}: has changed while it was read; it is planned anew")


def _is_same(segment: Segment, meta: ObjectMeta) -> bool:
    """By its etag; where a store lists none, by its time, which some stores tell in whole seconds if asked
    for one object."""
    if meta.size != segment.size_bytes:
        return False
    if segment.etag is not None and meta.etag is not None:
        return segment.etag == meta.etag
    return segment.modified_ms // _MS_PER_S == meta.last_modified_ms // _MS_PER_S
