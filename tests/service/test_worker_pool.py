"""A pool of workers over several datasets: whose turn it is, and what one of them does to the others."""

from __future__ import annotations

import struct
from collections import Counter
from itertools import pairwise

import pytest

from lithify.base import events
from lithify.base.errors import (
    CorruptObject,
    DatasetNotFound,
    LithifyError,
    Refused,
    StoreError,
    StoreUnavailable,
)
from lithify.planning.turns import AGEING_TURNS
from lithify.protocol.model import CompactionState
from lithify.service.worker import MAX_STORE_LOSSES
from lithify.service.worker_pool import QUARANTINE_PAUSE
from lithify.testing.engine import InlineEngine
from tests.service.toys import Service, ToyDataset, ToySpec

HOT, COLD = "toy:///hot", "toy:///cold"


def keep_full(toy: ToyDataset, priority: float = 0.5, count: int = 5) -> None:
    """There is always something to claim."""
    if toy.states()[CompactionState.SCHEDULED] < count:
        toy.add(*(ToySpec("unit", priority) for _ in range(count)))


def claims(service: Service) -> list[str]:
    """The datasets in the order of the claims."""
    return [event.dataset for event in service.seen(events.Claimed)]


def longest_wait(order: list[str], url: str) -> int:
    """The most claims of others between two of this dataset, and before its first."""
    assert url in order, f"{url} has had no claim among {len(order)}"
    places = [-1, *(place for place, claimed in enumerate(order) if claimed == url)]
    return max(later - earlier - 1 for earlier, later in pairwise(places))


