"""The retention rules of a SlateDB database: pure functions of the files read and listed (SlateDB format:
garbage collection).

- A checkpoint is needed until its expiry second is reached; an expiry time of 0 means never.
- An SST is needed if the latest manifest or one that a checkpoint pins names it, or if it is not older
  than the cutoff, the least of
  - now - the minimum age;
  - the oldest compaction in the ledger, finished or not: outputs that are not committed yet carry ids
    younger than their compaction's. Without a ledger, or with an empty one, every SST is needed, since it
    is unknown what is being written;
  - the newest L0 SST (of a tree without L0s: the newest it ever compacted; of several trees: the
    newest). A younger one may be uploaded but not published yet.
  The age of an SST is taken from its id, never from the store's times.
- A manifest is needed if it is the latest, or a later one, or pinned. A compactions file is needed if
  it is the latest or a later one.
- A file of the write-ahead log is needed if the latest manifest would replay it (from the last one it
  replayed on) or a pinned one would (after that, up to the last one it saw).
- The reference of a clone to its parent is needed while any of these manifests names an SST of the parent.
- Lithify's notes about a compaction are needed until that compaction is finished.
- All objects but SSTs and references are also kept while they are younger than the minimum age, by the
  store's times.

The caller reads the ledger before the manifest. A compaction committed after the ledger was read is then
visible in the manifest, and one that is not committed is still protected by its entry in the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from lithify.base.ids import Ulid, ulid_ms
from lithify.datasets.slatedb.format.ledger import SlateLedger
from lithify.datasets.slatedb.format.paths import DatabasePaths, parse_note_key, parse_sst_key
from lithify.datasets.slatedb.model import Checkpoint, ExternalDb, Manifest, Tree
from lithify.store.objects import ObjectMeta

Numbered = tuple[int, ObjectMeta]
"""A numbered file and its number."""


@dataclass(frozen=True, slots=True)
class Cutoff:
    """SSTs from this time on are kept, and the reason why it is not later."""

    ms: int
    reason: str


def expired_checkpoints(manifest: Manifest, now_ms: int) -> tuple[Checkpoint, ...]:
    return tuple(c for c in manifest.checkpoints if c.expire_time_s and c.expire_time_s * 1000 <= now_ms)


def without_expired_checkpoints(manifest: Manifest, now_ms: int) -> Manifest:
    expired = expired_checkpoints(manifest, now_ms)
    return replace(manifest, checkpoints=tuple(c for c in manifest.checkpoints if c not in expired))


def live_ssts(manifests: Iterable[Manifest]) -> frozenset[Ulid]:
    """Return the SSTs that any of the manifests names."""
    return frozenset(view.sst.id for m in manifests for tree in m.trees() for view in tree.views())


def sst_cutoff(now_ms: int, min_age_ms: int, ledger: SlateLedger | None, latest: Manifest) -> Cutoff:
    """Return the time from which on SSTs are kept although nothing names them."""
    if ledger is None:
        return Cutoff(0, "there is no compactions file, so it is unknown which SSTs are being written")
    if not ledger.compactions:
        return Cutoff(0, "the compactions file has no entries, so it is unknown which SSTs are being written")
    newest_l0s = [ms for tree in latest.trees() if (ms := _newest_l0_ms(tree)) is not None]
    if not newest_l0s:
        return Cutoff(0, "there has been no L0 SST yet, and the first one may be being uploaded")
    return min(
        Cutoff(now_ms - min_age_ms, "the minimum age"),
        Cutoff(min(ulid_ms(c.id) for c in ledger.compactions), "the oldest compaction in the ledger"),
        Cutoff(max(newest_l0s), "the newest L0 SST"),
        key=lambda cutoff: cutoff.ms,
    )


def _newest_l0_ms(tree: Tree) -> int | None:
    if tree.l0:
        return max(ulid_ms(view.sst.id) for view in tree.l0)
    return None if tree.last_compacted_l0 is None else ulid_ms(tree.last_compacted_l0)


def deletable_ssts(
    listed: Iterable[ObjectMeta], paths: DatabasePaths, live: frozenset[Ulid], cutoff: Cutoff
) -> tuple[ObjectMeta, ...]:
    """Return the objects of the `compacted` folder that are not needed, under exactly the names this database
    gives to its SSTs."""

    def is_garbage(key: str) -> bool:
        sst_id = parse_sst_key(key)
        if sst_id is None or key != paths.sst(sst_id):
            return False
        return sst_id not in live and ulid_ms(sst_id) < cutoff.ms

    return tuple(meta for meta in listed if is_garbage(meta.key))


def deletable_versions(
    listed: Iterable[Numbered], latest_id: int, pinned: frozenset[int], written_before_ms: int
) -> tuple[Numbered, ...]:
    """Return the manifests, or compactions files, that are not needed."""
    return tuple(
        (version_id, meta)
        for version_id, meta in listed
        if version_id < latest_id and version_id not in pinned and meta.last_modified_ms < written_before_ms
    )


def deletable_wal(
    listed: Iterable[Numbered], latest: Manifest, pinned: Iterable[Manifest], written_before_ms: int
) -> tuple[ObjectMeta, ...]:
    """Return the files of the write-ahead log that no manifest would replay."""
    replayed = [(m.replay_after_wal_id, m.wal_id_last_seen) for m in pinned]

    def is_needed(wal_id: int) -> bool:
        return wal_id >= latest.replay_after_wal_id or any(after < wal_id <= last for after, last in replayed)

    return tuple(
        meta for wal_id, meta in listed if meta.last_modified_ms < written_before_ms and not is_needed(wal_id)
    )


def detachable(latest: Manifest, pinned: Iterable[Manifest]) -> tuple[ExternalDb, ...]:
    """Return references to databases that this manifest and the pinned ones no longer read."""
    manifests = (latest, *pinned)
    needed = {db.final_checkpoint_id for m in manifests for db in m.external_dbs if db.sst_ids}
    return tuple(
        db
        for db in latest.external_dbs
        if db.final_checkpoint_id is not None and db.final_checkpoint_id not in needed
    )


def deletable_notes(
    listed: Iterable[ObjectMeta], ledger: SlateLedger | None, written_before_ms: int
) -> tuple[ObjectMeta, ...]:
    """Return notes about compactions that are finished or unknown. They must have been listed before the
    ledger was read: a compaction is in the ledger before notes about it are written."""
    active = {c.id for c in ledger.active()} if ledger is not None else set()

    def is_garbage(meta: ObjectMeta) -> bool:
        compaction_id = parse_note_key(meta.key)
        return compaction_id is not None and compaction_id not in active

    return tuple(m for m in listed if m.last_modified_ms < written_before_ms and is_garbage(m))
