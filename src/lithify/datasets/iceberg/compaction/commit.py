"""Publishing compactions: many in one snapshot, each checked against the current table.

1. Load the table and list the head of the branch. Stop if another coordinator has taken over, or if the
   table is not the recorded one.
2. If the table has any outputs of a compaction, or a snapshot names its id, it was committed before: by an
   earlier attempt whose response was lost, or before a crash.
3. Check each other compaction against the head, component by component (`components`): a conflict about one
   input drops all that shares rows with it; the rest continues. Dropped inputs stay in the table and are
   planned again; their outputs are garbage. So a writer that keeps changing one day does not block the rest.
4. Write one snapshot on top of the head and ask the catalog to make it the head, on condition that the
   head has not changed.
5. If another commit came first, delete the written files and start again from 1. If the response is lost,
   check whether the snapshot is in the table. If not, start again from 1 too, but delete nothing: if the
   first one takes effect later, the second is refused, and step 2 finds it. If even that cannot be checked,
   the manifests are kept and the outcome is reported as unknown: the next call finds out in step 2.

The rows of the outputs are those of the inputs in the planned snapshot. So the following must hold between
that snapshot and the head for every input: the file is still there, with the same row ids, every row that
was deleted by position still is, and no other equality deletes apply up to the planned snapshot's sequence
number. Equality deletes may be gone, if all rows that they deleted are deleted by position now. Rows that
were deleted by position meanwhile are deleted in the outputs (`moved_deletes`), in the same snapshot. This
covers all changes in between, in any order, whether or not intermediate snapshots have expired; only the
planned one is needed.
Outputs have that sequence number and stay in the partition of their inputs. So the equality deletes that were
already applied do not apply to the outputs, where they would delete rows that were added in between. Later
ones do apply to the outputs and need no conflict.
Appended files never conflict. Added columns and new partition specs do not either.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from lithify.base.clock import Clock
from lithify.base.concurrency import both
from lithify.base.defects import contained
from lithify.base.errors import LithifyError, StoreUnavailable, VersionConflict
from lithify.base.ids import Ulid
from lithify.datasets.iceberg.compaction.conflict_groups import Component, components
from lithify.datasets.iceberg.compaction.moved_deletes import (
    DeletesSincePlan,
    MovedDeletes,
    Rows,
    Unmovable,
    write_moved,
)
from lithify.datasets.iceberg.deletes.equality_deletes import EqualityDelete
from lithify.datasets.iceberg.deletes.live_rows import LiveRows, RowCount
from lithify.datasets.iceberg.format.floats import float_columns, without_uncounted
from lithify.datasets.iceberg.format.listing import Listing, ManifestCache, list_snapshot, read_listing
from lithify.datasets.iceberg.format.manifests import ContentKey, first_row_id
from lithify.datasets.iceberg.format.partitions import place_of
from lithify.datasets.iceberg.format.publish import MAX_TRIES, Uncommitted, discard, publish, tries
from lithify.datasets.iceberg.format.replace import (
    Added,
    Replacement,
    data_file_of,
    obsolete_deletes,
    write,
)
from lithify.datasets.iceberg.format.summary import KEPT_BYTES, MOVED_ROWS
from lithify.datasets.iceberg.io.catalogs import load_table
from lithify.datasets.iceberg.model import ChunkSpec, IcebergCompaction, Lane, NewFile, files_written

COMPACTIONS_PROPERTY = "lithify.compactions"
"""The property of a snapshot's summary with the ids of the compactions that it publishes."""


@dataclass(frozen=True, slots=True)
class CommitVerdict:
    """The result of committing a compaction."""

    refusal: str | None = None
    """Why nothing was published; `None` if something was."""
    published: tuple[NewFile, ...] = ()
    dropped: str | None = None
    """Which parts were not published, and why; `None` if all were, or if it is unknown."""


Verdicts = dict[Ulid, CommitVerdict]


