"""The planner's values: its input (files, policy, active tasks) and its output (a plan).

Times are microseconds since the Unix epoch, in UTC; an interval includes its start and excludes its end. A
format with an inclusive upper bound `hi` gives `Interval(lo, hi + 1)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Protocol

from lithify.base.errors import Refused
from lithify.planning.timeline.calendar import Calendar


class ChunkBucket(IntEnum):
    """How a file is assigned to chunks. All but `TIME` are chunks without an interval."""

    TIME = 0
    """Assigned by its interval."""
    NULL = 1
    """The file has no place on the axis: no row has a time, or the table has no axis. Files of a good size
    are one chunk; the others are packed by size, and each pack is a chunk (`packing`)."""
    WIDE = 2
    """The interval meets more than `max_chunks_per_file` chunks, for example because of one wrong timestamp.
    Such files are rewritten by themselves, which cuts them at the chunk edges."""
    UNKNOWN = 3
    """The interval is unknown, so the rows may be in any chunk. Never compacted."""


@dataclass(frozen=True, slots=True, order=True)
class Interval:
    """Event time from `start_us` up to and without `end_us`. Never empty."""

    start_us: int
    end_us: int

    def __post_init__(self) -> None:
        if self.end_us <= self.start_us:
            raise ValueError(f"the interval from {self.start_us} to {self.end_us} µs is empty")

    def meets(self, other: Interval) -> bool:
        """Return whether the two have an instant in common."""
        return self.start_us < other.end_us and other.start_us < self.end_us


@dataclass(frozen=True, slots=True)
class TimelineFile:
    """A data file of the timeline."""

    id: str
    """Unique in the timeline (its path)."""
    times: Interval | ChunkBucket
    """The time its rows cover; `ChunkBucket.NULL` when no row has a time, `ChunkBucket.UNKNOWN` when that is
    unknown. A file where some rows have no time is placed by those that have."""
    size_bytes: int
    rows: int
    deleted_rows: int = 0
    """Rows known to be hidden by deletes."""
    deletes: int = 0
    """Number of delete files (or vectors) that apply to it."""
    version: int = 0
    """Grows when data is added (Iceberg: the data sequence number)."""
    group: str = ""
    """Files of different groups never share an output (Iceberg: partition and its spec). Each group is a
    timeline of its own."""

    def has_deleted(self, ratio: float) -> bool:
        """Return whether at least this fraction of its rows is deleted, or deletes hide an unknown number."""
        if self.deletes and not self.deleted_rows:
            return True
        return self.deleted_rows > 0 and self.deleted_rows >= ratio * self.rows


@dataclass(frozen=True, slots=True)
class ListedChunk:
    """The other input form: a time chunk of any length with the files that have data for it. A file is listed
    in several chunks."""

    interval: Interval
    files: tuple[TimelineFile, ...]


WELL_SIZED = -1
"""The number of the chunk of files without a place that have a good size."""


@dataclass(frozen=True, slots=True, order=True)
class ChunkKey:
    """The key of a chunk: its group, and its first instant or its bucket."""

    group: str
    bucket: ChunkBucket
    start_us: int
    """The first instant. In the bucket `NULL` the number of the pack, from 0, or `WELL_SIZED`; else 0."""

    @property
    def is_well_sized(self) -> bool:
        """Return whether it is the chunk of files without a place that have a good size."""
        return self.bucket is ChunkBucket.NULL and self.start_us == WELL_SIZED


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The content of a chunk in three numbers; any change of its files or their deletes changes it."""

    version: int
    """The highest version of its files."""
    count: int
    """The number of its files."""
    digest: int
    """64 bits over the ids, sizes and deletes of its files, in any order."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A time chunk, or a bucket of files without a usable time, and the files in it."""

    key: ChunkKey
    interval: Interval | None
    files: tuple[TimelineFile, ...]
    """Sorted by start, end and id; without times, by version and id."""
    overlap_prior: bool
    """Some file begins before the chunk."""
    overlap_later: bool
    """Some file ends after the chunk."""
    size_bytes: int
    """Total size, counting files whole that are partly in other chunks."""
    starting_bytes: int
    """Size of those files that do not begin before the chunk."""
    largest_bytes: int
    rows: int
    deleted_rows: int
    fingerprint: Fingerprint

    @property
    def overlaps(self) -> bool:
        return self.overlap_prior or self.overlap_later


