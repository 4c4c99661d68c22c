"""One run of rewriting a table's equality deletes: rows that they delete are deleted by position instead.

1. List the branch's head and plan (`equality_plan`). The first listing decides which delete files the run
   rewrites; younger ones are left for the next.
2. For each key group, find the deleted rows of its data files (`key_matching`).
3. Write them without those that are deleted by position already: in format version 2 as position delete
   files, in version 3 as deletion vectors, each with the positions of the vector or files that it replaces.
4. Commit a `replace` snapshot that adds these and removes each equality delete file all of whose data files
   were covered. Delete files that apply to nothing are removed too. The commit asserts the table's UUID and
   the head, so it is checked against all concurrent commits: it is right for the head, or not made.
5. If another commit came first, delete the written files and start again from 1. Files that were read are not
   read again. Files that appear meanwhile and are older than a delete, such as outputs of a compaction, are.

| outcome       | when                                            |
|---------------|-------------------------------------------------|
| REWRITTEN     | equality delete files were rewritten or dropped |
| NOTHING_TO_DO | there are none, or none can be rewritten        |
| LOST_RACE     | another commit came first in every attempt      |

Invariants: readers find the same rows before and after; only REWRITTEN changes the table; uncommitted files
have names that garbage collection recognises, and are written just before the commit. An active compaction of
the same files is not disturbed: it moves the new deletes to its outputs (`moved_deletes`). A dry run writes
nothing.
"""

from __future__ import annotations

import random
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import numpy as np
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntry
from pyiceberg.table import Table

from lithify.base.clock import Clock
from lithify.base.defects import contained
from lithify.base.errors import LithifyError, NoRoom, StoreUnavailable
from lithify.datasets.iceberg.compaction.support_checks import check_deletes, count_notes
from lithify.datasets.iceberg.compaction.task import SourceFile, without_statistics
from lithify.datasets.iceberg.compaction.writer import path_in_partition
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.deletes.deleted_rows import DeletedRows
from lithify.datasets.iceberg.deletes.key_matching import KeyMatcher
from lithify.datasets.iceberg.deletes.position_deletes import READABLE, Positions, write
from lithify.datasets.iceberg.deletes.vectors import DeletionVector, NewVector, write_vectors
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.format.listing import Listing, ManifestCache, listed_manifests, read_listing
from lithify.datasets.iceberg.format.manifests import is_vector, key_of
from lithify.datasets.iceberg.format.ownership import manifest_prefix, mark_of
from lithify.datasets.iceberg.format.partitions import Place, place_of
from lithify.datasets.iceberg.format.publish import Uncommitted, tries
from lithify.datasets.iceberg.format.replace import Added, Replacement, obsolete_deletes
from lithify.datasets.iceberg.format.replace import write as write_snapshot
from lithify.datasets.iceberg.format.table_properties import locations_of, properties_of
from lithify.datasets.iceberg.format.write_options import delete_options
from lithify.datasets.iceberg.io.prefetch import DataPath, OpenedAhead, PrefetchExtent
from lithify.datasets.iceberg.rewriting.equality_plan import (
    DeleteName,
    EqualityPlan,
    GroupKey,
    KeyGroup,
    plan_equality,
)
from lithify.datasets.iceberg.rewriting.head_rewrite import (
    RewriteOutcome,
    Rewriting,
    inputs_in_use,
    published,
)
from lithify.datasets.iceberg.rewriting.rewrite_deletes import is_by_partition

MAX_ROWS = 4_000_000
"""The maximum deleted rows in one position delete file, except for those of a single data file."""

_LEFT = "equality delete file(s)"

_GRANULARITY = "partition"
"""The default of `write.delete.granularity`, Java's: a run deletes a few rows of many data files."""
FileName = tuple[str, int]
"""The path of a data file and its data sequence number."""
_Rows = tuple[ManifestEntry, DeletionVector, DeletionVector]
"""A data file, its rows that are deleted by position already, and those to delete, at least one."""


@dataclass(slots=True)
class RewritingEquality(Rewriting):
    """The changes of a run, or of a dry run's plan."""

    removed: list[DataFile] = field(default_factory=list)
    """Equality delete files that were rewritten or dropped."""
    added: list[DataFile] = field(default_factory=list)
    """Position delete files, or deletion vectors."""
    deleted_rows: int = 0
    """The number of rows that are newly deleted by position."""
    delete_files: int = 0
    """The number of equality delete files in the snapshot that was read."""
    data_files: int = 0
    """The number of data files that were read, or would be."""


