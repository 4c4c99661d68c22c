"""Manifests: against files of the official client, by its judgement on ours, and damaged ones."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from slatedb.uniffi import Error, InternalError

from lithify.base.errors import CorruptObject, LithifyError, Unsupported
from lithify.base.ids import Ulid, ulid_from_int
from lithify.datasets.slatedb.format import manifest as codec
from lithify.datasets.slatedb.format import wire
from lithify.datasets.slatedb.format.flatbuffer import Ref, TableType, write
from lithify.datasets.slatedb.format.manifest import decode_manifest, encode_manifest
from lithify.datasets.slatedb.model import (
    I64_MIN,
    Checkpoint,
    Codec,
    ExternalDb,
    KeyRange,
    Manifest,
    SortedRun,
    Sst,
    SstInfo,
    Tree,
    View,
)
from tests.datasets.slatedb.judging import official_manifest, plain, same
from tests.datasets.slatedb.values import EMPTY_SEQUENCE_TRACKER, U64_MAX, manifests
from tests.judge.admin import Admin, CloneSource
from tests.judge.client import Delete, Put, open_db
from tests.judge.compactor import compact_officially

NAME = "db/manifest/00000000000000000007.manifest"
VERSION_1, VERSION_2 = b"\0\1", b"\0\2"


def ulid(number: int) -> Ulid:
    return ulid_from_int(1_700_000_000_000 << 80 | number)


def sst(number: int, first: bytes | None = b"a", last: bytes | None = b"z") -> Sst:
    return Sst(ulid(number), SstInfo(first, last, 100, 10, 90, 10, 110, 10))


def view(number: int, first: bytes = b"a", last: bytes | None = b"z") -> View:
    return View(ulid(number), sst(number, first, last))


def manifest(*l0: View, **fields: Any) -> Manifest:
    return Manifest(True, 3, 2, Tree(l0=l0), **fields)


# ------------------------------------------------------------------------------------ round trips


@settings(deadline=None)
@given(manifests())
def test_a_manifest_reads_back_as_it_was_written(value: Manifest) -> None:
    assert decode_manifest(encode_manifest(value), NAME) == value


def expected_view(value: View) -> dict[str, Any]:
    info, visible = value.sst.info, value.visible_range
    return {
        "id": value.id,
        "sst_id": value.sst.id,
        "first_entry": info.first_entry,
        "last_entry": info.last_entry,
        "index": (info.index_offset, info.index_len),
        "filter": (info.filter_offset, info.filter_len, info.filter_format.name),
        "stats": (info.stats_offset, info.stats_len),
        "compression": None if info.compression is Codec.NONE else info.compression.name,
        "sst_type": info.sst_type.name,
        "visible": None if visible is None else (visible.start, visible.end, visible.end_inclusive),
    }


def reported_view(value: dict[str, Any]) -> dict[str, Any]:
    info, visible = value["sst"]["info"], value["visible_range"]
    return {
        "id": value["id"],
        "sst_id": value["sst"]["id"]["value"],
        "first_entry": info["first_entry"],
        "last_entry": info["last_entry"],
        "index": (info["index_offset"], info["index_len"]),
        "filter": (info["filter_offset"], info["filter_len"], info["filter_format"]),
        "stats": (info["stats_offset"], info["stats_len"]),
        "compression": info["compression_codec"],
        "sst_type": info["sst_type"],
        "visible": None if visible is None else (visible["start"], visible["end"], visible["end_inclusive"]),
    }


def expected_tree(tree: Tree) -> dict[str, Any]:
    return {
        "marker": tree.last_compacted_l0,
        "l0": [expected_view(v) for v in tree.l0],
        "runs": [(run.id, [expected_view(v) for v in run.views]) for run in tree.runs],
    }


def reported_tree(value: dict[str, Any]) -> dict[str, Any]:
    return {
        "marker": value["last_compacted_l0_sst_view_id"],
        "l0": [reported_view(v) for v in value["l0"]],
        "runs": [(run["id"], [reported_view(v) for v in run["sst_views"]]) for run in value["compacted"]],
    }


def assert_reported(reported: Any, value: Manifest) -> None:
    """The official client says of a manifest what we hold it to be."""
    seen = plain(reported)
    assert reported_tree(seen) == expected_tree(value.root)
    assert [(s["prefix"], reported_tree(s)) for s in seen["segments"]] == [
        (tree.prefix, expected_tree(tree)) for tree in value.segments
    ]
    assert seen["initialized"] == value.initialized
    assert seen["writer_epoch"] == value.writer_epoch
    assert seen["compactor_epoch"] == value.compactor_epoch
    assert seen["next_wal_sst_id"] == value.wal_id_last_seen + 1
    assert seen["replay_after_wal_id"] == value.replay_after_wal_id
    assert seen["last_l0_clock_tick"] == value.last_l0_clock_tick
    assert seen["last_l0_seq"] == value.last_l0_seq
    assert seen["recent_snapshot_min_seq"] == value.recent_snapshot_min_seq
    assert [
        (c["id"], c["manifest_id"], c["expire_time_secs"] or 0, c["create_time_secs"], c["name"])
        for c in seen["checkpoints"]
    ] == [(str(c.id), c.manifest_id, c.expire_time_s, c.create_time_s, c.name) for c in value.checkpoints]
    assert [
        (
            external["path"],
            external["source_checkpoint_id"],
            external["final_checkpoint_id"],
            [sst_id["value"] for sst_id in external["sst_ids"]],
        )
        for external in seen["external_dbs"]
    ] == [
        (
            external.path,
            str(external.source_checkpoint_id),
            None if external.final_checkpoint_id is None else str(external.final_checkpoint_id),
            list(external.sst_ids),
        )
        for external in value.external_dbs
    ]


@settings(max_examples=60, deadline=None)
@given(manifests())
def test_the_official_client_reads_what_was_written(value: Manifest) -> None:
    assert_reported(official_manifest(encode_manifest(value)), value)


@pytest.mark.parametrize("number", [0, 1, U64_MAX])
def test_numbers_keep_all_their_bits(number: int) -> None:
    value = replace(
        manifest(view(1), last_l0_clock_tick=I64_MIN, last_l0_seq=number),
        writer_epoch=number,
        compactor_epoch=number,
        recent_snapshot_min_seq=number,
        replay_after_wal_id=number,
    )
    assert decode_manifest(encode_manifest(value), NAME) == value


# ---------------------------------------------------------------------- files of the official client


def manifest_files(folder: Path) -> list[Path]:
    return sorted((folder / "manifest").iterdir())


def assert_kept(folder: Path) -> list[Manifest]:
    """Every manifest of a database decodes to what the official client says, and encoding it again
    changes nothing that the official client can see."""
    values = []
    for path in manifest_files(folder):
        data = path.read_bytes()
        value = decode_manifest(data, str(path))
        again = encode_manifest(value)
        assert decode_manifest(again, str(path)) == value
        assert_reported(official_manifest(data), value)
        assert same(official_manifest(again), official_manifest(data))
        values.append(value)
    return values


def test_a_compacted_database_with_a_checkpoint(tmp_path: Path) -> None:
    with open_db(tmp_path, settings={"compression_codec": "Zstd"}) as db:
        for flush in range(4):
            db.write_batch([Put(b"k%d" % n, b"v%d" % flush) for n in range(50)])
            db.flush()
    Admin(tmp_path).create_checkpoint(name="kept")
    compact_officially(tmp_path)
    values = assert_kept(tmp_path)
    last = values[-1]
    assert [len(run.views) for run in last.root.runs] == [1]
    assert last.root.l0 == ()
    assert last.root.last_compacted_l0 is not None
    assert {c.name for c in last.checkpoints} == {None, "kept"}
    assert last.sequence_tracker is not None
    assert {v.sst.format_version for v in last.root.views()} == {2}


def test_a_database_with_segments(tmp_path: Path) -> None:
    with open_db(tmp_path, segment_prefix_len=2) as db:
        db.write_batch([Put(b"%02d-%d" % (n % 3, n), b"v") for n in range(30)])
        db.write_batch([Delete(b"00-0")])
        db.flush()
    last = assert_kept(tmp_path)[-1]
    assert [tree.prefix for tree in last.segments] == [b"00", b"01", b"02"]
    assert last.segment_extractor_name == "fixed-2"
    assert last.tree(b"01") is last.segments[1]


def test_a_clone_with_a_projection(tmp_path: Path) -> None:
    parent, child = tmp_path / "parent", tmp_path / "child"
    with open_db(parent, settings={"wal_enabled": False}) as db:
        db.write_batch([Put(b"k%03d" % n, b"v") for n in range(100)])
        db.flush()
    Admin(child).clone_from(CloneSource(parent, start=b"k010", end=b"k020"))
    last = assert_kept(child)[-1]
    (only,) = last.root.l0
    assert only.visible_range == KeyRange(b"k010", b"k020")
    (external,) = last.external_dbs
    assert external.path == str(parent).lstrip("/")
    assert external.sst_ids == (only.sst.id,)


# ----------------------------------------------------------------------------- what must be preserved


def test_an_external_database_without_ssts_stays() -> None:
    external = ExternalDb("other/db", uuid.UUID(int=1), None, ())
    assert decode_manifest(encode_manifest(manifest(external_dbs=(external,))), NAME).external_dbs == (
        external,
    )


def test_format_versions_stay_and_are_written_out() -> None:
    """Also version 1, which would be the default: clients of today write it out as well."""
    old = View(ulid(1), replace(sst(1), format_version=1))
    value = manifest(old, view(2))
    assert decode_manifest(encode_manifest(value), NAME) == value
    record = codec._manifest_record(value)
    assert [s.format_version for s in record.ssts] == [1, 2]


def test_ssts_are_written_once_and_ascending() -> None:
    shared = sst(5)
    value = manifest(
        View(ulid(9), shared, KeyRange(None, b"m")), View(ulid(8), shared, KeyRange(b"m")), view(1)
    )
    assert [wire.decode_ulid(s.id) for s in codec._manifest_record(value).ssts] == [ulid(1), ulid(5)]
    assert decode_manifest(encode_manifest(value), NAME) == value


def test_an_sst_no_view_names_is_tolerated() -> None:
    """The official client tolerates it too, and drops it at its next write."""
    record = codec._manifest_record(manifest(view(1), view(2)))
    data = VERSION_2 + write(codec._MANIFEST_V2, record._replace(l0=record.l0[:1]))
    assert decode_manifest(data, NAME) == manifest(view(1))


def test_the_metadata_of_a_checkpoint_is_read_past() -> None:
    """No client writes it any more, and all drop it."""
    value = manifest(checkpoints=(Checkpoint(uuid.UUID(int=7), 3, 0, 1, "c"),))
    record = codec._manifest_record(value)
    old = record.checkpoints[0]._replace(metadata_type=1, metadata=codec._WriterCheckpointRecord(5))
    data = VERSION_2 + write(codec._MANIFEST_V2, record._replace(checkpoints=(old,)))
    assert decode_manifest(data, NAME) == value


# -------------------------------------------------------------------------------------------- damage

GOOD = manifest(view(2, b"k", b"t"), view(1))
RECORD = codec._manifest_record(GOOD)
BOUND, UNBOUND = wire.BoundRecord(b"l", 2), wire.BoundRecord(None, 1)


def encoded(**fields: Any) -> bytes:
    """The good manifest with fields of the wire changed, whatever that makes of it."""
    return VERSION_2 + write(codec._MANIFEST_V2, RECORD._replace(**fields))


def showing(start: wire.BoundRecord, end: wire.BoundRecord) -> bytes:
    """The newest view with a visible range."""
    newest = RECORD.l0[0]._replace(visible_range=wire.RangeRecord(start, end))
    return encoded(l0=(newest, *RECORD.l0[1:]))


def describing(**fields: Any) -> bytes:
    """One SST described otherwise."""
    described = RECORD.ssts[0]._replace(info=RECORD.ssts[0].info._replace(**fields))
    return encoded(ssts=(described, *RECORD.ssts[1:]))


def in_run(*views: View, ids: tuple[int, ...] = (4,)) -> bytes:
    """A manifest whose sorted runs all hold these views."""
    record = codec._manifest_record(manifest(*views))
    runs = tuple(codec._RunRecord(run_id, record.l0) for run_id in ids)
    return VERSION_2 + write(codec._MANIFEST_V2, record._replace(l0=(), compacted=runs))


def segmented(*prefixes: bytes) -> bytes:
    segments = tuple(codec._SegmentRecord(prefix, None, (), ()) for prefix in prefixes)
    return encoded(l0=(), segments=segments, segment_extractor_name="x")


def test_the_undamaged_manifest_reads() -> None:
    assert decode_manifest(encoded(), NAME) == GOOD


OFFICIALLY_REFUSED = [
    ("empty", b"", CorruptObject, "no format version"),
    ("one byte", b"\0", CorruptObject, "no format version"),
    ("version 9", b"\0\x09" + encoded()[2:], Unsupported, "version 9 is not known: a SlateDB newer"),
    ("version 0", b"\0\0" + encoded()[2:], CorruptObject, "no SlateDB has written"),
    ("version alone", VERSION_2, CorruptObject, "too short"),
    ("truncated", encoded()[:-40], CorruptObject, "beyond|outside"),
    ("random", VERSION_2 + bytes(range(1, 200)), CorruptObject, "outside|aligned"),
    (
        "view of an unlisted SST",
        encoded(ssts=RECORD.ssts[:1]),
        CorruptObject,
        "which the manifest does not list",
    ),
    ("no first key", describing(first_entry=None), CorruptObject, "has no first key"),
    ("last key before the first", describing(first_entry=b"zz"), CorruptObject, "before its first"),
    ("unbounded with a key", showing(wire.BoundRecord(b"l", 1), UNBOUND), CorruptObject, "type 1 with a key"),
    (
        "included without a key",
        showing(wire.BoundRecord(None, 2), UNBOUND),
        CorruptObject,
        "type 2 without a key",
    ),
    ("excluded without a key", showing(UNBOUND, wire.BoundRecord(None, 3)), CorruptObject, "type 3 without"),
    ("bound of type 0", showing(wire.BoundRecord(b"l", 0), UNBOUND), CorruptObject, "type 0 with a key"),
    ("bound of type 4", showing(UNBOUND, wire.BoundRecord(b"l", 4)), Unsupported, "type 4: a SlateDB newer"),
    ("excluded start", showing(wire.BoundRecord(b"l", 3), UNBOUND), CorruptObject, "excludes its start"),
    (
        "range above the SST",
        showing(wire.BoundRecord(b"u", 2), UNBOUND),
        CorruptObject,
        "shows none of the keys",
    ),
    (
        "range below the SST",
        showing(UNBOUND, wire.BoundRecord(b"k", 3)),
        CorruptObject,
        "shows none of the keys",
    ),
    ("empty range", showing(BOUND, wire.BoundRecord(b"l", 3)), CorruptObject, "holds no key"),
    (
        "tracker of version 2",
        encoded(sequence_tracker=b"\2" + bytes(12)),
        Unsupported,
        "tracker has version 2",
    ),
    ("empty tracker", encoded(sequence_tracker=b""), CorruptObject, "sequence tracker"),
    ("short tracker", encoded(sequence_tracker=b"\1\0\0"), CorruptObject, "sequence tracker"),
    ("unknown SST type", describing(sst_type=2), Unsupported, "SST type 2"),
    ("unknown filter format", describing(filter_format=2), Unsupported, "filter format 2"),
]


@pytest.mark.parametrize(
    ("data", "error", "reason"),
    [pytest.param(*row[1:], id=row[0]) for row in OFFICIALLY_REFUSED],
)
def test_damage_the_official_client_refuses(data: bytes, error: type[LithifyError], reason: str) -> None:
    with pytest.raises(error, match=reason) as caught:
        decode_manifest(data, NAME)
    assert NAME in str(caught.value)
    with pytest.raises((Error, InternalError)):
        official_manifest(data)


@pytest.mark.parametrize(
    ("ids", "today", "by_rfc_0035"),
    [
        ((5, 3, 0), None, True),
        ((), None, True),
        ((3, 5), Unsupported, True),
        ((5, 0, 3), Unsupported, True),
        ((5, 5), CorruptObject, False),
        ((5, 3, 5), CorruptObject, False),
    ],
)
def test_the_order_of_runs_today_and_by_rfc_0035(
    ids: tuple[int, ...], today: type[LithifyError] | None, by_rfc_0035: bool
) -> None:
    """A manifest that is right by either rule is never called damaged, and one that is right by none is."""
    data = in_run(view(1), ids=ids)
    if today is None:
        assert [run.id for run in decode_manifest(data, NAME).root.runs] == list(ids)
    else:
        with pytest.raises(today):
            decode_manifest(data, NAME)
    assert (today is CorruptObject) != by_rfc_0035


@pytest.mark.parametrize(
    ("data", "error", "reason"),
    [
        pytest.param(
            in_run(view(1), ids=(4, 4)), CorruptObject, "runs 4 and 4 .* descending", id="same run id"
        ),
        pytest.param(in_run(view(1), ids=(3, 4)), Unsupported, "newer SlateDB .* upgrade", id="run order"),
        pytest.param(
            in_run(view(1, b"m", b"n"), view(2, b"a", b"b")),
            CorruptObject,
            "not in key order",
            id="view order",
        ),
        pytest.param(
            in_run(view(1, b"a", b"n"), view(2, b"m", b"z")), CorruptObject, "not in key order", id="overlap"
        ),
        pytest.param(segmented(b"b", b"a"), CorruptObject, "not in ascending order", id="segment order"),
        pytest.param(segmented(b"a", b"a"), CorruptObject, "not in ascending order", id="same segment"),
        pytest.param(segmented(b"a", b"ab"), CorruptObject, "is a prefix of", id="nested segments"),
        pytest.param(segmented(b""), CorruptObject, "empty prefix", id="segment without prefix"),
        pytest.param(
            encoded(segment_extractor_name="x"),
            CorruptObject,
            "root tree holds data",
            id="data beside segments",
        ),
        pytest.param(
            encoded(ssts=tuple(s._replace(format_version=7) for s in RECORD.ssts)),
            Unsupported,
            "format version 7",
            id="SST format 7",
        ),
        pytest.param(
            describing(compression_format=5), Unsupported, "compression format 5", id="unknown codec"
        ),
        pytest.param(
            encoded(ssts=(*RECORD.ssts, RECORD.ssts[0]._replace(format_version=1))),
            CorruptObject,
            "described twice, differently",
            id="two descriptions",
        ),
    ],
)
def test_damage_that_would_lose_data(data: bytes, error: type[LithifyError], reason: str) -> None:
    """The official client reads these, or refuses them only later."""
    with pytest.raises(error, match=reason) as caught:
        decode_manifest(data, NAME)
    assert NAME in str(caught.value)


@pytest.mark.parametrize("missing", ["ssts", "l0", "compacted", "checkpoints"])
def test_required_vectors(missing: str) -> None:
    lenient = TableType(
        "ManifestV2",
        codec._ManifestV2Record,
        tuple(
            replace(slot, required=False) if isinstance(slot, Ref) else slot
            for slot in codec._MANIFEST_V2.slots
        ),
    )
    fields: dict[str, Any] = {"l0": (), missing: None}
    data = VERSION_2 + write(lenient, RECORD._replace(**fields))
    with pytest.raises(CorruptObject, match=rf"required field ManifestV2\.{missing} is missing"):
        decode_manifest(data, NAME)
    with pytest.raises((Error, InternalError)):
        official_manifest(data)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (manifest(View(ulid(1), sst(1, None))), "has no first key"),
        (manifest(View(ulid(1), sst(1, b"b", b"a"))), "before its first"),
        (manifest(View(ulid(1), sst(1), KeyRange(b"zz"))), "shows none of the keys"),
        (manifest(View(ulid(1), sst(1), KeyRange(end_inclusive=True))), "without an end"),
        (manifest(sequence_tracker=b""), "sequence tracker"),
        (manifest(view(1), segment_extractor_name="x"), "root tree holds data"),
        (manifest(segments=(Tree(b"b"), Tree(b"a"))), "ascending"),
        (manifest(segments=(Tree(b"a"), Tree(b"ab"))), "is a prefix of"),
        (Manifest(True, 0, 0, Tree(b"p")), "the root tree has prefix"),
        (Manifest(True, 0, 0, Tree(runs=(SortedRun(1, ()), SortedRun(2, ())))), "descending"),
        (Manifest(True, 0, 0, Tree(runs=(SortedRun(1 << 32, ()),))), r"SortedRunV2\.id"),
        (Manifest(True, -1, 0, Tree()), r"ManifestV2\.writer_epoch"),
        (manifest(view(1), View(ulid(1), sst(1, b"b"))), "described twice"),
        (manifest(View(ulid(1), replace(sst(1), format_version=7))), "format version 7"),
        (manifest(checkpoints=(Checkpoint(uuid.UUID(int=1), 1, -1, 0),)), "checkpoint_expire_time_s"),
    ],
)
def test_nothing_bad_is_written(value: Manifest, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        encode_manifest(value)


# ----------------------------------------------------------------------------------------- version 1


def test_version_1_by_hand() -> None:
    """Views take the id of their SST, and so does the marker; what version 1 cannot say is absent."""
    old = wire.SstRecord(
        wire.encode_ulid(ulid(1)),
        wire.encode_info(sst(1, b"a", None).info),
        wire.RangeRecord(BOUND, UNBOUND),
        None,
    )
    new = wire.encode_sst(sst(2))
    record = codec._ManifestV1Record(
        manifest_id=0,
        external_dbs=None,
        initialized=1,
        writer_epoch=1,
        compactor_epoch=2,
        replay_after_wal_id=3,
        wal_id_last_seen=4,
        l0_last_compacted=wire.encode_ulid(ulid(9)),
        l0=(old,),
        compacted=(codec._RunV1Record(0, (new,)),),
        last_l0_clock_tick=I64_MIN,
        checkpoints=(),
        last_l0_seq=5,
        wal_object_store_uri="s3://elsewhere",
        recent_snapshot_min_seq=6,
        sequence_tracker=EMPTY_SEQUENCE_TRACKER,
    )
    data = VERSION_1 + write(codec._MANIFEST_V1, record)
    value = decode_manifest(data, NAME)
    old_sst = replace(sst(1, b"a", None), format_version=1)
    assert value == Manifest(
        initialized=True,
        writer_epoch=1,
        compactor_epoch=2,
        root=Tree(
            last_compacted_l0=ulid(9),
            l0=(View(ulid(1), old_sst, KeyRange(b"l")),),
            runs=(SortedRun(0, (View(ulid(2), sst(2)),)),),
        ),
        replay_after_wal_id=3,
        wal_id_last_seen=4,
        last_l0_seq=5,
        last_l0_clock_tick=I64_MIN,
        recent_snapshot_min_seq=6,
        sequence_tracker=EMPTY_SEQUENCE_TRACKER,
    )
    assert_reported(official_manifest(data), value)
    assert_reported(official_manifest(encode_manifest(value)), value)