@pytest.mark.parametrize("slots", [1, 3])
def test_of_two_datasets_the_hot_one_does_not_get_every_claim(slots: int) -> None:
    service = Service("hot", "cold", max_concurrent_compactions=slots)
    service.toy("cold").add(*(ToySpec("unit") for _ in range(30)))
    service.rounds(100 // slots, lambda: keep_full(service.toy("hot")))
    counts = Counter(claims(service)[:60])
    assert counts[COLD] == counts[HOT] == 30
    assert longest_wait(claims(service)[:60], COLD) <= slots


def test_what_has_ended_takes_no_slot_though_its_dataset_cannot_be_told() -> None:
    service = Service("away", "well")
    service.toy("away").add(ToySpec("unit"))
    service.rounds(1)
    service.toy("away").error = StoreError("no answer")
    service.toy("well").add(*(ToySpec("unit") for _ in range(3)))
    service.rounds(8)
    assert claims(service) == ["toy:///away", *["toy:///well"] * 3]
    service.toy("away").error = None
    service.rounds(10)
    assert service.toy("away").states()[CompactionState.COMPACTED] == 1


@pytest.mark.parametrize("others", [1, 4, 20])
def test_however_urgent_the_others_are_a_dataset_waits_for_a_bounded_number_of_claims(others: int) -> None:
    service = Service("cold", *(f"hot {n}" for n in range(others)))

    def each() -> None:
        keep_full(service.toy("cold"), 0.0, 1)
        for n in range(others):
            keep_full(service.toy(f"hot {n}"), 1.0, 1)

    service.rounds(10 * (AGEING_TURNS + others), each)
    waited = longest_wait(claims(service), COLD)
    assert AGEING_TURNS <= waited <= AGEING_TURNS + others


def test_the_more_urgent_dataset_gets_more_claims() -> None:
    service = Service("cold", "hot")

    def each() -> None:
        keep_full(service.toy("cold"), 0.25)
        keep_full(service.toy("hot"), 0.75)

    service.rounds(100, each)
    counts = Counter(claims(service))
    assert 4 <= counts[HOT] / counts[COLD] <= 6


def test_no_slot_idles_while_something_may_be_claimed() -> None:
    service = Service("a", "b", "c", max_concurrent_compactions=2)
    for name in ("a", "b", "c"):
        service.toy(name).add(*(ToySpec("unit") for _ in range(20)))
    service.rounds(30)
    assert len(claims(service)) == 60


def test_what_the_source_names_anew_joins_and_what_it_does_not_leaves() -> None:
    service = Service("a", "b")
    for name in ("a", "b"):
        keep_full(service.toy(name))
    service.named = ["toy:///a"]
    service.rounds(2)
    service.named = ["toy:///b"]
    service.rounds(4)
    assert claims(service)[:4] == ["toy:///a", "toy:///a", "toy:///b", "toy:///b"]
    assert service.toy("a").states()[CompactionState.RUNNING] == 0, "what ran was finished before it left"
    assert len(service.toy("a").read_at_s) == 3


# Quarantine


def spoil(service: Service, error: BaseException) -> None:
    service.toy("bad").error = error


ERRORS = [CorruptObject("ledger", "is damaged"), StoreError("no answer"), struct.error("odd"), MemoryError()]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_dataset_that_cannot_be_looked_at_is_left_alone_for_growing_pauses(
    error: Exception, defects: list[str]
) -> None:
    service = Service("bad", "good")
    service.pool.start()
    spoil(service, error)
    service.rounds(1000, lambda: keep_full(service.toy("good")))
    assert len(claims(service)) == 1000, "the other goes on at full pace"
    pauses_s = [later - earlier for earlier, later in pairwise(service.toy("bad").read_at_s)]
    assert pauses_s == [QUARANTINE_PAUSE.after_ms(n) / 1000 for n in range(1, len(pauses_s) + 1)]
    assert pauses_s[-1] == QUARANTINE_PAUSE.max_ms / 1000
    (said,) = service.seen(events.Quarantined)
    assert said.dataset == "toy:///bad"
    (finding,) = service.pool.findings()
    assert "toy:///bad" in finding.says
    defects.clear()


def test_a_dataset_that_is_well_again_is_worked_on_at_full_pace() -> None:
    service = Service("bad", "good")
    service.pool.start()
    keep_full(service.toy("bad"), 0.5, 20)
    spoil(service, StoreError("no answer"))
    service.rounds(30)
    service.toy("bad").error = None
    service.rounds(100)
    assert claims(service).count("toy:///bad") == 20
    (recovered,) = service.seen(events.Recovered)
    assert recovered.failed_rounds == 4
    assert service.pool.findings() == ()
    spoil(service, StoreError("no answer"))
    service.rounds(6)
    assert [service.toy("bad").read_at_s[-1] - at_s for at_s in service.toy("bad").read_at_s[-3:]] == [
        5,
        4,
        0,
    ]
    assert len(service.seen(events.Quarantined)) == 2


def test_what_can_be_looked_at_but_not_claimed_is_quarantined_too() -> None:
    """The ledger can be read, and every write of it fails."""
    service = Service("bad", "good")
    keep_full(service.toy("bad"), 1.0)
    service.toy("bad").write_errors = [StoreError("read-only")] * 1000
    service.rounds(200, lambda: keep_full(service.toy("good")))
    assert len(claims(service)) == 200
    assert len(service.toy("bad").read_at_s) == 5
    assert len(service.seen(events.Quarantined)) == 1


def test_while_something_runs_there_a_pause_is_no_longer_than_a_heartbeat_interval() -> None:
    service = Service("bad", max_concurrent_compactions=1)
    service.toy("bad").add(ToySpec("unit"))
    service.rounds(1)
    spoil(service, StoreError("no answer"))
    service.rounds(300)
    pauses_s = [later - earlier for earlier, later in pairwise(service.toy("bad").read_at_s[1:])]
    assert max(pauses_s) == 10
    service.toy("bad").error = None
    service.rounds(11)
    assert service.toy("bad").states() == Counter({CompactionState.COMPACTED: 1})


@pytest.mark.parametrize("error", [DatasetNotFound("no such table"), CorruptObject("metadata", "damaged")])
def test_what_cannot_be_opened_is_tried_again_beside_the_others(error: LithifyError) -> None:
    service = Service("bad", "good")
    service.closed["toy:///bad"] = error
    service.pool.start()
    service.rounds(100, lambda: keep_full(service.toy("good")))
    assert service.opened_at_s["toy:///bad"] == [0, 1, 5, 21, 85]
    assert len(service.seen(events.Quarantined)) == 1
    del service.closed["toy:///bad"]
    keep_full(service.toy("bad"))
    service.rounds(300)
    assert "toy:///bad" in claims(service)


def test_a_place_without_a_dataset_is_told_of_until_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As opened lazily by its kind: there is no ledger yet, which alone would be nothing to speak of."""
    service = Service("nothing", "never-coordinated")
    for toy in service.toys.values():
        monkeypatch.setattr(toy, "value", None)
    nothing = service.toy("nothing")
    with monkeypatch.context() as missing:
        error = DatasetNotFound("there is no database at toy:///nothing")
        missing.setattr(nothing, "snapshot", lambda: (_ for _ in ()).throw(error))
        service.rounds(3)
    (told,) = service.seen(events.Quarantined)
    assert (told.dataset, told.reason) == (nothing.url, str(error))
    service.rounds(10)
    assert [event.dataset for event in service.seen(events.Recovered)] == [nothing.url]
    assert service.toy("never-coordinated").snapshots == 1


def test_a_quarantine_ends_under_the_name_it_began_with() -> None:
    """A dataset that could not be opened yet is called as it was given, later as it calls itself."""
    service = Service("bad", "good")
    service.toys["alias:///bad"] = service.toy("bad")
    service.named = ["alias:///bad", "toy:///good"]
    service.closed["alias:///bad"] = StoreError("no answer")
    service.pool.start()
    del service.closed["alias:///bad"]
    spoil(service, CorruptObject("ledger", "is damaged"))
    service.rounds(10)
    service.toy("bad").error = None
    service.rounds(30)
    assert [event.dataset for event in service.seen(events.Quarantined)] == ["alias:///bad"] * 2
    assert [event.dataset for event in service.seen(events.Recovered)] == ["alias:///bad"]
    spoil(service, StoreError("no answer"))
    service.rounds(1)
    assert service.seen(events.Quarantined)[-1].dataset == "toy:///bad"


def test_an_outage_is_no_quarantine_and_holds_nobody_up() -> None:
    service = Service("away", "well")
    service.toy("away").add(*(ToySpec("unit") for _ in range(3)))
    service.toy("away").error = StoreUnavailable("get x: connection refused", "connection refused")
    service.toy("well").add(*(ToySpec("unit") for _ in range(20)))
    service.rounds(60)
    assert claims(service) == ["toy:///well"] * 20
    assert service.seen(events.Quarantined) == []
    looks = service.toy("away").read_at_s
    assert max(later - earlier for earlier, later in pairwise(looks)) <= 6
    (finding,) = service.pool.findings()
    assert "connection refused" in finding.says
    service.toy("away").error = None
    service.rounds(20)
    assert claims(service)[20:] == ["toy:///away"] * 3
    assert service.seen(events.Recovered) == []
    assert service.pool.findings() == ()


def test_a_quarantine_outlives_an_outage() -> None:
    service = Service("bad", "well")
    for error in (CorruptObject("ledger", "damaged"), StoreUnavailable("away"), CorruptObject("it", "still")):
        service.toy("bad").error = error
        service.rounds(10)
    service.toy("bad").error = None
    service.rounds(100)
    assert [event.reason for event in service.seen(events.Quarantined)] == ["ledger: damaged", "it: still"]
    assert len(service.seen(events.Recovered)) == 1


def test_where_all_stores_are_away_at_the_start_the_rounds_begin() -> None:
    service = Service("away")
    service.closed["toy:///away"] = StoreUnavailable("away")
    service.pool.start()
    service.rounds(3)
    del service.closed["toy:///away"]
    service.toy("away").add(ToySpec("unit"))
    service.rounds(10)
    assert claims(service) == ["toy:///away"]


def test_what_was_given_back_because_the_store_stayed_away_was_no_attempt_a_few_times() -> None:
    """A store that only tasks cannot reach is a fault that is told in the end."""
    service = Service("db")
    service.toy("db").add(ToySpec("unit", is_cut_off=True))
    service.rounds(40)
    assert len(service.seen(events.StoreLost)) == MAX_STORE_LOSSES
    assert service.seen(events.AttemptFailed)


def test_what_will_never_open_is_refused_at_the_start() -> None:
    service = Service("bad", "good")
    service.closed["toy:///bad"] = Refused("not this one")
    with pytest.raises(Refused, match="not this one"):
        service.pool.start()


def test_where_nothing_opens_there_is_nothing_to_do() -> None:
    service = Service("a", "b")
    service.closed = {"toy:///a": StoreError("a"), "toy:///b": StoreError("b")}
    with pytest.raises(StoreError, match="a"):
        service.pool.start()
    assert not service.seen(events.Quarantined)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=lambda e: type(e).__name__)
def test_an_interrupt_ends_the_rounds(error: BaseException) -> None:
    service = Service("bad")
    spoil(service, error)
    with pytest.raises(type(error)):
        service.rounds(1)


# What a pool is told to claim


def test_who_is_told_what_to_claim_claims_this_very_compaction() -> None:
    engine = InlineEngine(slots=100, stepped=True)
    service = Service("a", engine=engine, max_concurrent_compactions=1)
    service.named.clear()
    first, second = service.toy("a").add(ToySpec("one"), ToySpec("two"))
    assert service.pool.claim("toy:///a", second)
    assert service.pool.holding() == {("toy:///a", second)}
    assert not service.pool.claim("toy:///a", first), "there is no room"
    engine.run_all()
    service.rounds(1)
    assert service.pool.holding() == frozenset()
    assert not service.pool.claim("toy:///a", second), "it is done"
    service.rounds(5)
    assert service.toy("a").states() == {CompactionState.SCHEDULED: 1, CompactionState.COMPACTED: 1}, (
        "nothing else was claimed"
    )


def test_what_was_claimed_and_failed_is_told() -> None:
    service = Service("a", "b")
    service.named.clear()
    (poisoned,) = service.toy("a").add(ToySpec("one", is_poison=True))
    assert service.pool.claim("toy:///a", poisoned)
    service.rounds(1)
    assert service.pool.take_failures() == (("toy:///a", poisoned),)
    assert service.pool.take_failures() == ()


def test_what_cannot_be_opened_is_not_claimed_and_stops_nobody() -> None:
    service = Service("a", "b")
    service.named.clear()
    service.closed["toy:///a"] = CorruptObject("ledger", "is junk")
    lost, (found,) = service.toy("a").add(ToySpec("one"))[0], service.toy("b").add(ToySpec("one"))
    assert not service.pool.claim("toy:///a", lost)
    assert service.pool.claim("toy:///b", found)


# Rest


def poison(toy: ToyDataset, count: int = 50) -> None:
    toy.add(*(ToySpec(f"unit {n}", is_poison=True) for n in range(count)))


def test_a_dataset_where_everything_fails_rests_and_the_others_do_not() -> None:
    service = Service("bad", "good", max_concurrent_compactions=2)
    poison(service.toy("bad"))
    service.rounds(100, lambda: keep_full(service.toy("good")))
    counts = Counter(claims(service))
    assert counts["toy:///bad"] <= 8
    assert counts["toy:///good"] >= 190


def test_a_process_where_everything_fails_rests_throughout() -> None:
    names = [f"bad {n}" for n in range(10)]
    service = Service(*names, max_concurrent_compactions=1)
    for name in names:
        poison(service.toy(name))
    service.rounds(100)
    assert len(claims(service)) <= 8, "no more than of one dataset"
