"""Random valid values of the SlateDB model, for hypothesis."""

from __future__ import annotations

import uuid
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from lithify.base.ids import Ulid, ulid_from_int
from lithify.datasets.slatedb.format.ledger import SlateCompaction, SlateLedger, SlateProgress
from lithify.datasets.slatedb.model import (
    Checkpoint,
    Codec,
    DrainSpec,
    ExternalDb,
    FilterFormat,
    KeyRange,
    Manifest,
    SortedRun,
    Spec,
    Sst,
    SstInfo,
    SstType,
    TieredSpec,
    Tree,
    View,
)
from lithify.protocol.model import (
    AssignedWorker,
    Compaction,
    CompactionState,
    Ledger,
    Progress,
    RangeProgress,
)

U32_MAX = (1 << 32) - 1
U64_MAX = (1 << 64) - 1
I64_MAX = (1 << 63) - 1

u16s = st.integers(0, (1 << 16) - 1)
u32s = st.sampled_from((0, 1, U32_MAX)) | st.integers(0, U32_MAX)
u64s = st.sampled_from((0, 1, 1 << 32, U64_MAX)) | st.integers(0, U64_MAX)
i64s = st.sampled_from((-I64_MAX - 1, -1, 0, I64_MAX)) | st.integers(-I64_MAX - 1, I64_MAX)
sizes = st.sampled_from((0, 1, 1 << 32)) | st.integers(0, 1 << 50)
"""Of what lies in a file. The official client adds some of them up."""
keys = st.binary(max_size=12)
texts = st.text(max_size=12)
ulids: st.SearchStrategy[Ulid] = st.builds(ulid_from_int, st.integers(0, (1 << 128) - 1))
uuids: st.SearchStrategy[uuid.UUID] = st.builds(
    lambda number: uuid.UUID(int=number), st.integers(0, (1 << 128) - 1)
)


def infos(first: bytes | None, last: bytes | None) -> st.SearchStrategy[SstInfo]:
    """An info for keys from `first` to `last`."""
    return st.builds(
        SstInfo,
        first_entry=st.just(first),
        last_entry=st.just(last),
        index_offset=sizes,
        index_len=sizes,
        filter_offset=sizes,
        filter_len=sizes,
        stats_offset=sizes,
        stats_len=sizes,
        compression=st.sampled_from(Codec),
        sst_type=st.sampled_from(SstType),
        filter_format=st.sampled_from(FilterFormat),
    )


@st.composite
def ssts(draw: st.DrawFn, first: bytes | None = None, last: bytes | None = None) -> Sst:
    """An SST; its last key is unknown if it would be below the first."""
    start = draw(keys) if first is None else first
    end = draw(st.none() | keys) if last is None else last
    info = draw(infos(start, end if end is not None and end >= start else None))
    return Sst(draw(ulids), info, draw(st.sampled_from((1, 2))))


@st.composite
def views(draw: st.DrawFn, sst: Sst) -> View:
    """A view that shows at least one key of the SST."""
    first, last = sst.info.first_entry, sst.info.last_entry
    assert first is not None
    visible = draw(
        st.sampled_from(
            (
                None,
                KeyRange(),
                KeyRange(first, first, end_inclusive=True),
                KeyRange(None, first + b"\0"),
                KeyRange(last if last is not None else first + b"zz"),
            )
        )
    )
    return View(draw(st.just(sst.id) | ulids), sst, visible)


@st.composite
def runs(draw: st.DrawFn, run_id: int) -> SortedRun:
    """A sorted run of SSTs one after another in key order."""
    bounds = sorted(draw(st.lists(keys, max_size=6)))
    pairs = zip(bounds[::2], bounds[1::2], strict=False)
    return SortedRun(run_id, tuple(draw(views(draw(ssts(first, last)))) for first, last in pairs))


@st.composite
def trees(draw: st.DrawFn, prefix: bytes = b"") -> Tree:
    l0 = [draw(views(sst)) for sst in draw(st.lists(ssts(), max_size=3))]
    if draw(st.booleans()) and l0:
        l0.append(draw(views(l0[0].sst)))
    run_ids = sorted(draw(st.sets(u32s, max_size=3)), reverse=True)
    return Tree(prefix, draw(st.none() | ulids), tuple(l0), tuple(draw(runs(run_id)) for run_id in run_ids))


