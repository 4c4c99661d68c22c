"""SlateDB's compactions file: bytes to ledger and back (SlateDB format: `.compactions`).

A file is a big-endian `u16` version and a FlatBuffer. Versions 1 and 2 are read, 2 is written; the table is
the same in both. Reading follows the official client where the file is ambiguous:

1. An unknown state is Submitted: it will be validated again.
2. Version 1 does not record a destination; it is the lowest of the source runs, or 0.
3. The sources of an old tiered spec are SST ids; they count as view ids if there are no view ids.
4. Outputs of a compaction that is Submitted, Scheduled or Running are dropped: they are left-overs of old
   clients, and partial outputs are recorded in the progress.
5. A worker without an id is read as no worker.

A file with an unknown kind of spec or of progress is refused as a whole. Entries are kept ascending by id.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from lithify.base.errors import CorruptObject, Unsupported
from lithify.base.ids import Ulid
from lithify.datasets.slatedb.format import wire
from lithify.datasets.slatedb.format.flatbuffer import (
    BYTES,
    I8,
    STRING,
    U8,
    U32,
    U32S,
    U64,
    TableType,
    Union,
    read,
    required,
    table,
    tables,
    write,
)
from lithify.datasets.slatedb.model import DrainSpec, KeyRange, Spec, Sst, TieredSpec
from lithify.protocol.model import (
    AssignedWorker,
    Compaction,
    CompactionState,
    Ledger,
    Progress,
    RangeProgress,
)

SlateLedger = Ledger[Spec, KeyRange, Sst]
SlateCompaction = Compaction[Spec, KeyRange, Sst]
SlateProgress = Progress[KeyRange, Sst]

WRITTEN_VERSION = 2
READ_VERSIONS = (1, 2)

_VERSION = struct.Struct(">H")
_TIERED = 1
_DRAIN = 2
_TIERED_CONTEXT = 1
_STATES = {
    0: CompactionState.SUBMITTED,
    1: CompactionState.RUNNING,
    2: CompactionState.COMPLETED,
    3: CompactionState.FAILED,
    4: CompactionState.COMPACTED,
    5: CompactionState.SCHEDULED,
}
_STATE_NUMBERS = {state: number for number, state in _STATES.items()}
_STATES_WITHOUT_OUTPUTS = (CompactionState.SUBMITTED, CompactionState.SCHEDULED, CompactionState.RUNNING)


class _TieredRecord(NamedTuple):
    ssts: tuple[wire.Halves, ...] | None
    sorted_runs: tuple[int, ...] | None
    l0_view_ids: tuple[wire.Halves, ...] | None
    segment: bytes | None
    destination: int


class _DrainRecord(NamedTuple):
    segment: bytes
    l0_view_ids: tuple[wire.Halves, ...] | None
    sorted_runs: tuple[int, ...] | None


class _WorkerRecord(NamedTuple):
    worker_id: str | None
    last_heartbeat_ms: int


class _SubcompactionRecord(NamedTuple):
    range: wire.RangeRecord
    output_ssts: tuple[wire.SstRecord, ...] | None


class _ContextRecord(NamedTuple):
    subcompactions: tuple[_SubcompactionRecord, ...] | None
    retention_min_seq: int


class _CompactionRecord(NamedTuple):
    id: wire.Halves
    spec_type: int
    spec: _TieredRecord | _DrainRecord
    status: int
    output_ssts: tuple[wire.SstRecord, ...] | None
    worker: _WorkerRecord | None
    ctx_type: int
    ctx: _ContextRecord | None


class _LedgerRecord(NamedTuple):
    compactor_epoch: int
    recent_compactions: tuple[_CompactionRecord, ...]


_SPEC_TIERED = TableType(
    "TieredCompactionSpec", _TieredRecord, (tables(wire.ULID), U32S, tables(wire.ULID), BYTES, U32)
)
_SPEC_DRAIN = TableType("DrainSegmentSpec", _DrainRecord, (required(BYTES), tables(wire.ULID), U32S))
_WORKER = TableType("WorkerSpec", _WorkerRecord, (STRING, U64))
_SUBCOMPACTION = TableType(
    "Subcompaction", _SubcompactionRecord, (required(table(wire.BYTES_RANGE)), tables(wire.COMPACTED_SST))
)
_CONTEXT = TableType("TieredCompactionContext", _ContextRecord, (tables(_SUBCOMPACTION), U64))
_COMPACTION = TableType(
    "Compaction",
    _CompactionRecord,
    (
        required(table(wire.ULID)),
        U8,
        Union({_TIERED: _SPEC_TIERED, _DRAIN: _SPEC_DRAIN}, required=True),
        I8,
        tables(wire.COMPACTED_SST),
        table(_WORKER),
        U8,
        Union({_TIERED_CONTEXT: _CONTEXT}),
    ),
)
_LEDGER = TableType("CompactionsV1", _LedgerRecord, (U64, required(tables(_COMPACTION))))


def decode_ledger(data: bytes, name: str) -> SlateLedger:
    """Return the value of a compactions file. `name` is the object named in errors."""
    if len(data) < _VERSION.size:
        raise CorruptObject(name, f"a compactions file of {len(data)} bytes has no format version")
    (version,) = _VERSION.unpack_from(data)
    if version not in READ_VERSIONS:
        raise wire.unknown_version(name, "compactions", version, READ_VERSIONS)
    record = read(data[_VERSION.size :], _LEDGER, name)
    compactions = sorted(
        (_decode_compaction(entry, version, name) for entry in record.recent_compactions), key=lambda c: c.id
    )
    if len({c.id for c in compactions}) != len(compactions):
        raise CorruptObject(name, "two compactions have the same id")
    return Ledger(record.compactor_epoch, tuple(compactions))


def encode_ledger(ledger: SlateLedger) -> bytes:
    """Return the file of a ledger, in version 2. Raise `ValueError` for a ledger that would not be read back
    unchanged."""
    ids = [c.id for c in ledger.compactions]
    if ids != sorted(set(ids)):
        raise ValueError(f"compactions are not in ascending order of distinct ids: {ids}")
    record = _LedgerRecord(ledger.epoch, tuple(map(_compaction_record, ledger.compactions)))
    return _VERSION.pack(WRITTEN_VERSION) + write(_LEDGER, record)


# -------------------------------------------------------------------------------------- reading


def _decode_compaction(record: _CompactionRecord, version: int, name: str) -> SlateCompaction:
    state = _STATES.get(record.status, CompactionState.SUBMITTED)
    outputs = () if state in _STATES_WITHOUT_OUTPUTS else record.output_ssts or ()
    worker = record.worker
    return Compaction(
        id=wire.decode_ulid(record.id),
        spec=_decode_spec(record.spec, version),
        state=state,
        outputs=_decode_outputs(outputs, name),
        worker=None
        if worker is None or worker.worker_id is None
        else AssignedWorker(worker.worker_id, worker.last_heartbeat_ms),
        progress=None if record.ctx is None else _decode_progress(record.ctx, name),
    )


def _decode_spec(record: _TieredRecord | _DrainRecord, version: int) -> Spec:
    runs = record.sorted_runs or ()
    if isinstance(record, _DrainRecord):
        return DrainSpec(record.segment, _decode_ulids(record.l0_view_ids), runs)
    views = record.ssts if record.l0_view_ids is None else record.l0_view_ids
    return TieredSpec(
        segment=record.segment or b"",
        l0_view_ids=_decode_ulids(views),
        sorted_runs=runs,
        destination=min(runs, default=0) if version == 1 else record.destination,
    )


def _decode_ulids(records: tuple[wire.Halves, ...] | None) -> tuple[Ulid, ...]:
    return tuple(map(wire.decode_ulid, records or ()))


def _decode_outputs(records: tuple[wire.SstRecord, ...], name: str) -> tuple[Sst, ...]:
    outputs = []
    for record in records:
        sst = wire.decode_sst(record.id, record.info, record.format_version, name)
        if record.visible_range is not None:
            raise Unsupported(f"{name}: output {sst.id} of a compaction has a visible range")
        outputs.append(sst)
    return tuple(outputs)


def _decode_progress(record: _ContextRecord, name: str) -> SlateProgress:
    ranges = tuple(
        RangeProgress(wire.decode_range(sub.range, name), _decode_outputs(sub.output_ssts or (), name))
        for sub in record.subcompactions or ()
    )
    return Progress(ranges, record.retention_min_seq)


# -------------------------------------------------------------------------------------- writing


def _compaction_record(compaction: SlateCompaction) -> _CompactionRecord:
    if compaction.outputs and compaction.state in _STATES_WITHOUT_OUTPUTS:
        raise ValueError(f"compaction {compaction.id} is {compaction.state.value} and has outputs")
    worker, progress = compaction.worker, compaction.progress
    return _CompactionRecord(
        id=wire.encode_ulid(compaction.id),
        spec_type=_TIERED if isinstance(compaction.spec, TieredSpec) else _DRAIN,
        spec=_spec_record(compaction.spec),
        status=_STATE_NUMBERS[compaction.state],
        output_ssts=tuple(map(wire.encode_sst, compaction.outputs)),
        worker=None if worker is None else _WorkerRecord(worker.id, worker.last_heartbeat_ms),
        ctx_type=0 if progress is None else _TIERED_CONTEXT,
        ctx=None if progress is None else _context_record(progress),
    )


def _spec_record(spec: Spec) -> _TieredRecord | _DrainRecord:
    views: Any = tuple(map(wire.encode_ulid, spec.l0_view_ids)) or None
    runs = spec.sorted_runs or None
    if isinstance(spec, DrainSpec):
        return _DrainRecord(spec.segment, views, runs)
    return _TieredRecord(None, runs, views, spec.segment, spec.destination)


def _context_record(progress: SlateProgress) -> _ContextRecord:
    if progress.horizon is None:
        raise ValueError("the progress of a SlateDB compaction needs its snapshot horizon")
    subcompactions = tuple(
        _SubcompactionRecord(wire.encode_range(part.range), tuple(map(wire.encode_sst, part.outputs)) or None)
        for part in progress.ranges
    )
    return _ContextRecord(subcompactions or None, progress.horizon)