class ChunkAction(Enum):
    """The action a rule proposes for a chunk."""

    EMPTY = "empty"
    STABLE = "stable"
    COMPACT = "compact"
    NO_OPINION = "no opinion"
    """Good as it is, but may be rewritten together with a neighbour it shares files with."""


@dataclass(frozen=True, slots=True)
class ChunkVerdict:
    """A rule's verdict on a chunk."""

    action: ChunkAction
    reason: str
    priority: float = 0.0
    """0 (may wait) to 1 (urgent); 0 unless the action is `COMPACT`."""
    may_wait: bool = False
    """Compacting now gains too little for the bytes it rewrites, if more data is to come."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.priority <= 1.0:
            raise ValueError(f"the priority {self.priority} is not between 0 and 1")


class ChunkRule(Protocol):
    """Judges chunks; the first rule of the policy that gives a verdict decides.

    The verdict must follow from the chunk alone. The `repr` of a rule, with all its parameters, is
    part of the policy's fingerprint: use a frozen dataclass.
    """

    def __call__(self, chunk: Chunk) -> ChunkVerdict | None: ...


@dataclass(frozen=True, slots=True)
class TimelinePolicy:
    """How a timeline is compacted."""

    calendar: Calendar = field(default_factory=Calendar)
    max_file_bytes: int = 512 << 20
    """The maximum target size of files."""
    size_tolerance: float = 0.25
    """How much sizes may differ from the target before a chunk counts as unstable: files may exceed
    `max_file_bytes` by this fraction and be smaller by as much. Without it a rewrite whose result compresses
    a little better or worse than expected would be repeated for ever."""
    min_saved_files: int = 1
    """While more data is to come, a chunk with too many files waits until compacting it saves this many."""
    min_new_ratio: float = 0.0
    """It also waits until the files that it saves have this fraction of its bytes. So a trickle of small
    files rewrites a chunk only each time that it has grown by that fraction."""
    lateness_us: int = 3600 * 1_000_000
    """More data is expected until this long after the end of a chunk, and again once the chunk has been
    optimal after that: later data is late. In between the chunk is compacted whatever that gains."""
    max_deleted_ratio: float | None = None
    """Compact a chunk once this fraction of its rows is deleted, or delete files apply and the number of
    deleted rows is unknown; `None` ignores deletes."""
    max_task_bytes: int = 8 << 30
    """A task that reads more is split at chunk edges."""
    small_task_bytes: int = 1 << 30
    """A task that reads less may be combined with another such one before it."""
    max_combine_gap_us: int = 0
    """Maximum gap between combined tasks."""
    max_bundle_files: int = 0
    """Small tasks of several groups that share no file with others are bundled, with about this many files
    per bundle; 0 bundles none."""
    several_dependencies: bool = True
    """`False`: every task that shares a file with the one before waits for it. `True`: only every other one
    waits, for both its neighbours."""
    skip_clock_us: int | None = None
    """Skip chunks that end later than this before now."""
    skip_newest_us: int | None = None
    """Skip chunks that end later than this before the newest data. Of a file that ends in the future only the
    beginning counts, and nothing if that is in the future too."""
    max_chunks_per_file: int = 366
    """Files that meet more chunks go to the bucket `WIDE`."""
    rules: tuple[ChunkRule, ...] | None = None
    """`None`: the rules of `rules.default_rules`."""

    def __post_init__(self) -> None:
        positive = ("max_file_bytes", "min_saved_files", "max_task_bytes", "small_task_bytes")
        if self.max_bundle_files < 0:
            raise Refused(f"max_bundle_files is {self.max_bundle_files}; it must not be negative")
        for name in (*positive, "max_chunks_per_file"):
            if getattr(self, name) < 1:
                raise Refused(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.size_tolerance < 1:
            raise Refused(f"size_tolerance is {self.size_tolerance}; it must be at least 0 and below 1")
        if not 0 <= self.min_new_ratio <= 1:
            raise Refused(f"min_new_ratio is {self.min_new_ratio}; it must be between 0 and 1")
        if self.max_deleted_ratio is not None and not 0 < self.max_deleted_ratio <= 1:
            raise Refused(f"max_deleted_ratio is {self.max_deleted_ratio}; it must be above 0, at most 1")
        for name in ("lateness_us", "max_combine_gap_us", "skip_clock_us", "skip_newest_us"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise Refused(f"{name} is {value}; it must not be negative")

    @property
    def may_wait(self) -> bool:
        """Whether chunks wait for more data at all."""
        return self.min_saved_files > 1 or self.min_new_ratio > 0


@dataclass(frozen=True, slots=True)
class ActiveTask:
    """A task that was started and has not ended yet."""

    key: str
    chunks: frozenset[ChunkKey]
    files: frozenset[str]


class DeletesStatus(Enum):
    """The category of a chunk, and of each file by the most urgent of its chunks."""

    AWAITING = "awaiting"
    """Has to be compacted, or will be or is being compacted with a neighbour."""
    DEFERRED = "deferred"
    """Has to be compacted, but its task was shed."""
    SKIPPED = "skipped"
    """Held by a skip offset, waiting for more data, or of unknown times."""
    COMPACTED = "compacted"
    """Needs no compaction."""


@dataclass(frozen=True, slots=True)
class PlannedChunk:
    """A chunk and the plan for it."""

    chunk: Chunk
    verdict: ChunkVerdict
    status: DeletesStatus
    held: str | None = None
    """The reason why it is skipped although the verdict may be to compact it."""
    task: str | None = None
    """The key of the task, planned or active, that rewrites it."""
    analysed: bool = True
    """`False` when the recorded state was used."""
    settled: bool = False
    """Whether it has been optimal since its time was over."""


class Color(Enum):
    """Whether a task may run at once."""

    RED = "red"
    BLACK = "black"


@dataclass(frozen=True, slots=True)
class Task:
    """Rewrites all files of these chunks, cut at the chunk edges, those of each group separately. A file that
    reaches into a chunk of another task is rewritten whole: its rows there become new files of that chunk."""

    key: str
    """Deterministic: the group and the first chunk, and the number of further groups."""
    group: str
    """The group of the first chunk; a bundle has chunks of others as well."""
    chunks: tuple[ChunkKey, ...]
    """Ascending within each group."""
    files: tuple[str, ...]
    """Ids of the inputs, as of this plan. A black task has to `resolve` them again."""
    cost_bytes: int
    """Bytes of the inputs."""
    priority: float
    """The priority of its most urgent chunk, and at least that of every task that waits for it."""
    reason: str
    color: Color = Color.RED
    after: tuple[str, ...] = ()
    """Keys of the tasks, planned or active, that must have ended before; ascending. When one of them fails,
    is shed or cancelled, this task is to be planned anew."""
    oversize: bool = False
    """Whether it is a single chunk above `max_task_bytes`. It cannot be split further."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Numbers of chunks, files, bytes and rows."""

    chunks: int = 0
    files: int = 0
    size_bytes: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class TimelinePlan:
    """The tasks to run now, most urgent first, and the state of all other chunks with the reason."""

    tasks: tuple[Task, ...]
    """By priority, highest first."""
    chunks: tuple[PlannedChunk, ...]
    """All chunks that have files, ascending by key."""
    spans: tuple[tuple[str, Interval], ...]
    """For each group the runs of touching file intervals, ascending."""
    totals: Mapping[DeletesStatus, Amount]
    """Every file counts once, so the sums are those of the timeline."""

    @property
    def analysed(self) -> int:
        """The number of chunks that the rules had to analyse."""
        return sum(planned.analysed for planned in self.chunks)
