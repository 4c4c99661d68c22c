"""Planning which equality delete files are rewritten, and which data files have to be read for it (pure).

1. Equality delete files with the same scope and by the same columns are a *key group*: their keys are read
   together. The scope is a partition, or the whole table for files of a spec without partitions.
2. A delete applies to the data files of its scope with a lower data sequence number. It may be removed once
   the rows that it deletes are known in each of them. So files that cannot be read, or not be named, since
   their path is listed more than once, keep the deletes younger than themselves, and no others.
3. A data file of whose keys no delete can have one, by the bounds of both, is not read (`may_share_keys`).
4. Groups all of whose data files are inputs of active compactions are left to these.

Delete files listed more than once, encrypted ones and those that are not Parquet are left alone, with a
note.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    FixedType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
)

from lithify.datasets.iceberg.deletes.equality_deletes import EqualityDelete
from lithify.datasets.iceberg.deletes.key_columns import KeyColumns
from lithify.datasets.iceberg.format.listing import Listing
from lithify.datasets.iceberg.format.manifests import why_unreadable
from lithify.datasets.iceberg.format.partitions import Place, is_unpartitioned, place_of

DeleteName = tuple[str, int]
"""The path of a delete file and its data sequence number."""
GroupKey = tuple[Place | None, tuple[int, ...]]
"""A scope, `None` for the whole table, and the ids of the columns."""
_MAX_COMPARED = 64
"""The maximum number of delete files whose bounds are compared with those of a data file."""
_TIMES = (TimestampType, TimestamptzType, TimestampNanoType, TimestamptzNanoType)
_TIME_BYTES = 8
_NUMBERS = (IntegerType, LongType, DateType, TimeType, *_TIMES)
_ORDERED = (*_NUMBERS, StringType, BinaryType, FixedType, DecimalType)


@dataclass(slots=True)
class KeyGroup:
    """Equality delete files with the same scope and by the same columns."""

    columns: KeyColumns
    deletes: list[EqualityDelete] = field(default_factory=list)
    """In ascending order of their sequence numbers; at least one."""
    data: list[ManifestEntry] = field(default_factory=list)
    """The data files that at least one of the deletes applies to, in ascending order of their sequence
    numbers."""

    @property
    def names(self) -> tuple[DeleteName, ...]:
        return tuple((delete.path, delete.number) for delete in self.deletes)

    @property
    def rows(self) -> int:
        """Return the number of deleted keys."""
        return sum(delete.file.record_count for delete in self.deletes)

    def keep_younger(self, number: int) -> int:
        """Remove the deletes with a higher sequence number, and the data files that no other applies to.
        Return the number of removed deletes."""
        count = len(self.deletes)
        self.deletes = [delete for delete in self.deletes if delete.number <= number]
        newest = self.deletes[-1].number if self.deletes else 0
        self.data = [entry for entry in self.data if (entry.sequence_number or 0) < newest]
        return count - len(self.deletes)

    def to_read(self) -> Iterator[ManifestEntry]:
        """Yield the data files that may have a row with one of the keys, the oldest first."""
        numbers = [delete.number for delete in self.deletes]
        bounds = [_bounds(delete.file, self.columns.types) for delete in self.deletes]
        for entry in self.data:
            applied = bounds[bisect_right(numbers, entry.sequence_number or 0) :]
            if len(applied) > _MAX_COMPARED:
                yield entry
                continue
            own = _bounds(entry.data_file, self.columns.types)
            if any(may_share_keys(own, other) for other in applied):
                yield entry


@dataclass(slots=True)
class EqualityPlan:
    """The equality deletes of a snapshot, and what is done with them."""

    groups: dict[GroupKey, KeyGroup] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    """Why delete files are left alone ("they …"), for each."""


def plan_equality(
    listing: Listing, busy: Collection[str], wanted: Set[DeleteName] | None = None
) -> EqualityPlan:
    """Plan by the rules of the module. `busy` has the inputs of active compactions. With `wanted`, plan only
    these delete files."""
    plan, specs = EqualityPlan(), listing.metadata.specs()
    columns: dict[tuple[int, ...], KeyColumns] = {}
    for entry in listing.entries(DataFileContent.EQUALITY_DELETES):
        delete, file = EqualityDelete.of_entry(entry), entry.data_file
        if wanted is not None and (delete.path, delete.number) not in wanted:
            continue
        if delete.field_ids not in columns:
            columns[delete.field_ids] = KeyColumns(listing.metadata, delete.field_ids)
        why = columns[delete.field_ids].why_unfit or _why_left(listing, file)
        if why is not None:
            plan.left.append(why)
            continue
        scope = None if is_unpartitioned(specs[file.spec_id]) else place_of(file)
        group = plan.groups.setdefault((scope, delete.field_ids), KeyGroup(columns[delete.field_ids]))
        group.deletes.append(delete)
    for group in plan.groups.values():
        group.deletes.sort(key=lambda delete: (delete.number, delete.path))
    _find_data(listing, plan)
    for key, group in list(plan.groups.items()):
        if group.data and all(entry.data_file.file_path in busy for entry in group.data):
            plan.left += ["apply to inputs of active compactions only, which apply them"] * len(group.deletes)
            del plan.groups[key]
    return plan


def _find_data(listing: Listing, plan: EqualityPlan) -> None:
    by_scope: dict[Place | None, list[GroupKey]] = defaultdict(list)
    for key in plan.groups:
        by_scope[key[0]].append(key)
    unreadable: dict[GroupKey, tuple[int, str]] = {}
    for entry in listing.entries(DataFileContent.DATA) if by_scope else ():
        number, why = entry.sequence_number or 0, _why_left(listing, entry.data_file)
        for key in (*by_scope[None], *by_scope.get(place_of(entry.data_file), ())):
            if plan.groups[key].deletes[-1].number <= number:
                continue
            if why is None:
                plan.groups[key].data.append(entry)
            elif key not in unreadable or number < unreadable[key][0]:
                unreadable[key] = number, why
    for group in plan.groups.values():
        group.data.sort(key=lambda entry: entry.sequence_number or 0)
    for key, (number, why) in unreadable.items():
        plan.left += [f"apply to data files that {why}"] * plan.groups[key].keep_younger(number)
        if not plan.groups[key].deletes:
            del plan.groups[key]


def _why_left(listing: Listing, file: DataFile) -> str | None:
    if file.file_path in listing.repeated:
        return "are listed more than once"
    return why_unreadable(file)


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """The inclusive bounds of a column's values in a file; `None`: unknown."""

    low: Any
    high: Any
    may_have_nulls: bool
    may_have_values: bool


