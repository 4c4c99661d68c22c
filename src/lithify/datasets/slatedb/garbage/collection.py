"""One garbage collection of a SlateDB database (SlateDB format: garbage collection).

1. List Lithify's notes about compactions. (Before the ledger is read: see `retention`.)
2. Read the ledger, then the latest manifest, then every manifest that a checkpoint pins. If one is unreadable
   or missing, the run ends before anything is written, because it is unknown then what is needed.
3. Remove expired checkpoints from the manifest; if there were any, read the rest again.
4. For each requested kind, list the objects and delete those that `retention` does not need. Before SSTs and
   files of the write-ahead log are deleted, the latest manifest is read again: if it needs an object that the
   earlier one did not, nothing of that kind is deleted. Before a numbered file is deleted, the folder's
   boundary is raised to the highest such number, so that a client that slept meanwhile does not reuse a
   number.
5. Detach the database from those it was cloned from and no longer reads (`detach`).
6. Delete partly written files of killed writers, if nothing was added to them for the minimum age.

Invariants: an object is deleted only if it was listed under exactly the name that this database gives to it,
and is still the object that was listed: if the database was recreated, or restored from a backup, the run
ends (`Replaced`); numbered files from the latest that was read on are kept; a run may crash anywhere, and the
next one continues. The kinds do not depend on each other: if one fails the others are still collected, and
then the first failure is raised. A dry run decides the same and writes nothing; only the version that step 3
would have published is not counted.

The time is this machine's clock or the store's, whichever is behind: by a clock that is an hour ahead,
checkpoints of live readers would have expired.

The SSTs of other databases that a clone reads are never touched. Zero-byte files of the write-ahead log, by
which a writer fences older ones, are a kind of their own that must be requested, as in SlateDB. Parts of
interrupted uploads to a bucket do not appear in listings: a lifecycle rule of the bucket removes them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from lithify.base.clock import Clock
from lithify.base.errors import CorruptObject, LithifyError, ObjectNotFound, Refused, Replaced
from lithify.base.ids import Ids, RandomIds
from lithify.datasets.collecting import Due, carried_out, sooner
from lithify.datasets.slatedb.format.clients import why_too_old
from lithify.datasets.slatedb.format.ledger import SlateLedger, decode_ledger
from lithify.datasets.slatedb.format.manifest import decode_manifest, encode_manifest
from lithify.datasets.slatedb.format.paths import (
    COMPACTIONS_SUFFIX,
    MANIFEST_SUFFIX,
    DatabasePaths,
    check_whole,
    parse_note_key,
    parse_sst_key,
    parse_wal_key,
)
from lithify.datasets.slatedb.garbage import retention
from lithify.datasets.slatedb.garbage.detach import Detacher
from lithify.datasets.slatedb.garbage.retention import Cutoff
from lithify.datasets.slatedb.model import Manifest
from lithify.store.deleting import Deleting, delete_listed
from lithify.store.objects import ObjectMeta, ObjectStore
from lithify.store.times import store_now_ms
from lithify.store.versions import Version, VersionedFiles

DEFAULT_MIN_AGE_MS = 300_000
_ANY_AGE_MS = 1 << 62


class GarbageKind(StrEnum):
    """The kinds of garbage, by SlateDB's names if it has one."""

    CHECKPOINT = "checkpoint"
    """Expired ones are removed from the manifest whichever kinds are requested."""
    COMPACTED = "compacted"
    """SSTs."""
    MANIFEST = "manifest"
    COMPACTIONS = "compactions"
    WAL = "wal"
    WAL_FENCE = "wal_fence"
    """Zero-byte files of the write-ahead log."""
    DETACH = "detach"
    """References of a clone to databases it was cloned from."""
    PROGRESS = "progress"
    ATTEMPTS = "attempts"
    STAGED = "staged"
    """Partly written files of killed writers."""


DEFAULT_KINDS = frozenset(GarbageKind) - {GarbageKind.WAL_FENCE}


@dataclass(frozen=True, slots=True)
class GarbageOptions:
    min_age_ms: int = DEFAULT_MIN_AGE_MS
    dry_run: bool = True
    kinds: frozenset[GarbageKind] = DEFAULT_KINDS

    def __post_init__(self) -> None:
        if self.min_age_ms < 0:
            raise Refused(f"the minimum age is {self.min_age_ms} ms; it cannot be negative")


