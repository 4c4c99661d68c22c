"""Publishing compactions: many in one snapshot, each checked against the table as it is then.

1. Load the table and list the head of the branch. Stop if another coordinator has taken over, or if the
   table is not the one on record.
2. A compaction of whose outputs the table has any, or whose id a snapshot names, was committed before: by an
   earlier try whose answer was lost, or before a crash.
3. Check each of the others against the head, component by component (`components`): a conflict about one
   input drops what shares rows with it, the rest goes on. What is dropped stays in the table and is planned
   again; its outputs are garbage. So a writer that keeps changing one day does not hold up the others.
4. Write one snapshot on top of the head and ask the catalog to make it the head, on condition that the
   head has not changed.
5. If somebody was faster, delete what was written and start again from 1. If the answer is lost, look
   whether the snapshot is in the table. If not, start again from 1 too, but delete nothing: should the first
   one land later, the second is refused, and step 2 finds it. Where even that cannot be told, the manifests
   stay and the outcome is reported as unknown: the next call finds out in step 2.

The rows of the outputs are those of the inputs in the planned snapshot. So between it and the head,
for every input: the file must still be there, and exactly the same position deletes must apply to it.
That holds for whatever happened meanwhile, in any order, and whether or not snapshots in between have
expired; only the planned one is needed. An equality delete that came later needs no conflict, because
outputs keep the sequence number of the planned snapshot and stay in the partition of their inputs.
Appended files never conflict. Added columns and new partition specs do not either.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import _read_deletes
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import ancestors_of

from lithify.clock import Clock
from lithify.datasets.iceberg.catalogs import load_table
from lithify.datasets.iceberg.components import Component, components
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.listing import Listing, ManifestCache, list_snapshot, read_listing
from lithify.datasets.iceberg.model import ChunkSpec, IcebergCompaction, NewFile
from lithify.datasets.iceberg.partitions import place_of
from lithify.datasets.iceberg.publish import MAX_TRIES, discard, publish, tries
from lithify.datasets.iceberg.replace import (
    Added,
    Replacement,
    data_file_of,
    obsolete_deletes,
    write,
)
from lithify.errors import StoreUnavailable, VersionConflict
from lithify.ids import Ulid
from lithify.store.together import both

COMPACTIONS_PROPERTY = "lithify.compactions"
"""In the summary of a snapshot: ids of the compactions it publishes."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a compaction."""

    refusal: str | None = None
    """Why nothing of it was published; `None` when it was."""
    published: tuple[NewFile, ...] = ()
    dropped: str | None = None
    """What of it was not published, and why; `None` when all was, or when it is not known any more."""


Verdicts = dict[Ulid, Verdict]


