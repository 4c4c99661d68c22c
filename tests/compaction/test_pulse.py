"""Which movements deserve a heartbeat, and how long what failed is left alone."""

from __future__ import annotations

import random

import pytest

from lithify.base.backoff import GrowingPause, RandomPause
from lithify.base.ids import RandomIds
from lithify.protocol.attempts import Movement
from lithify.protocol.heartbeat_gate import ProgressGate
from lithify.protocol.model import Compaction, CompactionState, Progress, RangeProgress
from lithify.protocol.running import Claim, Preparation
from lithify.protocol.transitions import AnyCompaction
from lithify.protocol.work import RangeJob, RangeOutcome, RangeWork

HEARTBEAT_BYTES = 100
START_TIMEOUT_MS = 600_000


def movement(index: int, read: int, written: int = 0) -> Movement:
    return Movement(index, "w", 0, read, written, 0)


def deserves(pulse: ProgressGate, now_ms: int) -> bool:
    return pulse.deserves_heartbeat(now_ms, HEARTBEAT_BYTES, START_TIMEOUT_MS)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"0-a": movement(0, 0)}, {"0-a": movement(0, 99)}, False),
        ({"0-a": movement(0, 0)}, {"0-a": movement(0, 60, 40)}, True),
        ({"0-a": movement(0, 500)}, {"0-a": movement(0, 500)}, False),
        ({"0-a": movement(0, 500)}, {"0-a": movement(0, 500), "0-b": movement(0, 100)}, True),
        ({"0-a": movement(0, 500)}, {"0-b": movement(0, 20)}, False),
        ({"0-a": movement(0, 5)}, {"0-a": movement(0, 55), "1-a": movement(1, 50)}, True),
    ],
    ids=["too few", "read and written", "none", "a second run", "a run that has only begun", "two ranges"],
)
def test_a_range_under_way_deserves_one_for_bytes_only(
    before: dict[str, Movement], after: dict[str, Movement], expected: bool
) -> None:
    pulse = ProgressGate(0)
    pulse.look(before, 1)
    pulse.beat()
    pulse.look(after, 10_000)
    assert deserves(pulse, 10_000) is expected


def test_a_finished_range_deserves_one_however_small() -> None:
    pulse = ProgressGate(0)
    pulse.look({"1-a": movement(1, 5)}, 1)
    pulse.beat()
    pulse.finish(0, 1, 2)
    assert deserves(pulse, 2)
    pulse.beat()
    assert not deserves(pulse, 3)


def test_what_ranges_under_way_have_read() -> None:
    pulse = ProgressGate(0)
    pulse.look({"0-a": movement(0, 70, 20), "0-b": movement(0, 30), "1-a": movement(1, 5)}, 1)
    assert pulse.reading == {0: 70, 1: 5}
    pulse.look({"0-b": movement(0, 40)}, 2)
    assert pulse.reading == {0: 70, 1: 5}
    pulse.finish(0, 120, 3)
    pulse.look({"0-b": movement(0, 40)}, 4)
    assert pulse.reading == {1: 5}


def test_a_claim_is_as_far_as_its_bytes() -> None:
    pulse = ProgressGate(0)
    recorded = Progress((RangeProgress("r0", ("done",)), *(RangeProgress(f"r{n}", ()) for n in range(1, 4))))
    compaction: AnyCompaction = Compaction(
        RandomIds().ulid(1), "spec", CompactionState.RUNNING, progress=recorded
    )
    claim = Claim(compaction, 0, 0, 0, 0, pulse)
    works = tuple(RangeWork(f"r{n}", lambda _: None, None, 100) for n in range(4))
    assert set(claim.begin(Preparation(RangeJob(works), frozenset({"done"})), str)) == {1, 2, 3}
    assert (claim.done_bytes, claim.cost_bytes) == (0, 300)
    claim.finish(1, RangeOutcome(("o",), 90, 40, {}, 0.0, 0), 1)
    # The second has read more than was reckoned with; what is no range of it was written by anybody.
    pulse.look({"2-a": movement(2, 250), "3-a": movement(3, 20), "9-a": movement(9, 70)}, 2)
    assert (claim.done_bytes, claim.cost_bytes) == (220, 300)


def test_a_finished_range_counts_once() -> None:
    pulse = ProgressGate(0)
    pulse.look({"0-a": movement(0, 70, 20)}, 1)
    pulse.finish(0, 120, 2)
    assert pulse.moved_bytes == 120
    pulse.finish(1, 0, 2)
    assert pulse.moved_bytes == 120


def test_waiting_for_a_slot_is_no_silence_for_a_while() -> None:
    pulse = ProgressGate(0)
    assert deserves(pulse, START_TIMEOUT_MS)
    assert not deserves(pulse, START_TIMEOUT_MS + 1)
    pulse.finish(0, 500, 400_000)
    pulse.beat()
    assert deserves(pulse, 400_000 + START_TIMEOUT_MS), "its other ranges wait"
    # What is left of a task that is done does not make the compaction look executed.
    pulse.look({"0-a": movement(0, 500)}, 500_000)
    assert deserves(pulse, 500_000)
    pulse.look({"1-a": movement(1, 0)}, 500_001)
    assert not deserves(pulse, 500_001)
    # Its executor is lost when it has moved: it waits again, from then on.
    pulse.look({"1-a": movement(1, 50)}, 2_000_000)
    pulse.beat()
    pulse.look({}, 2_000_001)
    assert deserves(pulse, 2_000_000 + START_TIMEOUT_MS)
    assert not deserves(pulse, 2_000_001 + START_TIMEOUT_MS)


def test_pauses_grow_up_to_a_bound() -> None:
    pause = GrowingPause(1_000, 60_000)
    assert [pause.after_ms(n) for n in range(6)] == [0, 1_000, 4_000, 16_000, 60_000, 60_000]
    assert pause.after_ms(10**9) == 60_000


def test_a_random_pause_is_at_most_twice_as_long_each_time_up_to_a_bound() -> None:
    pause, rng = RandomPause(0.5, 3), random.Random(1)
    for failures, longest_s in ((1, 0.5), (2, 1), (3, 2), (4, 3), (10**9, 3)):
        drawn = [pause.after_s(failures, rng) for _ in range(200)]
        assert 0 <= min(drawn) < 0.1 * longest_s
        assert 0.9 * longest_s < max(drawn) <= longest_s


@pytest.mark.parametrize(
    ("failures", "now_ms", "expected"),
    [(0, 100, False), (1, 100, True), (1, 1_099, True), (1, 1_100, False), (2, 4_099, True), (2, 99, False)],
)
def test_a_pause_lasts_from_the_failure_on(failures: int, now_ms: int, expected: bool) -> None:
    assert GrowingPause(1_000, 60_000).lasts(failures, 100, now_ms) is expected
