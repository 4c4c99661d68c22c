"""One run of rewriting a table's delete files: dangling ones are dropped, small position delete files merged.

1. Read the delete manifests of the branch's head, then the data manifests, in sequence; only data files that
   deletes may apply to are kept in memory.
2. Plan (`delete_plan`). Delete files that may apply to inputs of active compactions are left to these.
3. Merge (`position_deletes`). A merged file has the highest data sequence number of those it replaces, and of
   their rows those that applied, so that exactly these rows stay deleted.
   In format version 3, position delete files become deletion vectors (`rewrite_vectors`).
4. Commit a `replace` snapshot: delete manifests that named removed files are rewritten without them, all
   other manifests are kept as they are. The commit asserts the table's UUID and the head.
5. If another commit came first, delete the written files and start again from 1.

| outcome       | when                                                |
|---------------|-----------------------------------------------------|
| REWRITTEN     | delete files were dropped or merged                 |
| NOTHING_TO_DO | nothing is worth rewriting                          |
| LOST_RACE     | another commit came first in every attempt          |

Skipped, with a note: delete files that are listed more than once or apply to a data file that is, and, if
they would be merged, those that contain the deleted rows. Encrypted files, and those that are not Parquet,
are never merged.

Invariants: readers find the same rows before and after; only REWRITTEN changes the table; uncommitted files
have names that garbage collection recognises, and are never older than half of the age that it spares. An
active compaction whose deletes were replaced anyway is planned again, and only time is lost. A dry run writes
nothing.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
)
from pyiceberg.table import Table
from pyiceberg.table.delete_file_index import PATH_FIELD_ID
from pyiceberg.table.snapshots import Snapshot

from lithify.base.clock import Clock
from lithify.base.errors import Refused
from lithify.datasets.iceberg.compaction.support_checks import check_deletes, count_notes
from lithify.datasets.iceberg.compaction.writer import path_in_partition
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.deletes.position_deletes import Unmergeable, merged, write
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.format.fetching import fetched_manifests
from lithify.datasets.iceberg.format.listing import (
    ManifestCache,
    check_listed,
    read_listing,
    referenced_path,
)
from lithify.datasets.iceberg.format.manifests import entries_in, manifests_of
from lithify.datasets.iceberg.format.ownership import manifest_prefix, mark_of
from lithify.datasets.iceberg.format.partitions import Place, is_unpartitioned, place_of
from lithify.datasets.iceberg.format.publish import Uncommitted, discard, prepare, tries
from lithify.datasets.iceberg.format.replace import Added, SnapshotWriter
from lithify.datasets.iceberg.format.replace import write as write_snapshot
from lithify.datasets.iceberg.format.summary import deletes_summary
from lithify.datasets.iceberg.format.table_properties import locations_of, properties_of
from lithify.datasets.iceberg.format.write_options import delete_options
from lithify.datasets.iceberg.rewriting.delete_plan import (
    DataFacts,
    DeleteFacts,
    DeletePlan,
    plan_deletes,
)
from lithify.datasets.iceberg.rewriting.head_rewrite import (
    RewriteOutcome,
    Rewriting,
    inputs_in_use,
    published,
)
from lithify.datasets.iceberg.rewriting.rewrite_vectors import plan_vectors, write_planned

MIN_FILES = 5
"""The minimum number of delete files to drop or merge that is worth a snapshot without a request: Java's
value."""
GRANULARITY = "write.delete.granularity"
_REPEATED = "are listed more than once, or apply to a data file that is listed more than once"
_LEFT = "delete file(s)"


@dataclass(slots=True)
class RewritingDeletes(Rewriting):
    """The changes of a run, or of a dry run's plan."""

    removed: list[DataFile] = field(default_factory=list)
    """Delete files that were merged or dropped."""
    added: list[DataFile] = field(default_factory=list)
    dangling: int = 0
    """The number of removed files that were dangling."""
    would_add: int = 0
    """The approximate number of files that a dry run would add."""
    delete_files: int = 0
    """The number of delete files in the snapshot that was read."""


@dataclass(frozen=True, slots=True)
class _Head:
    """The deletes of a snapshot."""

    parent: Snapshot
    manifests: Sequence[ManifestFile]
    entries: dict[str, list[ManifestEntry]]
    """Live entries of delete manifests, by the path of the manifest."""
    deletes: dict[str, ManifestEntry]
    """Delete files by path, without those that are listed more than once."""
    repeated: int
    data: DataFacts
    busy_places: set[Place]


