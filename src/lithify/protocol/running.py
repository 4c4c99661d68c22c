"""A compaction that a worker has claimed: its ranges, which of them are finished, and the progress to record.

1. It is prepared by other code: its ranges, and the names of last outputs that earlier claims have recorded.
2. A range that the ledger records with such an output is finished; the others are open and have to run.
3. A range that has finished here has an outcome; when all have, the compaction is finished.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from lithify.protocol.attempts import Attempt
from lithify.protocol.heartbeat_gate import ProgressGate
from lithify.protocol.model import Progress, RangeProgress
from lithify.protocol.transitions import AnyCompaction, AnyProgress
from lithify.protocol.work import RangeJob, RangeOutcome, RangeWork


@dataclass(frozen=True, slots=True)
class Preparation:
    """The preparation of a claimed compaction."""

    job: RangeJob
    last_outputs: frozenset[str] = frozenset()
    """Names of outputs that are the last of a finished range."""


@dataclass(slots=True)
class Claim:
    """A claimed compaction and its ranges."""

    compaction: AnyCompaction
    """The compaction as it was claimed."""
    claimed_at_ms: int
    """The time in the ledger, by a wall clock. The other times here measure durations, by a monotonic
    clock."""
    began_ms: int
    last_heartbeat_ms: int
    looked_at_ms: int
    """When the movements were last read."""
    pulse: ProgressGate
    preparation: Future[Preparation] | None = None
    """Set until its ranges are known."""
    job: RangeJob | None = None
    pending: dict[int, Future[Any]] = field(default_factory=dict)
    outcomes: dict[int, RangeOutcome] = field(default_factory=dict)
    cost_bytes: int = 0
    """Cost of the ranges that were open when it was claimed."""
    finished_bytes: int = 0
    """The finished part of `cost_bytes`; both are bytes of inputs."""
    error: Exception | None = None
    """The reason to release it."""
    attempt: Attempt | None = None
    """The attempt to record for that, the same for every try to record it."""
    is_attempt_noted: bool = False
    is_noted: bool = True
    """Whether the journal may have records about it, besides those that ended tasks remove themselves."""

    @property
    def works(self) -> tuple[RangeWork, ...]:
        """All ranges; empty before they are known."""
        return () if self.job is None else self.job.works

    @property
    def is_running(self) -> bool:
        """Whether it is being prepared, or one of its tasks has not ended."""
        return self.preparation is not None or bool(self.pending)

    @property
    def is_finished(self) -> bool:
        return self.error is None and self.job is not None and len(self.outcomes) == len(self.works)

    def begin(self, prepared: Preparation, output_name: Callable[[Any], str]) -> dict[int, RangeWork]:
        """Take the prepared ranges; return those that have to run."""
        self.preparation = None
        self.job = prepared.job
        recorded = self.compaction.progress
        for index, done in enumerate(recorded.ranges if recorded is not None else ()):
            if done.outputs and output_name(done.outputs[-1]) in prepared.last_outputs:
                self.outcomes[index] = RangeOutcome(done.outputs, 0, 0, {}, 0.0, 0)
                self.pulse.finish(index, 0, self.pulse.moved_at_ms)
        self.pulse.beat()
        left = {index: work for index, work in enumerate(self.works) if index not in self.outcomes}
        self.cost_bytes = sum(work.cost_bytes for work in left.values())
        return left

    def finish(self, index: int, outcome: RangeOutcome, now_ms: int) -> None:
        """Record that a range has finished here."""
        self.outcomes[index] = outcome
        self.finished_bytes += self.works[index].cost_bytes
        self.pulse.finish(index, outcome.bytes_read + outcome.bytes_written, now_ms)

    def outputs(self) -> tuple[Any, ...]:
        """All outputs, in order."""
        return tuple(o for index in sorted(self.outcomes) for o in self.outcomes[index].outputs)

    @property
    def done_bytes(self) -> int:
        """The part of `cost_bytes` that has been read. A finished range counts whole, others by their tasks'
        last reports."""
        works, reading = self.works, self.pulse.reading.items()
        # Reports may come from any writer, so one may name a range that does not exist.
        under_way = ((works[index].cost_bytes, read) for index, read in reading if index < len(works))
        return self.finished_bytes + sum(map(min, under_way))

    def progress(self) -> AnyProgress | None:
        """Return the current progress; ranges still running keep their recorded progress. `None` when there
        is nothing to add to the record."""
        if self.job is None or not self.outcomes:
            return None
        recorded = self.compaction.progress
        before = recorded.ranges if recorded is not None else ()
        return Progress(
            tuple(
                RangeProgress(
                    work.range,
                    self.outcomes[index].outputs
                    if index in self.outcomes
                    else (before[index].outputs if before else ()),
                )
                for index, work in enumerate(self.works)
            ),
            self.job.horizon,
        )