class Committer:
    """Publishes compactions of one table."""

    def __init__(
        self,
        catalog: Catalog,
        identifier: tuple[str, ...],
        cache: ManifestCache,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._catalog = catalog
        self._identifier = identifier
        self._cache = cache
        self._clock = clock
        self._rng = rng

    def commit(
        self,
        compactions: Sequence[IcebergCompaction],
        branch_of: Callable[[Table], str],
        check: Callable[[Table], object],
    ) -> Verdicts:
        """Publish what still holds of each. `check` raises when this process may not commit to the table that
        was loaded; it has looked before anything is written."""
        away: StoreUnavailable | None = None
        for _ in tries(self._clock, self._rng):
            table = load_table(self._catalog, self._identifier)
            branch = branch_of(table)
            _, head = both(partial(check, table), partial(read_listing, table, branch, self._cache))
            if head is None:
                return {c.id: Verdict("the table has no snapshot any more") for c in compactions}
            batch = self._judge(table, head, compactions)
            if not batch.accepted:
                return batch.verdicts
            summary = {COMPACTIONS_PROPERTY: ",".join(batch.accepted)}
            prepared = write(table, branch, head, batch.replacement, summary, self._clock.now_ms())
            try:
                is_published = publish(table, prepared, lambda: load_table(self._catalog, self._identifier))
            except StoreUnavailable as error:
                away = error  # it may still be under way, so nothing is deleted; should it land, it is found
                continue
            if is_published:
                return batch.verdicts
            away = None
            discard(table.io, prepared.written)
        if away is not None:
            raise away
        raise VersionConflict(
            f"{'.'.join(self._identifier)}: other parties committed before Lithify {MAX_TRIES} times in a row"
        )

    def _judge(self, table: Table, head: Listing, compactions: Sequence[IcebergCompaction]) -> _Batch:
        batch = _Batch({}, [], Replacement())
        done = committed_ids(table, head)
        for compaction in compactions:
            there = tuple(output for output in compaction.outputs if head.has_data(output.path))
            if compaction.id in done or there:
                batch.verdicts[compaction.id] = Verdict(published=there)
            else:
                batch.verdicts[compaction.id] = self._add(table, head, compaction, batch)
        batch.replacement.removed |= obsolete_deletes(head, batch.replacement) if batch.accepted else {}
        return batch

    def _add(self, table: Table, head: Listing, compaction: IcebergCompaction, batch: _Batch) -> Verdict:
        """Put what holds of a compaction into the batch."""
        spec = compaction.spec
        planned = table.metadata.snapshot_by_id(spec.snapshot_id)
        if planned is None:
            refusal = f"the planned snapshot {spec.snapshot_id} has expired; nothing can be checked"
            return Verdict(refusal)
        base = list_snapshot(table, planned, self._cache)
        refusals = _refusals(base, head, spec, batch.replacement.removed)
        whole = _refusal(base, head, spec)
        parts = components(spec.inputs, compaction.outputs)
        clean = [part for part in parts if whole is None and refusals.keys().isdisjoint(part.inputs)]
        rows = live_rows(table.io, base, [path for part in clean for path in part.inputs])
        accepted = []
        for part in clean:
            miscounted = _miscounted(part, rows)
            if miscounted is None:
                accepted.append(part)
            else:
                refusals |= dict.fromkeys(part.inputs, miscounted)
        reason = whole or next(iter(refusals.values()), None)
        if not accepted:
            return Verdict(reason or "it has no inputs")
        batch.include(head, compaction, accepted, planned.sequence_number or 0)
        published = tuple(output for part in accepted for output in part.outputs)
        left = len(spec.inputs) - sum(len(part.inputs) for part in accepted)
        dropped = f"{left} of its {len(spec.inputs)} inputs stay as they are: {reason}" if left else None
        return Verdict(None, published, dropped)


@dataclass(slots=True)
class _Batch:
    verdicts: Verdicts
    accepted: list[Ulid]
    """Compactions of which something is published."""
    replacement: Replacement

    def include(
        self,
        head: Listing,
        compaction: IcebergCompaction,
        parts: Sequence[Component],
        sequence_number: int,
    ) -> None:
        """Replace the inputs of these components by their outputs."""
        spec = compaction.spec
        self.accepted.append(compaction.id)
        partition = head.data[parts[0].inputs[0]].data_file.partition
        for part in parts:
            for path in part.inputs:
                self.replacement.removed[path] = head.data[path]
            for output in part.outputs:
                file = data_file_of(output, spec.lane.spec_id, partition)
                self.replacement.added.append(Added(file, sequence_number))


def _refusal(base: Listing, head: Listing, spec: ChunkSpec) -> str | None:
    """Why no output may replace any input, whatever happened to single ones."""
    known = [base.data[path].data_file for path in spec.inputs if path in base.data]
    if len({place_of(file) for file in known}) > 1:
        return "the inputs are of several partitions"
    schema, fields = head.metadata.schema(), head.metadata.specs()
    if spec.lane.spec_id in fields and any(
        schema.find_column_name(field.source_id) is None for field in fields[spec.lane.spec_id].fields
    ):
        return "a column the inputs are partitioned by was dropped"
    return None


def _refusals(base: Listing, head: Listing, spec: ChunkSpec, replaced: Container[str]) -> dict[str, str]:
    """Which inputs must not be replaced in `head` by outputs made from `base`, and why."""
    found: dict[str, str] = {}
    for path in spec.inputs:
        reason = conflict(base, head, spec, path)
        if path in replaced:
            reason = "another compaction of the same commit replaces the same files"
        if reason is not None:
            found[path] = reason
    return found


def conflict(base: Listing, head: Listing, spec: ChunkSpec, path: str) -> str | None:
    """Why an input must not be replaced in `head` by outputs made from `base`; `None` if it may."""
    planned, current = base.data.get(path), head.data.get(path)
    if path in base.repeated or path in head.repeated:
        return f"{path} is listed more than once"
    if planned is None:
        return f"{path} is no file of the planned snapshot {spec.snapshot_id}"
    if current is None or current.sequence_number != planned.sequence_number:
        return f"{path} was removed or rewritten by somebody else"
    if _paths(base.deletes_of(planned)) != _paths(head.deletes_of(current)):
        return f"rows of {path} were deleted meanwhile"
    if head.equality_deletes.apply_to(current, until=base.snapshot.sequence_number or 0):
        return f"an equality delete as old as the planned snapshot applies to {path}"
    if planned.data_file.spec_id != spec.lane.spec_id:
        return f"{path} is of partition spec {planned.data_file.spec_id}, not {spec.lane.spec_id}"
    return None


def _miscounted(part: Component, rows: Mapping[str, int]) -> str | None:
    """The last line of defence: as many rows must come out as went in and were not deleted."""
    expected = sum(rows[path] for path in part.inputs)
    written = sum(output.rows for output in part.outputs)
    if written == expected:
        return None
    return (
        f"the outputs have {written} rows where the inputs had {expected}; the bounds of an input's "
        "time column, or its record count, may be wrong. The inputs stay"
    )


def live_rows(io: FileIO, listing: Listing, paths: Iterable[str]) -> dict[str, int]:
    """How many rows of each of these data files no position delete of the listing hides, in every place where
    the listing has the file."""
    wanted = set(paths)
    entries = [e for e in listing.entries(DataFileContent.DATA) if e.data_file.file_path in wanted]
    applied = [(entry.data_file, listing.deletes_of(entry)) for entry in entries]
    delete_files = {delete.file_path: delete for _, deletes in applied for delete in deletes}
    with translated("reading position deletes"):
        positions = {path: _read_deletes(io, file) for path, file in delete_files.items()}
    rows = dict.fromkeys(wanted, 0)
    for file, deletes in applied:
        of_file = [positions[delete.file_path].get(file.file_path) for delete in deletes]
        seen = [pc.unique(found).to_pylist() for found in of_file if found is not None]
        hidden = len({p for found in seen for p in found if 0 <= p < file.record_count})
        rows[file.file_path] += file.record_count - hidden
    return rows


def committed_ids(table: Table, head: Listing) -> set[str]:
    """Compactions that the history of the branch names."""
    found: set[str] = set()
    for snapshot in ancestors_of(head.snapshot, table.metadata):
        summary: Mapping[str, str] = snapshot.summary.additional_properties if snapshot.summary else {}
        found |= set(filter(None, summary.get(COMPACTIONS_PROPERTY, "").split(",")))
    return found


def _paths(files: set[DataFile]) -> set[str]:
    return {file.file_path for file in files}
