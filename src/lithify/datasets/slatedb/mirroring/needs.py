"""The objects that a restore point needs, and those that its mirror lacks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lithify.base.ids import Ulid
from lithify.datasets.slatedb.mirroring.state import CopiedManifest, RestorePoint
from lithify.datasets.slatedb.model import Manifest
from lithify.store.objects import ObjectMeta


def lacking(
    point: RestorePoint,
    manifest: Manifest,
    copied: CopiedManifest,
    ssts: Mapping[Ulid, ObjectMeta],
    wal: Mapping[int, ObjectMeta],
) -> Iterator[str]:
    """Yield what is lacking or wrong for a point, given its manifest, the list of that manifest's SSTs, and
    the mirror's objects."""
    if copied.ssts.keys() != manifest.views_by_sst().keys():
        yield "the list of SSTs is not that of its manifest"
    if manifest.replay_after_wal_id != point.wal_after or manifest.wal_id_last_seen > point.wal_to:
        yield "its files of the write-ahead log are not those that its manifest needs"
    for sst_id, size in copied.ssts.items():
        there = ssts.get(sst_id)
        if there is None:
            yield f"SST {sst_id} is missing"
        elif there.size != size:
            yield f"SST {sst_id} has {there.size} bytes instead of {size}"
    yield from lacking_wal(point, wal)


def lacking_wal(point: RestorePoint, wal: Mapping[int, ObjectMeta]) -> Iterator[str]:
    """Yield what is lacking of a point's files of the write-ahead log. There may be very many, if the state
    of the mirror lies."""
    total = 0
    for wal_id in range(point.wal_after + 1, point.wal_to + 1):
        there = wal.get(wal_id)
        if there is None:
            yield f"file {wal_id} of the write-ahead log is missing"
        else:
            total += there.size
    if total != point.wal_bytes:
        yield f"its files of the write-ahead log have {total} bytes instead of {point.wal_bytes}"
