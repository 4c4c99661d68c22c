"""Equality delete files: which apply to a data file, and whether a rewrite can apply them.

1. A delete file applies to data files of a lower data sequence number: those of its own partition, or all if
   its spec has no partitions (Iceberg format: scan planning). So newer delete files apply to a data file, and
   of two files of a partition, all deletes of the newer one also apply to the older one.
2. A rewrite can apply delete files that it surely reads as all readers do: Parquet, not encrypted, by columns
   that the table still has, that are not nested, and that are not floating-point, since some readers treat
   the two zeros as equal. All that apply to a file together have at most `MAX_ROWS` rows and `MAX_BYTES`.
3. The number of rows they hide is unknown without reading. The estimate assumes that every deleted key is
   that of one row, anywhere in the files that the delete applies to.

Lookups take the time of a binary search, however many delete files there are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from pyiceberg.manifest import DataFile, ManifestEntry
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import DoubleType, FloatType

from lithify.datasets.iceberg.format.manifests import why_unreadable
from lithify.datasets.iceberg.format.partitions import Place, is_unpartitioned, place_of

MAX_ROWS = 2_000_000
"""The maximum number of deleted keys that a task holds in memory."""
MAX_BYTES = 64 * 1024 * 1024
"""The maximum stored size of the delete files with these keys."""


@dataclass(frozen=True, slots=True)
class EqualityDelete:
    """A live equality delete file."""

    file: DataFile
    number: int
    """The data sequence number."""
    field_ids: tuple[int, ...]
    """The ids of the columns by which it deletes."""

    @property
    def path(self) -> str:
        return self.file.file_path

    @classmethod
    def of_entry(cls, entry: ManifestEntry) -> EqualityDelete:
        """Return the equality delete file of a manifest entry."""
        file = entry.data_file
        return cls(file, entry.sequence_number or 0, tuple(sorted(set(file.equality_ids or ()))))


@dataclass(frozen=True, slots=True)
class Burden:
    """The total effect of the equality delete files that apply to a data file."""

    files: int = 0
    rows: int = 0
    size_bytes: int = 0
    share: float = 0.0
    """The estimated share of the data file's rows that is hidden."""
    unfit: str | None = None
    """Why one of the delete files cannot be applied here."""

    def __add__(self, other: Burden) -> Burden:
        return Burden(
            self.files + other.files,
            self.rows + other.rows,
            self.size_bytes + other.size_bytes,
            self.share + other.share,
            self.unfit or other.unfit,
        )

    @property
    def is_too_much(self) -> bool:
        """Return whether they exceed what a task can apply."""
        return self.unfit is None and (self.rows > MAX_ROWS or self.size_bytes > MAX_BYTES)

    @property
    def why_unfit(self) -> str | None:
        """Return why they cannot be applied ("they …"); `None` when they can."""
        if self.unfit is None and self.rows > MAX_ROWS:
            return f"have more than {MAX_ROWS:,} rows in total"
        if self.unfit is None and self.size_bytes > MAX_BYTES:
            return f"have more than {MAX_BYTES // (1024 * 1024)} MiB in total"
        return self.unfit


NO_BURDEN = Burden()


