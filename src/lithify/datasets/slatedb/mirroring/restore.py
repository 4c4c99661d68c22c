"""Restoring a database from a mirror, to an empty place.

1. Choose the point, and check that the mirror has everything it needs, with the right sizes.
2. Refuse a place that is not empty. Claim it by manifest 1, of a database that is not initialized, which
   names the point: so the same command continues a restore that was killed. No reader opens the place. A
   program that opens it as a writer, as if to create its database, begins its write-ahead log after the
   point's files, and has the place by its manifest 2; this restore is refused then.
3. Copy the SSTs and the files of the write-ahead log, and then publish manifest 2, that of the point.

The restored manifest has no checkpoints, since it has no older manifests; no coordinator has ever run there,
so its compactor epoch is 0. SSTs that a clone read from another database are its own now. Its next writer
replays the files of the write-ahead log.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice

from lithify.base.clock import Clock
from lithify.base.concurrency import each_of
from lithify.base.errors import ObjectNotFound, Refused, StoreError, VersionConflict
from lithify.base.ids import Ids
from lithify.datasets.slatedb.format.manifest import encode_manifest
from lithify.datasets.slatedb.format.paths import MANIFEST_SUFFIX, DatabasePaths, check_plain
from lithify.datasets.slatedb.mirroring.copying import COPIES_AT_ONCE, ObjectCopier
from lithify.datasets.slatedb.mirroring.needs import lacking
from lithify.datasets.slatedb.mirroring.state import MirrorState, RestorePoint, point_at
from lithify.datasets.slatedb.mirroring.target import MirrorTarget, first_object
from lithify.datasets.slatedb.model import Manifest, Tree
from lithify.store.keys import url_of
from lithify.store.objects import ObjectMeta
from lithify.store.versions import Version, VersionedFiles

_SHOWN = 3
_CLAIM_ID, _RESTORED_ID = 1, 2
"""The manifests that a restore writes."""


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
    mirror: MirrorTarget,
    copier: ObjectCopier,
    place: DatabasePaths,
    at_ms: int | None,
    clock: Clock,
    ids: Ids,
) -> RestoreReport:
    """Restore the newest point, or the newest not later than `at_ms`, to `place`. `copier` copies from the
    mirror's store to that of the place. Raise `Refused` before the first write if that is impossible."""
    state = mirror.read()
    where = url_of(copier.target.url, place.root)
    check_plain(where, place.root)
    manifests = VersionedFiles(
        copier.target, place.manifest_folder, MANIFEST_SUFFIX, place.manifest_boundary, ids, clock=clock
    )
    there = manifests.confirmed()
    point = _chosen(mirror, state, at_ms, there, where)
    copied, manifest = mirror.copied(point.manifest_id), mirror.manifest(point.manifest_id)
    problems = list(islice(lacking(point, manifest, copied, mirror.ssts(), mirror.wal()), _SHOWN))
    if problems:
        raise Refused(f"{mirror.url}: the point cannot be restored: {'; '.join(problems)}")
    wal_ids = range(point.wal_after + 1, point.wal_to + 1)
    report = RestoreReport(
        state.source, point, len(copied.ssts), len(wal_ids), sum(copied.ssts.values()) + point.wal_bytes
    )
    new = as_new(manifest, point)
    claim, restored = _claim(mirror, new, point), encode_manifest(new)
    if there is None:
        if found := first_object(copier.target, place):
            raise Refused(
                f"{where} is not empty: it has {found}; nothing is ever restored over other files, so use an "
                "empty place"
            )
        there = _published(manifests, None, claim, where)
    elif there == Version(_RESTORED_ID, restored):
        return report  # only the end of the command was lost
    elif there != Version(_CLAIM_ID, claim):
        raise Refused(f"{where} already has a database; use an empty place")
    names = [(mirror.paths.sst(i), place.sst(i)) for i in sorted(copied.ssts)]
    names += [(mirror.paths.wal(i), place.wal(i)) for i in wal_ids]
    for _ in each_of((partial(_copied, copier, *pair) for pair in names), COPIES_AT_ONCE):
        pass
    _published(manifests, there, restored, where)
    return report


def as_new(manifest: Manifest, point: RestorePoint) -> Manifest:
    """Return the manifest of the restored database (pure)."""
    wal_to = max(manifest.wal_id_last_seen, point.wal_to)
    return replace(manifest, checkpoints=(), external_dbs=(), compactor_epoch=0, wal_id_last_seen=wal_to)


def _claim(mirror: MirrorTarget, restored: Manifest, point: RestorePoint) -> bytes:
    """Return the manifest that claims a place for a point: of a database without data, whose
    write-ahead log goes on after the point's. `restored` is the manifest of the restored database."""
    empty = replace(
        restored,
        initialized=False,
        root=Tree(b""),
        segments=(),
        replay_after_wal_id=restored.wal_id_last_seen,
    )
    return encode_manifest(empty, _name_of(mirror, point))


def _name_of(mirror: MirrorTarget, point: RestorePoint) -> bytes:
    """Return what follows the manifest that claims a place, where no client reads."""
    named = {"restores": mirror.url, "manifest": point.manifest_id, "at_ms": point.at_ms}
    return json.dumps({**named, "wal_to": point.wal_to}).encode()


def _chosen(
    mirror: MirrorTarget, state: MirrorState, at_ms: int | None, there: Version | None, where: str
) -> RestorePoint:
    """Return the point to restore. Without a time, a restore that was begun goes on. Raise `Refused` if the
    restore of another point was begun, or if there is no such point."""
    if not state.points:
        raise Refused(f"{mirror.url} has no point yet; its first copy was not finished: run `lithify mirror`")
    begun = None
    if there is not None and there.id == _CLAIM_ID:
        begun = next((p for p in state.points if there.data.endswith(_name_of(mirror, p))), None)
    point = begun if begun is not None and at_ms is None else point_at(state, at_ms)
    if point is None:
        raise Refused(
            f"{mirror.url}: the oldest point that can be restored is {time_text(state.points[0].at_ms)}"
        )
    if begun is not None and begun != point:
        raise Refused(
            f"{where}: the restore of another point began there and was not finished; give its time "
            f"(--at {time_text(begun.at_ms)}) to continue it, or use an empty place"
        )
    return point


def _published(manifests: VersionedFiles, base: Version | None, data: bytes, where: str) -> Version:
    """Publish a manifest. Raise `Refused` if another program has published one, unless it is the same."""
    try:
        return manifests.publish(base, data)
    except VersionConflict:
        latest = manifests.confirmed()
        wanted = Version(_CLAIM_ID if base is None else _RESTORED_ID, data)
        if latest is None or latest != wanted:
            raise Refused(
                f"{where}: another program has created a database there meanwhile; it was left as it is: "
                "stop that program, and use an empty place"
            ) from None
        return latest


def _copied(copier: ObjectCopier, key: str, to: str) -> ObjectMeta:
    try:
        return copier.copy(key, to)
    except ObjectNotFound as error:
        raise StoreError(f"{key}: the mirror dropped this point meanwhile; restore a newer one") from error
