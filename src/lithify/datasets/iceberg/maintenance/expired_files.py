"""Deletes the files of expired snapshots once their grace period is over: the last step of an expiry.

1. Entries of any run (`pending`) whose snapshots are gone are confirmed; the grace period begins then. If the
   catalog could not guarantee that no branch or tag was made meanwhile, the metadata files between the
   planned one and the present one are read first (`lost_between`). If one of them keeps more, or cannot be
   read, the files stay for good, with all else that the lost snapshots name, so that an operator can recover
   them.
2. Nothing is deleted while another table may need it (`shared_locations`). Files in another table's folder
   stay.
3. Due files are deleted in batches, each file only if no snapshot of the reloaded table names it
   (`reachable`), and no other entry has it too.
4. A completed entry is dropped.

Memory grows by a few bytes with every file of the table; of the files to delete, one batch is in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import compress

from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType

from lithify.base.errors import Refused
from lithify.base.ids import Ulid
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.format.table_properties import properties_of
from lithify.datasets.iceberg.io.places import is_within, place_of
from lithify.datasets.iceberg.maintenance.deleting import batches
from lithify.datasets.iceberg.maintenance.expiry_policy import may_expire, rules_of
from lithify.datasets.iceberg.maintenance.pending import Pending, PendingFiles
from lithify.datasets.iceberg.maintenance.reachable import (
    FileKind,
    NamedFile,
    Reached,
    is_deletable,
    with_all_they_name,
)
from lithify.datasets.iceberg.maintenance.shared_locations import Neighbour, check_one_name, not_ours
from lithify.store.deleting import Deleting


@dataclass(slots=True)
class Deletion:
    """The result of deleting expired files."""

    deleted: Counter[FileKind] = field(default_factory=Counter)
    deleted_bytes: int = 0
    pending: tuple[PendingFiles, ...] = ()
    """Entries that still wait."""
    lost: str = ""
    """Why this run found an entry's snapshots to be lost to a branch, tag or rule; empty if none are."""
    shared: str = ""
    """Why due files wait because of other tables; empty if they do not."""
    notes: list[str] = field(default_factory=list)


class ExpiredFiles:
    """The files of expired snapshots of one table."""

    def __init__(
        self,
        url: str,
        pending: Pending,
        load: Callable[[], Table],
        others: Callable[[], Sequence[Neighbour]],
        record: Callable[[Table, int], None],
    ) -> None:
        """`load` loads the table at `url`, and raises if it must not be changed. `others` returns the other
        tables of its catalog, and raises if one cannot be read. `record` records in the table that files stay
        for good."""
        self._url = url
        self._others = others
        self._record = record
        self._pending = pending
        self._load = load

    def delete_due(self, grace_ms: int, now_ms: Callable[[], int]) -> Deletion:
        """Delete all files whose grace period, at least `grace_ms`, is over by the store's clock `now_ms`."""
        done = Deletion()
        table = self._load()
        there = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
        time_ms = now_ms()  # after the table: snapshots missing from it are gone by then
        waiting = self._pending.read()
        if not waiting:
            self._pending.sweep(waiting, time_ms)
            return done
        checked = {e.id: self._lost(table, e) for e in waiting if _is_unchecked(e, there)}
        self._keep_whole(table, [entry for entry in waiting if checked.get(entry.id)])
        entries = self._pending.confirm(there, time_ms, checked)
        if any(entry.blocked for entry in entries):
            self._record(table, time_ms)
        for entry in entries:
            if entry.blocked:
                done.notes.append(
                    f"{entry.files} files of expired snapshots are never deleted: {entry.blocked}"
                )
                if checked.get(entry.id):
                    done.lost = entry.blocked
        due = [e for e in entries if _is_due(e, grace_ms, time_ms)]
        if due and may_expire(properties_of(table.metadata)):
            done.shared, foreign = self._apart(table)
            if not done.shared:
                self._carry_out_all(table, due, foreign, done)
        done.pending = self._pending.read()
        return done

    def _carry_out_all(
        self, table: Table, due: Sequence[PendingFiles], foreign: Set[str], done: Deletion
    ) -> None:
        reached, seen = Reached(table.metadata.location), {entry.id for entry in due}
        with Deleting() as deleting:
            for entry in due:
                self._carry_out(entry, reached, seen, foreign, done, deleting)

    def why_shared(self) -> str:
        """Return why other tables prevent any deletion now; empty if none does."""
        return self._apart(self._load())[0]

    def _apart(self, table: Table) -> tuple[str, frozenset[str]]:
        """Return why another table may need this one's files (empty if none does), and the folders of
        others."""
        place = place_of(table.metadata.location)
        try:
            others = self._others()
            check_one_name(place, str(table.metadata.table_uuid), others, self._url)
            return "", not_ours(place, others, self._url)
        except Refused as error:
            return str(error), frozenset()

    def _lost(self, table: Table, entry: PendingFiles) -> str:
        with translated(f"reading former metadata of {self._url}"):
            return lost_between(table, entry)

    def _keep_whole(self, table: Table, lost: Sequence[PendingFiles]) -> None:
        """Keep all files that lost snapshots name, also those shared with snapshots that may be expired
        later. All of these files still exist: each run calls this before it deletes anything."""
        for entry in lost:
            with translated(f"reading expired snapshots of {self._url}"):
                files = with_all_they_name(table.io, list(self._pending.paths(entry)))
            self._pending.add_paths(entry, files)

    def _carry_out(
        self,
        entry: PendingFiles,
        reached: Reached,
        seen: set[Ulid],
        foreign: Set[str],
        done: Deletion,
        deleting: Deleting,
    ) -> None:
        """Delete the files of an entry that are not named, loading the table again before each batch. `seen`
        has the due entries, and those that `_spare` has read."""
        is_done = True
        for files in batches(self._pending.paths(entry)):
            table = self._load()
            if not may_expire(properties_of(table.metadata)):
                return
            with translated(f"reading the snapshots of {self._url}"):
                reached.add(table)
            self._spare(table, reached, seen)
            batch = [
                file
                for file in files
                if not reached.names.has(file.path)
                and is_deletable(file.path, table.metadata)
                and not _is_in(file.path, foreign)
            ]
            gone = deleting.all(partial(_delete, table, file) for file in batch)
            done.deleted.update(file.kind for file in compress(batch, gone))
            done.deleted_bytes += sum(file.size_bytes for file in compress(batch, gone))
            is_done = is_done and all(gone)
        if is_done:
            self._pending.drop(entry)

    def _spare(self, table: Table, reached: Reached, seen: set[Ulid]) -> None:
        """Keep files that other entries with expired snapshots have too. Entries are read after the table:
        files that it no longer names were recorded before. An entry with existing snapshots is ignored,
        because it may never be carried out."""
        there = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
        for entry in self._pending.read():
            if entry.id not in seen and there.isdisjoint(entry.snapshots):
                seen.add(entry.id)
                for file in self._pending.paths(entry):
                    reached.names.add(file.path)


