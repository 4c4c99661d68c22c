"""Who is silent, by what a coordinator has seen itself."""

from __future__ import annotations

import random

import pytest

from lithify.base.ids import RandomIds
from lithify.protocol.heartbeat_gate import SilenceWatch
from lithify.protocol.model import AssignedWorker, Compaction, CompactionState, Ledger
from lithify.protocol.transitions import AnyLedger

ID = RandomIds(random.Random(1)).ulid(1_800_000_000_000)
TIMEOUT_MS = 30_000


def running(
    heartbeat_ms: int, worker: str = "w", state: CompactionState = CompactionState.RUNNING
) -> AnyLedger:
    return Ledger(1, (Compaction(ID, "spec", state, worker=AssignedWorker(worker, heartbeat_ms)),))


SILENT, ALIVE = (ID,), ()


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([(0, running(7)), (15, running(7)), (30, running(7))], ALIVE),
        ([(0, running(7)), (15, running(7)), (29, running(7)), (30.001, running(7))], SILENT),
        ([(0, running(7)), (15, running(7)), (20, running(8)), (35, running(8)), (50, running(8))], ALIVE),
        ([(0, running(7)), (15, running(7)), (20, running(7, "other")), (40, running(7, "other"))], ALIVE),
        (
            [
                (0, running(7)),
                (15, running(7)),
                (20, running(7, state=CompactionState.SCHEDULED)),
                (40, running(7)),
            ],
            ALIVE,
        ),
        ([(0, running(7)), (10, running(7)), (3600, running(7))], ALIVE),
        ([(0, running(7)), (10, running(7)), (3600, running(7)), (3606, running(7))], SILENT),
        ([(0, running(7)), (3600, running(7)), (7200, running(7)), (10_800, running(7))], SILENT),
    ],
    ids=[
        "at the timeout",
        "after it",
        "a heartbeat",
        "another worker",
        "not running in between",
        "the coordinator was away",
        "away, and then silence",
        "a coordinator that seldom looks",
    ],
)
def test_only_an_unchanged_heartbeat_is_silence(
    looks: list[tuple[float, AnyLedger]], expected: tuple[object, ...]
) -> None:
    watch = SilenceWatch(TIMEOUT_MS)
    for now_s, ledger in looks:
        found = watch.silent(ledger, now_s)
    assert found == expected


@pytest.mark.parametrize("skew_ms", [-3_600_000, 0, 3_600_000])
def test_the_workers_clock_does_not_matter(skew_ms: int) -> None:
    watch = SilenceWatch(TIMEOUT_MS)
    at_ms = 1_800_000_000_000 + skew_ms
    for second in range(300):
        assert watch.silent(running(at_ms + second // 29), second) == ALIVE
    found = [watch.silent(running(at_ms + 10), 300 + second) for second in range(40)]
    assert found[-1] == SILENT


def test_a_coordinator_that_has_just_started_gives_everybody_the_whole_timeout() -> None:
    assert SilenceWatch(TIMEOUT_MS).silent(running(0), 1e9) == ALIVE


def test_a_running_compaction_without_a_worker_is_nobodys() -> None:
    ledger: AnyLedger = Ledger(1, (Compaction(ID, "spec", CompactionState.RUNNING),))
    assert SilenceWatch(TIMEOUT_MS).silent(ledger, 0) == SILENT
