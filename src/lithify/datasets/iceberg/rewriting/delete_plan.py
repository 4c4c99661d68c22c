"""Which delete files of a snapshot apply to nothing, and which by position are worth merging (pure).

1. A position delete file is for one data file, wherever that lies, or for data files of its own partition; it
   applies to those that are not newer. An equality delete file applies to older ones of its partition, and
   without partitions to all older ones. One that finds none is *dangling*, and so is one between whose paths
   no data file of its partition lies.
2. A delete file that may apply to the inputs of an active compaction is left alone: that one applies it.
3. A position delete file of less than half of `MAX_ROWS` rows is *small*. Small ones for the same data file
   are merged, and small ones of the same partition for several; where the table wants deletes by partition
   (`write.delete.granularity`), both together, but for those whose data file is of another partition. They
   are merged in order of their paths, as many as have `MAX_ROWS` rows together.

Invariant: once that is done there is nothing more to do, as long as no row was left out. Of two merged files
in a row, the first has at least half of `MAX_ROWS` rows, else the next small one had gone into it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from lithify.datasets.iceberg.format.partitions import Place

MAX_ROWS = 8_000_000
"""Deleted rows in one file: some megabytes, and some hundred in memory while they are sorted."""


@dataclass(frozen=True, slots=True)
class DeleteFacts:
    """A delete file."""

    path: str
    place: Place
    is_global: bool
    """Of an unpartitioned spec."""
    is_equality: bool
    number: int
    """Its data sequence number."""
    rows: int
    only: str | None = None
    """The data file it is for, where that is one."""
    low: str | None = None
    high: str | None = None
    """Between which paths of data files it has deletes; inclusive."""
    can_merge: bool = True


@dataclass(slots=True)
class DataFacts:
    """The data files that deletes may apply to."""

    numbers: dict[str, int] = field(default_factory=dict)
    """The lowest data sequence number under each path."""
    places: dict[str, Place] = field(default_factory=dict)
    """Where each path lies."""
    repeated: set[str] = field(default_factory=set)
    """Paths that are listed more than once."""
    paths: dict[Place, list[str]] = field(default_factory=lambda: defaultdict(list))
    oldest: dict[Place, int] = field(default_factory=dict)

    def add(self, path: str, place: Place, number: int) -> None:
        """Take in a live data file of a place that has deletes."""
        if path in self.numbers:
            self.repeated.add(path)
        self.numbers[path] = min(number, self.numbers.get(path, number))
        self.places[path] = place
        self.paths[place].append(path)
        self.note(place, number)

    def note(self, place: Place, number: int) -> None:
        """Take in that there is a data file."""
        self.oldest[place] = min(number, self.oldest.get(place, number))

    def applies(self, delete: DeleteFacts, path: str) -> bool:
        """Whether the position deletes in a file for rows of this data file delete any."""
        is_meant = path == delete.only if delete.only is not None else self.places.get(path) == delete.place
        return is_meant and self.numbers.get(path, inf) <= delete.number


@dataclass(frozen=True, slots=True)
class DeletePlan:
    """What is to be done."""

    dangling: tuple[str, ...] = ()
    merges: tuple[tuple[str, ...], ...] = ()
    """Position delete files that become one each."""

    @property
    def rewritten(self) -> int:
        """Delete files that go."""
        return len(self.dangling) + sum(len(merge) for merge in self.merges)


def plan_deletes(
    deletes: Sequence[DeleteFacts],
    data: DataFacts,
    busy_paths: Iterable[str],
    busy_places: Iterable[Place],
    *,
    by_partition: bool,
) -> DeletePlan:
    """`busy_…`: inputs of active compactions, and their places; `by_partition`: what is for one data file is
    merged with the others of its partition; see the module."""
    paths, places = set(busy_paths), set(busy_places)
    for found in data.paths.values():
        found.sort()
    anywhere = min(data.oldest.values(), default=inf)
    free = [one for one in deletes if not (one.only in paths or (one.only is None and _meets(one, places)))]
    dangling = [one.path for one in free if _dangles(one, data, anywhere)]
    gone = set(dangling)
    groups: dict[tuple[Place, str | None], list[DeleteFacts]] = defaultdict(list)
    for one in free:
        if one.path not in gone and one.can_merge and not one.is_equality and 2 * one.rows < MAX_ROWS:
            is_at_home = one.only is None or data.places.get(one.only) == one.place
            groups[one.place, None if by_partition and is_at_home else one.only].append(one)
    merges = [merge for group in groups.values() for merge in _merges(group)]
    return DeletePlan(tuple(dangling), tuple(tuple(one.path for one in merge) for merge in merges))


def _meets(one: DeleteFacts, places: set[Place]) -> bool:
    return bool(places) if one.is_global and one.is_equality else one.place in places


def _dangles(one: DeleteFacts, data: DataFacts, anywhere: float) -> bool:
    if one.is_equality:
        return (anywhere if one.is_global else data.oldest.get(one.place, inf)) >= one.number
    if one.only is not None:
        return not data.applies(one, one.only)
    if data.oldest.get(one.place, inf) > one.number:
        return True
    if one.low is None or one.high is None:
        return False
    there = data.paths.get(one.place, [])
    first = bisect_left(there, one.low)
    return first == len(there) or there[first] > one.high


def _merges(group: Sequence[DeleteFacts]) -> list[list[DeleteFacts]]:
    found: list[list[DeleteFacts]] = []
    rows = 0
    for one in sorted(group, key=lambda one: (one.low or "", one.path)):
        if not found or rows + one.rows > MAX_ROWS:
            found.append([])
            rows = 0
        found[-1].append(one)
        rows += one.rows
    return [merge for merge in found if len(merge) > 1]
