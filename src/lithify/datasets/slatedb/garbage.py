"""Garbage collection of a SlateDB database (SlateDB format: garbage collection).

1. Take expired checkpoints out of the manifest.
2. Read the ledger, then the latest manifest, then every manifest that a checkpoint pins. In this
   order, whatever was committed after the ledger was read is seen in the manifest, and whatever was
   not is still protected by its entry in the ledger. A pinned manifest that is missing ends the run:
   nobody knows then which SSTs it needs.
3. SSTs: delete those of this database that none of these manifests names and whose id is older than
   the cutoff, the least of
   - now - the minimum age;
   - the oldest compaction in the ledger, finished or not: outputs that are not committed yet carry
     ids younger than their compaction's. Without a ledger, or with an empty one, nothing is deleted,
     since nobody can tell what is being written;
   - the newest L0 SST (of a tree without L0s: the newest it ever compacted; of several trees: the
     newest). A younger one may be uploaded but not published yet.
   Ids tell the age here, never the store's times.
4. Manifests: delete those before the latest that no checkpoint pins and that were written before
   now - the minimum age. Compactions files: likewise, and nothing pins them.
5. Before a numbered file is deleted the folder's boundary is raised to the highest such number, so
   that a client that slept meanwhile does not take a number again.

Invariants: an object is deleted only if it was listed under exactly the name that this database gives
to it; numbered files from the latest that was read on stay; the run may die anywhere, and the next
one goes on. A dry run decides the same and writes nothing; only the version that step 1 would have
published is not there to be counted.

Out of scope: the write-ahead log with its zero-byte fences, detaching a clone from its parent, and
the SSTs of other databases that a clone reads. None of them is ever touched.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from lithify.clock import Clock
from lithify.datasets.slatedb.ledger import SlateLedger, decode_ledger
from lithify.datasets.slatedb.manifest import decode_manifest, encode_manifest
from lithify.datasets.slatedb.model import Checkpoint, Manifest, Tree
from lithify.datasets.slatedb.paths import (
    COMPACTIONS_SUFFIX,
    MANIFEST_SUFFIX,
    DatabasePaths,
    parse_sst_key,
)
from lithify.errors import CorruptObject, ObjectNotFound, Refused
from lithify.ids import Ids, RandomIds, Ulid, ulid_ms
from lithify.store.objects import ObjectMeta, ObjectStore
from lithify.store.versions import Version, VersionedFiles, parse_key

DEFAULT_MIN_AGE_MS = 300_000
MAX_DELETES_IN_FLIGHT = 8


@dataclass(frozen=True, slots=True)
class GarbageOptions:
    """How a collection is done."""

    min_age_ms: int = DEFAULT_MIN_AGE_MS
    dry_run: bool = True

    def __post_init__(self) -> None:
        if self.min_age_ms < 0:
            raise Refused(f"the minimum age is {self.min_age_ms} ms; it cannot be negative")


@dataclass(frozen=True, slots=True)
class Cutoff:
    """SSTs from this time on are kept, and why it is not later."""

    ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Count:
    """What was found of one resource, and what of it is garbage."""

    found: int
    deletable: int
    deletable_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What a collection deleted, or would delete."""

    dry_run: bool
    checkpoints: Count
    ssts: Count
    manifests: Count
    compactions: Count
    sst_cutoff: Cutoff


# Deciding


def expired_checkpoints(manifest: Manifest, now_ms: int) -> tuple[Checkpoint, ...]:
    """Those whose time is over. An expiry time of 0 means never."""
    return tuple(c for c in manifest.checkpoints if c.expire_time_s and c.expire_time_s * 1000 <= now_ms)


def without_expired_checkpoints(manifest: Manifest, now_ms: int) -> Manifest:
    """The manifest without them."""
    expired = expired_checkpoints(manifest, now_ms)
    return replace(manifest, checkpoints=tuple(c for c in manifest.checkpoints if c not in expired))


def live_ssts(manifests: Iterable[Manifest]) -> frozenset[Ulid]:
    """The SSTs that any of the manifests names."""
    return frozenset(view.sst.id for m in manifests for tree in m.trees() for view in tree.views())