@st.composite
def segments(draw: st.DrawFn) -> tuple[Tree, ...]:
    """Segments none of whose prefixes begins another."""
    length = draw(st.integers(1, 4))
    prefixes = sorted(draw(st.sets(st.binary(min_size=length, max_size=length), max_size=3)))
    return tuple(draw(trees(prefix)) for prefix in prefixes)


checkpoints = st.builds(
    Checkpoint,
    id=uuids,
    manifest_id=u64s,
    expire_time_s=u32s,
    create_time_s=u32s,
    name=st.none() | texts,
)
external_dbs = st.builds(
    ExternalDb,
    path=texts,
    source_checkpoint_id=uuids,
    final_checkpoint_id=st.none() | uuids,
    sst_ids=st.lists(ulids, max_size=3).map(tuple),
)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    segmented = draw(st.booleans())
    value = draw(
        st.builds(
            Manifest,
            initialized=st.booleans(),
            writer_epoch=u64s,
            compactor_epoch=u64s,
            root=st.builds(Tree, last_compacted_l0=st.none() | ulids) if segmented else trees(),
            replay_after_wal_id=u64s,
            # The official client adds one to it.
            wal_id_last_seen=st.integers(0, U64_MAX - 1),
            last_l0_seq=u64s,
            last_l0_clock_tick=i64s,
            recent_snapshot_min_seq=u64s,
            sequence_tracker=st.sampled_from((None, EMPTY_SEQUENCE_TRACKER)),
            checkpoints=st.lists(checkpoints, max_size=3).map(tuple),
            external_dbs=st.lists(external_dbs, max_size=2).map(tuple),
            segments=segments() if segmented else st.just(()),
            segment_extractor_name=texts if segmented else st.none(),
        )
    )
    described = {view.sst for tree in value.trees() for view in tree.views()}
    assume(len(described) == len({sst.id for sst in described}))
    return value


EMPTY_SEQUENCE_TRACKER = b"\x01" + bytes(4) + bytes(8)
"""Version, no entries, and two empty arrays."""

specs: st.SearchStrategy[Spec] = st.builds(
    TieredSpec,
    segment=keys,
    l0_view_ids=st.lists(ulids, max_size=3).map(tuple),
    sorted_runs=st.lists(u32s, max_size=3).map(tuple),
    destination=u32s,
) | st.builds(
    DrainSpec,
    segment=keys,
    l0_view_ids=st.lists(ulids, max_size=3).map(tuple),
    sorted_runs=st.lists(u32s, max_size=3).map(tuple),
)
sst_tuples: Any = st.lists(ssts(), max_size=2).map(tuple)
key_ranges = st.builds(KeyRange, start=st.none() | keys, end=st.none()) | st.builds(
    KeyRange, start=st.none() | keys, end=keys, end_inclusive=st.booleans()
).filter(lambda key_range: not key_range.is_empty)
progresses: st.SearchStrategy[SlateProgress] = st.builds(
    Progress,
    ranges=st.lists(st.builds(RangeProgress, range=key_ranges, outputs=sst_tuples), max_size=3).map(tuple),
    horizon=u64s,
)


@st.composite
def compactions(draw: st.DrawFn, compaction_id: Ulid) -> SlateCompaction:
    state = draw(st.sampled_from(CompactionState))
    unfinished = state in (CompactionState.SUBMITTED, CompactionState.SCHEDULED, CompactionState.RUNNING)
    return Compaction(
        id=compaction_id,
        spec=draw(specs),
        state=state,
        outputs=() if unfinished else draw(sst_tuples),
        worker=draw(st.none() | st.builds(AssignedWorker, texts, u64s)),
        progress=draw(st.none() | progresses),
    )


@st.composite
def ledgers(draw: st.DrawFn) -> SlateLedger:
    ids = sorted(draw(st.sets(ulids, max_size=3)))
    return Ledger(draw(u64s), tuple(draw(compactions(compaction_id)) for compaction_id in ids))
