"""One garbage collection: deletes files that Lithify wrote for a table and that nothing refers to.

1. Read the store's time; ages are measured by its clock alone. Read the table's known lineage.
2. List the table's places for data and metadata. A file is a candidate if its name proves that Lithify wrote
   it for this table (`ownership`), if it is older than the minimum age (a manifest: also than any commit
   takes) and younger than Lithify's folder, and if its compaction is active neither in the ledger read before
   the listing nor in the one read after it. A file older than the folder is left to the removal of orphans: a
   removed folder may have said that it is in use (`own_state`).
3. Load the table. Raise `Refused` if it does not continue its known lineage (`lineage`), or may not know all
   its snapshots. A candidate that any snapshot's manifests name is needed. A file that an expiry recorded
   (`pending`) is left to it, because it waits for readers.
4. Raise `Refused` if more than a share of all listed files would be deleted, which indicates a mistake, or if
   the catalog has the table under a second name, which may need these files (`shared_locations`).
5. Before each batch, load the table again. Raise `Refused` if a new snapshot names a candidate.
6. In Lithify's folder of the table, garbage is: versions of the ledger, the chunk states, the threshold and
   the pending files except the newest `KEPT_VERSIONS`; notes about ended compactions; half-written files of
   killed writers.

If the table's `gc.enabled` is not true, steps 2 to 5 find nothing.

Invariants: a file without proof of ownership stays. Lineage and ledgers are read before the table, so files
published or planned meanwhile are found to be needed. Any error ends the collection. A dry run decides the
same, by this machine's clock, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import chain

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lithify.base.clock import Clock
from lithify.base.errors import Refused
from lithify.base.events import GarbageCollected
from lithify.base.ids import RandomIds, Ulid
from lithify.config.sections import CollectionSettings
from lithify.coordination.thresholds import ThresholdFiles
from lithify.datasets.collecting import Due, carried_out
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.format.lineage import KnownState
from lithify.datasets.iceberg.format.ownership import OwnName, marks_of, parse_name
from lithify.datasets.iceberg.format.publish import MIN_MANIFEST_AGE_MS
from lithify.datasets.iceberg.format.table_properties import locations_of, properties_of
from lithify.datasets.iceberg.io.places import canonical
from lithify.datasets.iceberg.io.stores import open_place
from lithify.datasets.iceberg.maintenance.deleting import (
    DEFAULT_MAX_PERCENT,
    batches,
    check_percent,
    check_whole,
    deletion_now_ms,
    is_too_much,
)
from lithify.datasets.iceberg.maintenance.expiry_policy import may_expire
from lithify.datasets.iceberg.maintenance.pending import Pending
from lithify.datasets.iceberg.maintenance.reachable import files_in, manifests_in
from lithify.datasets.iceberg.settings import TableGarbageSettings
from lithify.store.deleting import Deleting
from lithify.store.keys import join, url_of
from lithify.store.objects import ObjectMeta, ObjectStore
from lithify.store.versions import VersionedFiles

DEFAULT_MIN_AGE_MS = 3_600_000
KEPT_VERSIONS = 10
CLOCKS_APART_MS = 900_000
"""The maximum difference of two stores' clocks, if Lithify's folder is in another store than the table. S3
refuses requests of a client whose clock is further off."""


class GarbageKind(StrEnum):
    DATA = "data files"
    MANIFEST = "manifests"
    VERSION = "versions of the ledger and of the memory of chunks"
    NOTE = "notes about ended compactions"
    STAGED = "half-written files"


@dataclass(frozen=True, slots=True)
class GarbageOptions:
    """Options of one collection."""

    min_age_ms: int = DEFAULT_MIN_AGE_MS
    dry_run: bool = True
    kinds: frozenset[GarbageKind] = frozenset(GarbageKind)
    max_percent: int = DEFAULT_MAX_PERCENT

    def __post_init__(self) -> None:
        if self.min_age_ms < 0:
            raise Refused(f"the minimum age is {self.min_age_ms} ms; it cannot be negative")
        check_percent(self.max_percent)


@dataclass(frozen=True, slots=True)
class Garbage:
    """An object that is not needed."""

    kind: GarbageKind
    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GarbageReport:
    """The garbage that a collection deleted, or would delete."""

    dry_run: bool
    garbage: tuple[Garbage, ...]
    found: Mapping[GarbageKind, int]
    """Lithify's objects found, by kind."""
    notes: tuple[str, ...] = ()
    """Skipped parts, and why."""
    reported_only: tuple[GarbageKind, ...] = ()
    """Kinds of which nothing was deleted although others were, because of the settings."""

    def count(self, kind: GarbageKind) -> int:
        """Return the number of garbage objects of a kind."""
        return sum(found.kind is kind for found in self.garbage)