@dataclass(frozen=True, slots=True)
class Count:
    """The objects of one kind, and how many of them are garbage."""

    found: int
    deletable: int
    deletable_bytes: int = 0


@dataclass(frozen=True, slots=True)
class GarbageReport:
    """Result of a collection, or of a dry run."""

    dry_run: bool
    counts: Mapping[GarbageKind, Count]
    """Counts of each requested kind."""
    sst_cutoff: Cutoff
    reported_only: tuple[GarbageKind, ...] = ()
    """Kinds of which nothing was deleted, according to the settings, although others were."""
    due_in_ms: int | None = None
    """When more can be deleted even if the database does not change: a checkpoint ends, or garbage that is
    too young is old enough. `None` if never."""

    @property
    def deletable(self) -> int:
        """Return the deletable objects of all kinds together."""
        return sum(count.deletable for count in self.counts.values())


def collect(
    store: ObjectStore,
    paths: DatabasePaths,
    clock: Clock,
    options: GarbageOptions,
    *,
    ids: Ids | None = None,
    rng: random.Random | None = None,
) -> GarbageReport:
    """Collect the garbage of the database at `paths`, or with `dry_run` only report it.

    Raise `Refused` if there is no database, `CorruptObject` if a pinned manifest is missing.
    """
    return _Collection(store, paths, clock, options, ids if ids is not None else RandomIds(), rng).run()


def collect_each(
    store: ObjectStore,
    paths: DatabasePaths,
    clock: Clock,
    dues: Sequence[Due[GarbageKind]],
    *,
    dry_run: bool,
    ids: Ids,
) -> GarbageReport:
    """Collect once, with different options for some kinds (those that delete first); return one report."""
    done = carried_out(
        dues,
        lambda due: collect(
            store, paths, clock, GarbageOptions(due.min_age_ms, due.dry_run, due.kinds), ids=ids
        ),
    )
    counts: dict[GarbageKind, Count] = {}
    for _, report in done:
        counts = {**report.counts, **counts}  # only the first collection found the expired checkpoints
    deleted = {kind for _, report in done if not report.dry_run for kind in report.counts}
    return GarbageReport(
        dry_run,
        counts,
        next(report.sst_cutoff for due, report in done if GarbageKind.COMPACTED in due.kinds),
        () if dry_run else tuple(kind for kind in GarbageKind if kind in counts.keys() - deleted),
    )


@dataclass(frozen=True, slots=True)
class _State:
    """The state of the database on which a collection bases its decisions."""

    ledger_id: int
    ledger: SlateLedger | None
    manifest_id: int
    latest: Manifest
    pinned: Mapping[int, Manifest]
    cutoff: Cutoff


