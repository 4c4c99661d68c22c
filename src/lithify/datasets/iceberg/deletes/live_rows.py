"""Row counts of data files after a snapshot's deletes, for the commit. They are computed independently of the
rewriting tasks, from the files alone and by other methods, so that an error of either is detected.

1. Distinct deleted positions are counted, without positions outside the file. A delete file is read once, by
   Arrow alone, and only its rows for the counted files are kept. A deletion vector counts as its manifest
   states, which tasks compare with the vector itself.
2. If equality deletes apply to a file, their columns are read from it, without the rows hidden by position.
   The remaining rows are joined with the deleted keys, both as texts in which a null is a distinct value, and
   matching rows are dropped.
3. This runs while a coordinator is idle, for `MAX_JOINED_ROWS` rows of a commit, the smallest files first.
   For other files it is only known that at most the rows without hidden positions are left.

Memory is bounded by the keys (`equality_keys`) and those of `JOINED_ROWS` rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry

from lithify.base.concurrency import all_of
from lithify.datasets.iceberg.deletes.deleted_rows import DeletedPositions, ListedPositions
from lithify.datasets.iceberg.deletes.equality_deletes import EqualityDelete
from lithify.datasets.iceberg.deletes.equality_keys import Key, key_schema, read_keys
from lithify.datasets.iceberg.deletes.position_deletes import MAX_READERS, as_path, format_of
from lithify.datasets.iceberg.deletes.vectors import DeletionVector, VectorReader
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.format.columns import columns_of, open_file
from lithify.datasets.iceberg.format.listing import Listing
from lithify.datasets.iceberg.format.manifests import is_vector
from lithify.datasets.iceberg.format.projection import Projection, constants_of
from lithify.datasets.iceberg.io.prefetch import DataPath, PrefetchExtent

JOINED_ROWS = 1024 * 1024
"""The number of a data file's rows that are joined with the deleted keys at once."""

MAX_JOINED_ROWS = 50_000_000
"""The maximum number of rows that are joined for one commit: about ten seconds on one core."""

Positions = npt.NDArray[np.int64]
"""Positions of deleted rows in a data file."""


@dataclass(frozen=True, slots=True)
class RowCount:
    """The bounds of the number of rows left."""

    least: int = 0
    most: int = 0

    def __add__(self, other: RowCount) -> RowCount:
        return RowCount(self.least + other.least, self.most + other.most)

    def __str__(self) -> str:
        return str(self.most) if self.least == self.most else f"{self.least} to {self.most}"

    def allows(self, rows: int) -> bool:
        return self.least <= rows <= self.most


class LiveRows:
    """Row counts, each computed once, since neither snapshots nor files change."""

    def __init__(self, max_joined_rows: int = MAX_JOINED_ROWS) -> None:
        self._known: dict[tuple[int, int | None, str], RowCount] = {}
        self._may_join = max_joined_rows

    def of(
        self, io: FileIO, listing: Listing, paths: Iterable[str], until: int | None = None
    ) -> dict[str, RowCount]:
        """Return how many rows of each data file no delete of the listing hides, in every place where the
        listing contains the file. With `until`, equality deletes of a higher sequence number do not count."""
        snapshot_id = listing.snapshot.snapshot_id
        wanted = set(paths)
        missing = {path for path in wanted if (snapshot_id, until, path) not in self._known}
        for path, rows in self._counted(io, listing, missing, until).items():
            self._known[snapshot_id, until, path] = rows
        return {path: self._known[snapshot_id, until, path] for path in wanted}

    def _counted(
        self, io: FileIO, listing: Listing, wanted: set[str], until: int | None
    ) -> dict[str, RowCount]:
        entries = [e for e in listing.findable(DataFileContent.DATA) if e.data_file.file_path in wanted]
        entries.sort(key=lambda entry: entry.data_file.record_count)
        applied = [(entry, listing.deletes_of(entry)) for entry in entries]
        needed: dict[str, tuple[DataFile, set[str]]] = {}
        for entry, deletes in applied:
            for delete in deletes if _vector_of(deletes) is None else ():
                needed.setdefault(delete.file_path, (delete, set()))[1].add(entry.data_file.file_path)
        asked = (partial(_positions, io, *want) for want in needed.values())
        with translated("reading position deletes"):
            positions = dict(zip(needed, all_of(asked, MAX_READERS), strict=True))
        joins = _Joins(io, listing)
        rows = dict.fromkeys(wanted, RowCount())
        for entry, deletes in applied:
            file, vector = entry.data_file, _vector_of(deletes)
            equality = listing.equality_deletes.of(entry, until)
            hidden: DeletedPositions
            if vector is not None:
                hidden, hidden_rows = _OnDemand(io, vector, file), vector.record_count
            else:
                found = (positions[delete.file_path].get(file.file_path) for delete in deletes)
                listed = _hidden(file, [deleted for deleted in found if deleted is not None])
                hidden, hidden_rows = ListedPositions(listed), len(listed)
            least = most = file.record_count - hidden_rows
            if equality and file.record_count <= self._may_join:
                self._may_join -= file.record_count
                least = most = joins.left(entry, hidden, equality)
            elif equality:
                least = 0
            rows[file.file_path] += RowCount(least, most)
        return rows


def _vector_of(deletes: Iterable[DataFile]) -> DataFile | None:
    """Return the deletion vector among a data file's deletes. It alone applies."""
    return next(filter(is_vector, deletes), None)