def lost_between(table: Table, entry: PendingFiles) -> str:
    """Return why an entry's files must stay for good, by the metadata files between the planned one and the
    present one; empty if none would have kept its snapshots."""
    log = [*(e.metadata_file for e in table.metadata.metadata_log), table.metadata_location]
    if entry.base not in log:
        return (
            f"it is unknown whether a branch or tag was created meanwhile: {entry.base} is not in the "
            "metadata log"
        )
    between = log[log.index(entry.base) + 1 :]
    try:
        rules = rules_of(_metadata_in(table, entry.base))
        for path in between:
            metadata = _metadata_in(table, path)
            if not any(s.snapshot_id in entry.snapshots for s in metadata.snapshots):
                break
            found = rules_of(metadata)
            new = sorted(
                name
                for name, ref in metadata.refs.items()
                if found["refs"][name] != rules["refs"].get(name) and _may_keep(ref, entry)
            )
            if new or found["properties"] != rules["properties"]:
                what = f"branches or tags ({', '.join(new)})" if new else "the table's properties"
                return f"{what} were changed while snapshots were expired; recover them from {path}"
    except FileNotFoundError as error:
        return f"it is unknown whether a branch or tag was created meanwhile: {error}"
    return ""


def _may_keep(ref: SnapshotRef, entry: PendingFiles) -> bool:
    """Return whether a ref may have kept a snapshot of an entry: a tag keeps one, a branch its ancestors
    too."""
    return ref.snapshot_ref_type != SnapshotRefType.TAG or ref.snapshot_id in entry.snapshots


def _metadata_in(table: Table, path: str) -> TableMetadata:
    return FromInputFile.table_metadata(table.io.new_input(path))


def _is_unchecked(entry: PendingFiles, there: Set[int]) -> bool:
    return bool(entry.base) and entry.since_ms is None and there.isdisjoint(entry.snapshots)


def _is_due(entry: PendingFiles, grace_ms: int, now_ms: int) -> bool:
    if entry.since_ms is None or entry.blocked:
        return False
    return now_ms >= entry.since_ms + max(grace_ms, entry.grace_ms)


def _is_in(path: str, folders: Set[str]) -> bool:
    return bool(folders) and any(is_within(place_of(path), folder) for folder in folders)


def _delete(table: Table, file: NamedFile) -> None:
    with translated(f"deleting {file.path}"), suppress(FileNotFoundError):
        table.io.delete(file.path)
