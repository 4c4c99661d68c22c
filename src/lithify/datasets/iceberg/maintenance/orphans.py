"""One removal of orphan files: files under a table's location that nothing names.

1. Read the store's time. Only files older than `older_than_ms` are candidates.
2. Read the known lineage, then the table. It must be whole, of a tested format, and own its files
   (`gc.enabled`); Lithify's folder must have the waiting files that it records (`own_state`); and no other
   table may have files in its place (`shared_locations`).
3. List the location with several threads. Never deleted are

   - names that begin with `_` or `.`, and all below: hidden, as for Iceberg's own procedure; one is Lithify's
     folder;
   - metadata files (`*.metadata.json`) and version hints;
   - files that Lithify wrote, for any table: `lithify gc` treats them. Those of this table that are older
     than Lithify's folder of it are treated here;
   - the folders of other tables within the place, and local links that lead outside;
   - a key that is no plain path (`places`), since a name may not refer to it alone;
   - empty objects of object stores: a folder marker (`x/`) is listed like an object `x`.

4. Load the table again. Needed are all files named by its snapshots, statistics, metadata log, pending
   entries (`pending`), and by metadata files of the table outside its history. Names and files are compared
   on the local disk (`external_set_difference`). A name that may refer to a file (`places`) keeps it, and a
   name outside the location keeps every file with the same last part.
5. Raise `Refused` if more than a share of the listed files would be deleted, which indicates a mistake.
6. Delete in batches. Before each, load the table again; files that new snapshots or pending entries name are
   needed too.

Age: a writer names its files only when it commits, maybe long after it wrote them. `MIN_AGE_MS`, a day, is
the minimum of Iceberg's own procedure; jobs that run longer than the default of three days need more.

Invariants: a file that any snapshot names, or that cannot be compared, stays. The run stores no state, so the
next run after a crash finds the remaining files. A dry run decides the same, by this machine's clock, and
writes nothing.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import compress
from pathlib import Path

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from lithify.base.clock import Clock
from lithify.base.concurrency import each_of
from lithify.base.errors import Refused, StoreError
from lithify.base.ids import Ids, Ulid
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.format.ownership import FILE_PREFIX, marks_of, parse_name
from lithify.datasets.iceberg.format.table_properties import locations_of, properties_of
from lithify.datasets.iceberg.io.places import (
    followed_by_folder,
    is_inside,
    is_local,
    is_plain,
    is_within,
    key_in_store,
    keys_of,
    place_of,
)
from lithify.datasets.iceberg.maintenance import shared_locations
from lithify.datasets.iceberg.maintenance.deleting import (
    DEFAULT_MAX_PERCENT,
    batches,
    check_percent,
    deletion_now_ms,
    is_too_much,
    whole_table,
)
from lithify.datasets.iceberg.maintenance.expiry_policy import may_expire
from lithify.datasets.iceberg.maintenance.external_set_difference import Difference, File
from lithify.datasets.iceberg.maintenance.own_state import missing_files, recorded_in
from lithify.datasets.iceberg.maintenance.pending import Pending
from lithify.datasets.iceberg.maintenance.reachable import (
    Names,
    files_in,
    manifests_in,
    statistics_in,
)
from lithify.store.deleting import MAX_IN_FLIGHT, Deleting
from lithify.store.keys import check_key, url_of
from lithify.store.objects import ObjectMeta
from lithify.store.walking import walk

DAY_MS = 24 * 3_600_000
DEFAULT_AGE_MS = 3 * DAY_MS
MIN_AGE_MS = DAY_MS
MAX_SHOWN = 10_000
"""Maximum number of paths in a report."""
_TELL_EVERY = 100_000

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class OrphanOptions:
    """Options of one run."""

    older_than_ms: int | None = None
    """Wall-clock milliseconds; `None`: `min_age_ms` ago by the store's clock."""
    min_age_ms: int = DEFAULT_AGE_MS
    dry_run: bool = True
    max_percent: int = DEFAULT_MAX_PERCENT

    def __post_init__(self) -> None:
        check_percent(self.max_percent)


@dataclass(slots=True)
class Orphans:
    """The orphan files that a run found, and deleted or would delete."""

    dry_run: bool
    older_than_ms: int
    listed: int = 0
    """All files under the location, except hidden ones and other tables'."""
    listed_bytes: int = 0
    found: int = 0
    found_bytes: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    paths: list[str] = field(default_factory=list)
    """The first `MAX_SHOWN` orphans."""
    notes: list[str] = field(default_factory=list)