class Committer:
    """A publisher of one table's compactions."""

    def __init__(
        self,
        catalog: Catalog,
        identifier: tuple[str, ...],
        cache: ManifestCache,
        clock: Clock,
        rng: random.Random,
        dated_ms: Callable[[], int],
    ) -> None:
        """`dated_ms` returns the time of a snapshot, by the store's clock: a time ahead of other writers'
        clocks would prevent their commits, and a time behind them would make the snapshot expire early."""
        self._catalog = catalog
        self._identifier = identifier
        self._cache = cache
        self._dated_ms = dated_ms
        self._clock = clock
        self._rng = rng

    def commit(
        self,
        compactions: Sequence[IcebergCompaction],
        branch_of: Callable[[Table], str],
        check: Callable[[Table], object],
    ) -> Verdicts:
        """Publish the parts of each compaction that are still valid. `branch_of` returns the branch, and
        raises while the table's data cannot be compacted: finished compactions then wait. `check` raises when
        this process may not commit to the loaded table; it is called before anything is written."""
        away: StoreUnavailable | None = None
        count = LiveRows()
        for _ in tries(self._clock, self._rng):
            table = load_table(self._catalog, self._identifier)
            branch = branch_of(table)
            _, head = both(partial(check, table), partial(self._head, table, branch, compactions))
            if head is None:
                return {c.id: CommitVerdict("the table no longer has a snapshot") for c in compactions}
            batch = self._judge(table, head, compactions, count)
            if not batch.accepted:
                return batch.verdicts
            summary = {COMPACTIONS_PROPERTY: ",".join(batch.accepted)}
            uncommitted, deletes = Uncommitted.from_now(self._clock), list[str]()
            if batch.moved:
                summary[MOVED_ROWS] = str(sum(len(moved.rows) for moved in batch.moved))
                summary[KEPT_BYTES] = str(batch.kept_bytes)
                files = write_moved(table, batch.moved, deletes)
                batch.replacement.added += [Added(file, None) for file in files]
            prepared = write(table, branch, head, batch.replacement, summary, self._dated_ms())
            written = (*prepared.written, *deletes)
            if uncommitted.is_too_late(self._clock):
                discard(table.io, written)
                continue
            try:
                is_published = publish(table, prepared, lambda: load_table(self._catalog, self._identifier))
            except StoreUnavailable as error:
                away = error  # the commit may still take effect and be found, so nothing is deleted
                continue
            if is_published:
                return batch.verdicts
            away = None
            discard(table.io, written)
        if away is not None:
            raise away
        raise VersionConflict(
            f"{'.'.join(self._identifier)}: other writers committed before Lithify {MAX_TRIES} times in a "
            "row; try again later"
        )

    def _head(self, table: Table, branch: str, compactions: Sequence[IcebergCompaction]) -> Listing | None:
        """List the head, restricted to the files needed to check inputs and outputs."""
        paths = {
            path for c in compactions for path in (*c.spec.inputs, *(file.path for file in files_written(c)))
        }
        head = read_listing(table, branch, self._cache)
        return None if head is None else head.around(paths)

    def _judge(
        self, table: Table, head: Listing, compactions: Sequence[IcebergCompaction], count: LiveRows
    ) -> _Batch:
        batch = _Batch({}, [], Replacement(), [])
        done = committed_ids(table, head.snapshot)
        for compaction in compactions:
            there = tuple(file for file in files_written(compaction) if head.has_data(file.path))
            if compaction.id in done or there:
                batch.verdicts[compaction.id] = CommitVerdict(published=there)
            else:
                batch.verdicts[compaction.id] = self._add(table, head, compaction, batch, count)
        batch.replacement.removed |= obsolete_deletes(head, batch.replacement) if batch.accepted else {}
        return batch

    def _add(
        self, table: Table, head: Listing, compaction: IcebergCompaction, batch: _Batch, count: LiveRows
    ) -> CommitVerdict:
        """Add the valid parts of a compaction to the batch."""
        spec = compaction.spec
        planned = table.metadata.snapshot_by_id(spec.snapshot_id)
        if planned is None:
            refusal = f"the planned snapshot {spec.snapshot_id} has expired; nothing can be checked"
            return CommitVerdict(refusal)
        base = list_snapshot(table, planned, self._cache).only(set(spec.inputs))
        refusals = _refusals(base, head, spec, batch.replacement.removed)
        parts = components(spec.inputs, compaction.outputs)
        for part in parts:
            reason = part.left or _mixed(base, part)
            if reason is not None:
                refusals |= dict.fromkeys(part.inputs, reason)
        clean = [part for part in parts if refusals.keys().isdisjoint(part.inputs)]
        rows = count.of(table.io, base, [path for part in clean for path in part.inputs])
        since = DeletesSincePlan(table, base, head, spec.inputs)
        accepted: list[tuple[Component, Mapping[str, Rows]]] = []
        for part in clean:
            try:
                with contained(f"moving deletes of {part.inputs[0]}"):
                    moved = self._checked(table, base, head, part, rows, since, count)
            except StoreUnavailable:
                raise
            except LithifyError as error:
                refusals |= dict.fromkeys(part.inputs, str(error))
            else:
                accepted.append((part, moved))
        reason = next(iter(refusals.values()), None)
        if not accepted:
            return CommitVerdict(reason or "it has no inputs")
        batch.include(head, compaction, accepted, planned.sequence_number or 0)
        published = tuple(output for part, _ in accepted for output in part.outputs)
        left = len(spec.inputs) - sum(len(part.inputs) for part, _ in accepted)
        dropped = f"{left} of its {len(spec.inputs)} inputs are not replaced: {reason}" if left else None
        return CommitVerdict(None, published, dropped)

    def _checked(
        self,
        table: Table,
        base: Listing,
        head: Listing,
        part: Component,
        rows: Mapping[str, RowCount],
        since: DeletesSincePlan,
        count: LiveRows,
    ) -> Mapping[str, Rows]:
        """Return the rows of a component's outputs that were deleted since the plan, by output. `rows` are
        the counts of the planned snapshot. Raise a `LithifyError` when it must not be published."""
        _check_count(part, rows)
        moved = since.of(part)
        gone = next((path for path in part.inputs if _has_fewer_equality_deletes(base, head, path)), None)
        if moved or gone is not None:
            until = base.snapshot.sequence_number or 0
            now = count.of(table.io, head, part.inputs, until)
            # The outputs lack the rows of removed deletes. Equal counts prove that these rows are deleted by
            # position now, since the deletes by position are those of the head.
            if gone is not None and any(one.least != one.most for one in now.values()):
                raise Unmovable(f"equality deletes of {gone} were removed, and too many others apply to it")
            _check_count(part, now, sum(map(len, moved.values())))
        return moved


