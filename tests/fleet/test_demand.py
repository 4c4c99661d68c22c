"""What a dataset asks of its fleet, of what looks at it found."""

from __future__ import annotations

import pytest

from lithify.base.ids import RandomIds, Ulid
from lithify.fleet.demand import Demand
from lithify.planning.admission import WorkKey
from lithify.planning.fleet.priorities import PriorityClass
from lithify.protocol import transitions
from lithify.protocol.attempts import Attempt
from lithify.protocol.model import Compaction, Ledger
from lithify.protocol.proposal import Plan, Proposal
from lithify.testing.clock import ManualClock
from lithify.testing.memory import MemoryStore
from tests.kinds.texts import TextDataset, TextSettings

URL = "texts:///data/a"
KEY = WorkKey(URL, "all")
TEXTS = (("one", 10), ("two", 20))
SPEC = ("one", "two")
PLANNED = Plan((Proposal(SPEC, 0.7, 30, "two texts"),))
SUBMITTED_MS = 1_000


class Looks:
    """A dataset with two texts, looked at."""

    def __init__(self) -> None:
        clock, self.ids = ManualClock(), RandomIds()
        self.dataset = TextDataset(URL, MemoryStore(), "data/a", clock, self.ids, TextSettings())
        self.demand = Demand(URL)

    def submitted(self) -> tuple[Ulid, Ledger]:
        compaction: Compaction = Compaction(self.ids.ulid(SUBMITTED_MS), SPEC)
        return compaction.id, transitions.submit(Ledger(1), compaction)

    def see(self, ledger: Ledger, now_ms: int, plan: Plan = PLANNED, *, is_led: bool = True) -> Demand:
        self.demand.see(self.dataset, ledger, TEXTS, plan, now_ms, is_led=is_led, tenant="tenant")
        return self.demand


@pytest.fixture
def looks() -> Looks:
    return Looks()


def test_what_is_wanted_is_as_old_as_when_it_was_first_wanted(looks: Looks) -> None:
    for now_ms in (2_000, 5_000):
        (want,) = looks.see(Ledger(1), now_ms).wants
        assert (want.key, want.since_ms, want.cost_bytes, want.tenant) == (KEY, 2_000, 30, "tenant")
    assert looks.see(Ledger(1), 6_000, Plan()).wants == ()
    (want,) = looks.see(Ledger(1), 7_000).wants
    assert want.since_ms == 7_000, "it was not wanted meanwhile"


def test_what_gets_under_way_is_no_want_and_keeps_its_age(looks: Looks) -> None:
    looks.see(Ledger(1), 2_000)
    started, ledger = looks.submitted()
    demand = looks.see(transitions.schedule(ledger, started), 3_000)
    assert demand.wants == ()
    assert [(one.want.key, one.want.since_ms) for one in demand.active] == [(KEY, 2_000)]
    assert [(one.compaction, one.since_ms) for one in demand.free] == [(started, 2_000)]


def test_what_nobody_saw_wanted_is_as_old_as_its_id_and_never_younger_than_now(looks: Looks) -> None:
    _, ledger = looks.submitted()
    assert looks.see(ledger, 9_000).active[0].want.since_ms == SUBMITTED_MS
    other = Looks()
    assert other.see(ledger, SUBMITTED_MS - 500).active[0].want.since_ms == SUBMITTED_MS - 500


@pytest.mark.parametrize(("is_led", "band"), [(True, PriorityClass.NORMAL), (False, PriorityClass.ASKED)])
def test_what_somebody_else_submitted_was_asked_for(looks: Looks, is_led: bool, band: PriorityClass) -> None:
    submitted, ledger = looks.submitted()
    assert looks.see(ledger, 2_000, is_led=is_led).active[0].want.band == band
    scheduled = transitions.schedule(ledger, submitted)
    assert looks.see(scheduled, 3_000).active[0].want.band == band, "it stays so"


def test_a_claim_is_told_once_with_how_long_it_was_waited_for(looks: Looks) -> None:
    looks.see(Ledger(1), 2_000)
    started, ledger = looks.submitted()
    scheduled = transitions.schedule(ledger, started)
    demand = looks.see(scheduled, 3_000)
    assert (demand.take_claimed(), demand.is_being_worked_on) == ((), False)
    claimed = transitions.claim(scheduled, started, "worker", 3_500)
    ((want, waited_ms),) = looks.see(claimed, 4_000).take_claimed()
    assert (want.key, waited_ms) == (KEY, 2_000)
    assert looks.demand.is_being_worked_on
    looks.see(transitions.reclaim(claimed, [started]), 5_000)
    looks.see(claimed, 6_000)
    assert not looks.demand.take_claimed(), "it was only given back"


def test_what_was_claimed_and_has_ended_between_two_looks_counts(looks: Looks) -> None:
    started, ledger = looks.submitted()
    scheduled = transitions.schedule(ledger, started)
    looks.see(scheduled, 3_000)
    claimed = transitions.claim(scheduled, started, "worker", 3_500)
    done = transitions.complete(transitions.finish(claimed, started, "worker", 3_900, ()), started)
    assert len(looks.see(done, 4_000, Plan()).take_claimed()) == 1
    assert not looks.demand.active


def test_what_ran_already_when_it_began_to_watch_is_nobodys_claim(looks: Looks) -> None:
    started, ledger = looks.submitted()
    claimed = transitions.claim(transitions.schedule(ledger, started), started, "worker", 3_500)
    assert not looks.see(claimed, 4_000).take_claimed()


def test_attempts_are_news_once_and_are_told_with_what_is_free(looks: Looks) -> None:
    started, ledger = looks.submitted()
    scheduled = transitions.schedule(ledger, started)
    looks.see(scheduled, 3_000)
    first, second = (Attempt(worker, "died", 3_000) for worker in ("one", "two"))
    assert looks.demand.note_attempts(started, [first]) == [first]
    assert looks.demand.note_attempts(started, [first, second]) == [second]
    assert looks.see(scheduled, 4_000).free[0].attempts == 2
    looks.see(Ledger(1), 5_000)
    assert looks.demand.note_attempts(started, [first]) == [first], "it is forgotten with what it was of"


def test_of_what_is_dropped_nothing_is_left(looks: Looks) -> None:
    looks.see(looks.submitted()[1], 3_000)
    looks.demand.drop()
    assert (looks.demand.wants, looks.demand.active, looks.demand.free) == ((), (), ())