def collect(dataset: IcebergDataset, clock: Clock, options: GarbageOptions | None = None) -> GarbageReport:
    """Find objects that are not needed, and delete them unless `dry_run`.

    Raises `Refused` if a contradiction forbids any deletion; see the module.
    """
    return _Collection(dataset, clock, options if options is not None else GarbageOptions()).run()


def collect_each(
    dataset: IcebergDataset,
    clock: Clock,
    dues: Sequence[Due[GarbageKind]],
    *,
    dry_run: bool,
    max_percent: int,
) -> GarbageReport:
    """Collect with each kind's own options, those that delete first, and merge the reports."""
    done = carried_out(
        dues,
        lambda due: collect(
            dataset, clock, GarbageOptions(due.min_age_ms, due.dry_run, due.kinds, max_percent)
        ),
    )
    said = {kind for due, _ in done if due.dry_run for kind in due.kinds}
    return GarbageReport(
        dry_run,
        tuple(chain.from_iterable(report.garbage for _, report in done)),
        {kind: count for due, report in done for kind, count in report.found.items() if kind in due.kinds},
        tuple(dict.fromkeys(chain.from_iterable(report.notes for _, report in done))),
        () if dry_run else tuple(kind for kind in GarbageKind if kind in said),
    )


@dataclass(frozen=True, slots=True)
class _Listed:
    kind: GarbageKind
    own: OwnName
    store: ObjectStore
    meta: ObjectMeta


@dataclass(slots=True)
class _Named:
    """The names of Lithify's files in the snapshots read so far."""

    snapshots: set[int] = field(default_factory=set)
    manifests: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)


