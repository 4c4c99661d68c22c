"""Clocks that are off: no reader loses what it reads, whatever clock a coordinator has."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lithify.base.clock import SystemClock
from lithify.base.ids import RandomIds
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.garbage.collection import GarbageOptions, collect
from lithify.store.times import StoreClock
from lithify.testing import ManualClock, MemoryStore
from tests.compacting import compact, dataset_at
from tests.judge.official import Put, open_db

MINUTE_MS = 60_000


@pytest.mark.parametrize("off_ms", [-60 * MINUTE_MS, -20 * MINUTE_MS, 0, 60 * MINUTE_MS])
def test_an_open_writer_reads_on_whatever_the_coordinators_clock_says(tmp_path: Path, off_ms: int) -> None:
    """It knows only the version before the commit, whose SSTs the next collection must not delete."""
    path = tmp_path / "db"
    rows = {b"k%04d" % n: b"v%d" % n for n in range(300)}
    with open_db(path, settings={"manifest_poll_interval": "1h"}) as database:
        for batch in range(4):
            database.write_batch([Put(key, rows[key]) for key in list(rows)[batch::4]])
            database.flush()
        clock = ManualClock(int(time.time() * 1000) + off_ms)
        dataset = dataset_at(path, clock=clock)
        assert len(compact(dataset, clock=clock).committed) == 1
        collect(dataset.store, dataset.paths, SystemClock(), GarbageOptions(0, dry_run=False))
        assert database.get_many(rows) == rows
    (checkpoint,) = dataset_at(path).snapshot().checkpoints
    assert checkpoint.expire_time_s >= time.time() + 900 - 60
    assert checkpoint.expire_time_s - checkpoint.create_time_s == 900


def test_who_does_not_lead_asks_the_store() -> None:
    """A commit has the store's time, whatever became of the lease."""
    store = MemoryStore(ManualClock(90 * MINUTE_MS))
    dataset = SlateDataset(store, "db", ManualClock(30 * MINUTE_MS), RandomIds())
    assert dataset._latest_ms() == 90 * MINUTE_MS


def test_the_stores_clock() -> None:
    own = ManualClock(1_000_000)
    known = StoreClock(own)
    assert (known.is_known, known.latest_ms()) == (False, 1_000_000)
    known.saw(2_000_000, known.sent())
    own.advance_s(10)
    assert known.latest_ms() == 2_010_000
    known.saw(500_000, known.sent())
    own.advance_s(10)
    assert known.latest_ms() == 1_020_000


def test_a_wall_clock_that_jumps_and_a_machine_that_slept() -> None:
    own = ManualClock(1_000_000)
    known = StoreClock(own)
    known.saw(1_000_000, known.sent())
    own.jump_s(-3_600)
    assert known.latest_ms() == 1_000_000
    own.jump_s(2 * 3_600)  # or it has slept for an hour: the monotonic clock has not moved
    assert known.latest_ms() == 1_000_000 + 3_600_000
