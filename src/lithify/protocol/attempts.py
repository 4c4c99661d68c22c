"""What the service keeps beside a dataset's ledger, as values and as a port.

The ledger's format belongs to the dataset's owner and has no place for how far a running range is, how
often a compaction was tried, or why it failed. These live in small objects of their own, the *journal*:

| value           | written by                                | read by                                    |
|-----------------|-------------------------------------------|--------------------------------------------|
| `Movement`      | a range's task, while bytes move          | its worker before a heartbeat; status      |
| finished        | the worker, when it records ranges        | the worker that resumes                    |
| `Attempt`       | the worker that gives up, the coordinator | workers before a claim; coordinator;       |
|                 | that reclaims                             | status                                     |
| `FailedAttempt` | the coordinator, or a cancelling command, | the coordinator before it proposes; status |
|                 | with Failed                               |                                            |

Invariants:

1. No data depend on the journal: without it a compaction is only tried again too soon, or ranges are run
   again. The one thing that skips work, a finished range, counts only if the ledger records its outputs.
2. Movements, attempts and finished ranges of a compaction go when it is Compacted or Failed; what a crash
   leaves behind is garbage (`Journal.compactions` names it).
3. At most `MAX_FAILURES` failures are kept, the newest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from lithify.base.ids import Ulid
from lithify.protocol.transitions import AnyCompaction

MAX_FAILURES = 100


@dataclass(frozen=True, slots=True)
class Movement:
    """How far one run of a range's task has come. A task that Spark runs again has a new one."""

    index: int
    """Which range, counted as the ledger's progress does."""
    worker: str
    claimed_at_ms: int
    """The worker's first heartbeat: with its name, the claim this task belongs to."""
    bytes_read: int
    bytes_written: int
    """Made, rather: output that is still in memory counts."""
    at_ms: int
    """When this was written, wall-clock milliseconds of the task's machine."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A try at a compaction that came to nothing: its worker gave up, or fell silent. A graceful
    release is none."""

    worker: str
    reason: str
    at_ms: int
    recorded: int = 0
    """Ranges that were finished and on record then."""


def recorded_ranges(compaction: AnyCompaction) -> int:
    """How many of its ranges are finished and on record."""
    progress = compaction.progress
    return 0 if progress is None else sum(bool(done.outputs) for done in progress.ranges)


def in_vain(attempts: Iterable[Attempt]) -> tuple[Attempt, ...]:
    """Those of a compaction's attempts, oldest first, that came after the last one to bring it on. Who
    finishes ranges and then dies was stopped, for instance with its machine; that says nothing against the
    compaction, and happens to large ones again and again."""
    most, found = 0, list[Attempt]()
    for attempt in attempts:
        if attempt.recorded > most:
            most, found = attempt.recorded, []
        else:
            found.append(attempt)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A compaction that is about to be marked Failed, by its coordinator or by somebody who cancels it."""

    compaction: Ulid
    reason: str
    attempts: int
    """0: it was never tried, because it was found invalid or was cancelled before."""
    at_ms: int
    spec: str
    """As `DatasetPort.encode_spec` gives it, so that it can be submitted again."""
    is_cancelled: bool = False
    """Somebody gave it up who did not want it now. That says nothing against it."""
    unit: str = ""
    """Which part of the dataset it was to compact; empty where an older version noted it."""


class Journal(Protocol):
    """The journal of one dataset. Entries that cannot be read count as absent."""

    def compactions(self) -> frozenset[Ulid]:
        """Compactions with movements, finished ranges or attempts."""
        ...

    def clear(self, compaction_id: Ulid) -> None:
        """Remove movements, finished ranges and attempts of a compaction; its failure stays."""
        ...

    def movements(self, compaction_id: Ulid) -> Mapping[str, Movement]:
        """What the tasks of a compaction report, by a name that is each run's own. A task removes its
        entry when it is done, so these are the ranges being executed, and those whose task died."""
        ...

    def finished(self, compaction_id: Ulid) -> frozenset[str]:
        """Names (`DatasetPort.output_name`) of outputs that are the last of a finished range."""
        ...

    def note_finished(self, compaction_id: Ulid, worker: str, last_outputs: Iterable[str]) -> None:
        """Add to `finished`; replaces what the same worker has noted before."""
        ...

    def attempts(self) -> Mapping[Ulid, tuple[Attempt, ...]]:
        """The attempts that count (`in_vain`), oldest first, by compaction."""
        ...

    def add_attempt(self, compaction_id: Ulid, attempt: Attempt) -> None: ...

    def failures(self) -> tuple[FailedAttempt, ...]:
        """The failures that are remembered, oldest first."""
        ...

    def add_failure(self, failure: FailedAttempt) -> None:
        """Remember a failure (once for each compaction), and forget the oldest beyond `MAX_FAILURES`."""
        ...

    def forgive(self, compaction_id: Ulid) -> None:
        """Forget a failure: its sources may be proposed again at once."""
        ...