def sst_cutoff(now_ms: int, min_age_ms: int, ledger: SlateLedger | None, latest: Manifest) -> Cutoff:
    """The time from which on SSTs are kept although nothing names them."""
    if ledger is None:
        return Cutoff(0, "there is no compactions file: nothing says what is being written")
    if not ledger.compactions:
        return Cutoff(0, "the compactions file has no entries: nothing says what is being written")
    newest_l0s = [ms for tree in latest.trees() if (ms := _newest_l0_ms(tree)) is not None]
    if not newest_l0s:
        return Cutoff(0, "there never was an L0 SST: the first may be being uploaded")
    return min(
        Cutoff(now_ms - min_age_ms, "the minimum age"),
        Cutoff(min(ulid_ms(c.id) for c in ledger.compactions), "the oldest compaction in the ledger"),
        Cutoff(max(newest_l0s), "the newest L0 SST"),
        key=lambda cutoff: cutoff.ms,
    )


def _newest_l0_ms(tree: Tree) -> int | None:
    if tree.l0:
        return ulid_ms(tree.l0[0].sst.id)
    return None if tree.last_compacted_l0 is None else ulid_ms(tree.last_compacted_l0)


def deletable_ssts(
    listed: Iterable[ObjectMeta], paths: DatabasePaths, live: frozenset[Ulid], cutoff: Cutoff
) -> tuple[ObjectMeta, ...]:
    """The objects of the `compacted` folder that are garbage."""

    def is_garbage(key: str) -> bool:
        sst_id = parse_sst_key(key)
        if sst_id is None or key != paths.sst(sst_id):
            return False
        return sst_id not in live and ulid_ms(sst_id) < cutoff.ms

    return tuple(meta for meta in listed if is_garbage(meta.key))


def deletable_versions(
    listed: Iterable[tuple[int, ObjectMeta]],
    latest_id: int,
    pinned: frozenset[int],
    written_before_ms: int,
) -> tuple[tuple[int, ObjectMeta], ...]:
    """The numbered files that are garbage."""
    return tuple(
        (version_id, meta)
        for version_id, meta in listed
        if version_id < latest_id and version_id not in pinned and meta.last_modified_ms < written_before_ms
    )


# Collecting


def collect(
    store: ObjectStore,
    paths: DatabasePaths,
    clock: Clock,
    options: GarbageOptions,
    *,
    ids: Ids | None = None,
    rng: random.Random | None = None,
) -> Report:
    """Collect the garbage of the database at `paths`, or with `dry_run` only say what it is.

    `Refused` when there is no database, `CorruptObject` when a pinned manifest is missing.
    """
    return _Collection(store, paths, clock, options, ids if ids is not None else RandomIds(), rng).run()