@dataclass(slots=True)
class _Found:
    """The deleted rows of a key group's data files, as far as they are known."""

    names: tuple[DeleteName, ...]
    """The deletes that were applied."""
    rows: dict[FileName, DeletionVector | None] = field(default_factory=dict)
    """The files that were covered; `None` for those without a deleted row."""
    failed: dict[FileName, str] = field(default_factory=dict)
    """Why a file cannot be covered."""
    unread: dict[DeleteName, str] = field(default_factory=dict)
    """Why a delete file cannot be applied as a whole."""

    def is_in_vain(self, group: KeyGroup) -> bool:
        """Return whether none of the group's deletes can be removed, whatever its other data files have."""
        kept_from = min((number for _, number in self.failed), default=inf)
        return all(
            delete.number > kept_from or (delete.path, delete.number) in self.unread
            for delete in group.deletes
        )


class EqualityRewriter:
    """A rewriter of one table's equality deletes."""

    def __init__(self, dataset: IcebergDataset, clock: Clock) -> None:
        self._dataset = dataset
        self._clock = clock
        self._rng = random.Random()

    def run(self, *, dry_run: bool = False, unasked: bool = False) -> RewritingEquality:
        """Rewrite the table's equality deletes. With `unasked`, only if the table has more of them than its
        policy allows. Raise `Refused` for a table whose deletes cannot be rewritten."""
        done = RewritingEquality(dry_run)
        wanted: frozenset[DeleteName] | None = None
        found: dict[GroupKey, _Found] = {}
        cache = ManifestCache()
        for _ in tries(self._clock, self._rng):
            table = self._dataset.load()
            policy = self._dataset.policy(table, of_data=False)
            branch = check_deletes(table.metadata, policy.branch, self._dataset.url)
            self._dataset.lineage.check(table, self._dataset.load)
            is_by_partition(table, _GRANULARITY)
            files = _equality_files(table, branch, cache)
            if wanted is None:
                wanted, done.delete_files = frozenset(files), len(files)
            if unasked and done.delete_files <= policy.max_equality_delete_files:
                return done
            head = read_listing(table, branch, cache) if files else None
            if head is None:
                return done
            plan = plan_equality(head, inputs_in_use(self._dataset), wanted)
            done.notes = count_notes(plan.left, of=_LEFT)
            if not plan.groups:
                return done
            if dry_run:
                return _foreseen(plan, done)
            self._dataset.begin_state(table)  # garbage of a killed run must be newer than the state
            for key, group in plan.groups.items():
                known = found.get(key)
                if known is None or known.names != group.names:
                    known = found[key] = _Found(group.names)
                done.data_files += _find(table, group, known)
            outcome = self._commit(table, branch, head, plan, found, done)
            if outcome is not None:
                done.outcome = outcome
                return done
        done.lose()
        return done

    def _commit(
        self,
        table: Table,
        branch: str,
        head: Listing,
        plan: EqualityPlan,
        found: Mapping[GroupKey, _Found],
        done: RewritingEquality,
    ) -> RewriteOutcome | None:
        """Return the outcome; `None` when another commit came first."""
        uncommitted = Uncommitted.from_now(self._clock)
        change = _Change(table, head)
        for key, group in plan.groups.items():
            change.cover(group, found[key])
        unread = [why for known in found.values() for why in known.unread.values()]
        failed = [why for known in found.values() for why in known.failed.values()]
        done.notes = (*count_notes((*plan.left, *unread), of=_LEFT), *count_notes(failed, of="data file(s)"))
        change.replacement.removed |= obsolete_deletes(head, change.replacement)
        if not any(_is_equality(entry) for entry in change.replacement.removed.values()):
            return RewriteOutcome.NOTHING_TO_DO
        deletes: list[str] = []
        with translated(f"writing deletes of {self._dataset.url}"):
            change.write(deletes)
        prepared = write_snapshot(table, branch, head, change.replacement, {}, self._dataset.dated_ms())
        written = (*prepared.written, *deletes)
        if not published(self._dataset, self._clock, table, prepared, uncommitted, written):
            return None
        removed = change.replacement.removed.values()
        done.removed = [entry.data_file for entry in removed if _is_equality(entry)]
        done.added = [added.file for added in change.replacement.added]
        done.deleted_rows = change.deleted_rows
        return RewriteOutcome.REWRITTEN


