"""Compactions files: against the official client's, by its judgement on ours, and damaged ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from slatedb.uniffi import Error, InternalError

from lithify.base.errors import CorruptObject, LithifyError, Unsupported
from lithify.base.ids import Ulid, parse_ulid, ulid_from_int, ulid_ms, ulid_to_halves
from lithify.datasets.slatedb.format import ledger as codec
from lithify.datasets.slatedb.format import wire
from lithify.datasets.slatedb.format.flatbuffer import (
    BOOL,
    U8,
    U32,
    U64,
    Ref,
    TableType,
    Union,
    required,
    tables,
    write,
)
from lithify.datasets.slatedb.format.ledger import SlateCompaction, SlateLedger, decode_ledger, encode_ledger
from lithify.datasets.slatedb.model import DrainSpec, KeyRange, Spec, Sst, SstInfo, TieredSpec
from lithify.protocol.model import (
    AssignedWorker,
    Compaction,
    CompactionState,
    Ledger,
    Progress,
    RangeProgress,
)
from tests.datasets.slatedb.judging import official_compactions, plain, same
from tests.datasets.slatedb.values import ledgers
from tests.judge.admin import Admin
from tests.judge.client import Put, open_db
from tests.judge.compactor import compact_officially

NAME = "db/compactions/00000000000000000003.compactions"
VERSION_1, VERSION_2 = b"\0\1", b"\0\2"


def ulid(number: int) -> Ulid:
    return ulid_from_int(1_700_000_000_000 << 80 | number)


def sst(number: int, first: bytes | None = b"a") -> Sst:
    return Sst(ulid(number), SstInfo(first, b"z", 100, 10, 90, 10, 110, 10))


SPEC = TieredSpec(b"", (ulid(2), ulid(1)), (4, 3), 3)
PROGRESS: Progress[KeyRange, Sst] = Progress(
    (RangeProgress(KeyRange(None, b"m"), (sst(5), sst(6))), RangeProgress(KeyRange(b"m"))), 77
)
RUNNING: SlateCompaction = Compaction(
    ulid(10), SPEC, CompactionState.RUNNING, worker=AssignedWorker("me", 123), progress=PROGRESS
)
COMPACTED: SlateCompaction = Compaction(ulid(11), SPEC, CompactionState.COMPACTED, outputs=(sst(7),))


# ------------------------------------------------------------------------------------ round trips


@settings(deadline=None)
@given(ledgers())
def test_a_ledger_reads_back_as_it_was_written(value: SlateLedger) -> None:
    assert decode_ledger(encode_ledger(value), NAME) == value


def expected_spec(spec: Spec) -> dict[str, Any]:
    sources: list[tuple[str, str]] = [("SourceId.SST_VIEW", view) for view in spec.l0_view_ids]
    sources += [("SourceId.SORTED_RUN", str(run)) for run in spec.sorted_runs]
    if isinstance(spec, DrainSpec):
        return {
            "kind": "CompactionSpec.DRAIN_SEGMENT",
            "segment": spec.segment,
            "sources": sources,
            "to": None,
        }
    return {
        "kind": "CompactionSpec.TIERED",
        "segment": spec.segment,
        "sources": sources,
        "to": spec.destination,
    }


def reported_spec(spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": spec[""],
        "segment": spec["segment"],
        "sources": [(source[""], str(source["_values"][0])) for source in spec["sources"]],
        "to": spec.get("destination"),
    }


def assert_reported(reported: Any, value: SlateLedger) -> None:
    """The official client says of a ledger what we hold it to be, as far as it says anything."""
    seen = plain(reported)
    assert seen["compactor_epoch"] == value.epoch
    assert [
        (
            c["id"],
            c["status"],
            reported_spec(c["spec"]),
            [(s["id"]["value"], s["info"]["first_entry"], s["info"]["last_entry"]) for s in c["output_ssts"]],
        )
        for c in seen["recent_compactions"]
    ] == [
        (
            c.id,
            c.state.name,
            expected_spec(c.spec),
            [(s.id, s.info.first_entry, s.info.last_entry) for s in c.outputs],
        )
        for c in value.compactions
    ]


@settings(max_examples=60, deadline=None)
@given(ledgers())
def test_the_official_client_reads_what_was_written(value: SlateLedger) -> None:
    assert_reported(official_compactions(encode_ledger(value)), value)


def test_the_file_of_a_first_epoch() -> None:
    """42 bytes the official client wrote for an empty ledger of epoch 1."""
    data = bytes.fromhex(
        "0002 10000000 0000 0000 0800 1400 0800 0400 08000000 10000000 0100000000000000 00000000 00000000"
    )
    assert decode_ledger(data, NAME) == Ledger(1)
    assert decode_ledger(encode_ledger(Ledger(1)), NAME) == Ledger(1)


def test_ulids_are_two_halves_with_the_time_in_front() -> None:
    value = parse_ulid("01M7XX0DYH21RD4ETECS3XV00P")
    assert ulid_to_halves(value) == (0x01A1FBD037D11070, 0xD23B4E6647DD8016)
    assert wire.decode_ulid(wire.encode_ulid(value)) == value
    assert ulid_ms(value) == 1795226089425


# ---------------------------------------------------------------------- files of the official client


def assert_kept(folder: Path) -> list[SlateLedger]:
    values = []
    for path in sorted((folder / "compactions").iterdir()):
        data = path.read_bytes()
        value = decode_ledger(data, str(path))
        again = encode_ledger(value)
        assert decode_ledger(again, str(path)) == value
        assert_reported(official_compactions(data), value)
        assert same(official_compactions(again), official_compactions(data))
        values.append(value)
    return values


def test_every_file_of_an_official_compaction(tmp_path: Path) -> None:
    with open_db(tmp_path) as db:
        for flush in range(4):
            db.write_batch([Put(b"k%d" % n, b"v%d" % flush) for n in range(50)])
            db.flush()
    compact_officially(tmp_path)
    values = assert_kept(tmp_path)
    states = {c.state for value in values for c in value.compactions}
    assert {
        CompactionState.SCHEDULED,
        CompactionState.RUNNING,
        CompactionState.COMPACTED,
        CompactionState.COMPLETED,
    } <= states
    final = values[-1].compactions[-1]
    assert final.worker is not None
    assert [s.format_version for s in final.outputs] == [2]
    (view_ids,) = {c.spec.l0_view_ids for value in values for c in value.compactions}
    assert len(view_ids) == 4


def test_a_compaction_submitted_by_the_official_client(tmp_path: Path) -> None:
    with open_db(tmp_path, segment_prefix_len=1) as db:
        db.write_batch([Put(b"a1", b"v"), Put(b"b1", b"v")])
        db.flush()
    (tmp_path / "compactions").mkdir(exist_ok=True)
    (tmp_path / "compactions" / f"{1:020}.compactions").write_bytes(encode_ledger(Ledger()))
    admin = Admin(tmp_path)
    view = admin.trees()[1].l0[0].id
    admin.submit_compaction([view], [], 0, segment=b"a")
    (submitted,) = assert_kept(tmp_path)[-1].compactions
    assert submitted.spec == TieredSpec(b"a", (Ulid(view),), (), 0)
    assert submitted.state is CompactionState.SUBMITTED


# ------------------------------------------------------------------- how the official client reads

RECORD = codec._compaction_record(RUNNING)
_TYPE = TableType[Any]


def file_of(*records: Any, version: bytes = VERSION_2, kind: _TYPE = codec._LEDGER) -> bytes:
    return version + write(kind, codec._LedgerRecord(5, records))


def one(data: bytes) -> SlateCompaction:
    (found,) = decode_ledger(data, NAME).compactions
    return found


@pytest.mark.parametrize("status", [6, 11, 127, -1])
def test_an_unknown_state_is_submitted(status: int) -> None:
    data = file_of(RECORD._replace(status=status))
    assert one(data) == replace(RUNNING, state=CompactionState.SUBMITTED)
    assert plain(official_compactions(data))["recent_compactions"][0]["status"] == "SUBMITTED"


@pytest.mark.parametrize(("runs", "destination"), [((), 0), ((7,), 7), ((9, 4), 4)])
def test_version_1_infers_the_destination(runs: tuple[int, ...], destination: int) -> None:
    spec = codec._spec_record(replace(SPEC, sorted_runs=runs, destination=99))
    data = file_of(RECORD._replace(spec=spec), version=VERSION_1)
    assert one(data).spec == replace(SPEC, sorted_runs=runs, destination=destination)
    assert_reported(official_compactions(data), decode_ledger(data, NAME))


def test_old_sst_ids_count_only_without_view_ids() -> None:
    assert isinstance(RECORD.spec, codec._TieredRecord)
    old = (wire.encode_ulid(ulid(8)),)
    both = file_of(RECORD._replace(spec=RECORD.spec._replace(ssts=old)))
    alone = file_of(RECORD._replace(spec=RECORD.spec._replace(ssts=old, l0_view_ids=None)))
    empty = file_of(RECORD._replace(spec=RECORD.spec._replace(ssts=old, l0_view_ids=())))
    for data, ids in ((both, SPEC.l0_view_ids), (alone, (ulid(8),)), (empty, ())):
        assert one(data).spec == replace(SPEC, l0_view_ids=ids)
        assert_reported(official_compactions(data), decode_ledger(data, NAME))


def test_a_spec_without_segment_is_of_the_root() -> None:
    assert isinstance(RECORD.spec, codec._TieredRecord)
    assert one(file_of(RECORD._replace(spec=RECORD.spec._replace(segment=None)))).spec == SPEC


@pytest.mark.parametrize("state", CompactionState)
def test_outputs_of_unfinished_compactions_are_dropped(state: CompactionState) -> None:
    record = codec._compaction_record(COMPACTED)._replace(status=codec._STATE_NUMBERS[state])
    data = file_of(record)
    unfinished = state in (CompactionState.SUBMITTED, CompactionState.SCHEDULED, CompactionState.RUNNING)
    assert one(data).outputs == (() if unfinished else COMPACTED.outputs)
    assert_reported(official_compactions(data), decode_ledger(data, NAME))


def test_a_worker_without_id_is_none() -> None:
    assert one(file_of(RECORD._replace(worker=codec._WorkerRecord(None, 5)))) == replace(RUNNING, worker=None)
    nameless = AssignedWorker("", 5)
    assert one(file_of(RECORD._replace(worker=codec._WorkerRecord("", 5)))) == replace(
        RUNNING, worker=nameless
    )


def test_entries_come_in_the_order_of_their_ids() -> None:
    first, second = codec._compaction_record(RUNNING), codec._compaction_record(COMPACTED)
    assert decode_ledger(file_of(second, first), NAME).compactions == (RUNNING, COMPACTED)


def test_progress_without_ranges_keeps_its_horizon() -> None:
    early = replace(RUNNING, progress=Progress((), 9))
    assert one(encode_ledger(Ledger(1, (early,)))) == early


# -------------------------------------------------------------------------------------------- damage


class _Alien(NamedTuple):
    value: int


ALIEN = TableType("Alien", _Alien, (U32,))


def with_alien(slot: int, number: int) -> bytes:
    """A file whose union at `slot` has member `number`, of a type nobody knows."""
    slots = list(codec._COMPACTION.slots)
    slots[slot] = Union({number: ALIEN})
    compaction = TableType("Compaction", codec._CompactionRecord, tuple(slots))
    kind = TableType("CompactionsV1", codec._LedgerRecord, (U64, tables(compaction)))
    number_field, value_field = codec._COMPACTION.names[slot - 1 : slot + 1]
    strange: dict[str, Any] = {number_field: number, value_field: _Alien(1)}
    return file_of(RECORD._replace(**strange), kind=kind)


def output(**fields: Any) -> bytes:
    record = codec._compaction_record(COMPACTED)
    assert record.output_ssts is not None
    return file_of(record._replace(output_ssts=(record.output_ssts[0]._replace(**fields),)))


def ranged(start: wire.BoundRecord, end: wire.BoundRecord) -> bytes:
    assert RECORD.ctx is not None
    part = codec._SubcompactionRecord(wire.RangeRecord(start, end), None)
    return file_of(RECORD._replace(ctx=RECORD.ctx._replace(subcompactions=(part,))))


GOOD = encode_ledger(Ledger(5, (RUNNING, COMPACTED)))
NOTHING = wire.BoundRecord(None, 1)


@pytest.mark.parametrize(
    ("data", "error", "reason"),
    [
        pytest.param(b"", CorruptObject, "no format version", id="empty"),
        pytest.param(
            b"\0\x09" + GOOD[2:], Unsupported, "version 9 is not known: a SlateDB newer", id="version 9"
        ),
        pytest.param(b"\0\0" + GOOD[2:], CorruptObject, "no SlateDB has written", id="version 0"),
        pytest.param(VERSION_2, CorruptObject, "too short", id="version alone"),
        pytest.param(GOOD[:-30], CorruptObject, "beyond|outside|impossible", id="truncated"),
        pytest.param(VERSION_2 + bytes(range(1, 200)), CorruptObject, "outside|aligned", id="random"),
        pytest.param(with_alien(2, 3), Unsupported, r"Compaction\.spec has member 3", id="unknown spec"),
        pytest.param(with_alien(7, 2), Unsupported, r"Compaction\.ctx has member 2", id="unknown context"),
        pytest.param(
            output(info=wire.encode_info(sst(7).info)._replace(sst_type=9)),
            Unsupported,
            "SST type 9",
            id="SST type",
        ),
        pytest.param(
            ranged(wire.BoundRecord(b"l", 1), NOTHING), CorruptObject, "type 1 with a key", id="bound"
        ),
    ],
)
def test_damage_the_official_client_refuses(data: bytes, error: type[LithifyError], reason: str) -> None:
    with pytest.raises(error, match=reason) as caught:
        decode_ledger(data, NAME)
    assert NAME in str(caught.value)
    with pytest.raises((Error, InternalError)):
        official_compactions(data)


@pytest.mark.parametrize(
    ("data", "error", "reason"),
    [
        pytest.param(
            output(info=wire.encode_info(sst(7, None).info)),
            CorruptObject,
            "has no first key",
            id="no first key",
        ),
        pytest.param(output(format_version=7), Unsupported, "format version 7", id="SST format 7"),
        pytest.param(
            output(visible_range=wire.encode_range(KeyRange())),
            Unsupported,
            "visible range",
            id="visible range",
        ),
        pytest.param(
            ranged(wire.BoundRecord(b"l", 3), NOTHING), CorruptObject, "excludes its start", id="start"
        ),
        pytest.param(file_of(RECORD, RECORD), CorruptObject, "the same id", id="same id"),
    ],
)
def test_what_would_be_lost_or_misread_is_refused(
    data: bytes, error: type[LithifyError], reason: str
) -> None:
    """The official client reads these, or stumbles over them only later."""
    with pytest.raises(error, match=reason) as caught:
        decode_ledger(data, NAME)
    assert NAME in str(caught.value)


def test_the_list_of_compactions_is_required() -> None:
    required = codec._LEDGER.slots[1]
    assert isinstance(required, Ref)
    lenient = TableType(
        "CompactionsV1", codec._LedgerRecord, (codec._LEDGER.slots[0], replace(required, required=False))
    )
    data = VERSION_2 + write(lenient, codec._LedgerRecord(1, None))  # type: ignore[arg-type]  # on purpose
    with pytest.raises(CorruptObject, match=r"required field CompactionsV1\.recent_compactions"):
        decode_ledger(data, NAME)
    with pytest.raises((Error, InternalError)):
        official_compactions(data)


@pytest.mark.parametrize("is_complete", [False, True])
def test_a_range_with_the_flag_of_a_slatedb_to_come(is_complete: bool) -> None:
    """RFC-0035 marks complete ranges by a third field. A flag that is not set is absent, and nothing is lost;
    one that is set would be."""

    class Range(NamedTuple):
        range: wire.RangeRecord
        output_ssts: tuple[wire.SstRecord, ...] | None
        is_complete: int

    part = TableType("Subcompaction", Range, (*codec._SUBCOMPACTION.slots, BOOL))
    context = TableType("TieredCompactionContext", codec._ContextRecord, (tables(part), U64))
    slots = (*codec._COMPACTION.slots[:-1], Union({codec._TIERED_CONTEXT: context}))
    compaction = TableType("Compaction", codec._CompactionRecord, slots)
    ledger = TableType("CompactionsV1", codec._LedgerRecord, (U64, required(tables(compaction))))
    assert RECORD.ctx is not None
    ranges: Any = tuple(Range(*one, int(is_complete)) for one in RECORD.ctx.subcompactions or ())
    record = RECORD._replace(ctx=RECORD.ctx._replace(subcompactions=ranges))
    data = VERSION_2 + write(ledger, codec._LedgerRecord(5, (record,)))
    if is_complete:
        with pytest.raises(Unsupported, match=r"Subcompaction has a field in slot 2.*upgrade Lithify"):
            decode_ledger(data, NAME)
    else:
        assert decode_ledger(data, NAME).compactions[0].progress == RUNNING.progress


def test_a_newer_writers_field_is_refused() -> None:
    class Newer(NamedTuple):
        compactor_epoch: int
        recent_compactions: tuple[Any, ...]
        novelty: int

    newer = TableType("CompactionsV1", Newer, (*codec._LEDGER.slots, U8))
    with pytest.raises(Unsupported, match=f"{NAME}: table CompactionsV1 has a field in slot 2"):
        decode_ledger(VERSION_2 + write(newer, Newer(1, (), 1)), NAME)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Ledger(1, (COMPACTED, RUNNING)), "ascending order"),
        (Ledger(1, (RUNNING, RUNNING)), "ascending order"),
        (Ledger(1, (replace(COMPACTED, state=CompactionState.RUNNING),)), "is running and has outputs"),
        (Ledger(1, (replace(RUNNING, progress=Progress(())),)), "needs its snapshot horizon"),
        (Ledger(1, (replace(COMPACTED, outputs=(sst(7, None),)),)), "no first key"),
        (Ledger(1, (replace(COMPACTED, outputs=(replace(sst(7), format_version=0),)),)), "format version 0"),
        (Ledger(1, (replace(RUNNING, spec=replace(SPEC, destination=1 << 32)),)), "destination"),
        (Ledger(1, (replace(RUNNING, spec=replace(SPEC, sorted_runs=(-1,))),)), "vector element"),
        (
            Ledger(1, (replace(RUNNING, progress=Progress((RangeProgress(KeyRange(b"a", b"a")),), 1)),)),
            "holds no key",
        ),
        (Ledger(-1), "compactor_epoch"),
    ],
)
def test_nothing_bad_is_written(value: SlateLedger, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        encode_ledger(value)
