"""Who is silent, by what a coordinator has seen itself."""

from __future__ import annotations

import random

import pytest

from lithify.compaction.model import Compaction, Ledger, State, Worker
from lithify.compaction.protocol import AnyLedger
from lithify.compaction.silence import SilenceWatch
from lithify.ids import RandomIds

ID = RandomIds(random.Random(1)).ulid(1_800_000_000_000)
TIMEOUT_MS = 30_000


def running(heartbeat_ms: int, worker: str = "w", state: State = State.RUNNING) -> AnyLedger:
    return Ledger(1, (Compaction(ID, "spec", state, worker=Worker(worker, heartbeat_ms)),))


SILENT, ALIVE = (ID,), ()


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([(0, running(7)), (30, running(7))], ALIVE),
        ([(0, running(7)), (30.001, running(7))], SILENT),
        ([(0, running(7)), (20, running(8)), (40, running(8))], ALIVE),
        ([(0, running(7)), (20, running(7, "other")), (40, running(7, "other"))], ALIVE),
        # Released and claimed again between two looks, within the same millisecond of the same worker's
        # clock, cannot be told from silence; any other state in between can.
        ([(0, running(7)), (20, running(7, state=State.SCHEDULED)), (40, running(7))], ALIVE),
    ],
    ids=["at the timeout", "after it", "a heartbeat", "another worker", "not running in between"],
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
    for beat in range(10):
        assert watch.silent(running(1_800_000_000_000 + skew_ms + beat), beat * 29.0) == ALIVE
    assert watch.silent(running(1_800_000_000_000 + skew_ms + 9), 9 * 29.0 + 31) == SILENT


def test_a_coordinator_that_has_just_started_gives_everybody_the_whole_timeout() -> None:
    assert SilenceWatch(TIMEOUT_MS).silent(running(0), 1e9) == ALIVE


def test_a_running_compaction_without_a_worker_is_nobodys() -> None:
    ledger: AnyLedger = Ledger(1, (Compaction(ID, "spec", State.RUNNING),))
    assert SilenceWatch(TIMEOUT_MS).silent(ledger, 0) == SILENT