class _Collection:
    def __init__(self, dataset: IcebergDataset, clock: Clock, options: GarbageOptions) -> None:
        self._dataset = dataset
        self._options = options
        self._store = dataset.store
        self._pending = Pending(dataset.store, dataset.own_folder, clock, RandomIds())
        self._watermark = ThresholdFiles(dataset.store, dataset.own_folder, clock, RandomIds())
        self._now_ms = deletion_now_ms(dataset, dataset.load(), clock, dry_run=options.dry_run)
        self._doubt_ms = CLOCKS_APART_MS if dataset.is_state_elsewhere else 0
        self._before_ms = self._now_ms - options.min_age_ms - self._doubt_ms
        self._deleting = Deleting()
        self._garbage: list[Garbage] = []
        self._found: dict[GarbageKind, int] = {}
        self._notes: list[str] = []

    def run(self) -> GarbageReport:
        kinds = self._options.kinds
        with self._deleting:
            if kinds & {GarbageKind.DATA, GarbageKind.MANIFEST}:
                self._collect_files()
            if GarbageKind.VERSION in kinds:
                for files in (*self._dataset.numbered_files, self._watermark.files, self._pending.files):
                    self._collect_versions(files)
            if GarbageKind.NOTE in kinds:
                self._collect_notes()
            if GarbageKind.STAGED in kinds:
                self._collect_staged()
        return GarbageReport(self._options.dry_run, tuple(self._garbage), self._found, tuple(self._notes))

    # Data files and manifests

    def _collect_files(self) -> None:
        known = self._dataset.lineage.read()
        active = self._active()
        table = self._dataset.load()
        if not may_expire(properties_of(table.metadata)):
            self._notes.append(
                "data files and manifests are kept: the table's property gc.enabled is not true, "
                "so other tables may use them"
            )
            return
        since_ms = self._since_ms(table)
        listed, all_files = self._list(table)
        for kind in (GarbageKind.DATA, GarbageKind.MANIFEST):
            self._found[kind] = sum(one.kind is kind for one in listed)
        marks, active = marks_of(table.metadata), active | self._active()
        candidates = [one for one in listed if self._is_candidate(one, marks, active)]
        before = [one for one in candidates if one.meta.last_modified_ms <= since_ms]
        if before:
            candidates = [one for one in candidates if one.meta.last_modified_ms > since_ms]
            self._notes.append(
                f"{len(before)} files are kept because they are older than Lithify's folder of the table, "
                "which therefore does not record whether they are needed; `lithify remove-orphans` finds "
                "those that are not"
            )
        if candidates:
            self._remove_unnamed(known, candidates, all_files)
        if not self._options.dry_run:
            self._dataset.lineage.advance(table)

    def _remove_unnamed(
        self, known: KnownState | None, candidates: Sequence[_Listed], all_files: int
    ) -> None:
        named = _Named()
        self._read_named(known, named)
        # After the table: files expired meanwhile were recorded before.
        named.names |= self._pending_names()
        garbage = [one for one in candidates if one.own.name not in named.names]
        self._check_share(len(garbage), all_files)
        if garbage:
            self._dataset.check_one_name()
        for batch in batches(garbage):
            if not self._options.dry_run:
                self._check_again(known, named, batch)
                self._deleting.all(partial(one.store.delete, one.meta.key) for one in batch)
            self._garbage += [
                Garbage(one.kind, url_of(one.store.url, one.meta.key), one.meta.size) for one in batch
            ]

    def _is_candidate(self, one: _Listed, marks: frozenset[str], active: frozenset[Ulid]) -> bool:
        before_ms = self._before_ms
        if one.kind is GarbageKind.MANIFEST:
            before_ms = min(before_ms, self._now_ms - MIN_MANIFEST_AGE_MS - self._doubt_ms)
        is_old = one.meta.last_modified_ms < before_ms
        return is_old and one.own.mark in marks and one.own.compaction not in active

    def _list(self, table: Table) -> tuple[list[_Listed], int]:
        """Return the files with Lithify's names, and the number of all files."""
        listed: dict[tuple[str, str], _Listed] = {}
        seen: set[tuple[str, str]] = set()
        for place in _places(table):
            store, prefix = open_place(place, table.io.properties)
            root = canonical(store.url)
            for meta in store.list(prefix):
                where = (root, meta.key)
                seen.add(where)
                own = parse_name(meta.key)
                if own is None:
                    continue
                kind = GarbageKind.MANIFEST if own.compaction is None else GarbageKind.DATA
                if kind in self._options.kinds:
                    listed[where] = _Listed(kind, own, store, meta)
        return list(listed.values()), len(seen)

    def _read_named(self, known: KnownState | None, named: _Named) -> None:
        """Load the table, and add the names in snapshots that were not read before."""
        table = self._dataset.load()
        check_whole(table, known, self._dataset)
        new = [s for s in table.metadata.snapshots if s.snapshot_id not in named.snapshots]
        with translated(f"reading the snapshots of {self._dataset.url}"):
            _add_names(table, new, named)

    def _pending_names(self) -> set[str]:
        paths = (file.path for entry in self._pending.read() for file in self._pending.paths(entry))
        return {own.name for path in paths if (own := parse_name(path)) is not None}

    def _check_share(self, deletable: int, listed: int) -> None:
        if is_too_much(deletable, listed, self._options.max_percent):
            raise Refused(
                f"{self._dataset.url}: {deletable} of {listed} files in the table's folders would be "
                f"deleted, more than {self._options.max_percent} %, so nothing was deleted; check the list "
                "of `lithify gc` without --delete, and if it is right, allow it with --max-percent"
            )

    def _check_again(self, known: KnownState | None, named: _Named, batch: Sequence[_Listed]) -> None:
        self._read_named(known, named)
        needed = next((one for one in batch if one.own.name in named.names), None)
        if needed is not None:
            raise Refused(
                f"{self._dataset.url}: {url_of(needed.store.url, needed.meta.key)} was referenced by no "
                "snapshot before but is now, so it and the other files to be deleted with it were kept; "
                "find the program that added it"
            )

    # Lithify's own folder

    def _since_ms(self, table: Table) -> int:
        """Return since when the folder knows what is needed. Older files may have been known to an earlier
        folder."""
        if not self._options.dry_run:
            return self._dataset.begin_state(table).since_ms + self._doubt_ms
        state = self._dataset.state.read()
        return self._now_ms if state is None else state.since_ms + self._doubt_ms

    def _active(self) -> frozenset[Ulid]:
        ledger = (
            self._dataset.stored_ledger()
        )  # uncached: files of compactions that it does not name are deleted
        return frozenset(c.id for c in ledger.active()) if ledger is not None else frozenset()

    def _collect_versions(self, files: VersionedFiles) -> None:
        listed = files.listed()
        old = [(number, m) for number, m in listed[:-KEPT_VERSIONS] if m.last_modified_ms < self._before_ms]
        if old and not self._options.dry_run:
            files.advance_boundary(old[-1][0])
        self._found[GarbageKind.VERSION] = self._found.get(GarbageKind.VERSION, 0) + len(listed)
        self._remove(GarbageKind.VERSION, [meta for _, meta in old], self._store.delete)

    def _collect_notes(self) -> None:
        noted = self._dataset.journal.compactions()
        ended = sorted(noted - self._active())
        if not self._options.dry_run:
            for compaction_id in ended:
                self._dataset.journal.clear(compaction_id)
        self._found[GarbageKind.NOTE] = len(noted)
        self._garbage += [Garbage(GarbageKind.NOTE, compaction_id, 0) for compaction_id in ended]

    def _collect_staged(self) -> None:
        listed = list(self._store.list_staged(self._dataset.own_folder))
        self._found[GarbageKind.STAGED] = len(listed)
        old = [meta for meta in listed if meta.last_modified_ms < self._before_ms]
        self._remove(GarbageKind.STAGED, old, self._store.delete_staged)

    def _remove(self, kind: GarbageKind, metas: Iterable[ObjectMeta], delete: Callable[[str], None]) -> None:
        found = list(metas)
        if not self._options.dry_run:
            self._deleting.all(partial(delete, meta.key) for meta in found)
        self._garbage += [Garbage(kind, url_of(self._store.url, meta.key), meta.size) for meta in found]


