"""Values that describe an Iceberg table.

Times are microseconds since the Unix epoch; a date counts as its midnight in UTC. Upper bounds of files
are inclusive, ends of chunks and ranges are exclusive.

A *lane* is a set of files that are compacted together: the files of one partition of one partition spec.
Outputs stay in the lane of their inputs, so that a delete that was written for a partition applies to the
same rows in the same partition before and after.
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
    """The partition as Iceberg writes it in paths (`day=2025-01-01`); empty for an unpartitioned spec."""

    @property
    def group(self) -> str:
        """Return the name of the lane's timeline."""
        return f"{self.spec_id}:{self.partition}"

    @classmethod
    def of_group(cls, group: str) -> Lane:
        """Return the lane of the timeline with this name."""
        spec_id, _, partition = group.partition(":")
        return cls(int(spec_id), partition)


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The rows of one time range of one lane, written in one or more pieces; or all rows of some inputs."""

    start_us: int | None
    """Inclusive; `None`: unbounded."""
    end_us: int | None
    """Exclusive; `None`: unbounded."""
    cuts: tuple[int, ...] = ()
    """Ascending times strictly inside the range at which a new piece begins. Pieces never share a file."""
    with_nulls: bool = False
    """Whether the range includes rows without a time."""
    part: int = 0
    """The index of the spec's part."""
    inputs: tuple[int, int] | None = None
    """The first input of the part, and the one after the last, if the range is all rows of these inputs.
    Inputs without a place on an axis are divided in this way."""

    def __post_init__(self) -> None:
        if self.inputs is not None and (
            not 0 <= self.inputs[0] < self.inputs[1]
            or (self.start_us, self.end_us, self.cuts, self.with_nulls) != (None, None, (), True)
        ):
            raise ValueError(f"a range of the inputs {self.inputs} cannot be limited to a time")
        low = [] if self.start_us is None else [self.start_us]
        high = [] if self.end_us is None else [self.end_us]
        edges = [*low, *self.cuts, *high]
        if any(a >= b for a, b in pairwise(edges)):
            raise ValueError(f"the times of the range are not ascending: {edges}")


WorkRange: TypeAlias = tuple[TimeRange, ...]
"""The work of one task: a time range of one lane, or of several small lanes in sequence."""


@dataclass(frozen=True, slots=True)
class SpecPart:
    """The part of a spec in one lane."""

    lane: Lane
    cuts: tuple[int, ...]
    """Ascending times at which outputs are cut: the inner edges of all chunks that the inputs overlap."""
    inputs: tuple[str, ...]
    """Paths of the data files."""


@dataclass(frozen=True)
class ChunkSpec:
    """The inputs of a compaction: all rows of some files, as they were in one snapshot. Each lane is
    compacted separately."""

    task: str
    """The planner's key of the task."""
    snapshot_id: int
    """The snapshot that it was planned on. That snapshot's deletes are applied; later changes are checked at
    commit."""
    chunks: tuple[ChunkKey, ...]
    parts: tuple[SpecPart, ...]
    """One for each lane. A spec has many parts only if each of them is small."""
    sort_order_id: int
    """The table's sort order at planning; 0 sorts by time, or not at all without a time column."""

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Return the paths of all data files, grouped by part."""
        return tuple(path for part in self.parts for path in part.inputs)

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        return tuple(accumulate(len(part.inputs) for part in self.parts))

    def part_of(self, position: int) -> SpecPart:
        """Return the part that contains the input at this position."""
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
    """Ascending positions, among the spec's inputs, of the files that the rows came from. `None`: possibly
    all."""
    row_map: int | None = None
    """The checksum of the file with the origin of each row; `None` without such a file."""


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """Inputs of one part that could not be rewritten, in place of outputs: they are kept as they are, and the
    other parts of the compaction continue."""

    name: str
    """A name that is unique among outputs."""
    sources: tuple[int, ...]
    """Their ascending positions among the spec's inputs."""
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
    """The reason, as a sentence that begins with "They"."""
    files: int
    size_bytes: int
    rows: int
    is_stuck: bool = False
    """Whether they were compacted before the problem arose, and the problem grows until the operator acts."""

    @property
    def note(self) -> str:
        """Return the note about these files."""
        return f"{self.files} file(s) are left alone: they {self.why}"


@dataclass(frozen=True, slots=True)
class EqualityCost:
    """The equality delete files of a table, and what they cost a reader of all its rows."""

    files: int = 0
    keys: int = 0
    size_bytes: int = 0
    scan_keys: int = 0
    """The deleted keys that a reader of all data files compares: for each data file those of all delete files
    that apply to it."""
    scan_bytes: int = 0
    """The size of these delete files, each counted once for each data file that it applies to."""


@dataclass(frozen=True, slots=True)
class TableState:
    """A table at one snapshot: the input of planning and validation."""

    uuid: str
    snapshot_id: int | None
    """`None` for a table that was never written to."""
    timestamp_ms: int
    """When the snapshot was committed, by the committing process's clock; 0 when there is none."""
    sort_order_id: int
    files: tuple[TimelineFile, ...]
    """All live data files, with distinct paths as ids. Those that cannot be rewritten have times that the
    planner skips."""
    delete_files: int
    """Live delete files of any kind."""
    policy: TablePolicy
    equality: EqualityCost = EqualityCost()
    """The cost of equality deletes for readers."""
    is_timed: bool = True
    """Whether files are on a time axis; otherwise they have no order."""
    notes: tuple[str, ...] = ()
    """Notes about files that are skipped, and why."""
    left_alone: tuple[LeftFiles, ...] = ()
    """The skipped data files, with their amounts."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why a part of maintenance cannot be done with this table, by part (`PARTS`, `ORPHANS`). Parts that are
    possible are absent."""
    states: ChunkStates = field(default_factory=ChunkStates)
    """The cached states of the chunks."""
    source: Any = field(default=None, repr=False, compare=False)
    """The listing that this state was derived from."""
    by_id: Mapping[str, TimelineFile] = field(init=False, repr=False, compare=False)
    """The files by their ids."""
    specs: dict[tuple[str, tuple[str, ...]], ChunkSpec] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    """Specs made from tasks, by the tasks' keys and files: a cache, because the same task is planned
    repeatedly."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_id", {file.id: file for file in self.files})

    @property
    def refusal(self) -> str:
        """Return why the table's data cannot be compacted; empty if they can. In a refused table the
        times of all files count as unknown, so the planner skips and only counts them."""
        return self.refused.get("data", "")
