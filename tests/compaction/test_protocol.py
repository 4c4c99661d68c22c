"""The compaction protocol against a model: a random walk of coordinators and workers over one ledger."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lithify.base.errors import Fenced, LostOwnership
from lithify.base.ids import RandomIds, Ulid, ulid_ms
from lithify.protocol import transitions
from lithify.protocol.heartbeat_gate import SilenceWatch
from lithify.protocol.model import (
    AssignedWorker,
    Compaction,
    CompactionState,
    Ledger,
    Progress,
    RangeProgress,
)
from lithify.protocol.transitions import AnyLedger, IllegalTransition

NOW_MS = 1_800_000_000_000
TIMEOUT_MS = 30_000
IDS = RandomIds(random.Random(1))
ID = IDS.ulid(NOW_MS)
WORKERS = ("a", "b")


def ledger_with(state: CompactionState, worker: str | None = None) -> AnyLedger:
    owner = AssignedWorker(worker, NOW_MS) if worker is not None else None
    return Ledger(1, (Compaction(ID, "spec", state, worker=owner),))


CALLS = {
    "schedule": lambda ledger: transitions.schedule(ledger, ID),
    "claim": lambda ledger: transitions.claim(ledger, ID, "a", NOW_MS),
    "heartbeat": lambda ledger: transitions.heartbeat(ledger, ID, "a", NOW_MS),
    "finish": lambda ledger: transitions.finish(ledger, ID, "a", NOW_MS, ("out",)),
    "release": lambda ledger: transitions.release(ledger, ID, "a"),
    "reclaim": lambda ledger: transitions.reclaim(ledger, [ID]),
    "complete": lambda ledger: transitions.complete(ledger, ID),
    "fail": lambda ledger: transitions.fail(ledger, ID),
}

ALLOWED = {
    ("schedule", CompactionState.SUBMITTED): CompactionState.SCHEDULED,
    ("claim", CompactionState.SCHEDULED): CompactionState.RUNNING,
    ("heartbeat", CompactionState.RUNNING): CompactionState.RUNNING,
    ("finish", CompactionState.RUNNING): CompactionState.COMPACTED,
    ("release", CompactionState.RUNNING): CompactionState.SCHEDULED,
    ("reclaim", CompactionState.RUNNING): CompactionState.SCHEDULED,
    ("complete", CompactionState.COMPACTED): CompactionState.COMPLETED,
    ("complete", CompactionState.SUBMITTED): CompactionState.COMPLETED,
    ("fail", CompactionState.SUBMITTED): CompactionState.FAILED,
    ("fail", CompactionState.SCHEDULED): CompactionState.FAILED,
    ("fail", CompactionState.RUNNING): CompactionState.FAILED,
    ("fail", CompactionState.COMPACTED): CompactionState.FAILED,
}


@pytest.mark.parametrize("state", list(CompactionState))
@pytest.mark.parametrize("call", list(CALLS))
def test_each_transition_is_allowed_from_its_states_only(call: str, state: CompactionState) -> None:
    before = ledger_with(state, "a" if state is CompactionState.RUNNING else None)
    target = ALLOWED.get((call, state))
    if target is None:
        with pytest.raises((IllegalTransition, LostOwnership)):
            CALLS[call](before)
    else:
        after = CALLS[call](before).get(ID)
        assert after is not None
        assert after.state is target


PROGRESS: Progress[str, str] = Progress((RangeProgress("m", ("done",)),), 5)
OWNER = AssignedWorker("a", NOW_MS)
LEFT: dict[str, tuple[CompactionState, AssignedWorker | None, Progress[str, str] | None, tuple[str, ...]]] = {
    "schedule": (CompactionState.SUBMITTED, None, PROGRESS, ()),
    "claim": (CompactionState.SCHEDULED, OWNER, PROGRESS, ("old",)),
    "heartbeat": (CompactionState.RUNNING, AssignedWorker("a", NOW_MS + 1), PROGRESS, ("old",)),
    "finish": (CompactionState.RUNNING, OWNER, None, ("out",)),
    "release": (CompactionState.RUNNING, None, PROGRESS, ("old",)),
    "reclaim": (CompactionState.RUNNING, None, PROGRESS, ("old",)),
    "complete": (CompactionState.COMPACTED, OWNER, None, ("old",)),
    "fail": (CompactionState.COMPACTED, OWNER, None, ()),
}
"""By transition: from which state, and what it leaves as owner, progress and outputs."""


@pytest.mark.parametrize("call", list(CALLS))
def test_what_each_transition_leaves(call: str) -> None:
    state, *left = LEFT[call]
    owner = None if state is CompactionState.SCHEDULED else OWNER
    before: AnyLedger = Ledger(1, (Compaction(ID, "spec", state, ("old",), owner, PROGRESS),))
    after = CALLS[call](before).get(ID)
    assert after is not None
    assert [after.worker, after.progress, after.outputs] == left


def test_what_names_a_worker_is_not_free() -> None:
    """Whoever wrote it that way."""
    owned = ledger_with(CompactionState.SCHEDULED, "b")
    assert transitions.claimable(owned) == ()
    with pytest.raises(LostOwnership):
        CALLS["claim"](owned)


@pytest.mark.parametrize(
    "new",
    [Compaction(ID, "again"), *(Compaction(IDS.ulid(NOW_MS + 1), "s", s) for s in list(CompactionState)[1:])],
    ids=lambda new: new.state.value,
)
def test_only_what_is_new_can_be_submitted(new: Compaction[str, str, str]) -> None:
    with pytest.raises(IllegalTransition):
        transitions.submit(ledger_with(CompactionState.FAILED), new)


@pytest.mark.parametrize("call", ["heartbeat", "finish", "release"])
def test_a_zombie_changes_nothing(call: str) -> None:
    with pytest.raises(LostOwnership):
        CALLS[call](ledger_with(CompactionState.RUNNING, "b"))


@pytest.mark.parametrize("now_ms", [NOW_MS - 3_600_000, NOW_MS, NOW_MS + 1])
def test_each_heartbeat_differs_from_the_last_whatever_the_clock_does(now_ms: int) -> None:
    ledger = ledger_with(CompactionState.RUNNING, "a")
    seen = {NOW_MS}
    for _ in range(3):
        ledger = transitions.heartbeat(ledger, ID, "a", now_ms)
        worker = ledger.compactions[0].worker
        assert worker is not None
        seen.add(worker.last_heartbeat_ms)
    assert len(seen) == 4


def test_progress_only_grows() -> None:
    def progress(*outputs: str, end: str = "m", horizon: int = 5) -> Progress[str, str]:
        return Progress((RangeProgress(end, outputs),), horizon)

    ledger = transitions.heartbeat(ledger_with(CompactionState.RUNNING, "a"), ID, "a", NOW_MS, progress("x"))
    grown = transitions.heartbeat(ledger, ID, "a", NOW_MS, progress("x", "y"))
    assert grown.compactions[0].progress == progress("x", "y")
    for worse in (progress(), progress("y"), progress("x", end="n"), progress("x", horizon=6)):
        with pytest.raises(IllegalTransition):
            transitions.heartbeat(ledger, ID, "a", NOW_MS, worse)


def test_a_new_id_is_never_older_than_those_in_the_ledger() -> None:
    ledger = ledger_with(CompactionState.RUNNING, "a")
    assert transitions.next_id_ms(ledger, NOW_MS - 5) == ulid_ms(ID)
    assert transitions.next_id_ms(ledger, NOW_MS + 5) == NOW_MS + 5


def test_recovery_keeps_running_work_and_forgets_claims_nobody_made() -> None:
    states = {IDS.ulid(NOW_MS + n): state for n, state in enumerate(CompactionState)}
    ledger: AnyLedger = Ledger(1, tuple(Compaction(i, "s", state) for i, state in states.items()))
    recovered = transitions.recover(ledger, 2)
    assert recovered.epoch == 2
    assert [c.state for c in recovered.compactions] == [
        CompactionState.SUBMITTED,
        CompactionState.SUBMITTED,
        CompactionState.RUNNING,
        CompactionState.COMPACTED,
        CompactionState.FAILED,
    ]
    with pytest.raises(Fenced):
        transitions.recover(recovered, 1)
    assert transitions.recover(recovered, 2) == recovered


class Walk(RuleBasedStateMachine):
    """Several workers and a coordinator act on whatever ledger they last saw; each publication is a
    compare-and-set, so an act on an old ledger is refused by the version and tried again anew."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger: AnyLedger = Ledger(1)
        self.now_ms = NOW_MS
        self.watch = SilenceWatch(TIMEOUT_MS)
        self.ids = RandomIds(random.Random(0))
        self.terminal: dict[Ulid, CompactionState] = {}
        self.finishers: dict[Ulid, list[str]] = {}

    def some(self, state: CompactionState, pick: int) -> Ulid | None:
        found = [c.id for c in self.ledger.compactions if c.state is state]
        return found[pick % len(found)] if found else None

    @rule(ms=st.integers(0, 40_000))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @precondition(lambda self: len(self.ledger.compactions) < 6)
    @rule()
    def submit(self) -> None:
        new: Compaction[str, str, str] = Compaction(
            self.ids.ulid(transitions.next_id_ms(self.ledger, self.now_ms)), "spec"
        )
        self.ledger = transitions.submit(self.ledger, new)

    @rule(pick=st.integers(0, 5))
    def schedule(self, pick: int) -> None:
        if (found := self.some(CompactionState.SUBMITTED, pick)) is not None:
            self.ledger = transitions.schedule(self.ledger, found)

    @rule(pick=st.integers(0, 5), worker=st.sampled_from(WORKERS))
    def claim(self, pick: int, worker: str) -> None:
        if (found := self.some(CompactionState.SCHEDULED, pick)) is not None:
            self.ledger = transitions.claim(self.ledger, found, worker, self.now_ms)

    @rule(pick=st.integers(0, 5), worker=st.sampled_from(WORKERS))
    def finish(self, pick: int, worker: str) -> None:
        found = self.some(CompactionState.RUNNING, pick)
        if found is None:
            return
        if transitions.owns(self.ledger, found, worker):
            self.ledger = transitions.finish(self.ledger, found, worker, self.now_ms, (worker,))
            self.finishers.setdefault(found, []).append(worker)
        else:
            with pytest.raises(LostOwnership):
                transitions.finish(self.ledger, found, worker, self.now_ms, (worker,))

    @rule()
    def reclaim(self) -> None:
        silent = self.watch.silent(self.ledger, self.now_ms / 1000)
        self.ledger = transitions.reclaim(self.ledger, silent)

    @rule(pick=st.integers(0, 5), refused=st.booleans())
    def settle(self, pick: int, refused: bool) -> None:
        found = self.some(CompactionState.COMPACTED, pick)
        if found is not None:
            settle = transitions.fail if refused else transitions.complete
            self.ledger = settle(self.ledger, found)
            self.terminal[found] = CompactionState.FAILED if refused else CompactionState.COMPLETED

    @rule()
    def trim(self) -> None:
        self.ledger = transitions.trim(self.ledger)

    @rule()
    def coordinator_restarts(self) -> None:
        self.ledger = transitions.recover(self.ledger, self.ledger.epoch + 1)

    @invariant()
    def each_compaction_is_finished_by_one_worker(self) -> None:
        assert all(len(workers) == 1 for workers in self.finishers.values())

    @invariant()
    def terminal_states_absorb(self) -> None:
        for compaction in self.ledger.compactions:
            if compaction.id in self.terminal:
                assert compaction.state is self.terminal[compaction.id]

    @invariant()
    def ids_ascend_and_only_running_work_has_progress_by_an_owner(self) -> None:
        ids = [c.id for c in self.ledger.compactions]
        assert ids == sorted(set(ids))
        for compaction in self.ledger.compactions:
            if compaction.state in (CompactionState.SUBMITTED, CompactionState.SCHEDULED):
                assert compaction.worker is None
            if compaction.state is CompactionState.RUNNING:
                assert compaction.worker is not None


Walk.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestWalk = Walk.TestCase


def test_trim_keeps_the_newest_finished_one() -> None:
    states = (
        CompactionState.COMPLETED,
        CompactionState.FAILED,
        CompactionState.RUNNING,
        CompactionState.COMPLETED,
    )
    ledger: AnyLedger = Ledger(
        1, tuple(Compaction(IDS.ulid(NOW_MS + n), n, state) for n, state in enumerate(states))
    )
    assert [c.spec for c in transitions.trim(ledger).compactions] == [2, 3]
    only_finished = replace(ledger, compactions=ledger.compactions[:2])
    assert [c.spec for c in transitions.trim(only_finished).compactions] == [1]