class _Collection:
    """One run. Its time is that of its start, so that nothing ages while it reads."""

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
        self._ids = ids
        self._rng = rng if rng is not None else random.Random()
        self._now_ms = clock.now_ms()
        self._manifests = VersionedFiles(
            store, paths.manifest_folder, MANIFEST_SUFFIX, paths.manifest_boundary, ids, clock=clock
        )
        self._ledgers = VersionedFiles(
            store,
            paths.compactions_folder,
            COMPACTIONS_SUFFIX,
            paths.compactions_boundary,
            ids,
            clock=clock,
        )
        self._counts: dict[GarbageKind, Count] = {}
        self._due_in_ms: int | None = None

    @property
    def _written_before_ms(self) -> int:
        return self._now_ms - self._options.min_age_ms

    def run(self) -> GarbageReport:
        notes = {kind: self._listed_notes(kind) for kind in (GarbageKind.PROGRESS, GarbageKind.ATTEMPTS)}
        state = self._read_state()
        if not self._options.dry_run:
            self._now_ms = min(self._now_ms, store_now_ms(self._store, self._paths.time_key))
        self._counts[GarbageKind.CHECKPOINT] = self._expire_checkpoints()
        if self._counts[GarbageKind.CHECKPOINT].deletable and not self._options.dry_run:
            state = self._read_state()
        steps: Sequence[tuple[GarbageKind, Callable[[], Count]]] = (
            (GarbageKind.COMPACTED, lambda: self._collect_ssts(state)),
            (GarbageKind.WAL, lambda: self._collect_wal(state, lambda size_bytes: size_bytes > 0)),
            (GarbageKind.WAL_FENCE, lambda: self._collect_wal(state, lambda size_bytes: size_bytes == 0)),
            (GarbageKind.MANIFEST, lambda: self._collect_manifests(state)),
            (GarbageKind.COMPACTIONS, lambda: self._collect_ledgers(state)),
            (GarbageKind.PROGRESS, lambda: self._collect_notes(state, notes[GarbageKind.PROGRESS])),
            (GarbageKind.ATTEMPTS, lambda: self._collect_notes(state, notes[GarbageKind.ATTEMPTS])),
            (GarbageKind.DETACH, lambda: self._detach(state)),
            (GarbageKind.STAGED, self._collect_staged),
        )
        failures: list[LithifyError] = []
        for kind, step in steps:
            if kind not in self._options.kinds:
                continue
            try:
                self._counts[kind] = step()
            except Replaced:
                raise
            except LithifyError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        for checkpoint in state.latest.checkpoints:
            if checkpoint.expire_time_s:
                self._note_due(checkpoint.expire_time_s * 1000 - self._now_ms)
        return GarbageReport(self._options.dry_run, self._counts, state.cutoff, due_in_ms=self._due_in_ms)

    def _note_due(self, due_in_ms: int) -> None:
        self._due_in_ms = sooner(self._due_in_ms, max(0, due_in_ms))

    def _note_young(self, garbage: Iterable[ObjectMeta]) -> None:
        """Note garbage of which some is too young."""
        newest_ms = max((meta.last_modified_ms for meta in garbage), default=0)
        if newest_ms >= self._written_before_ms:
            self._note_due(newest_ms - self._written_before_ms + 1)

    # Reading

    def _read_state(self) -> _State:
        ledger_version = self._ledgers.confirmed()
        ledger = None
        if ledger_version is not None:
            ledger = decode_ledger(ledger_version.data, self._ledgers.key(ledger_version.id))
        manifest_id, latest = self._latest_manifest()
        return _State(
            ledger_version.id if ledger_version is not None else 0,
            ledger,
            manifest_id,
            latest,
            self._pinned_manifests(latest),
            retention.sst_cutoff(self._now_ms, self._options.min_age_ms, ledger, latest),
        )

    def _latest_manifest(self) -> tuple[int, Manifest]:
        """Return the latest manifest without expired checkpoints, and its number; in a dry run the number
        that it would have."""
        version = self._manifests.confirmed()
        manifest = self._decode_manifest(version)
        assert version is not None
        if not self._options.dry_run:
            return version.id, manifest
        changed = retention.without_expired_checkpoints(manifest, self._now_ms)
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
                    f"checkpoint {checkpoint.id} pins this manifest, which is missing, so it is unknown "
                    "which SSTs it needs, and nothing was deleted; delete the checkpoint if it is no longer "
                    "needed, or run again if it was deleted just now",
                ) from error
        return pinned

    def _decode_manifest(self, version: Version | None) -> Manifest:
        where = f"{self._store.url.rstrip('/')}/{self._paths.root}"
        check_whole(where, self._paths.root, has_manifest=version is not None)
        assert version is not None
        manifest = decode_manifest(version.data, self._manifests.key(version.id))
        if not manifest.initialized:
            raise Refused(f"{where} is a clone that is still being created; collect its garbage afterwards")
        if too_old := why_too_old(manifest):
            raise Refused(f"{where}: {too_old}")
        return manifest

    def _listed_notes(self, kind: GarbageKind) -> list[ObjectMeta]:
        folder = self._paths.progress_folder if kind is GarbageKind.PROGRESS else self._paths.attempts_folder
        if kind not in self._options.kinds:
            return []
        return [meta for meta in self._store.list(folder) if parse_note_key(meta.key)]

    # Collecting

    def _expire_checkpoints(self) -> Count:
        count = Count(0, 0)

        def change(version: Version | None) -> bytes | None:
            nonlocal count
            manifest = self._decode_manifest(version)
            changed = retention.without_expired_checkpoints(manifest, self._now_ms)
            found, left = len(manifest.checkpoints), len(changed.checkpoints)
            count = Count(found, found - left)
            return None if self._options.dry_run or changed == manifest else encode_manifest(changed)

        self._manifests.update(change, self._clock, self._rng)
        return count

    def _collect_ssts(self, state: _State) -> Count:
        listed = [m for m in self._store.list(self._paths.compacted_folder) if parse_sst_key(m.key)]

        def deletable(at: _State) -> Sequence[ObjectMeta]:
            live = retention.live_ssts((at.latest, *at.pinned.values()))
            return retention.deletable_ssts(listed, self._paths, live, at.cutoff)

        garbage = self._confirmed(deletable, state)
        self._delete(garbage)
        return _count(listed, garbage)

    def _collect_wal(self, state: _State, is_kind: Callable[[int], bool]) -> Count:
        numbered = ((parse_wal_key(meta.key), meta) for meta in self._store.list(self._paths.wal_folder))
        listed = [
            (wal_id, meta)
            for wal_id, meta in numbered
            if wal_id is not None and meta.key == self._paths.wal(wal_id) and is_kind(meta.size)
        ]

        def deletable(at: _State) -> Sequence[ObjectMeta]:
            return retention.deletable_wal(listed, at.latest, at.pinned.values(), self._written_before_ms)

        pinned = state.pinned.values()
        self._note_young(retention.deletable_wal(listed, state.latest, pinned, _ANY_AGE_MS))
        garbage = self._confirmed(deletable, state)
        self._delete(garbage)
        return _count(listed, garbage)

    def _confirmed(
        self, deletable: Callable[[_State], Sequence[ObjectMeta]], state: _State
    ) -> Sequence[ObjectMeta]:
        """Return the deletable objects, after the latest manifest has been read again."""
        garbage = deletable(state)
        if not garbage or self._options.dry_run:
            return garbage
        manifest_id, latest = self._latest_manifest()
        if manifest_id == state.manifest_id:
            return garbage
        now = replace(state, manifest_id=manifest_id, latest=latest, pinned=self._pinned_manifests(latest))
        still = {meta.key for meta in deletable(now)}
        revived = next((meta.key for meta in garbage if meta.key not in still), None)
        if revived is not None:
            raise Refused(
                f"{revived}: manifest {state.manifest_id} did not need it, but manifest {manifest_id} does, "
                "so nothing of its kind was deleted; find the program that added it again"
            )
        return garbage

    def _collect_manifests(self, state: _State) -> Count:
        return self._collect_versions(self._manifests, state.manifest_id, frozenset(state.pinned))

    def _collect_ledgers(self, state: _State) -> Count:
        return self._collect_versions(self._ledgers, state.ledger_id, frozenset())

    def _collect_versions(self, files: VersionedFiles, latest_id: int, pinned: frozenset[int]) -> Count:
        listed = files.listed()
        self._note_young(
            meta for _, meta in retention.deletable_versions(listed, latest_id, pinned, _ANY_AGE_MS)
        )
        garbage = retention.deletable_versions(listed, latest_id, pinned, self._written_before_ms)
        if garbage and not self._options.dry_run:
            files.advance_boundary(max(version_id for version_id, _ in garbage))
        self._delete([meta for _, meta in garbage])
        return _count(listed, [meta for _, meta in garbage])

    def _collect_notes(self, state: _State, listed: Sequence[ObjectMeta]) -> Count:
        garbage = retention.deletable_notes(listed, state.ledger, self._written_before_ms)
        self._delete(garbage, may_change=True)  # tasks rewrite them in place
        return _count(listed, garbage)

    def _detach(self, state: _State) -> Count:
        garbage = retention.detachable(state.latest, state.pinned.values())
        if garbage and not self._options.dry_run:
            detacher = Detacher(self._store, self._paths, self._clock, self._ids, self._rng)
            detacher.detach(self._manifests, garbage)
        return Count(len(state.latest.external_dbs), len(garbage))

    def _collect_staged(self) -> Count:
        paths = self._paths
        folders = (
            paths.compacted_folder,
            paths.wal_folder,
            paths.manifest_folder,
            paths.compactions_folder,
            paths.boundary_folder,
            paths.own_folder,
        )
        listed = [meta for folder in folders for meta in self._store.list_staged(folder)]
        garbage = [meta for meta in listed if meta.last_modified_ms < self._written_before_ms]
        if not self._options.dry_run:
            with Deleting() as deleting:
                deleting.all(partial(self._store.delete_staged, meta.key) for meta in garbage)
        return _count(listed, garbage)

    def _delete(self, garbage: Iterable[ObjectMeta], *, may_change: bool = False) -> None:
        if self._options.dry_run:
            return
        with Deleting() as deleting:
            deleting.all(partial(delete_listed, self._store, meta, may_change=may_change) for meta in garbage)


def _count(found: Sequence[object], garbage: Sequence[ObjectMeta]) -> Count:
    return Count(len(found), len(garbage), sum(meta.size for meta in garbage))