def _equality_files(table: Table, branch: str, cache: ManifestCache) -> list[DeleteName]:
    """Return the equality delete files; no manifest of data files is read for it."""
    head = table.metadata.snapshot_by_name(branch)
    if head is None:
        return []
    listed = listed_manifests(table, head, cache)
    manifests = [manifest for manifest in listed if manifest.content == ManifestContent.DELETES]
    read = cache.read(table.io, manifests, table.metadata.specs())
    return [_name_of(entry) for entries in read for entry in entries if _is_equality(entry)]


def _is_equality(entry: ManifestEntry) -> bool:
    return entry.data_file.content == DataFileContent.EQUALITY_DELETES


def _foreseen(plan: EqualityPlan, done: RewritingEquality) -> RewritingEquality:
    done.outcome = RewriteOutcome.REWRITTEN
    done.removed = [delete.file for group in plan.groups.values() for delete in group.deletes]
    done.data_files = sum(1 for group in plan.groups.values() for _ in group.to_read())
    return done


def _find(table: Table, group: KeyGroup, known: _Found) -> int:
    """Find the deleted rows of a group's data files that are not known yet. Return how many were read."""
    names = set(map(_name_of, group.data))
    known.failed = {name: why for name, why in known.failed.items() if name in names}
    unknown = names - known.rows.keys() - known.failed.keys()
    files = [entry for entry in group.to_read() if _name_of(entry) in unknown]
    known.rows |= dict.fromkeys(unknown - set(map(_name_of, files)))
    read: list[ManifestEntry] = []
    if not files or known.is_in_vain(group):
        return 0
    with tempfile.TemporaryDirectory(prefix="lithify-keys-") as folder:
        matcher = KeyMatcher(Path(folder), group.rows)
        deletes = [DataPath.of(delete.file, PrefetchExtent.ALL) for delete in group.deletes]
        opened = OpenedAhead(table.io, deletes)
        for delete in group.deletes:
            with _noted(known.unread, (delete.path, delete.number)), opened.take() as stream:
                for keys in group.columns.of_deletes(stream, delete.file):
                    matcher.add_keys(keys, delete.number)
        opened = OpenedAhead(table.io, [DataPath.of(e.data_file, PrefetchExtent.SOME) for e in files])
        for number, entry in enumerate(files):
            if known.is_in_vain(group):
                break
            read.append(entry)
            with _noted(known.failed, _name_of(entry)), opened.take() as stream:
                for start, keys in group.columns.of_rows(stream, entry.data_file):
                    matcher.add_rows(keys, number, start, entry.sequence_number or 0)
        vectors = matcher.deleted()
    for number, entry in enumerate(read):
        if _name_of(entry) not in known.failed:
            known.rows[_name_of(entry)] = vectors.get(number)
    return len(read)


@contextmanager
def _noted(failed: dict[FileName, str], name: FileName) -> Iterator[None]:
    """Note in `failed` why the file with this name could not be read."""
    try:
        with contained(f"reading {name[0]}"), translated(f"reading {name[0]}"):
            yield
    except (StoreUnavailable, NoRoom):
        raise
    except LithifyError as error:
        failed[name] = f"cannot be read: {error}"


def _name_of(entry: ManifestEntry) -> FileName:
    return entry.data_file.file_path, entry.sequence_number or 0


