"""What happened, as values: every lifecycle event the service tells the outside world.

Coordinator and worker report to an `Observer`, a function of one event. The command line draws
progress from them and writes them to the log; metrics count them. An observer must not raise and
must be quick: it runs on the thread that does the work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a dataset."""

    level: ClassVar[int] = logging.INFO
    """At which level it is logged."""

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
    """A worker showed no sign of life in time; its compaction is free again."""

    compaction: str
    worker: str


@dataclass(frozen=True, slots=True)
class Claimed(Event):
    compaction: str
    worker: str


@dataclass(frozen=True, slots=True)
class Resumed(Event):
    """A compaction goes on from where another worker, or an earlier attempt, left it."""

    compaction: str
    finished_ranges: int
    """These do not run again."""
    open_ranges: int
    """These run; one that had outputs goes on behind their last row."""


@dataclass(frozen=True, slots=True)
class Prepared(Event):
    """The ranges of a compaction that have to run are known."""

    compaction: str
    ranges: int
    cost_bytes: int


@dataclass(frozen=True, slots=True)
class Heartbeat(Event):
    """A worker wrote a sign of life of a compaction."""

    level = logging.DEBUG

    compaction: str
    worker: str
    bytes_moved: int
    """Since the claim."""


@dataclass(frozen=True, slots=True)
class Moved(Event):
    """How far a compaction is, by bytes: told when its tasks' reports were read, and when a range ends."""

    level = logging.DEBUG

    compaction: str
    done_bytes: int
    """Of its inputs, since the claim."""
    cost_bytes: int
    """What it has to read since the claim: those of `Prepared`."""


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
    """All ranges of a compaction are done; the coordinator has to commit."""

    compaction: str
    outputs: int


@dataclass(frozen=True, slots=True)
class AttemptFailed(Event):
    """A worker could not finish a compaction and gave it back."""

    level = logging.WARNING

    compaction: str
    reason: str


@dataclass(frozen=True, slots=True)
class EngineLost(Event):
    """The engine went down under a compaction, which was given back. That counts as no attempt."""

    level = logging.WARNING

    compaction: str
    reason: str


@dataclass(frozen=True, slots=True)
class StoreLost(Event):
    """The store stayed away under a compaction, which was given back. That counts as no attempt."""

    level = logging.WARNING

    compaction: str
    reason: str


@dataclass(frozen=True, slots=True)
class Lost(Event):
    """The compaction was given to somebody else; this worker dropped it."""

    compaction: str
    worker: str


@dataclass(frozen=True, slots=True)
class GivenBack(Event):
    """A worker that was told to stop gave a compaction back; what was finished of it stays so."""

    compaction: str
    worker: str
    open_ranges: int | None
    """`None` when they were not known yet."""


@dataclass(frozen=True, slots=True)
class Quarantined(Event):
    """A dataset could not be looked at; a worker leaves it alone for a while, and again for longer when that
    goes on. Told once, and again only when the reason changes."""

    level = logging.ERROR

    reason: str
    pause_s: float
    """The first one."""


@dataclass(frozen=True, slots=True)
class CannotCompact(Event):
    """A dataset, or some of it, cannot be compacted until a person acts, and a coordinator sees to the rest.
    Reported once, and again when the reason changes."""

    level = logging.WARNING

    reason: str


@dataclass(frozen=True, slots=True)
class CanCompact(Event):
    """A dataset can be compacted that could not be, or not wholly, as `CannotCompact` reported."""


@dataclass(frozen=True, slots=True)
class Recovered(Event):
    """A dataset that was quarantined can be looked at again."""

    failed_rounds: int


@dataclass(frozen=True, slots=True)
class MadeAnew(Event):
    """The dataset is gone, or another is in its place; what was known of it here is forgotten."""

    level = logging.WARNING

    reason: str


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """A compaction was tried too often; it is Failed now."""

    level = logging.ERROR

    compaction: str
    attempts: int
    reason: str
    """Why the last attempt came to nothing."""


@dataclass(frozen=True, slots=True)
class Committed(Event):
    compaction: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Dropped(Event):
    """A compaction was committed without a part that did not hold any more; that is planned again."""

    level = logging.WARNING

    compaction: str
    reason: str


@dataclass(frozen=True, slots=True)
class GarbageCollected(Event):
    """A collection of garbage has ended. Reported from a thread of its own."""

    dry_run: bool
    """What was to be deleted is still there."""
    deleted: Mapping[str, int]
    """How many of each kind."""
    left: Mapping[str, int]
    """How many of each kind are still needed, or too young."""
    bytes_deleted: int


@dataclass(frozen=True, slots=True)
class HistoryRun(Event):
    """A run that was to let history go has ended. Reported from a thread of its own."""

    outcome: str
    """In one word of the kind's."""
    why: str
    """What stands in the way; empty when nothing does."""
    versions_expired: int
    files_deleted: int
    bytes_deleted: int
    pending_files: int
    """That wait to be deleted."""
    pending_bytes: int
    needed_by: str
    """Who needs the oldest; empty when nobody needs anything."""
    needed_ms: int | None
    """From when on; wall-clock milliseconds."""


@dataclass(frozen=True, slots=True)
class WaitingForStore(Event):
    """Requests to a store of the dataset fail or have no answer, and are made again. Told after some seconds,
    then after growing pauses. Reported from whichever thread waits."""

    level = logging.WARNING

    url: str
    """Of the store, or `catalog NAME`."""
    since_s: float
    cause: str


@dataclass(frozen=True, slots=True)
class StoreBack(Event):
    """A store that was waited for, as `WaitingForStore` told, answers again."""

    level = logging.WARNING

    url: str
    waited_s: float


def waited_for(url: str) -> str:
    """What is waited for, within a sentence; the store without its URL, as a dataset has one."""
    return "the store" if "://" in url else url


Observer = Callable[[Event], None]

_log = logging.getLogger("lithify")


def log_event(event: Event) -> None:
    """The plainest observer: every event becomes one line, at its level."""
    names = [name for cls in type(event).__mro__ for name in getattr(cls, "__slots__", ())]
    fields = " ".join(f"{name}={getattr(event, name)}" for name in dict.fromkeys(reversed(names)))
    _log.log(event.level, "%s %s", type(event).__name__, fields)


def ignore(_event: Event) -> None:
    """The observer for which nothing happened."""


def each(*observers: Observer) -> Observer:
    """An observer that passes every event to all of these, in order."""

    def observe(event: Event) -> None:
        for observer in observers:
            observer(event)

    return observe
