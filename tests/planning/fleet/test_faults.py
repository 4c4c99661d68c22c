"""Poison work and poison workers, datasets in quarantine, and idle workers that ask."""

from __future__ import annotations

import pytest

from lithify.base.backoff import AWAY_PAUSE, Backoff
from lithify.base.errors import CorruptObject, StoreUnavailable
from lithify.fleet.watched_dataset import QUARANTINE_PAUSE
from lithify.planning.fleet.faults import MAX_REMEMBERED, FaultOrigin, Faults
from lithify.planning.fleet.polling import BOARDS_PAUSE, BUSY_MS, PollBackoff
from tests.planning.fleet.wanting import key

MINUTE = 60_000


def test_who_fails_with_several_datasets_in_a_row_is_suspect_until_a_success() -> None:
    faults = Faults()
    assert [faults.failed(key(name), "bad") for name in ("a", "b", "c", "d")] == [
        *(FaultOrigin.WORK, FaultOrigin.WORK, FaultOrigin.WORKER, FaultOrigin.WORKER)
    ]
    assert faults.is_suspect("bad")
    assert not faults.is_suspect("good")
    faults.succeeded(key("e"), "bad")
    assert not faults.is_suspect("bad")
    assert faults.failed(key("a"), "bad") is FaultOrigin.WORK


def test_one_dataset_that_fails_throughout_makes_nobody_suspect() -> None:
    faults = Faults()
    assert {faults.failed(key(f"a/{unit}"), "w") for unit in range(50)} == {FaultOrigin.WORK}


def test_what_fails_with_a_poison_worker_is_not_to_blame() -> None:
    faults = Faults()
    for name in ("a", "b", "c", "work"):
        faults.failed(key(name), "bad")
    faults.failed(key("work"), "good")
    assert faults.failed_with(key("work")) == {"good"}


def test_who_is_suspect_is_believed_where_there_is_nobody_else() -> None:
    faults = Faults()
    for name in ("a", "b", "c"):
        faults.failed(key(name), "bad")
        faults.failed(key(name), "worse")
    assert faults.excuses("bad", ["bad", "good"])
    assert not faults.excuses("bad", ["bad", "worse"])
    assert not faults.excuses("good", ["good", "bad"])


def test_what_is_remembered_is_bounded() -> None:
    faults = Faults()
    for number in range(MAX_REMEMBERED + 50):
        faults.failed(key(f"d{number}"), f"w{number}")
    assert len(faults._tried) == len(faults._failing) == MAX_REMEMBERED


def test_quarantine_is_told_once_lasts_longer_each_time_and_ends_with_a_good_look() -> None:
    backoff, pauses = Backoff(QUARANTINE_PAUSE), []
    for count in range(6):
        assert backoff.failed(CorruptObject("db", "is corrupt"), count) is (count == 0)
        assert backoff.is_quarantined
        pauses.append(backoff.pause_ms)
    assert pauses == sorted(pauses)
    assert pauses[0] == QUARANTINE_PAUSE.first_ms
    assert pauses[-1] == QUARANTINE_PAUSE.max_ms
    assert backoff.failed(CorruptObject("db", "is of a newer version"), 9), "something else is news"
    assert backoff.succeeded() == 7
    assert backoff.succeeded() == backoff.pause_ms == 0
    assert not backoff.is_quarantined


def test_an_outage_is_no_news_and_a_quarantine_outlives_it() -> None:
    backoff = Backoff(QUARANTINE_PAUSE)
    assert not backoff.failed(StoreUnavailable("away"), 0)
    assert backoff.is_away
    assert backoff.pause_ms == AWAY_PAUSE.first_ms
    assert backoff.succeeded() == 0, "nothing was reported"
    backoff.failed(CorruptObject("db", "is corrupt"), 0)
    backoff.failed(StoreUnavailable("away"), 1)
    assert backoff.is_quarantined
    assert backoff.pause_ms <= AWAY_PAUSE.max_ms
    assert not backoff.failed(CorruptObject("db", "is corrupt"), 2), "the same as before"
    assert backoff.pause_ms == QUARANTINE_PAUSE.after_ms(2)
    assert backoff.succeeded() == 3


@pytest.mark.parametrize(
    ("idle_ms", "pause"),
    [
        (0, 1_000),
        (10 * MINUTE - 1, 1_000),
        (10 * MINUTE, 2_000),
        (20 * MINUTE, 4_000),
        (30 * MINUTE, 5_000),
        (1 << 50, 5_000),
    ],
)
def test_the_bell_is_asked_every_second_and_more_rarely_after_ten_idle_minutes(
    idle_ms: int, pause: int
) -> None:
    assert PollBackoff(idle_since_ms=7).bell_pause_ms(7 + idle_ms) == pause


def test_boards_are_read_when_it_rings_and_else_after_a_pause_that_grows() -> None:
    asking, now_ms, pauses = PollBackoff(0), 0, []
    assert asking.reads_boards(0, has_rung=False)
    for _ in range(6):
        asking = asking.missed(now_ms)
        assert asking.reads_boards(now_ms, has_rung=True)
        waited_ms = 0
        while not asking.reads_boards(now_ms + waited_ms, has_rung=False):
            waited_ms += 500
        pauses.append(waited_ms)
        now_ms += waited_ms
    assert pauses == [1_000, 4_000, 16_000, 30_000, 30_000, BOARDS_PAUSE.max_ms]
    assert asking.rung().missed(now_ms).reads_boards(now_ms + 1_000, has_rung=False), "a bell begins anew"


def test_the_bell_is_asked_twice_as_often_by_who_had_something() -> None:
    asking = PollBackoff(0).claimed(2 * MINUTE)
    assert asking.bell_pause_ms(2 * MINUTE) == 500
    assert asking.rung().missed(3 * MINUTE).bell_pause_ms(2 * MINUTE + BUSY_MS) == 1_000
