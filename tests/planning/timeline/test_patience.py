"""Chunks that wait while more data is to come: until their time is over, and again once they were settled."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lithify.planning.timeline.model import (
    ChunkBucket,
    DeletesStatus,
    TimelineFile,
    TimelinePlan,
    TimelinePolicy,
)
from lithify.planning.timeline.plan import plan, remember
from lithify.planning.timeline.state import ChunkStates, committed
from lithify.testing.timeline import ModelTable
from tests.planning.timeline.timelines import DAY_US, HOUR_US, POLICY, file, small_files

PATIENT = replace(POLICY, min_saved_files=5, min_new_ratio=0.2, lateness_us=HOUR_US)
EVENING = 0.9
AFTER = 1 + 2 / 24
"""Two hours into the next day."""


@dataclass
class Patient:
    """A planner that remembers, on a table that does what it says."""

    files: list[TimelineFile]
    policy: TimelinePolicy = PATIENT
    states: ChunkStates = field(default_factory=ChunkStates)

    def __post_init__(self) -> None:
        self.table = ModelTable.of(self.files, self.policy)

    def plan(self, at_days: float) -> TimelinePlan:
        now_us = round(at_days * DAY_US)
        found = plan(self.table.listing(), self.policy, now_us, states=self.states)
        self.states = remember(found, self.policy)
        return found

    def compact(self, at_days: float) -> int:
        """How many tasks ran."""
        tasks = self.plan(at_days).tasks
        for task in tasks:
            self.states = committed(self.states, task.chunks, self.table.rewrite(task.files), self.policy)
        return len(tasks)

    def add(self, *files: TimelineFile) -> None:
        self.table.version += 1
        self.table.files.update({f.id: replace(f, version=self.table.version) for f in files})


def test_a_chunk_whose_time_is_not_over_waits_for_enough() -> None:
    patient = Patient(small_files(0, 5))
    found = patient.plan(EVENING)
    assert found.tasks == ()
    assert found.chunks[0].status is DeletesStatus.SKIPPED
    assert "time is not over" in (found.chunks[0].held or "")
    patient.add(file(0.8, 0.9))
    assert patient.compact(EVENING) == 1
    patient.add(*(file(0.8, 0.9, 0.19) for _ in range(6)))
    assert patient.compact(EVENING) == 0, "less than a fifth of the bytes"
    patient.add(file(0.8, 0.9, 0.5))
    assert patient.compact(EVENING) == 1


def test_once_its_time_is_over_few_files_are_enough() -> None:
    patient = Patient([file(0.1, 0.2, 50), file(0.8, 0.9, 0.001)])
    assert patient.compact(EVENING) == 0
    assert patient.compact(1 + 0.9 / 24) == 0, "late data is allowed for"
    assert patient.compact(AFTER) == 1
    assert len(patient.table.files) == 1


def test_late_data_waits_again_once_the_chunk_was_settled() -> None:
    patient = Patient(small_files(0, 2, 25))
    assert patient.compact(AFTER) == 1
    assert patient.compact(AFTER) == 0, "from here on it is settled"
    patient.add(file(0.3, 0.4, 5))
    found = patient.plan(AFTER)
    assert found.tasks == ()
    assert "since it was compacted" in (found.chunks[0].held or "")
    assert patient.compact(9) == 0
    patient.add(*(file(0.3, 0.4, 3) for _ in range(4)))
    assert patient.compact(9) == 1
    patient.add(file(0.3, 0.4, 5))
    assert patient.compact(9) == 0, "it stays settled"
    assert patient.compact(9) == 0
    patient.add(file(0.3, 0.4, 1))
    assert patient.compact(9) == 0, "it stays settled through its own compactions"


def test_without_its_memory_a_chunk_is_settled_once_more() -> None:
    patient = Patient([file(0.1, 0.2, 50)])
    patient.compact(AFTER)
    patient.add(file(0.3, 0.4, 1))
    assert patient.compact(AFTER) == 0
    patient.states = ChunkStates()
    assert patient.compact(AFTER) == 1


def test_a_chunk_that_waits_is_not_rewritten_with_a_neighbour() -> None:
    """A settled day shares a late file with a new one: the file is cut, the day stays as it is."""
    day_0 = file(0.1, 0.9, 90, "settled")
    patient = Patient([day_0])
    patient.compact(AFTER)
    patient.add(file(0.9, 1.1, 1, "late"), *small_files(1, 5))
    assert patient.compact(1.5) == 1
    assert "settled" in patient.table.files
    assert "late" not in patient.table.files


def test_files_without_a_time_are_merged_once_and_then_wait() -> None:
    files = [TimelineFile(name, ChunkBucket.NULL, 1 << 20, 1) for name in "ab"]
    patient = Patient(files)
    assert patient.compact(AFTER) == 1
    assert patient.compact(AFTER) == 0
    patient.add(TimelineFile("c", ChunkBucket.NULL, 1 << 20, 1))
    assert patient.compact(AFTER) == 0


def test_files_of_unknown_times_are_left_alone_for_that_reason() -> None:
    patient = Patient([TimelineFile("a", ChunkBucket.UNKNOWN, 1, 1)])
    for _ in range(2):
        (chunk,) = patient.plan(AFTER).chunks
        assert (chunk.status, chunk.held) == (DeletesStatus.SKIPPED, None)


def test_what_is_held_by_a_skip_offset_is_not_settled() -> None:
    patient = Patient([file(0.1, 0.2, 50)], replace(PATIENT, skip_clock_us=DAY_US))
    patient.compact(AFTER)
    patient.add(file(0.3, 0.4, 1))
    assert patient.compact(1.9) == 0, "still held"
    assert patient.compact(2.1) == 1