class DeleteRewriter:
    """A rewriter of one table's delete files."""

    def __init__(self, dataset: IcebergDataset, clock: Clock) -> None:
        self._dataset = dataset
        self._clock = clock
        self._rng = random.Random()

    def run(self, *, dry_run: bool = False, unasked: bool = False) -> RewritingDeletes:
        """Drop and merge delete files where it is worthwhile. With `unasked`, only if it is worth a snapshot
        without a request. Raise `Refused` for a table whose deletes cannot be rewritten."""
        done = RewritingDeletes(dry_run)
        for _ in tries(self._clock, self._rng):
            table = self._dataset.load()
            policy = self._dataset.policy(table, of_data=False)
            branch = check_deletes(table.metadata, policy.branch, self._dataset.url)
            by_partition = is_by_partition(table, "file")
            self._dataset.lineage.check(table, self._dataset.load)
            parent = table.metadata.snapshot_by_name(branch)
            if parent is None:
                return done
            busy = inputs_in_use(self._dataset)
            if table.metadata.format_version > 2:
                outcome = self._rewrite_vectors(table, branch, busy, done, unasked=unasked)
                if outcome is not None:
                    done.outcome = outcome
                    return done
                continue
            head = self._look(table, parent, busy)
            done.delete_files = sum(len(entries) for entries in head.entries.values())
            facts = _facts(table, head)
            plan = plan_deletes(
                list(facts.values()), head.data, busy, head.busy_places, by_partition=by_partition
            )
            done.notes = count_notes([_REPEATED] * head.repeated, of=_LEFT)
            if not plan.rewritten or (unasked and plan.rewritten < MIN_FILES):
                return done
            if dry_run:
                self._foresee(head, plan, done)
                return done
            self._dataset.begin_state(table)  # garbage of a killed run must be newer than the state
            outcome = self._rewrite(table, branch, head, facts, plan, done)
            if outcome is not None:
                done.outcome = outcome
                return done
        done.lose()
        return done

    def _look(self, table: Table, parent: Snapshot, busy: frozenset[str]) -> _Head:
        with translated(f"listing the delete files of {self._dataset.url}"):
            manifests = manifests_of(table.io, parent)
            check_listed(table, parent, manifests)
            of_deletes = [m for m in manifests if m.content == ManifestContent.DELETES]
            specs = table.metadata.specs()
            entries = {
                manifest.manifest_path: list(entries_in(manifest, data(), specs[manifest.partition_spec_id]))
                for manifest, data in fetched_manifests(table.io, of_deletes)
            }
            data, busy_places, repeated = DataFacts(), set[Place](), set[str]()
            deletes: dict[str, ManifestEntry] = {}
            for entry in (entry for found in entries.values() for entry in found):
                path = entry.data_file.file_path
                if path in deletes:
                    repeated.add(path)
                deletes[path] = entry
            places = {place_of(entry.data_file) for entry in deletes.values()}
            only = {referenced_path(entry.data_file) for entry in deletes.values()}
            of_data = [m for m in manifests if m.content == ManifestContent.DATA] if deletes else []
            for manifest, content in fetched_manifests(table.io, of_data):
                for entry in entries_in(manifest, content(), specs[manifest.partition_spec_id]):
                    file, place = entry.data_file, place_of(entry.data_file)
                    number = entry.sequence_number or 0
                    if place in places or file.file_path in only:
                        data.add(file.file_path, place, number)
                    else:
                        data.note(place, number)
                    if file.file_path in busy:
                        busy_places.add(place)
        known = {path: entry for path, entry in deletes.items() if path not in repeated}
        return _Head(parent, manifests, entries, known, len(repeated), data, busy_places)

    def _rewrite_vectors(
        self, table: Table, branch: str, busy: frozenset[str], done: RewritingDeletes, *, unasked: bool
    ) -> RewriteOutcome | None:
        """Rewrite the deletes of a table of format version 3. Return the outcome; `None` when another commit
        came first."""
        head = read_listing(table, branch, ManifestCache())
        assert head is not None, "the branch has a snapshot"
        plan = plan_vectors(head, busy)
        done.delete_files = head.delete_file_count
        if not plan.removed or (unasked and len(plan.removed) < MIN_FILES):
            return RewriteOutcome.NOTHING_TO_DO
        done.removed = [entry.data_file for entry in plan.removed.values()]
        done.dangling, done.would_add = plan.dangling, len(plan.data)
        if done.dry_run:
            return RewriteOutcome.REWRITTEN
        self._dataset.begin_state(table)  # garbage of a killed run must be newer than the state
        uncommitted = Uncommitted.from_now(self._clock)
        name = f"{manifest_prefix(mark_of(table.metadata), uuid.uuid4().hex)}-deletes-0.puffin"
        path = locations_of(table.metadata, table.io.properties).new_data_location(name)
        with translated(f"writing deletion vectors of {self._dataset.url}"):
            replacement = write_planned(table.io, path, head, plan)
            if plan.data and not replacement.added:
                discard(table.io, [path])  # no position was in the data files
        prepared = write_snapshot(table, branch, head, replacement, {}, self._dataset.dated_ms())
        written = (*prepared.written, *([path] if replacement.added else []))
        if not published(self._dataset, self._clock, table, prepared, uncommitted, written):
            return None
        done.added = [added.file for added in replacement.added]
        return RewriteOutcome.REWRITTEN

    def _foresee(self, head: _Head, plan: DeletePlan, done: RewritingDeletes) -> None:
        paths = [*plan.dangling, *(path for merge in plan.merges for path in merge)]
        done.outcome = RewriteOutcome.REWRITTEN
        done.removed = [head.deletes[path].data_file for path in paths]
        done.dangling, done.would_add = len(plan.dangling), len(plan.merges)

    def _rewrite(
        self,
        table: Table,
        branch: str,
        head: _Head,
        facts: Mapping[str, DeleteFacts],
        plan: DeletePlan,
        done: RewritingDeletes,
    ) -> RewriteOutcome | None:
        """Return the outcome; `None` when another commit came first."""
        uncommitted = Uncommitted.from_now(self._clock)
        work = _Merging(table, head, facts)
        with translated(f"merging delete files of {self._dataset.url}"):
            for merge in plan.merges:
                work.merge(merge)
        done.notes = (*count_notes([_REPEATED] * head.repeated, of=_LEFT), *count_notes(work.left, of=_LEFT))
        removed = {path: head.deletes[path] for path in (*plan.dangling, *work.replaced)}
        if not removed:
            return RewriteOutcome.NOTHING_TO_DO
        writer = SnapshotWriter(table)
        with translated(f"writing a snapshot of {self._dataset.url}"):
            writer.add(work.added)
            writer.remove(removed.values())
            for manifest in head.manifests:
                entries = head.entries.get(manifest.manifest_path)
                if entries is None:
                    writer.keep_whole(manifest)
                else:
                    writer.keep(manifest, entries, removed)
            listed = writer.manifest_list(head.parent)
        gone = [entry.data_file for entry in removed.values()]
        new = [added.file for added in work.added]
        summary = deletes_summary(head.parent.summary, gone, new)
        written = (*writer.written, *(file.file_path for file in new))
        now_ms = self._dataset.dated_ms()
        prepared = prepare(
            table, branch, head.parent, writer.snapshot_id, listed, summary, now_ms, written, writer.written
        )
        if not published(self._dataset, self._clock, table, prepared, uncommitted, written):
            return None
        done.removed, done.added, done.dangling = gone, new, len(plan.dangling) + work.emptied
        return RewriteOutcome.REWRITTEN