def remove_orphans(
    dataset: IcebergDataset,
    clock: Clock,
    ids: Ids,
    options: OrphanOptions | None = None,
    tell: Tell = lambda text: None,
) -> Orphans:
    """Find orphan files, and delete them unless `dry_run`. `tell` receives progress messages. Raise `Refused`
    if the table must not be changed, or if its files are not surely known; see the module."""
    return _Run(dataset, clock, ids, options if options is not None else OrphanOptions(), tell).run()


class _Run:
    def __init__(
        self, dataset: IcebergDataset, clock: Clock, ids: Ids, options: OrphanOptions, tell: Tell
    ) -> None:
        self._dataset = dataset
        self._options = options
        self._tell = tell
        self._store = dataset.table_store
        self._pending = Pending(dataset.store, dataset.own_folder, clock, ids)
        table = dataset.load()
        now_ms = deletion_now_ms(dataset, table, clock, dry_run=options.dry_run)
        self._now_ms = now_ms
        self._marks = frozenset[str]()
        self._since_ms: int | None = None
        older_than_ms = options.older_than_ms
        if older_than_ms is None:
            older_than_ms = now_ms - options.min_age_ms
        if older_than_ms > now_ms - MIN_AGE_MS:
            raise Refused(
                f"{dataset.url}: files younger than a day may be of writers that have not committed yet; "
                "choose an age of at least a day"
            )
        self._found = Orphans(options.dry_run, older_than_ms)
        location = table.location()
        self._place = place_of(location)
        self._is_local = is_local(location)
        self._follow = followed_by_folder()
        self._snapshots: set[int] = set()
        """Snapshots whose names were read."""
        self._manifests: set[str] = set()
        self._entries: set[Ulid] = set()
        """Pending entries whose names were read."""
        self._looked_at = ""
        """The table's metadata file whose names were read."""
        self._others: frozenset[str] = frozenset()
        """Folders within the place that belong to other tables."""

    def run(self) -> Orphans:
        table = self._load()
        self._dataset.check_not_moved(table)
        self._others = shared_locations.not_ours(self._place, self._dataset.others(), self._dataset.url)
        with Difference() as difference:
            metadata_files = self._list(difference)
            strays = self._judge_metadata(table, metadata_files)
            self._tell("reading the files that the table refers to")
            for path in self._named_paths(strays):
                self._add_name(difference, path)
            for file in self._unnamed(difference):
                self._found.found += 1
                self._found.found_bytes += file.size_bytes
                if len(self._found.paths) < MAX_SHOWN:
                    self._found.paths.append(url_of(self._store.url, file.key))
            self._check_share()
            if not self._options.dry_run:
                self._delete(self._unnamed(difference))
        return self._found

    def _load(self) -> Table:
        """Load the table. Raise `Refused` if its files are not surely known."""
        table = whole_table(self._dataset)
        if not may_expire(properties_of(table.metadata)):
            raise Refused(
                f"{self._dataset.url}: the table's property gc.enabled is not true, so other tables may use "
                "its files, and nothing is deleted"
            )
        state = self._dataset.state.read()
        lost = missing_files(recorded_in(table.metadata), state, self._now_ms)
        if lost:
            raise Refused(
                f"{self._dataset.url}: the table records {lost}, but Lithify's folder, which lists them, "
                "was removed or replaced, so nothing is deleted; wait until then, or accept the loss with "
                "`lithify expire --accept-loss`"
            )
        self._marks = marks_of(table.metadata)
        self._since_ms = None if state is None else state.since_ms
        return table

    # Existing files

    def _list(self, difference: Difference) -> list[ObjectMeta]:
        """Add every file that may be an orphan to `difference`; return the metadata files."""
        found, metadata_files = self._found, []
        foreign: set[shared_locations.Neighbour] = set()
        for meta in walk(self._store, self._dataset.root):
            normal = self._normal(meta.key)
            if normal is None or self._is_others(normal):
                continue
            if shared_locations.is_whole_metadata(meta.key):
                metadata_files.append(meta)
            if self._is_hidden(meta.key):
                if (other := shared_locations.foreign_table(normal)) is not None:
                    foreign.add(other)
                continue
            found.listed += 1
            found.listed_bytes += meta.size
            if found.listed % _TELL_EVERY == 0:
                self._tell(f"listed {found.listed:,} files")
            if shared_locations.is_metadata(meta.key):
                continue
            if not self._is_local and not meta.size:
                continue
            if meta.last_modified_ms < found.older_than_ms and self._may_go(meta):
                difference.add_file(normal, File(meta.key, meta.size, meta.last_modified_ms))
        self._others |= shared_locations.not_ours(self._place, foreign, self._dataset.url)
        return metadata_files

    def _may_go(self, meta: ObjectMeta) -> bool:
        """Return whether an unnamed file may be deleted. Of Lithify's own only those older than its folder of
        the table may: the folder does not say whether they are needed."""
        if not _is_usable(meta.key):
            return False
        own = parse_name(meta.key)
        if own is not None and own.mark in self._marks:
            return self._since_ms is not None and meta.last_modified_ms <= self._since_ms
        return FILE_PREFIX not in posixpath.basename(meta.key)

    def _is_hidden(self, key: str) -> bool:
        inside = key[len(self._dataset.root) :].lstrip("/")
        return any(part.startswith(("_", ".")) for part in inside.split("/"))

    def _is_others(self, normal: str) -> bool:
        return any(is_within(normal, folder) for folder in self._others)

    def _normal(self, key: str) -> str | None:
        """Return the normalized key of a file in the place; `None` if a link leads outside."""
        if not self._is_local:
            return key_in_store(key)
        folder, _, name = key.rpartition("/")
        path = f"/{_real(folder)}/{name}"
        normal = key_in_store(path)
        return normal if not Path(path).is_symlink() and is_within(normal, self._place) else None

    def _judge_metadata(self, table: Table, files: Sequence[ObjectMeta]) -> list[ObjectMeta]:
        """Return the table's metadata files that are not in its history, and leave the folders of other
        tables alone. Raise `Refused` if these cannot be told apart."""
        known = self._ancestors(table, files)
        root = table.location().rstrip("/")
        folders = {place_of(locations_of(table.metadata, table.io.properties).metadata_path)}
        folders.add(place_of(f"{root}/metadata"))
        by_folder: dict[str, list[ObjectMeta]] = {}
        for meta in files:
            normal = self._normal(meta.key)
            if normal is None or normal in known:
                continue
            by_folder.setdefault(posixpath.dirname(normal), []).append(meta)
        own: list[ObjectMeta] = []
        strangers = []
        for folder, found in by_folder.items():
            newest = max(found, key=lambda meta: meta.last_modified_ms)
            if folder in folders or self._is_own(table, newest):
                own += found
            else:
                strangers.append(shared_locations.stranger(self._store, newest))
        self._others |= shared_locations.not_ours(self._place, strangers, self._dataset.url)
        for meta, uuid in self._uuids(own):
            self._check_same(table, meta, uuid)
        if own:
            self._found.notes.append(
                f"{len(own)} metadata files are not in the table's history, and the files that they refer "
                "to are kept; delete those that failed commits have left"
            )
        return own

    def _ancestors(self, table: Table, files: Sequence[ObjectMeta]) -> set[str]:
        """Return the normalized keys of the table's earlier metadata files, following the log of the oldest
        one in each log."""
        there = {normal: meta for meta in files if (normal := self._normal(meta.key)) is not None}
        known = keys_of(table.metadata_location)
        log = [entry.metadata_file for entry in table.metadata.metadata_log]
        while log:
            oldest = keys_of(log[0]) - known
            known = known.union(*map(keys_of, log))
            meta = next((there[key] for key in oldest if key in there), None)
            log = [] if meta is None else shared_locations.log_of(self._store, meta.key)
        return known

    def _is_own(self, table: Table, meta: ObjectMeta) -> bool:
        """Return whether a metadata file in another folder is the table's: its path may have changed."""
        fields = shared_locations.fields_of(self._store, meta.key)
        location = fields.get("location")
        is_same = fields.get("table-uuid") == str(table.metadata.table_uuid)
        return is_same and isinstance(location, str) and place_of(location) == self._place

    def _uuids(self, files: Sequence[ObjectMeta]) -> Iterator[tuple[ObjectMeta, str]]:
        asking = (partial(shared_locations.uuid_of, self._store, meta) for meta in files)
        yield from zip(files, each_of(asking, MAX_IN_FLIGHT), strict=True)

    def _check_same(self, table: Table, meta: ObjectMeta, uuid: str) -> None:
        if uuid != str(table.metadata.table_uuid):
            raise Refused(
                f"{self._dataset.url}: {url_of(self._store.url, meta.key)} belongs to another table "
                f"({uuid}) that is or was at the same location, so the owner of files that no metadata "
                "refers to is unknown, and nothing is deleted; if that table is gone for good, delete its "
                "metadata files first"
            )

    # Named files

    def _named_paths(self, strays: Sequence[ObjectMeta] = ()) -> Iterator[str]:
        """Yield the paths that the table names now and that were not yielded before."""
        table = self._load()
        if table.metadata_location != self._looked_at:
            self._looked_at = table.metadata_location
            yield table.metadata_location
            yield from (entry.metadata_file for entry in table.metadata.metadata_log)
            with translated(f"reading the snapshots of {self._dataset.url}"):
                yield from self._paths_in(table.io, table.metadata, may_miss=False)
        for meta in strays:
            metadata = shared_locations.metadata_of(self._store, meta.key)
            with translated(f"reading other metadata of {self._dataset.url}"):
                yield from self._paths_in(table.io, metadata, may_miss=True)
        # After the table: files expired meanwhile were recorded before.
        for entry in self._pending.read():
            if entry.id not in self._entries:
                self._entries.add(entry.id)
                yield from (file.path for file in self._pending.paths(entry))

    def _paths_in(self, io: FileIO, metadata: TableMetadata, *, may_miss: bool) -> Iterator[str]:
        yield from (file.path for _, file in statistics_in(metadata))
        new = [s for s in metadata.snapshots if s.snapshot_id not in self._snapshots]
        self._snapshots.update(snapshot.snapshot_id for snapshot in new)
        yield from (snapshot.manifest_list for snapshot in new)
        unread = self._unread(io, new, may_miss)
        yield from (manifest.manifest_path for manifest in unread)
        yield from (file.path for file in files_in(io, unread, may_miss=may_miss))

    def _unread(self, io: FileIO, snapshots: Sequence[Snapshot], may_miss: bool) -> list[ManifestFile]:
        found = {}
        for manifest in manifests_in(io, snapshots, may_miss=may_miss):
            if manifest.manifest_path not in self._manifests:
                found[manifest.manifest_path] = manifest
        self._manifests.update(found)
        return list(found.values())

    def _add_name(self, difference: Difference, path: str) -> None:
        location = self._dataset.location.rstrip("/")
        is_outside = not path.startswith(f"{location}/") and not is_inside(path, location)
        for key in keys_of(path, self._follow):
            difference.add_name(key)
            if is_outside:
                difference.add_last_part(posixpath.basename(key))

    # Orphans

    def _unnamed(self, difference: Difference) -> Iterator[File]:
        """Yield orphans, without files of other tables that were discovered after the listing."""
        for file in difference.unnamed():
            normal = self._normal(file.key)
            if normal is not None and not self._is_others(normal):
                yield file

    def _check_share(self) -> None:
        found = self._found
        if not is_too_much(found.found, found.listed, self._options.max_percent):
            return
        what = (
            f"{found.found} of {found.listed} files under the table's location would be deleted, more than "
            f"{self._options.max_percent} %"
        )
        if not self._options.dry_run:
            raise Refused(
                f"{self._dataset.url}: {what}, so nothing was deleted; check the list without --delete, and "
                "if it is right, allow it with --max-percent"
            )
        found.notes.append(f"{what}: --delete needs --max-percent")

    def _delete(self, orphans: Iterable[File]) -> None:
        found, named = self._found, Names(self._dataset.location)
        kept = 0
        with Deleting() as deleting:
            for batch in batches(orphans):
                for path in self._named_paths():
                    named.add(path)
                going = [file for file in batch if not named.has(url_of(self._store.url, file.key))]
                kept += len(batch) - len(going)
                gone = deleting.all(partial(self._store.delete, file.key) for file in going)
                found.deleted += sum(gone)
                found.deleted_bytes += sum(file.size_bytes for file in compress(going, gone))
                self._tell(f"deleted {found.deleted:,} of {found.found:,} files")
        if kept:
            found.notes.append(
                f"{kept} files were kept: new metadata referred to them while others were deleted"
            )


def _is_usable(key: str) -> bool:
    """Return whether a key names exactly one file (pure)."""
    if not is_plain(key):
        return False
    try:
        check_key(key)
    except StoreError:
        return False
    return True


@lru_cache(100_000)
def _real(folder: str) -> str:
    """Return the path of a local folder with links resolved."""
    return os.path.realpath(f"/{folder}").lstrip("/")