class _OnDemand:
    """The positions of a deletion vector that is read when they are needed."""

    def __init__(self, io: FileIO, entry: DataFile, file: DataFile) -> None:
        self._io = io
        self._entry = entry
        self._file = file

    def between(self, start: int, end: int) -> Positions:
        """Return the positions from start to end (exclusive), ascending."""
        return self._vector.between(start, end)

    @cached_property
    def _vector(self) -> DeletionVector:
        path = self._entry.file_path
        with DataPath.of(self._entry, PrefetchExtent.FOOTER).open(self._io) as stream:
            return VectorReader(stream, path).read(self._entry, self._file.file_path, self._file.record_count)


def _positions(io: FileIO, delete: DataFile, paths: Set[str]) -> dict[str, Positions]:
    """Read a delete file's positions for each of these data files."""
    wanted = ds.field("file_path").isin(sorted(paths))
    with DataPath.of(delete, PrefetchExtent.ALL).open(io) as stream:
        fragment = format_of(delete).make_fragment(stream)
        # Rows are filtered after reading, because the file's statistics may be wrong. A second scanner on top
        # would block its threads on those of this one.
        scanner = ds.Scanner.from_fragment(fragment, columns=["file_path", "pos"], use_threads=False)
        kept = [pa.Table.from_batches([batch]).filter(wanted) for batch in scanner.to_batches()]
    table = pa.concat_tables([scanner.projected_schema.empty_table(), *kept]).unify_dictionaries()
    found = table.group_by("file_path").aggregate([("pos", "distinct")])
    by_path = zip(found.column("file_path").to_pylist(), found.column("pos_distinct"), strict=True)
    return {as_path(path): positions.values.to_numpy() for path, positions in by_path}


def _hidden(file: DataFile, deletes: Iterable[Positions]) -> Positions:
    """Return the ascending positions of a file that these deletes hide."""
    found = np.unique(np.concatenate([np.empty(0, np.int64), *deletes]))
    return found[(found >= 0) & (found < file.record_count)]


class _Joins:
    """Joins of data files with deleted keys; each delete file is read once."""

    def __init__(self, io: FileIO, listing: Listing) -> None:
        self._io = io
        self._metadata = listing.metadata
        self._schema, self._names = listing.metadata.schema(), listing.metadata.name_mapping()
        self._keys: dict[str, pa.Table] = {}

    def left(self, entry: ManifestEntry, hidden: DeletedPositions, deletes: Sequence[EqualityDelete]) -> int:
        """Return how many rows of a data file are neither at a hidden position nor deleted by key."""
        deleted: dict[Key, list[pa.Table]] = defaultdict(list)
        for delete in deletes:
            deleted[delete.field_ids].append(self._deleted(delete))
        joined, rows = [pa.concat_tables(found) for found in deleted.values()], 0
        field_ids = tuple(sorted({field_id for key in deleted for field_id in key}))
        for table in self._rows(entry.data_file, hidden, field_ids):
            for keys in joined:
                table = table.join(keys, keys.column_names, join_type="left anti", use_threads=False)
            rows += table.num_rows
        return rows

    def _deleted(self, delete: EqualityDelete) -> pa.Table:
        if delete.path not in self._keys:
            empty = key_schema(self._schema, delete.field_ids).empty_table()
            opened = partial(DataPath.of(delete.file, PrefetchExtent.ALL).open, self._io)
            batches = read_keys(opened, delete, self._schema, self._names)
            tables = [_as_texts(pa.Table.from_batches([batch])) for batch in batches]
            self._keys[delete.path] = pa.concat_tables([_as_texts(empty), *tables])
        return self._keys[delete.path]

    def _rows(self, file: DataFile, hidden: DeletedPositions, field_ids: Key) -> Iterator[pa.Table]:
        """Yield the keys of a data file's rows, without those at hidden positions."""
        path = file.file_path
        with translated(f"reading {path}"), DataPath.of(file, PrefetchExtent.SOME).open(self._io) as stream:
            source = open_file(stream)
            columns = columns_of(source.schema_arrow, self._names)
            constants = constants_of(file, columns, self._schema, self._metadata.specs()[file.spec_id])
            # At least one column, so that the table has rows.
            read = [column for column in columns if column.field_id in field_ids] or columns[:1]
            projection = Projection(read, key_schema(self._schema, field_ids), constants, path)
            names = [column.name for column in read]
            start = 0
            for batch in source.iter_batches(JOINED_ROWS, columns=names, use_threads=False):
                kept = np.ones(batch.num_rows, np.bool_)
                kept[hidden.between(start, start + batch.num_rows) - start] = False
                start += batch.num_rows
                yield _as_texts(pa.Table.from_batches([projection.apply(batch.filter(pa.array(kept)))]))


def _as_texts(table: pa.Table) -> pa.Table:
    """Convert values to bytes that are equal only for equal values; nulls are `n`, other values start with
    `v`."""
    return pa.table({field.name: _as_text(table.column(field.name)) for field in table.schema})


def _as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    if pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_date(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_temporal(column.type):
        column = column.cast(pa.int64())
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        column = column.cast(pa.string())
    begin, between = pa.scalar(b"v", pa.binary()), pa.scalar(b"", pa.binary())
    texts = pc.binary_join_element_wise(begin, column.cast(pa.binary()), between)
    return texts.fill_null(pa.scalar(b"n", pa.binary()))
