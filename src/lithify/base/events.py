"""Lifecycle events of the service, as values.

Coordinator and worker report to an `Observer`, a function of one event. The command line shows progress from
them and logs them; metrics count them. An observer must not raise and must be quick: it runs on the thread
that does the work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a dataset."""

    level: ClassVar[int] = logging.INFO
    """The log level."""

    dataset: str
    """URL of the dataset."""


@dataclass(frozen=True, slots=True)
class EpochTaken(Event):
    epoch: int


@dataclass(frozen=True, slots=True)
class Submitted(Event):
    compaction: str
    reason: str
    cost_bytes: int
    unit: str = ""


@dataclass(frozen=True, slots=True)
class CompactionRefused(Event):
    """A compaction was found invalid; it is Failed now."""

    level = logging.WARNING

    compaction: str
    reason: str


@dataclass(frozen=True, slots=True)
class Reclaimed(Event):
    """A worker sent no heartbeat in time; its compaction may be claimed again."""

    compaction: str
    worker: str


@dataclass(frozen=True, slots=True)
class Claimed(Event):
    compaction: str
    worker: str


@dataclass(frozen=True, slots=True)
class ClaimPostponed(Event):
    """A worker does not claim a Scheduled compaction as long as this is the reason."""

    compaction: str
    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class Resumed(Event):
    """A compaction continues where another worker, or an earlier attempt, stopped."""

    compaction: str
    finished_ranges: int
    """These do not run again."""
    open_ranges: int
    """These run; one that has outputs continues after their last row."""


@dataclass(frozen=True, slots=True)
class Prepared(Event):
    """A worker has determined the ranges of a compaction that must run."""

    compaction: str
    ranges: int
    cost_bytes: int


@dataclass(frozen=True, slots=True)
class Heartbeat(Event):
    """A worker wrote a heartbeat for a compaction."""

    level = logging.DEBUG

    compaction: str
    worker: str
    bytes_moved: int
    """Since the claim."""


@dataclass(frozen=True, slots=True)
class Moved(Event):
    """A compaction's progress in bytes: reported after reading its tasks' reports, and when a range ends."""

    level = logging.DEBUG

    compaction: str
    done_bytes: int
    """Of its inputs, since the claim."""
    cost_bytes: int
    """To be read since the claim, as in `Prepared`."""


@dataclass(frozen=True, slots=True)
class RangeFinished(Event):
    compaction: str
    index: int
    cost_bytes: int
    bytes_read: int
    bytes_written: int
    outputs: int
    peak_memory_bytes: int
    cpu_s: float
    rows: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Compacted(Event):
    """All ranges of a compaction are done; the coordinator commits it next."""

    compaction: str
    outputs: int


@dataclass(frozen=True, slots=True)
class AttemptFailed(Event):
    """A worker could not finish a compaction and released it."""

    level = logging.WARNING

    compaction: str
    reason: str


@dataclass(frozen=True, slots=True)
class EngineLost(Event):
    """A worker released a compaction because its engine stopped. This does not count as an attempt."""

    level = logging.WARNING

    compaction: str
    reason: str


@dataclass(frozen=True, slots=True)
class StoreLost(Event):
    """A worker released a compaction because the store was unavailable. This does not count as an attempt."""

    level = logging.WARNING

    compaction: str
    reason: str


@dataclass(frozen=True, slots=True)
class Lost(Event):
    """This worker dropped a compaction because another one has claimed it."""

    compaction: str
    worker: str


@dataclass(frozen=True, slots=True)
class GivenBack(Event):
    """A stopping worker released a compaction; finished ranges remain finished."""

    compaction: str
    worker: str
    open_ranges: int | None
    """`None` if not known yet."""


@dataclass(frozen=True, slots=True)
class Quarantined(Event):
    """A worker backs off from a dataset that cannot be read, longer after each failure. Reported once, and
    again only when the reason changes."""

    level = logging.ERROR

    reason: str
    pause_s: float
    """The first pause."""


@dataclass(frozen=True, slots=True)
class CannotCompact(Event):
    """A dataset, or a part of it, cannot be compacted until an operator acts; the coordinator serves the
    rest. Reported once, and again when the reason changes."""

    level = logging.WARNING

    reason: str


