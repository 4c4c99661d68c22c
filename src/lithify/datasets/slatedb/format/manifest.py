"""The manifest of a SlateDB database: bytes to value and back (SlateDB format: manifest).

A file is a big-endian `u16` version and a FlatBuffer. Versions 1 and 2 are read, 2 is written.

Reading:

1. Split off the version; decode the FlatBuffer of that version with every bound checked.
2. Version 2 names physical SSTs once and refers to them by views: resolve the references. Version 1 holds the
   SST instead of the view: the view takes the SST's id, and so does the marker.
3. Check what the encoding cannot express (`manifest_problem`): everything on which a client would crash,
   refuse to open, or read wrong data.

Writing checks the same before anything is encoded, and collects the physical SSTs of all views, ascending by
id.

Invariants:

- Data written by other programs survives: every field of every table except two that clients ignore and
  rewrite themselves, the manifest's own id (always 0) and the metadata of a checkpoint (always none).
- The URL of a separate WAL store exists only in version 1 and cannot be expressed in version 2; it is
  dropped, as the official client does when it writes version 2.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from lithify.base.errors import CorruptObject, Unsupported
from lithify.base.ids import Ulid
from lithify.datasets.slatedb.format import wire
from lithify.datasets.slatedb.format.flatbuffer import (
    BOOL,
    BYTES,
    I64,
    STRING,
    U8,
    U32,
    U64,
    TableType,
    Union,
    read,
    required,
    table,
    tables,
    write,
)
from lithify.datasets.slatedb.format.flatbuffer import OPTIONAL_U16 as FORMAT_VERSION
from lithify.datasets.slatedb.model import (
    Checkpoint,
    ExternalDb,
    KeyRange,
    Manifest,
    SortedRun,
    Sst,
    Tree,
    View,
)

WRITTEN_VERSION = 2

_VERSION = struct.Struct(">H")
_SEQUENCE_TRACKER_VERSION = 1
_SEQUENCE_TRACKER_HEAD_BYTES = 5
"""Version and count."""


class _SstV2Record(NamedTuple):
    id: wire.Halves
    info: wire.InfoRecord
    format_version: int | None


class _ViewRecord(NamedTuple):
    id: wire.Halves
    sst_id: wire.Halves
    visible_range: wire.RangeRecord | None


class _RunRecord(NamedTuple):
    id: int
    ssts: tuple[_ViewRecord, ...]


class _RunV1Record(NamedTuple):
    id: int
    ssts: tuple[wire.SstRecord, ...]


class _SegmentRecord(NamedTuple):
    prefix: bytes
    last_compacted_l0_sst_view_id: wire.Halves | None
    l0: tuple[_ViewRecord, ...]
    compacted: tuple[_RunRecord, ...]


class _ExternalDbRecord(NamedTuple):
    path: str
    source_checkpoint_id: wire.Halves
    final_checkpoint_id: wire.Halves | None
    sst_ids: tuple[wire.Halves, ...]


class _WriterCheckpointRecord(NamedTuple):
    epoch: int


class _CheckpointRecord(NamedTuple):
    id: wire.Halves
    manifest_id: int
    checkpoint_expire_time_s: int
    checkpoint_create_time_s: int
    metadata_type: int
    metadata: _WriterCheckpointRecord | None
    name: str | None


class _ManifestV2Record(NamedTuple):
    manifest_id: int
    external_dbs: tuple[_ExternalDbRecord, ...] | None
    initialized: int
    writer_epoch: int
    compactor_epoch: int
    replay_after_wal_id: int
    wal_id_last_seen: int
    last_compacted_l0_sst_view_id: wire.Halves | None
    ssts: tuple[_SstV2Record, ...]
    l0: tuple[_ViewRecord, ...]
    compacted: tuple[_RunRecord, ...]
    last_l0_clock_tick: int
    checkpoints: tuple[_CheckpointRecord, ...]
    last_l0_seq: int
    recent_snapshot_min_seq: int
    sequence_tracker: bytes | None
    segments: tuple[_SegmentRecord, ...] | None
    segment_extractor_name: str | None


class _ManifestV1Record(NamedTuple):
    manifest_id: int
    external_dbs: tuple[_ExternalDbRecord, ...] | None
    initialized: int
    writer_epoch: int
    compactor_epoch: int
    replay_after_wal_id: int
    wal_id_last_seen: int
    l0_last_compacted: wire.Halves | None
    l0: tuple[wire.SstRecord, ...]
    compacted: tuple[_RunV1Record, ...]
    last_l0_clock_tick: int
    checkpoints: tuple[_CheckpointRecord, ...]
    last_l0_seq: int
    wal_object_store_uri: str | None
    recent_snapshot_min_seq: int
    sequence_tracker: bytes | None


_REQUIRED_ULID = required(table(wire.ULID))
_REQUIRED_UUID = required(table(wire.UUID))
_SST_V2 = TableType(
    "CompactedSsTableV2", _SstV2Record, (_REQUIRED_ULID, required(table(wire.INFO)), FORMAT_VERSION)
)
_VIEW = TableType(
    "CompactedSsTableView", _ViewRecord, (_REQUIRED_ULID, _REQUIRED_ULID, table(wire.BYTES_RANGE))
)
_RUN = TableType("SortedRunV2", _RunRecord, (U32, required(tables(_VIEW))))
_RUN_V1 = TableType("SortedRun", _RunV1Record, (U32, required(tables(wire.COMPACTED_SST))))
_SEGMENT = TableType(
    "Segment",
    _SegmentRecord,
    (required(BYTES), table(wire.ULID), required(tables(_VIEW)), required(tables(_RUN))),
)
_EXTERNAL_DB = TableType(
    "ExternalDb",
    _ExternalDbRecord,
    (required(STRING), _REQUIRED_UUID, table(wire.UUID), required(tables(wire.ULID))),
)
_WRITER_CHECKPOINT = TableType("WriterCheckpoint", _WriterCheckpointRecord, (U64,))
_CHECKPOINT = TableType(
    "Checkpoint",
    _CheckpointRecord,
    (_REQUIRED_UUID, U64, U32, U32, U8, Union({1: _WRITER_CHECKPOINT}), STRING),
)
_MANIFEST_V2 = TableType(
    "ManifestV2",
    _ManifestV2Record,
    (
        U64,
        tables(_EXTERNAL_DB),
        BOOL,
        U64,
        U64,
        U64,
        U64,
        table(wire.ULID),
        required(tables(_SST_V2)),
        required(tables(_VIEW)),
        required(tables(_RUN)),
        I64,
        required(tables(_CHECKPOINT)),
        U64,
        U64,
        BYTES,
        tables(_SEGMENT),
        STRING,
    ),
)
_MANIFEST_V1 = TableType(
    "ManifestV1",
    _ManifestV1Record,
    (
        U64,
        tables(_EXTERNAL_DB),
        BOOL,
        U64,
        U64,
        U64,
        U64,
        table(wire.ULID),
        required(tables(wire.COMPACTED_SST)),
        required(tables(_RUN_V1)),
        I64,
        required(tables(_CHECKPOINT)),
        U64,
        STRING,
        U64,
        BYTES,
    ),
)


def decode_manifest(data: bytes, name: str) -> Manifest:
    """Return the value of a manifest file. `name` is the object named in errors."""
    if len(data) < _VERSION.size:
        raise CorruptObject(name, f"a manifest of {len(data)} bytes has no format version")
    (version,) = _VERSION.unpack_from(data)
    decoders: Mapping[int, Callable[[bytes, str], Manifest]] = {1: _decode_v1, 2: _decode_v2}
    if version not in decoders:
        raise wire.unknown_version(name, "manifest", version, decoders)
    manifest = replace(decoders[version](data[_VERSION.size :], name), format_version=version)
    if newer := _newer_rules(manifest):
        raise Unsupported(
            f"{name}: {newer}, as no SlateDB up to {wire.NEWEST_CLIENT} writes it: a newer SlateDB wrote it; "
            "upgrade Lithify"
        )
    if problem := manifest_problem(manifest):
        raise CorruptObject(name, problem)
    return manifest


def encode_manifest(manifest: Manifest, mark: bytes = b"") -> bytes:
    """Return the file of a manifest, in version 2. `mark` follows it, where no client reads and which no
    client preserves. Raise `ValueError` for a manifest on which clients would crash or lose data: nothing in
    Lithify may create one."""
    if problem := manifest_problem(manifest):
        raise ValueError(problem)
    return _VERSION.pack(WRITTEN_VERSION) + write(_MANIFEST_V2, _manifest_record(manifest)) + mark


# --------------------------------------------------------------------------------------- checks


def manifest_problem(manifest: Manifest) -> str | None:
    """Return why a client could not use the manifest, or `None`."""
    tracker = manifest.sequence_tracker
    if tracker is not None and (
        len(tracker) < _SEQUENCE_TRACKER_HEAD_BYTES or tracker[0] != _SEQUENCE_TRACKER_VERSION
    ):
        return f"the sequence tracker does not start with version {_SEQUENCE_TRACKER_VERSION} and a count"
    return (
        _segments_problem(manifest)
        or next(filter(None, map(_tree_problem, manifest.trees())), None)
        or _identity_problem(manifest)
    )


def _newer_rules(manifest: Manifest) -> str | None:
    """Return which rule of today's manifests this one breaks as a newer SlateDB may, or `None`. By RFC-0035
    the list alone orders runs, and their numbers only tell them apart."""
    tracker = manifest.sequence_tracker
    if tracker and tracker[0] > _SEQUENCE_TRACKER_VERSION:
        return f"its sequence tracker has version {tracker[0]}"
    for tree in manifest.trees():
        ids = [run.id for run in tree.runs]
        if len(set(ids)) == len(ids) and ids != sorted(ids, reverse=True):
            where = f"segment {tree.prefix!r}" if tree.prefix else "the root tree"
            return f"the numbers of the sorted runs of {where} do not descend"
    return None


def may_follow(before: Manifest, after: Manifest) -> bool:
    """Return whether a later manifest may belong to the same database (pure): epochs and sequence numbers
    never fall. Manifests do not identify their database."""
    return (
        after.writer_epoch >= before.writer_epoch
        and after.compactor_epoch >= before.compactor_epoch
        and after.last_l0_seq >= before.last_l0_seq
    )


def _segments_problem(manifest: Manifest) -> str | None:
    root = manifest.root
    if root.prefix:
        return f"the root tree has prefix {root.prefix!r}"
    if manifest.segment_extractor_name is not None and (root.l0 or root.runs):
        return f"the root tree holds data although segments are cut by {manifest.segment_extractor_name!r}"
    prefixes = [segment.prefix for segment in manifest.segments]
    if b"" in prefixes:
        return "a segment has an empty prefix"
    for before, after in pairwise(prefixes):
        if before >= after:
            return f"segments {before!r} and {after!r} are not in ascending order"
        if after.startswith(before):
            return f"segment {before!r} is a prefix of segment {after!r}"
    return None


def _tree_problem(tree: Tree) -> str | None:
    where = f"segment {tree.prefix!r}" if tree.prefix else "the root tree"
    for before, after in pairwise(run.id for run in tree.runs):
        if before <= after:
            return f"sorted runs {before} and {after} of {where} are not in descending order"
    for view in tree.views():
        if problem := wire.sst_problem(view.sst):
            return problem
        if view.visible_range is not None and view.effective_range.is_empty:
            return f"view {view.id} of {where} shows none of the keys of SST {view.sst.id}"
    return next(filter(None, (_run_problem(run, where) for run in tree.runs)), None)


def _run_problem(run: SortedRun, where: str) -> str | None:
    for before, after in pairwise(run.views):
        earlier, later = before.effective_range, after.effective_range
        # The last key is unknown in SSTs of old databases; then only the first keys can be compared.
        end = earlier.end if before.sst.info.last_entry is not None else None
        if _start(earlier) > _start(later) or (end is not None and end > _start(later)):
            return f"views {before.id} and {after.id} in sorted run {run.id} of {where} are not in key order"
    return None


def _start(effective: KeyRange) -> bytes:
    return b"" if effective.start is None else effective.start


def _identity_problem(manifest: Manifest) -> str | None:
    """Return which SST id has two different descriptions, or `None`."""
    seen: dict[Ulid, Sst] = {}
    for tree in manifest.trees():
        for view in tree.views():
            known = seen.setdefault(view.sst.id, view.sst)
            if known is not view.sst and known != view.sst:
                return f"SST {view.sst.id} is described twice, differently"
    return None


# -------------------------------------------------------------------------------------- reading


def _decode_v2(buffer: bytes, name: str) -> Manifest:
    record = read(buffer, _MANIFEST_V2, name)
    ssts: dict[wire.Halves, Sst] = {}
    for sst in record.ssts:
        decoded = wire.decode_sst(sst.id, sst.info, sst.format_version, name)
        if ssts.setdefault(sst.id, decoded) != decoded:
            raise CorruptObject(name, f"SST {decoded.id} is described twice, differently")
    return _manifest(
        record,
        root=_decode_tree(b"", record.last_compacted_l0_sst_view_id, record.l0, record.compacted, ssts, name),
        segments=tuple(
            _decode_tree(s.prefix, s.last_compacted_l0_sst_view_id, s.l0, s.compacted, ssts, name)
            for s in record.segments or ()
        ),
        segment_extractor_name=record.segment_extractor_name,
        name=name,
    )


def _decode_v1(buffer: bytes, name: str) -> Manifest:
    record = read(buffer, _MANIFEST_V1, name)

    def view(sst: wire.SstRecord) -> View:
        decoded = wire.decode_sst(sst.id, sst.info, sst.format_version, name)
        return View(decoded.id, decoded, _decode_visible_range(sst.visible_range, name))

    root = Tree(
        last_compacted_l0=_optional(wire.decode_ulid, record.l0_last_compacted),
        l0=tuple(map(view, record.l0)),
        runs=tuple(SortedRun(run.id, tuple(map(view, run.ssts))) for run in record.compacted),
    )
    return _manifest(record, root=root, segments=(), segment_extractor_name=None, name=name)


def _manifest(
    record: _ManifestV1Record | _ManifestV2Record,
    *,
    root: Tree,
    segments: tuple[Tree, ...],
    segment_extractor_name: str | None,
    name: str,
) -> Manifest:
    """Return the parts that both versions hold in the same way."""
    return Manifest(
        initialized=bool(record.initialized),
        writer_epoch=record.writer_epoch,
        compactor_epoch=record.compactor_epoch,
        root=root,
        replay_after_wal_id=record.replay_after_wal_id,
        wal_id_last_seen=record.wal_id_last_seen,
        last_l0_seq=record.last_l0_seq,
        last_l0_clock_tick=record.last_l0_clock_tick,
        recent_snapshot_min_seq=record.recent_snapshot_min_seq,
        sequence_tracker=record.sequence_tracker,
        checkpoints=tuple(map(_decode_checkpoint, record.checkpoints)),
        external_dbs=tuple(map(_decode_external_db, record.external_dbs or ())),
        segments=segments,
        segment_extractor_name=segment_extractor_name,
    )


def _decode_tree(
    prefix: bytes,
    marker: wire.Halves | None,
    l0: Iterable[_ViewRecord],
    runs: Iterable[_RunRecord],
    ssts: Mapping[wire.Halves, Sst],
    name: str,
) -> Tree:
    def view(record: _ViewRecord) -> View:
        view_id = wire.decode_ulid(record.id)
        sst = ssts.get(record.sst_id)
        if sst is None:
            sst_id = wire.decode_ulid(record.sst_id)
            raise CorruptObject(
                name, f"view {view_id} refers to SST {sst_id}, which the manifest does not list"
            )
        # A view almost always has the id of its SST; the same text then serves both.
        return View(
            sst.id if view_id == sst.id else view_id, sst, _decode_visible_range(record.visible_range, name)
        )

    return Tree(
        prefix=prefix,
        last_compacted_l0=_optional(wire.decode_ulid, marker),
        l0=tuple(map(view, l0)),
        runs=tuple(SortedRun(run.id, tuple(map(view, run.ssts))) for run in runs),
    )


def _decode_visible_range(record: wire.RangeRecord | None, name: str) -> KeyRange | None:
    return None if record is None else wire.decode_range(record, name)


def _decode_checkpoint(record: _CheckpointRecord) -> Checkpoint:
    return Checkpoint(
        id=wire.decode_uuid(record.id),
        manifest_id=record.manifest_id,
        expire_time_s=record.checkpoint_expire_time_s,
        create_time_s=record.checkpoint_create_time_s,
        name=record.name,
    )


def _decode_external_db(record: _ExternalDbRecord) -> ExternalDb:
    return ExternalDb(
        path=record.path,
        source_checkpoint_id=wire.decode_uuid(record.source_checkpoint_id),
        final_checkpoint_id=_optional(wire.decode_uuid, record.final_checkpoint_id),
        sst_ids=tuple(map(wire.decode_ulid, record.sst_ids)),
    )


def _optional(convert: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else convert(value)


# -------------------------------------------------------------------------------------- writing


def _manifest_record(manifest: Manifest) -> _ManifestV2Record:
    ssts = {sst_id: view.sst for sst_id, view in manifest.views_by_sst().items()}
    return _ManifestV2Record(
        manifest_id=0,
        external_dbs=tuple(map(_external_db_record, manifest.external_dbs)) or None,
        initialized=int(manifest.initialized),
        writer_epoch=manifest.writer_epoch,
        compactor_epoch=manifest.compactor_epoch,
        replay_after_wal_id=manifest.replay_after_wal_id,
        wal_id_last_seen=manifest.wal_id_last_seen,
        last_compacted_l0_sst_view_id=_optional(wire.encode_ulid, manifest.root.last_compacted_l0),
        ssts=tuple(_sst_record(ssts[sst_id]) for sst_id in sorted(ssts)),
        l0=tuple(map(_view_record, manifest.root.l0)),
        compacted=tuple(map(_run_record, manifest.root.runs)),
        last_l0_clock_tick=manifest.last_l0_clock_tick,
        checkpoints=tuple(map(_checkpoint_record, manifest.checkpoints)),
        last_l0_seq=manifest.last_l0_seq,
        recent_snapshot_min_seq=manifest.recent_snapshot_min_seq,
        sequence_tracker=manifest.sequence_tracker,
        segments=tuple(map(_segment_record, manifest.segments)),
        segment_extractor_name=manifest.segment_extractor_name,
    )


def _sst_record(sst: Sst) -> _SstV2Record:
    record = wire.encode_sst(sst)
    return _SstV2Record(record.id, record.info, record.format_version)


def _view_record(view: View) -> _ViewRecord:
    return _ViewRecord(
        id=wire.encode_ulid(view.id),
        sst_id=wire.encode_ulid(view.sst.id),
        visible_range=_optional(wire.encode_range, view.visible_range),
    )


def _run_record(run: SortedRun) -> _RunRecord:
    return _RunRecord(run.id, tuple(map(_view_record, run.views)))


def _segment_record(tree: Tree) -> _SegmentRecord:
    return _SegmentRecord(
        prefix=tree.prefix,
        last_compacted_l0_sst_view_id=_optional(wire.encode_ulid, tree.last_compacted_l0),
        l0=tuple(map(_view_record, tree.l0)),
        compacted=tuple(map(_run_record, tree.runs)),
    )


def _checkpoint_record(checkpoint: Checkpoint) -> _CheckpointRecord:
    return _CheckpointRecord(
        id=wire.encode_uuid(checkpoint.id),
        manifest_id=checkpoint.manifest_id,
        checkpoint_expire_time_s=checkpoint.expire_time_s,
        checkpoint_create_time_s=checkpoint.create_time_s,
        metadata_type=0,
        metadata=None,
        name=checkpoint.name,
    )


def _external_db_record(external: ExternalDb) -> _ExternalDbRecord:
    return _ExternalDbRecord(
        path=external.path,
        source_checkpoint_id=wire.encode_uuid(external.source_checkpoint_id),
        final_checkpoint_id=_optional(wire.encode_uuid, external.final_checkpoint_id),
        sst_ids=tuple(map(wire.encode_ulid, external.sst_ids)),
    )