class _Collection:
    """One run. Its time is that of its start, so that nothing ages while it looks."""

    def __init__(
        self,
        store: ObjectStore,
        paths: DatabasePaths,
        clock: Clock,
        options: GarbageOptions,
        ids: Ids,
        rng: random.Random | None,
    ) -> None:
        self._store = store
        self._paths = paths
        self._clock = clock
        self._options = options
        self._rng = rng if rng is not None else random.Random()
        self._now_ms = clock.now_ms()
        self._manifests = VersionedFiles(
            store, paths.manifest_folder, MANIFEST_SUFFIX, paths.manifest_boundary, ids
        )
        self._ledgers = VersionedFiles(
            store, paths.compactions_folder, COMPACTIONS_SUFFIX, paths.compactions_boundary, ids
        )

    def run(self) -> Report:
        options = self._options
        checkpoints = self._expire_checkpoints()
        ledger_version = self._ledgers.latest()
        ledger = self._decode_ledger(ledger_version)
        manifest_id, latest = self._latest_manifest()
        pinned = self._pinned_manifests(latest)

        cutoff = sst_cutoff(self._now_ms, options.min_age_ms, ledger, latest)
        live = live_ssts((latest, *pinned.values()))
        listed_ssts = [m for m in self._store.list(self._paths.compacted_folder) if parse_sst_key(m.key)]
        ssts = deletable_ssts(listed_ssts, self._paths, live, cutoff)

        written_before_ms = self._now_ms - options.min_age_ms
        listed_manifests = self._listed(self._manifests, MANIFEST_SUFFIX)
        manifests = deletable_versions(listed_manifests, manifest_id, frozenset(pinned), written_before_ms)
        listed_ledgers = self._listed(self._ledgers, COMPACTIONS_SUFFIX)
        ledger_id = ledger_version.id if ledger_version is not None else 0
        ledgers = deletable_versions(listed_ledgers, ledger_id, frozenset(), written_before_ms)

        if not options.dry_run:
            self._delete(ssts)
            self._delete_versions(self._manifests, manifests)
            self._delete_versions(self._ledgers, ledgers)
        return Report(
            dry_run=options.dry_run,
            checkpoints=checkpoints,
            ssts=_count(listed_ssts, ssts),
            manifests=_count(listed_manifests, [meta for _, meta in manifests]),
            compactions=_count(listed_ledgers, [meta for _, meta in ledgers]),
            sst_cutoff=cutoff,
        )

    def _expire_checkpoints(self) -> Count:
        count = Count(0, 0)

        def change(version: Version | None) -> bytes | None:
            nonlocal count
            manifest = self._decode_manifest(version)
            changed = without_expired_checkpoints(manifest, self._now_ms)
            found, left = len(manifest.checkpoints), len(changed.checkpoints)
            count = Count(found, found - left)
            return None if self._options.dry_run or changed == manifest else encode_manifest(changed)

        self._manifests.update(change, self._clock, self._rng)
        return count

    def _latest_manifest(self) -> tuple[int, Manifest]:
        """The latest manifest without expired checkpoints, and its number; in a dry run the number
        that it would have."""
        version = self._manifests.latest()
        manifest = self._decode_manifest(version)
        assert version is not None
        if not self._options.dry_run:
            return version.id, manifest
        changed = without_expired_checkpoints(manifest, self._now_ms)
        return version.id + (changed != manifest), changed

    def _pinned_manifests(self, latest: Manifest) -> dict[int, Manifest]:
        pinned: dict[int, Manifest] = {}
        for checkpoint in latest.checkpoints:
            manifest_id = checkpoint.manifest_id
            if manifest_id in pinned:
                continue
            key = self._manifests.key(manifest_id)
            try:
                pinned[manifest_id] = decode_manifest(self._manifests.read(manifest_id), key)
            except ObjectNotFound as error:
                raise CorruptObject(
                    key,
                    f"checkpoint {checkpoint.id} pins this manifest and it is missing, so nobody knows which "
                    "SSTs it needs and no file was deleted; delete the checkpoint if it is of no use any "
                    "more, or run again if it was deleted just now",
                ) from error
        return pinned

    def _decode_manifest(self, version: Version | None) -> Manifest:
        if version is None:
            raise Refused(
                f"there is no SlateDB database at {self._store.url.rstrip('/')}/{self._paths.root}: "
                "no manifest was found; check the URL"
            )
        return decode_manifest(version.data, self._manifests.key(version.id))

    def _decode_ledger(self, version: Version | None) -> SlateLedger | None:
        return None if version is None else decode_ledger(version.data, self._ledgers.key(version.id))

    def _listed(self, files: VersionedFiles, suffix: str) -> list[tuple[int, ObjectMeta]]:
        listed = ((parse_key(m.key, files.folder, suffix), m) for m in self._store.list(files.folder))
        return [(version_id, meta) for version_id, meta in listed if version_id is not None]

    def _delete_versions(self, files: VersionedFiles, garbage: Sequence[tuple[int, ObjectMeta]]) -> None:
        if garbage:
            files.advance_boundary(max(version_id for version_id, _ in garbage))
            self._delete([meta for _, meta in garbage])

    def _delete(self, garbage: Sequence[ObjectMeta]) -> None:
        delete: Callable[[str], None] = self._store.delete
        with ThreadPoolExecutor(MAX_DELETES_IN_FLIGHT, thread_name_prefix="lithify-gc") as pool:
            for _ in pool.map(delete, [meta.key for meta in garbage]):
                pass  # the first failure is raised here, and what has not begun is left out


def _count(found: Sequence[object], garbage: Sequence[ObjectMeta]) -> Count:
    return Count(len(found), len(garbage), sum(meta.size for meta in garbage))