@dataclass(slots=True)
class _Batch:
    verdicts: Verdicts
    accepted: list[Ulid]
    """Compactions that are at least partly published."""
    replacement: Replacement
    moved: list[MovedDeletes]
    kept_bytes: int = 0
    """The bytes of the outputs that are published although rows of their inputs were deleted."""

    def include(
        self,
        head: Listing,
        compaction: IcebergCompaction,
        parts: Sequence[tuple[Component, Mapping[str, Rows]]],
        sequence_number: int,
    ) -> None:
        """Replace the inputs of these components by their outputs, with the deleted rows of each output."""
        self.accepted.append(compaction.id)
        floats = float_columns(head.metadata.schema())
        for part, moved in parts:
            self.kept_bytes += sum(output.size_bytes for output in part.outputs) if moved else 0
            for path in part.inputs:
                self.replacement.removed[path] = head.data[path]
            first = head.data[part.inputs[0]].data_file
            for output in part.outputs:
                file = data_file_of(without_uncounted(output, floats), first.spec_id, first.partition)
                self.replacement.added.append(Added(file, sequence_number))
                if output.path in moved:
                    rows = moved[output.path]
                    self.moved.append(MovedDeletes(output.path, rows, first.spec_id, first.partition))


def _mixed(base: Listing, part: Component) -> str | None:
    """Return why outputs cannot be in the partition of these inputs: the inputs have several."""
    known = (base.data[path].data_file for path in part.inputs if path in base.data)
    return "the inputs are of several partitions" if len(set(map(place_of, known))) > 1 else None


