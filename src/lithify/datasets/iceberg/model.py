"""What Lithify knows of an Iceberg table, as values.

Times are microseconds since the Unix epoch; a date counts as its midnight in UTC. Upper bounds of files
are inclusive, ends of chunks and ranges are exclusive.

A *lane* is what is compacted together: the files of one partition of one partition spec. Outputs stay
in the lane of their inputs, so that a delete that was written for a partition finds the same rows in
the same partition before and after.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

from lithify.datasets.iceberg.policy import TablePolicy
from lithify.planning.timeline.model import ChunkKey, TimelineFile
from lithify.planning.timeline.state import ChunkStates
from lithify.protocol.model import Compaction, Ledger


@dataclass(frozen=True, slots=True, order=True)
class Lane:
    """One partition of one partition spec."""

    spec_id: int
    partition: str
    """As Iceberg writes it in paths (`day=2025-01-01`); empty for an unpartitioned spec."""

    @property
    def group(self) -> str:
        """Its name as a timeline of its own."""
        return f"{self.spec_id}:{self.partition}"

    @classmethod
    def of_group(cls, group: str) -> Lane:
        """The lane of a timeline's name."""
        spec_id, _, partition = group.partition(":")
        return cls(int(spec_id), partition)


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The rows of one stretch of time of one lane, written in one or more pieces."""

    start_us: int | None
    """`None`: from the beginning of time."""
    end_us: int | None
    """Exclusive; `None`: until the end of time."""
    cuts: tuple[int, ...] = ()
    """Ascending times strictly inside, at which a new piece begins. Pieces never share a file."""
    with_nulls: bool = False
    """Whether rows without a time belong to it."""
    part: int = 0
    """Of which of the spec's parts."""

    def __post_init__(self) -> None:
        low = [] if self.start_us is None else [self.start_us]
        high = [] if self.end_us is None else [self.end_us]
        edges = [*low, *self.cuts, *high]
        if any(a >= b for a, b in pairwise(edges)):
            raise ValueError(f"the times of the range are not ascending: {edges}")


WorkRange: TypeAlias = tuple[TimeRange, ...]
"""The work of one task: a stretch of time of one lane, or of several small lanes one after the other."""


@dataclass(frozen=True, slots=True)
class SpecPart:
    """What of a spec is of one lane."""

    lane: Lane
    cuts: tuple[int, ...]
    """Ascending times at which outputs are cut: the inner edges of all chunks the inputs meet."""
    inputs: tuple[str, ...]
    """Paths of the data files."""


@dataclass(frozen=True)
class ChunkSpec:
    """What to compact: all rows of some files, as they were in one snapshot, those of each lane by
    themselves."""

    task: str
    """The planner's key of the task."""
    snapshot_id: int
    """The snapshot it was planned on. Its deletes are applied; whatever came later is checked at commit."""
    chunks: tuple[ChunkKey, ...]
    parts: tuple[SpecPart, ...]
    """One for each lane. Of many only where each of them is small."""
    sort_order_id: int
    """The table's sort order at planning; 0 sorts by time."""

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Paths of all data files, those of each part together."""
        return tuple(path for part in self.parts for path in part.inputs)

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        return tuple(accumulate(len(part.inputs) for part in self.parts))

    def part_of(self, position: int) -> SpecPart:
        """Return the part of which the input at this position is."""
        return self.parts[min(bisect_right(self._ends, position), len(self.parts) - 1)]


@dataclass(frozen=True, slots=True)
class NewFile:
    """A data file that a task wrote, with the statistics its manifest entry needs."""

    path: str
    size_bytes: int
    rows: int
    sort_order_id: int | None
    column_sizes: Mapping[int, int] = field(default_factory=dict)
    value_counts: Mapping[int, int] = field(default_factory=dict)
    null_value_counts: Mapping[int, int] = field(default_factory=dict)
    nan_value_counts: Mapping[int, int] = field(default_factory=dict)
    lower_bounds: Mapping[int, bytes] = field(default_factory=dict)
    upper_bounds: Mapping[int, bytes] = field(default_factory=dict)
    split_offsets: tuple[int, ...] = ()
    sources: tuple[int, ...] | None = None
    """Positions, among the inputs of the spec, of the files its rows came from; ascending. `None`: of any."""


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """Inputs of one part that could not be rewritten, in place of outputs: they stay as they are, and the
    other parts of the compaction go on."""

    name: str
    """That no other output has."""
    sources: tuple[int, ...]
    """Their positions among the inputs of the spec, ascending."""
    reason: str


Output: TypeAlias = NewFile | LeftAlone
IcebergCompaction: TypeAlias = Compaction[ChunkSpec, WorkRange, Output]
IcebergLedger: TypeAlias = Ledger[ChunkSpec, WorkRange, Output]


def files_written(compaction: IcebergCompaction) -> tuple[NewFile, ...]:
    """Return the data files among the outputs of a compaction."""
    return tuple(output for output in compaction.outputs if isinstance(output, NewFile))


@dataclass(frozen=True, slots=True)
class LeftFiles:
    """Data files that cannot be compacted, for one reason."""

    why: str
    """"They …"."""
    files: int
    size_bytes: int
    rows: int
    is_stuck: bool = False
    """Whether they were compacted before it came to that, and it grows worse until a person acts."""

    @property
    def note(self) -> str:
        """The sentence about them."""
        return f"{self.files} file(s) are left alone: they {self.why}"


@dataclass(frozen=True, slots=True)
class TableState:
    """A table at one snapshot: what planning and validation look at."""

    uuid: str
    snapshot_id: int | None
    """`None` for a table that was never written to."""
    timestamp_ms: int
    """When the snapshot was committed, by the clock of who did; 0 when there is none."""
    sort_order_id: int
    files: tuple[TimelineFile, ...]
    """All live data files, with distinct paths as ids. Those that cannot be rewritten have times that
    the planner leaves alone."""
    delete_files: int
    """Live delete files of any kind."""
    policy: TablePolicy
    notes: tuple[str, ...] = ()
    """What is left alone although it is there, and why."""
    left_alone: tuple[LeftFiles, ...] = ()
    """The same of data files, with their amounts."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """By part of maintenance (`PARTS`, `ORPHANS`), why it cannot be done with this table. A part that can be
    done is not there."""
    states: ChunkStates = field(default_factory=ChunkStates)
    """What is remembered of the chunks."""
    source: Any = field(default=None, repr=False, compare=False)
    """The listing this was drawn from."""
    by_id: Mapping[str, TimelineFile] = field(init=False, repr=False, compare=False)
    """The files by their ids."""
    specs: dict[tuple[str, tuple[str, ...]], ChunkSpec] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    """Specs that were made of tasks, by their keys and files: the same task is planned again and again."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_id", {file.id: file for file in self.files})

    @property
    def refusal(self) -> str:
        """Why the table's data cannot be compacted; empty when they can. Then no file has a time."""
        return self.refused.get("data", "")
