"""Planning of delete files: which are dangling, and which position delete files are worth merging (pure).

1. A position delete file applies to one data file in any partition, or to data files of its own partition,
   unless they are newer. An equality delete file applies to older files of its partition, and without
   partitions to all older ones. A file that applies to none is *dangling*, and so is one with no data file of
   its partition between its lowest and highest path.
2. A delete file that may apply to the inputs of an active compaction is skipped: the compaction applies it.
3. A position delete file of less than half of `MAX_ROWS` rows is *small*. Small ones for the same data file
   are merged, and small ones of the same partition for several; if the table wants deletes by partition
   (`write.delete.granularity`), both are merged together, except for those whose data file is in another
   partition. They are merged in order of their paths, up to `MAX_ROWS` rows.

Invariant: after a rewrite that dropped no row, no work is left. Of two consecutive merged files, the first
has at least half of `MAX_ROWS` rows, since otherwise the next small file would have been added to it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from lithify.datasets.iceberg.format.partitions import Place

MAX_ROWS = 8_000_000
"""The maximum deleted rows in one file: a few megabytes, and a few hundred in memory while they are
sorted."""


@dataclass(frozen=True, slots=True)
class DeleteFacts:
    """Facts about a delete file."""

    path: str
    place: Place
    is_global: bool
    """Whether its spec is unpartitioned."""
    is_equality: bool
    number: int
    """The data sequence number."""
    rows: int
    only: str | None = None
    """The data file it applies to, if there is only one."""
    low: str | None = None
    high: str | None = None
    """The inclusive bounds (`low`, `high`) of the paths of data files with deletes."""
    can_merge: bool = True


@dataclass(slots=True)
class DataFacts:
    """Facts about the data files that deletes may apply to."""

    numbers: dict[str, int] = field(default_factory=dict)
    """The lowest data sequence number under each path."""
    places: dict[str, Place] = field(default_factory=dict)
    """The place of each path."""
    repeated: set[str] = field(default_factory=set)
    """Paths that are listed more than once."""
    paths: dict[Place, list[str]] = field(default_factory=lambda: defaultdict(list))
    oldest: dict[Place, int] = field(default_factory=dict)

    def add(self, path: str, place: Place, number: int) -> None:
        """Add a live data file of a place that has deletes."""
        if path in self.numbers:
            self.repeated.add(path)
        self.numbers[path] = min(number, self.numbers.get(path, number))
        self.places[path] = place
        self.paths[place].append(path)
        self.note(place, number)

    def note(self, place: Place, number: int) -> None:
        """Record that a data file exists."""
        self.oldest[place] = min(number, self.oldest.get(place, number))

    def applies(self, delete: DeleteFacts, path: str) -> bool:
        """Return whether the file's position deletes for this data file delete any row."""
        is_meant = path == delete.only if delete.only is not None else self.places.get(path) == delete.place
        return is_meant and self.numbers.get(path, inf) <= delete.number


@dataclass(frozen=True, slots=True)
class DeletePlan:
    """The planned rewrite of delete files."""

    dangling: tuple[str, ...] = ()
    merges: tuple[tuple[str, ...], ...] = ()
    """Groups of position delete files, each merged into one."""

    @property
    def rewritten(self) -> int:
        """Return the number of delete files that are removed."""
        return len(self.dangling) + sum(len(merge) for merge in self.merges)


def plan_deletes(
    deletes: Sequence[DeleteFacts],
    data: DataFacts,
    busy_paths: Iterable[str],
    busy_places: Iterable[Place],
    *,
    by_partition: bool,
) -> DeletePlan:
    """Plan the rewrite; see the module. `busy_…` are inputs of active compactions, and their places; with
    `by_partition`, deletes of one data file are merged with others of its partition."""
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