def may_share_keys(one: Sequence[ColumnBounds], other: Sequence[ColumnBounds]) -> bool:
    """Return whether a key of one file may be one of the other file."""
    return all(map(_may_share, one, other))


def _may_share(one: ColumnBounds, other: ColumnBounds) -> bool:
    if one.may_have_nulls and other.may_have_nulls:
        return True
    if not (one.may_have_values and other.may_have_values):
        return False
    return (one.low is None or other.high is None or one.low <= other.high) and (
        other.low is None or one.high is None or other.low <= one.high
    )


def _bounds(file: DataFile, types: Mapping[int, IcebergType]) -> list[ColumnBounds]:
    found = []
    for field_id, kind in types.items():
        low = _decoded(kind, (file.lower_bounds or {}).get(field_id))
        high = _decoded(kind, (file.upper_bounds or {}).get(field_id))
        nulls = (file.null_value_counts or {}).get(field_id)
        # Without bounds, a column may be missing in the file, and then have a default.
        has_values = nulls is None or nulls < file.record_count or low is not None
        found.append(ColumnBounds(low, high, nulls != 0, has_values))
    return found


def _decoded(kind: IcebergType, data: bytes | None) -> Any:
    """Return a bound's value; `None` if it is unknown, or of a type whose values have no common order."""
    if data is None or not isinstance(kind, _ORDERED):
        return None
    if isinstance(kind, _NUMBERS):
        if isinstance(kind, _TIMES) and len(data) != _TIME_BYTES:
            return None  # of a date, in days, that was promoted
        return int.from_bytes(data, "little", signed=True)  # perhaps of a narrower type
    try:
        return from_bytes(kind, bytes(data))
    except ValueError:
        return None