class _Change:
    """The changes of one snapshot."""

    def __init__(self, table: Table, head: Listing) -> None:
        self._table = table
        self._head = head
        self._rows: dict[str, DeletionVector] = {}
        """The rows to delete, by the path of their data file."""
        self._entries: dict[str, ManifestEntry] = {}
        self._deletes = {
            entry.data_file.file_path: entry for entry in head.entries(DataFileContent.EQUALITY_DELETES)
        }
        """By path; a plan has none that is listed more than once."""
        self.replacement = Replacement()
        self.deleted_rows = 0

    def cover(self, group: KeyGroup, found: _Found) -> None:
        """Remove the deletes of a group all of whose data files are known, and delete their rows instead."""
        kept_from: float = inf
        for entry in group.data:
            name, number = _name_of(entry), entry.sequence_number or 0
            vector = found.rows.get(name)
            if name not in found.rows or (vector is not None and not self._can_delete(entry)):
                kept_from = min(kept_from, number)
        removed = [
            self._deletes[delete.path]
            for delete in group.deletes
            if delete.number <= kept_from and (delete.path, delete.number) not in found.unread
        ]
        if not removed:
            return
        for entry in group.data:
            vector, path = found.rows.get(_name_of(entry)), entry.data_file.file_path
            if vector is not None and self._can_delete(entry):
                self._rows[path] = self._rows[path] | vector if path in self._rows else vector
                self._entries[path] = entry
        self.replacement.removed |= {key_of(entry.data_file): entry for entry in removed}

    def _can_delete(self, entry: ManifestEntry) -> bool:
        """Return whether the deletes by position of a data file can be read."""
        deletes = self._head.deletes_of(entry)
        if len(deletes) > 1 and any(map(is_vector, deletes)):
            return False
        return all(
            file.key_metadata is None and (is_vector(file) or file.file_format in READABLE)
            for file in deletes
        )

    def write(self, started: list[str]) -> None:
        """Write the new deletes. The paths of new files are added to `started` before they are written."""
        rows = list(self._remaining())  # all that can fail to be read is read before anything is written
        if not rows:
            return
        self.deleted_rows = sum(len(new) for _, _, new in rows)
        prefix = manifest_prefix(mark_of(self._table.metadata), uuid.uuid4().hex)
        if self._table.metadata.format_version > 2:
            files = self._write_vectors(rows, prefix, started)
        else:
            files = self._write_positions(rows, prefix, started)
        self.replacement.added += [Added(file, None) for file in files]

    def _write_vectors(self, rows: Sequence[_Rows], prefix: str, started: list[str]) -> list[DataFile]:
        locations = locations_of(self._table.metadata, self._table.io.properties)
        path = locations.new_data_location(f"{prefix}-deletes-0.puffin")
        started.append(path)
        for entry, _, _ in rows:
            for old in self._head.vectors.get(entry.data_file.file_path, ()):
                self.replacement.removed[key_of(old.data_file)] = old
        vectors = (
            NewVector(file.file_path, before | new, file.spec_id, file.partition)
            for file, before, new in ((entry.data_file, before, new) for entry, before, new in rows)
        )
        return write_vectors(self._table.io, path, vectors)

    def _write_positions(self, rows: Sequence[_Rows], prefix: str, started: list[str]) -> list[DataFile]:
        options = delete_options(properties_of(self._table.metadata))
        by_file = not is_by_partition(self._table, _GRANULARITY)
        waiting: dict[Place, list[tuple[ManifestEntry, DeletionVector]]] = defaultdict(list)
        written: list[DataFile] = []

        def flush(parts: Sequence[tuple[ManifestEntry, DeletionVector]]) -> None:
            file = parts[0][0].data_file
            name = f"{prefix}-deletes-{len(started)}.parquet"
            path = path_in_partition(self._table, name, file.spec_id, file.partition)
            started.append(path)
            positions = _positions(parts)
            written.append(write(self._table.io, path, positions, file.spec_id, file.partition, options))

        for entry, _, vector in rows:
            parts = waiting[place_of(entry.data_file)]
            if parts and (by_file or sum(len(one) for _, one in parts) + len(vector) > MAX_ROWS):
                flush(parts)
                parts.clear()
            parts.append((entry, vector))
        for parts in waiting.values():
            flush(parts)
        return written

    def _remaining(self) -> Iterator[_Rows]:
        """Yield the data files that have rows to delete."""
        paths = sorted(self._rows)
        sources = [_source(n, self._entries[path], self._head) for n, path in enumerate(paths)]
        deleted = DeletedRows(self._table.io, sources)
        for source, path in zip(sources, paths, strict=True):
            entry, vector = self._entries[path], self._rows[path]
            before = deleted.of(source).between(0, entry.data_file.record_count)
            known = DeletionVector.of(before.astype(np.int64, copy=False))
            rest = vector - known
            if len(rest):
                yield entry, known, rest


def _source(number: int, entry: ManifestEntry, head: Listing) -> SourceFile:
    deletes = sorted(head.deletes_of(entry), key=lambda file: file.file_path)
    slim = tuple(map(without_statistics, deletes))
    return SourceFile(number, without_statistics(entry.data_file), slim, True, entry.sequence_number or 0)


def _positions(parts: Sequence[tuple[ManifestEntry, DeletionVector]]) -> Positions:
    """Return the rows of data files, in the order of their paths."""
    positions = [vector.between(0, entry.data_file.record_count) for entry, vector in parts]
    path = np.repeat(np.arange(len(parts), dtype=np.int32), [len(one) for one in positions])
    return Positions([entry.data_file.file_path for entry, _ in parts], path, np.concatenate(positions))