def collect_due(dataset: IcebergDataset, clock: Clock, due: Due[GarbageKind]) -> GarbageCollected:
    report = collect(dataset, clock, GarbageOptions(due.min_age_ms, due.dry_run, due.kinds))
    counts = {kind: report.count(kind) for kind in report.found}
    return GarbageCollected(
        dataset.url,
        report.dry_run,
        {kind.value: count for kind, count in counts.items()},
        {kind.value: report.found[kind] - count for kind, count in counts.items()},
        sum(found.size_bytes for found in report.garbage),
    )


def by_kind(settings: TableGarbageSettings) -> Mapping[GarbageKind, CollectionSettings]:
    """Return the settings of every kind of garbage."""
    return {
        GarbageKind.DATA: settings.data_files,
        GarbageKind.MANIFEST: settings.manifests,
        GarbageKind.VERSION: settings.ledger_versions,
        GarbageKind.NOTE: settings.lithify,
        GarbageKind.STAGED: settings.lithify,
    }


def _places(table: Table) -> tuple[str, ...]:
    """Return the places of Lithify's files: where new ones are written, and the default places."""
    locations, root = locations_of(table.metadata, table.io.properties), table.location().rstrip("/")
    chosen = (locations.data_path, locations.metadata_path, join(root, "data"), join(root, "metadata"))
    return tuple({canonical(place): place for place in reversed(chosen)}.values())


def _add_names(table: Table, snapshots: Sequence[Snapshot], named: _Named) -> None:
    manifests = {
        m.manifest_path: m
        for m in manifests_in(table.io, snapshots)
        if m.manifest_path not in named.manifests
    }
    files = (file.path for file in files_in(table.io, manifests.values()))
    paths = chain(manifests, (snapshot.manifest_list for snapshot in snapshots), files)
    named.names.update(own.name for path in paths if (own := parse_name(path)) is not None)
    named.manifests.update(manifests)
    named.snapshots.update(snapshot.snapshot_id for snapshot in snapshots)