class _Merging:
    """The new delete files of one snapshot."""

    def __init__(self, table: Table, head: _Head, facts: Mapping[str, DeleteFacts]) -> None:
        self._table = table
        self._head = head
        self._facts = facts
        self._options = delete_options(properties_of(table.metadata))
        self._prefix = manifest_prefix(mark_of(table.metadata), uuid.uuid4().hex)
        self.added: list[Added] = []
        self.replaced: list[str] = []
        self.emptied = 0
        """The number of replaced files of which no row was left."""
        self.left: list[str] = []

    def merge(self, paths: Sequence[str]) -> None:
        """Replace these files by one with their remaining rows."""
        entries = [self._head.deletes[path] for path in paths]
        files = [entry.data_file for entry in entries]
        try:
            rows = merged(self._table.io, files, self._applies)
        except Unmergeable as error:
            self.left += [str(error)] * len(paths)
            return
        self.replaced += paths
        if not len(rows):
            self.emptied += len(paths)
            return
        spec_id, partition = files[0].spec_id, files[0].partition
        name = f"{self._prefix}-deletes-{len(self.added)}.parquet"
        path = path_in_partition(self._table, name, spec_id, partition)
        file = write(self._table.io, path, rows, spec_id, partition, self._options)
        self.added.append(Added(file, max(entry.sequence_number or 0 for entry in entries)))

    def _applies(self, delete_path: str, data_path: str) -> bool:
        if data_path in self._head.data.repeated:
            raise Unmergeable(_REPEATED)
        return self._head.data.applies(self._facts[delete_path], data_path)


def _facts(table: Table, head: _Head) -> dict[str, DeleteFacts]:
    """Return the delete files by path."""
    specs = table.metadata.specs()
    facts: dict[str, DeleteFacts] = {}
    for path, entry in head.deletes.items():
        file = entry.data_file
        only = referenced_path(file)
        bounds = [(bound or {}).get(PATH_FIELD_ID) for bound in (file.lower_bounds, file.upper_bounds)]
        low, high = [None if bound is None else bound.decode() for bound in bounds]
        facts[path] = DeleteFacts(
            path=path,
            place=place_of(file),
            is_global=is_unpartitioned(specs[file.spec_id]),
            is_equality=file.content == DataFileContent.EQUALITY_DELETES,
            number=entry.sequence_number or 0,
            rows=file.record_count,
            only=only,
            low=low,
            high=high,
            can_merge=file.file_format == FileFormat.PARQUET and file.key_metadata is None,
        )
    return facts


def is_by_partition(table: Table, default: str) -> bool:
    """Return whether deletes of one data file are to be in the same files as others of its partition."""
    text = properties_of(table.metadata).get(GRANULARITY, default).lower()
    if text not in ("partition", "file"):
        raise Refused(f"the table's property {GRANULARITY} is {text[:40]!r}; it must be partition or file")
    return text == "partition"