class EqualityDeletes:
    """The equality delete files of a snapshot."""

    def __init__(
        self,
        metadata: TableMetadata,
        deletes: Iterable[ManifestEntry],
        data: Callable[[], Iterable[ManifestEntry]],
    ) -> None:
        """`data` are the live data files."""
        specs, schema = metadata.specs(), metadata.schema()
        everywhere: list[EqualityDelete] = []
        places: dict[Place, list[EqualityDelete]] = defaultdict(list)
        for entry in deletes:
            is_global = is_unpartitioned(specs[entry.data_file.spec_id])
            found = everywhere if is_global else places[place_of(entry.data_file)]
            found.append(EqualityDelete.of_entry(entry))
        self._is_empty = not everywhere and not places
        ages = _Ages(() if self._is_empty else data())
        self._everywhere = _Stack(everywhere, ages.of_all, schema)
        self._places = {place: _Stack(found, ages.of(place), schema) for place, found in places.items()}

    def of(self, entry: ManifestEntry, until: int | None = None) -> tuple[EqualityDelete, ...]:
        """Return the delete files that apply to a data file; with `until`, only up to that sequence
        number."""
        own = entry.sequence_number or 0
        found = (delete for stack in self._stacks(entry) for delete in stack.younger_than(own))
        return tuple(delete for delete in found if until is None or delete.number <= until)

    def burden(self, entry: ManifestEntry) -> Burden:
        """Return the total effect of the delete files that apply to a data file."""
        if self._is_empty:
            return NO_BURDEN
        own = entry.sequence_number or 0
        return sum((stack.burden(own) for stack in self._stacks(entry)), NO_BURDEN)

    def _stacks(self, entry: ManifestEntry) -> Iterator[_Stack]:
        if not self._is_empty:
            yield self._everywhere
            here = self._places.get(place_of(entry.data_file)) if self._places else None
            if here is not None:
                yield here


class _Age:
    """Row counts of data files, by their sequence numbers."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = defaultdict(int)

    def add(self, number: int, rows: int) -> None:
        self._rows[number] += rows

    @cached_property
    def _sums(self) -> tuple[list[int], list[int]]:
        numbers = sorted(self._rows)
        return numbers, [0, *accumulate(self._rows[number] for number in numbers)]

    def older_than(self, number: int) -> int:
        numbers, sums = self._sums
        return sums[bisect_left(numbers, number)]


class _Ages:
    """Row counts of data files, by place."""

    def __init__(self, data: Iterable[ManifestEntry]) -> None:
        self.of_all = _Age()
        self._places: dict[Place, _Age] = defaultdict(_Age)
        for entry in data:
            number, rows = entry.sequence_number or 0, entry.data_file.record_count
            self.of_all.add(number, rows)
            self._places[place_of(entry.data_file)].add(number, rows)

    def of(self, place: Place) -> _Age:
        return self._places[place]


class _Stack:
    """The delete files of one place, the oldest at the bottom."""

    def __init__(self, deletes: Sequence[EqualityDelete], age: _Age, schema: Schema) -> None:
        self._deletes = sorted(deletes, key=lambda delete: (delete.number, delete.path))
        self._numbers = [delete.number for delete in self._deletes]
        burdens = (_burden(delete, age, schema) for delete in reversed(self._deletes))
        self._burdens = [*accumulate(burdens, initial=NO_BURDEN)][::-1]
        """The total effect of each delete file and all above it."""

    def younger_than(self, number: int) -> Sequence[EqualityDelete]:
        return self._deletes[bisect_right(self._numbers, number) :]

    def burden(self, number: int) -> Burden:
        return self._burdens[bisect_right(self._numbers, number)]


def _burden(delete: EqualityDelete, age: _Age, schema: Schema) -> Burden:
    rows, applies_to = delete.file.record_count, age.older_than(delete.number)
    share = min(1.0, rows / applies_to) if applies_to else 0.0
    return Burden(1, rows, delete.file.file_size_in_bytes, share, _why_unfit(delete, schema))


def _why_unfit(delete: EqualityDelete, schema: Schema) -> str | None:
    unreadable = why_unreadable(delete.file)
    if unreadable is not None:
        return unreadable
    if not delete.field_ids:
        return "list no columns"
    fields = {field.field_id: field for field in schema.fields}
    for field_id in delete.field_ids:
        field = fields.get(field_id)
        if field is None:
            return f"use a column that was dropped or is nested (id {field_id})"
        if isinstance(field.field_type, FloatType | DoubleType) or not field.field_type.is_primitive:
            return f"use {field.name} ({field.field_type}), which not all readers compare in the same way"
    return None