def _gone_specs(metadata: TableMetadata) -> frozenset[int]:
    """Return the partition specs made from columns that no longer exist."""
    schema = metadata.schema()
    return frozenset(
        spec_id
        for spec_id, spec in metadata.specs().items()
        if any(schema.find_column_name(field.source_id) is None for field in spec.fields)
    )


def _refusals(
    base: Listing, head: Listing, spec: ChunkSpec, replaced: Container[ContentKey]
) -> dict[str, str]:
    """Return which inputs must not be replaced in `head` by outputs made from `base`, and why."""
    found: dict[str, str] = {}
    gone = _gone_specs(head.metadata)
    for part in spec.parts:
        for path in part.inputs:
            reason = conflict(base, head, spec, part.lane, path)
            if part.lane.spec_id in gone:
                reason = "a column by which the inputs are partitioned was dropped"
            if path in replaced:
                reason = "another compaction of the same commit replaces the same files"
            if reason is not None:
                found[path] = reason
    return found


def conflict(base: Listing, head: Listing, spec: ChunkSpec, lane: Lane, path: str) -> str | None:
    """Return why an input of `lane` must not be replaced in `head` by outputs made from `base`; `None` if it
    may."""
    planned, current = base.data.get(path), head.data.get(path)
    if path in base.repeated or path in head.repeated:
        return f"{path} is listed more than once"
    if planned is None:
        return f"{path} is not a file of the planned snapshot {spec.snapshot_id}"
    if current is None or current.sequence_number != planned.sequence_number:
        return f"{path} was removed or rewritten by another process"
    if first_row_id(planned.data_file) != first_row_id(current.data_file):
        return f"the rows of {path} were given ids meanwhile, which the outputs do not have"
    applied, until = base.equality_deletes.of(planned), base.snapshot.sequence_number or 0
    if not _named(applied) >= _named(head.equality_deletes.of(current, until)):
        return f"equality deletes as old as the planned snapshot were added to those of {path}"
    unfit = base.equality_deletes.burden(planned).why_unfit
    if unfit is not None:
        return f"equality deletes apply to {path} and {unfit}"
    if planned.data_file.spec_id != lane.spec_id:
        return f"{path} is of partition spec {planned.data_file.spec_id}, not {lane.spec_id}"
    return None


def _check_count(part: Component, rows: Mapping[str, RowCount], moved: int = 0) -> None:
    """Raise `Unmovable` if the row counts are wrong: outputs, without `moved` deleted rows, must have as
    many rows as inputs minus deleted rows. This is the last check against defects."""
    expected = sum((rows[path] for path in part.inputs), RowCount())
    written = sum(output.rows for output in part.outputs) - moved
    if not expected.allows(written):
        raise Unmovable(
            f"the outputs have {written} rows, but the inputs had {expected}, so the inputs are kept; the "
            "bounds of an input's time column, its record count, or the statistics of a delete file may be "
            "wrong"
        )


def committed_ids(table: Table, head: Snapshot) -> set[str]:
    """Return the ids of compactions that the history of a branch with this head names."""
    found: set[str] = set()
    for snapshot in ancestors_of(head, table.metadata):
        summary: Mapping[str, str] = snapshot.summary.additional_properties if snapshot.summary else {}
        found |= set(filter(None, summary.get(COMPACTIONS_PROPERTY, "").split(",")))
    return found


def _has_fewer_equality_deletes(base: Listing, head: Listing, path: str) -> bool:
    """Return whether equality deletes of an input were removed since the plan, as when they are rewritten as
    deletes by position."""
    until = base.snapshot.sequence_number or 0
    now = _named(head.equality_deletes.of(head.data[path], until))
    return _named(base.equality_deletes.of(base.data[path])) != now


def _named(deletes: Iterable[EqualityDelete]) -> set[tuple[str, int]]:
    return {(delete.path, delete.number) for delete in deletes}