@dataclass(frozen=True, slots=True)
class CanCompact(Event):
    """A dataset can be compacted again after `CannotCompact`."""


@dataclass(frozen=True, slots=True)
class CoordinatedElsewhere(Event):
    """A dataset of a fleet has work that waits, and the fleet may not coordinate it. Reported once, and again
    when the reason changes."""

    level = logging.WARNING

    reason: str


@dataclass(frozen=True, slots=True)
class NearLimit(Event):
    """The writer of a dataset of a fleet is near a stall, and nothing is under way. Reported once, until that
    has changed."""

    level = logging.WARNING

    backlog: str


@dataclass(frozen=True, slots=True)
class Recovered(Event):
    """A quarantined dataset can be read again."""

    failed_rounds: int


@dataclass(frozen=True, slots=True)
class MadeAnew(Event):
    """The dataset was deleted or replaced; its cached state is dropped."""

    level = logging.WARNING

    reason: str


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """A compaction was tried too often; it is Failed now."""

    level = logging.ERROR

    compaction: str
    attempts: int
    reason: str
    """Why the last attempt failed."""


@dataclass(frozen=True, slots=True)
class Committed(Event):
    compaction: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Dropped(Event):
    """A compaction was committed without a part that had become invalid; that part is planned again."""

    level = logging.WARNING

    compaction: str
    reason: str


@dataclass(frozen=True, slots=True)
class GarbageCollected(Event):
    """A collection of garbage has ended. Reported from a thread of its own."""

    dry_run: bool
    """Nothing was deleted."""
    deleted: Mapping[str, int]
    """Number of objects by kind."""
    left: Mapping[str, int]
    """Number of objects by kind that are still needed, or too young."""
    bytes_deleted: int
    due_in_ms: int | None = None
    """When more can be deleted even if the dataset does not change: a checkpoint ends, or a minimum age or
    grace period is over. `None` if that is never, or unknown."""


@dataclass(frozen=True, slots=True)
class HistoryRun(Event):
    """A run that expires history has ended. Reported from a thread of its own."""

    outcome: str
    """One word, defined by the kind."""
    why: str
    """What blocks expiration; empty if nothing does."""
    versions_expired: int
    files_deleted: int
    bytes_deleted: int
    pending_files: int
    """Files that wait to be deleted."""
    pending_bytes: int
    needed_by: str
    """The reader or hold that needs the oldest history; empty if none does."""
    needed_ms: int | None
    """The time from which on it is needed; wall-clock milliseconds."""


@dataclass(frozen=True, slots=True)
class WaitingForStore(Event):
    """Requests to a store of the dataset fail or get no answer, and are retried. Reported after some seconds,
    then after growing pauses, from the waiting thread."""

    level = logging.WARNING

    url: str
    """The store's URL, or `catalog NAME`."""
    since_s: float
    cause: str
    limit_s: float | None = None
    """After which time requests are given up; `None`: they are retried without limit."""

    @property
    def limit(self) -> str:
        """Return the limit as part of a sentence."""
        return "" if self.limit_s is None else f" (at most {self.limit_s:.0f} s)"


@dataclass(frozen=True, slots=True)
class StoreBack(Event):
    """A store answers again after `WaitingForStore`."""

    level = logging.WARNING

    url: str
    waited_s: float


def waited_for(url: str) -> str:
    """Return the name of the unavailable service within a sentence; a store without its URL, as a dataset has
    only one."""
    return "the store" if "://" in url else url


Observer = Callable[[Event], None]

_log = logging.getLogger("lithify")


def log_event(event: Event) -> None:
    """Log an event as one line, at its level."""
    names = [name for cls in type(event).__mro__ for name in getattr(cls, "__slots__", ())]
    fields = " ".join(f"{name}={getattr(event, name)}" for name in dict.fromkeys(reversed(names)))
    _log.log(event.level, "%s %s", type(event).__name__, fields)


def ignore(_event: Event) -> None:
    """Ignore an event."""


def each(*observers: Observer) -> Observer:
    """Return an observer that passes every event to all of these, in order."""

    def observe(event: Event) -> None:
        for observer in observers:
            observer(event)

    return observe
