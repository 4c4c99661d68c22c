"""The journal: the service's own records about a dataset's compactions, as values and as a port.

The ledger's format belongs to the dataset's owner and has no fields for the progress of a running range, the
number of attempts, or the reason of a failure. These are recorded in small objects, the *journal*:

| value           | written by                                | read by                                    |
|-----------------|-------------------------------------------|--------------------------------------------|
| `Movement`      | a range's task, while bytes move          | its worker before a heartbeat; status      |
| finished        | the worker, when it records ranges        | the worker that resumes                    |
| `Attempt`       | the worker that gives up, the coordinator | workers before a claim; coordinator;       |
|                 | that reclaims                             | status                                     |
| `FailedAttempt` | the coordinator, or a cancelling command, | the coordinator before it proposes; status |
|                 | with Failed                               |                                            |

Invariants:

1. No data depend on the journal: without it, a compaction is retried too soon, or ranges run again. The only
   record that skips work, a finished range, is used only if the ledger records its outputs.
2. Movements, attempts and finished ranges of a compaction are deleted when it becomes Compacted or Failed.
   After a crash they are garbage (`Journal.compactions` lists them).
3. The newest `MAX_FAILURES` failures are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from lithify.base.documents import Count, TimeMs, UlidText
from lithify.base.ids import Ulid
from lithify.protocol.transitions import AnyCompaction

MAX_FAILURES = 100


@dataclass(frozen=True, slots=True)
class Movement:
    """The progress of one run of a range's task. If Spark runs a task again, the new run has its own."""

    index: Count
    """The position of the range in the ledger's progress."""
    worker: str
    claimed_at_ms: TimeMs
    """The worker's first heartbeat: with its name, the claim this task belongs to."""
    bytes_read: Count
    bytes_written: Count
    """Bytes produced, including output that is still in memory."""
    at_ms: TimeMs
    """When this was written, wall-clock milliseconds of the task's machine."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A failed attempt at a compaction: its worker gave up or fell silent. A graceful release is not an
    attempt."""

    worker: str
    reason: str
    at_ms: TimeMs
    recorded: Count = 0
    """Number of ranges that were finished and recorded at that time."""


def recorded_ranges(compaction: AnyCompaction) -> int:
    """Return how many ranges of a compaction are finished and recorded."""
    progress = compaction.progress
    return 0 if progress is None else sum(bool(done.outputs) for done in progress.ranges)


def in_vain(attempts: Iterable[Attempt]) -> tuple[Attempt, ...]:
    """Return the attempts (oldest first) after the last one that finished a range. A worker that finishes
    ranges and then dies was probably stopped together with its machine; that is no evidence against the
    compaction, and happens to large ones repeatedly."""
    most, found = 0, list[Attempt]()
    for attempt in attempts:
        if attempt.recorded > most:
            most, found = attempt.recorded, []
        else:
            found.append(attempt)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A compaction that is about to be marked Failed, by its coordinator or by a command that cancels it."""

    compaction: UlidText
    reason: str
    attempts: Count
    """0 if it was never tried, because it was found invalid or was cancelled first."""
    at_ms: TimeMs
    spec: str
    """The text of `DatasetPort.encode_spec`, so that it can be submitted again."""
    is_cancelled: bool = False
    """An operator cancelled it. That is no evidence against it."""
    unit: str = ""
    """The unit that it was to compact; empty if an older version of Lithify recorded it."""


class JournalEntries(Protocol):
    """The entries of one dataset's journal. Those that cannot be read count as absent."""

    def compactions(self) -> frozenset[Ulid]:
        """Return the compactions that have movements, finished ranges or attempts."""
        ...

    def movements(self, compaction_id: Ulid) -> Mapping[str, Movement]:
        """Return what the tasks of a compaction report, by a name that is unique for each run. A task deletes
        its entry at its end, so these are the running ranges and those whose task has died."""
        ...

    def finished(self, compaction_id: Ulid) -> frozenset[str]:
        """Return the names (`DatasetPort.output_name`) of the last outputs of finished ranges."""
        ...

    def attempts(self) -> Mapping[Ulid, tuple[Attempt, ...]]:
        """Return the attempts to hold against each compaction (`in_vain`), oldest first."""
        ...

    def failures(self) -> tuple[FailedAttempt, ...]:
        """Return the recorded failures, oldest first."""
        ...


class Journal(JournalEntries, Protocol):
    """The journal of one dataset."""

    def clear(self, compaction_id: Ulid) -> None:
        """Delete the movements, finished ranges and attempts of a compaction, but not its failure."""
        ...

    def note_finished(self, compaction_id: Ulid, worker: str, last_outputs: Iterable[str]) -> None:
        """Record finished ranges; replaces what the same worker has recorded before."""
        ...

    def add_attempt(self, compaction_id: Ulid, attempt: Attempt) -> None: ...

    def add_failure(self, failure: FailedAttempt) -> None:
        """Record a failure (one for each compaction), and delete the oldest beyond `MAX_FAILURES`."""
        ...

    def forgive(self, compaction_id: Ulid) -> None:
        """Delete a failure, so that its inputs may be proposed again at once."""
        ...
