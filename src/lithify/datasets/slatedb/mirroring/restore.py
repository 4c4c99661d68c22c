"""Restoring a database from a mirror, to an empty place.

1. Choose the point, and check that the mirror has everything it needs, with the right sizes.
2. Refuse a place that is not empty. Write a mark with the point there, so that a restore that was killed can
   be continued by the same command.
3. Copy the SSTs, then the files of the write-ahead log, and then create the manifest, number 1 of a new
   database, if there is none.

The restored manifest has no checkpoints, since it has no older manifests; no coordinator has ever run there,
so its compactor epoch is 0. SSTs that a clone read from another database are its own now. Its next writer
replays the files of the write-ahead log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from lithify.base.concurrency import each_of
from lithify.base.documents import Count, DocumentCodec, WholeText
from lithify.base.errors import ObjectExists, ObjectNotFound, Refused, StoreError
from lithify.base.ids import Ulid
from lithify.datasets.slatedb.format.manifest import encode_manifest
from lithify.datasets.slatedb.format.paths import MANIFEST_SUFFIX, DatabasePaths, check_plain
from lithify.datasets.slatedb.mirroring.copying import COPIES_AT_ONCE, ObjectCopier
from lithify.datasets.slatedb.mirroring.state import CopiedManifest, MirrorState, RestorePoint, point_at
from lithify.datasets.slatedb.mirroring.target import MirrorTarget, first_object
from lithify.datasets.slatedb.model import Manifest
from lithify.store.keys import format_id, join, url_of
from lithify.store.objects import ObjectMeta

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class _RestoreMark:
    """The content of the mark: what is being restored to a place."""

    mirror: WholeText
    at_ms: Count
    manifest_id: Count
    wal_to: Count


_MARKS = DocumentCodec(_RestoreMark, "the mark of a restore")


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What was restored."""

    source: str
    point: RestorePoint
    ssts: int
    wal_files: int
    bytes: int


def time_text(ms: int) -> str:
    """Return a time as `--at` takes it."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def restore(
    mirror: MirrorTarget, copier: ObjectCopier, place: DatabasePaths, at_ms: int | None
) -> RestoreReport:
    """Restore the newest point, or the newest not later than `at_ms`, to `place`. `copier` copies from the
    mirror's store to that of the place. Raise `Refused` before the first write if that is impossible."""
    state = mirror.read()
    where = url_of(copier.target.url, place.root)
    check_plain(where, place.root)
    begun = _begun(copier, place)
    point = _chosen(mirror, state, at_ms, begun)
    copied = mirror.copied(point.manifest_id)
    if problems := missing(point, copied, mirror):
        raise Refused(f"{mirror.url}: the point cannot be restored: {'; '.join(problems[:_SHOWN])}")
    manifest = mirror.manifest(point.manifest_id)
    _claim(copier, place, where, begun, _mark_of(mirror, point))
    copied_bytes = 0
    names = [(mirror.paths.sst(i), place.sst(i)) for i in sorted(copied.ssts)]
    wal_ids = range(point.wal_after + 1, point.wal_to + 1)
    names += [(mirror.paths.wal(i), place.wal(i)) for i in wal_ids]
    for meta in each_of((partial(_copied, copier, *pair) for pair in names), COPIES_AT_ONCE):
        copied_bytes += meta.size
    try:
        copier.target.create(_first_manifest(place), encode_manifest(as_new(manifest, point)))
    except ObjectExists:
        raise Refused(f"{where}: another program created a database there meanwhile") from None
    copier.target.delete(_mark_key(place))
    return RestoreReport(state.source, point, len(copied.ssts), len(wal_ids), copied_bytes)


def as_new(manifest: Manifest, point: RestorePoint) -> Manifest:
    """Return the first manifest of the restored database (pure)."""
    wal_to = max(manifest.wal_id_last_seen, point.wal_to)
    return replace(manifest, checkpoints=(), external_dbs=(), compactor_epoch=0, wal_id_last_seen=wal_to)


def missing(point: RestorePoint, copied: CopiedManifest, mirror: MirrorTarget) -> list[str]:
    """Return what the mirror lacks to restore a point, as texts."""
    return list(lacking(point, copied, mirror.ssts(), mirror.wal()))


def lacking(
    point: RestorePoint,
    copied: CopiedManifest,
    ssts: Mapping[Ulid, ObjectMeta],
    wal: Mapping[int, ObjectMeta],
) -> Iterator[str]:
    """Yield what is lacking for a point, given the mirror's objects (pure)."""
    for sst_id, size in copied.ssts.items():
        there = ssts.get(sst_id)
        if there is None:
            yield f"SST {sst_id} is missing"
        elif there.size != size:
            yield f"SST {sst_id} has {there.size} bytes instead of {size}"
    for wal_id in range(point.wal_after + 1, point.wal_to + 1):
        if wal_id not in wal:
            yield f"file {wal_id} of the write-ahead log is missing"


def _mark_of(mirror: MirrorTarget, point: RestorePoint) -> _RestoreMark:
    return _RestoreMark(mirror.url, point.at_ms, point.manifest_id, point.wal_to)


def _begun(copier: ObjectCopier, place: DatabasePaths) -> _RestoreMark | None:
    """Return what a restore has begun to copy to the place, and not finished."""
    key = _mark_key(place)
    try:
        return _MARKS.decode(copier.target.get(key), key)
    except ObjectNotFound:
        return None


def _chosen(
    mirror: MirrorTarget, state: MirrorState, at_ms: int | None, begun: _RestoreMark | None
) -> RestorePoint:
    """Return the point to restore. Without a time, a restore that was begun goes on."""
    if not state.points:
        raise Refused(f"{mirror.url} has no point yet; its first copy was not finished: run `lithify mirror`")
    same = next((p for p in state.points if _mark_of(mirror, p) == begun), None) if at_ms is None else None
    point = same or point_at(state, at_ms)
    if point is None:
        raise Refused(
            f"{mirror.url}: the oldest point that can be restored is {time_text(state.points[0].at_ms)}"
        )
    return point


def _claim(
    copier: ObjectCopier, place: DatabasePaths, where: str, begun: _RestoreMark | None, mark: _RestoreMark
) -> None:
    """Write the mark, if the place is empty. Raise `Refused` unless it is, or has the same mark."""
    store = copier.target
    if begun is None:
        if found := first_object(store, place):
            raise Refused(
                f"{where} is not empty: it has {found}; nothing is ever restored over other files, so use an "
                "empty place"
            )
        try:
            store.create(_mark_key(place), _MARKS.encode(mark))
        except ObjectExists:
            raise Refused(f"{where}: another restore has just begun there") from None
        return
    if any(store.list(place.manifest_folder)):
        raise Refused(f"{where} already has a database; use an empty place")
    if begun != mark:
        raise Refused(
            f"{where}: the restore of another point began there and was not finished; give its time "
            f"(--at {time_text(begun.at_ms)}) to continue it, or use an empty place"
        )


def _copied(copier: ObjectCopier, key: str, to: str) -> ObjectMeta:
    try:
        return copier.copy(key, to)
    except ObjectNotFound as error:
        raise StoreError(f"{key}: the mirror dropped this point meanwhile; restore a newer one") from error


def _first_manifest(place: DatabasePaths) -> str:
    return join(place.manifest_folder, f"{format_id(1)}{MANIFEST_SUFFIX}")


def _mark_key(place: DatabasePaths) -> str:
    return join(place.own_folder, "restore.json")
