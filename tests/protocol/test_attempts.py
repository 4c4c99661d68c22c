"""What fails is tried again after growing pauses, a bounded number of times; others go on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, pairwise, repeat
from pathlib import Path

import pytest

from lithify.base import events
from lithify.base.errors import StoreError
from lithify.base.ids import RandomIds, Ulid
from lithify.coordination.leadership import Term
from lithify.protocol import transitions
from lithify.protocol.attempts import MAX_FAILURES, Attempt, FailedAttempt
from lithify.protocol.model import CompactionState, Ledger
from lithify.service.coordinator import Coordinator
from lithify.service.failures import FAILURE_PAUSE
from lithify.service.options import CoordinatorOptions
from lithify.service.worker import Worker
from lithify.testing import Call, CountingStore, FaultyStore, StoreFault, Verb
from lithify.testing.engine import InlineEngine, SubmittedCall, TaskFault
from tests.compacting import compact
from tests.protocol.rig import Interposed, Rig, Template, ledger_write

REASON = "never started"
MAX_ATTEMPTS = CoordinatorOptions().max_attempts


def poisoned(is_poison: Callable[[SubmittedCall], bool] = lambda call: True) -> InlineEngine:
    """An engine on which some calls always fail."""
    return InlineEngine(faults=lambda call: TaskFault.FAIL_BEFORE if is_poison(call) else TaskFault.NONE)


def until_failed(rig: Rig, coordinator: Coordinator, worker: Worker, limit_s: int = 3600) -> None:
    for _ in range(limit_s):
        coordinator.tick()
        worker.tick()
        if rig.seen(events.Failed):
            return
        rig.clock.advance_s(1)
    raise AssertionError("it was never marked Failed")


def test_a_compaction_that_always_fails_is_given_up_with_its_reason(rig: Rig) -> None:
    coordinator, worker = rig.coordinator(), rig.worker(engine=poisoned())
    until_failed(rig, coordinator, worker)
    (failed,) = rig.seen(events.Failed)
    assert (failed.attempts, rig.only.state, rig.only.id) == (
        MAX_ATTEMPTS,
        CompactionState.FAILED,
        failed.compaction,
    )
    assert REASON in failed.reason
    assert rig.engines["w"].cancelled == [rig.only.id] * MAX_ATTEMPTS, "its other ranges do not go on"
    (failure,) = rig.dataset().journal.failures()
    assert (failure.compaction, failure.attempts, failure.reason) == (
        rig.only.id,
        MAX_ATTEMPTS,
        failed.reason,
    )
    assert rig.dataset().decode_spec(failure.spec) == rig.only.spec
    assert rig.dataset().journal.compactions() == frozenset(), "nothing else is left of it"
    rig.check()


def test_the_pauses_between_attempts_grow_and_hold_for_every_worker(rig: Rig) -> None:
    coordinator = rig.coordinator()
    workers = [rig.worker(f"w{n}", engine=poisoned(), first_retry_pause_ms=2_000) for n in range(3)]
    claimed_at_s: list[float] = []
    for _ in range(400):
        coordinator.tick()
        for worker in workers:
            before = len(rig.seen(events.Claimed))
            worker.tick()
            claimed_at_s += [rig.clock.monotonic_s()] * (len(rig.seen(events.Claimed)) - before)
        rig.clock.advance_s(1)
    gaps = [later - earlier for earlier, later in pairwise(claimed_at_s)]
    # A failure is seen one tick, one second, after the claim.
    assert gaps[: MAX_ATTEMPTS - 1] == [1 + 2, 1 + 8, 1 + 32, 1 + 128]


def test_a_compaction_that_kills_its_workers_is_given_up_too(rig: Rig) -> None:
    """They never say anything; all there is are the reclaims."""
    coordinator = rig.coordinator()
    for life in range(MAX_ATTEMPTS):
        for _ in range(20):
            coordinator.tick()
            worker = rig.worker(f"w{life}")
            worker.tick()
            if worker.is_busy:
                break
            rig.clock.advance_s(60)
        assert rig.owner() == f"w{life}"
        rig.pass_silently(coordinator)
    coordinator.tick()
    (failed,) = rig.seen(events.Failed)
    assert "no heartbeat" in failed.reason
    assert f"w{MAX_ATTEMPTS - 1}" in failed.reason
    assert len(rig.seen(events.Reclaimed)) == MAX_ATTEMPTS


def test_an_attempt_whose_worker_noted_it_and_then_died_counts_once(rig: Rig) -> None:
    coordinator, worker = rig.coordinator(), rig.worker()
    coordinator.tick()
    worker.tick()
    rig.clock.advance_s(1)
    rig.dataset().journal.add_attempt(rig.only.id, Attempt(worker.id, REASON, rig.clock.now_ms()))
    rig.pass_silently(coordinator)
    (attempt,) = rig.dataset().journal.attempts()[rig.only.id]
    assert attempt.reason == REASON
    rig.worker("next").tick()
    rig.pass_silently(coordinator)
    _, second = rig.dataset().journal.attempts()[rig.only.id]
    assert "no heartbeat" in second.reason


def test_workers_that_bring_it_on_before_they_die_use_up_no_attempts(
    plain_template: Template, tmp_path: Path
) -> None:
    """Machines may be taken away again and again; a large compaction must come to its end all the same."""
    rig = Rig.of(plain_template, tmp_path, max_sst_size=1200)
    coordinator = rig.coordinator()
    coordinator.tick()
    lives = MAX_ATTEMPTS + 2
    for life in range(lives):
        worker = rig.worker(f"w{life}")
        worker.tick()
        assert rig.owner() == f"w{life}", "it is claimed without a pause"
        assert rig.engines[worker.id].waiting > 1
        rig.engines[worker.id].step()
        rig.clock.advance_s(5)
        worker.tick()
        rig.pass_silently(coordinator)
    assert len(rig.seen(events.Reclaimed)) == lives
    rig.finish(coordinator, rig.worker("last"))
    assert not rig.seen(events.Failed)
    rig.check()


def test_what_ends_the_process_of_an_embedded_worker_counts(rig: Rig) -> None:
    for life in range(MAX_ATTEMPTS):
        coordinator = rig.coordinator(start=False)
        coordinator.start(Term(rig.dataset().take_epoch(), f"w{life - 1}"))
        coordinator.tick()
        rig.clock.advance_s(3600)
        worker = rig.worker(f"w{life}")
        worker.tick()
        assert rig.owner() == f"w{life}"
    coordinator = rig.coordinator(start=False)
    coordinator.start(Term(rig.dataset().take_epoch(), f"w{MAX_ATTEMPTS - 1}"))
    coordinator.tick()
    (failed,) = rig.seen(events.Failed)
    assert "ended without releasing it" in failed.reason


def test_what_waits_for_a_worker_is_not_looked_up_again_and_again(rig: Rig) -> None:
    store = CountingStore(rig.dataset().store)
    coordinator = rig.coordinator(wrap=lambda _: store)
    for _ in range(3):
        coordinator.tick()
    store.reset()
    for _ in range(10):
        rig.clock.advance_s(1)
        coordinator.tick()
    assert store.requests[Verb.LIST] == store.requests[Verb.PUT] == 0


def test_the_count_survives_the_coordinator(rig: Rig) -> None:
    worker = rig.worker(engine=poisoned())
    for attempt in range(1, MAX_ATTEMPTS + 1):
        rig.coordinator().tick()
        worker.tick()
        worker.tick()
        assert len(rig.seen(events.AttemptFailed)) == attempt
        rig.clock.advance_s(3600)
    assert not rig.seen(events.Failed)
    # A starting coordinator validates anew what nobody runs; then it sees that it is exhausted.
    coordinator = rig.coordinator()
    coordinator.tick()
    coordinator.tick()
    assert len(rig.seen(events.Failed)) == 1


def test_giving_back_gracefully_is_no_attempt(rig: Rig) -> None:
    coordinator = rig.coordinator()
    for life in range(MAX_ATTEMPTS + 2):
        coordinator.tick()
        worker = rig.worker(f"w{life}")
        worker.tick()
        assert rig.owner() == f"w{life}"
        worker.release()
    assert rig.dataset().journal.attempts() == {}
    coordinator.tick()
    assert rig.states() == [CompactionState.SCHEDULED]


def test_others_go_on(segmented: Rig) -> None:
    coordinator = segmented.coordinator()
    coordinator.tick()
    poison = segmented.ledger.compactions[0].id
    worker = segmented.worker(engine=poisoned(lambda call: call.job == poison))
    until_failed(segmented, coordinator, worker)
    assert {Ulid(event.compaction) for event in segmented.seen(events.Failed)} == {poison}
    assert len(segmented.seen(events.Committed)) == 5
    segmented.check()


def test_a_worker_on_which_everything_fails_leaves_the_attempts_to_others(segmented: Rig) -> None:
    coordinator = segmented.coordinator()
    broken, healthy = (
        segmented.worker("broken", engine=poisoned()),
        segmented.worker("healthy", stepped=False),
    )
    for _ in range(60):
        coordinator.tick()
        broken.tick()
        healthy.tick()
        segmented.clock.advance_s(1)
    assert len(segmented.seen(events.Committed)) == 6
    assert not segmented.seen(events.Failed)
    segmented.check()


def test_a_worker_with_room_for_one_does_the_others_before_it_tries_again(segmented: Rig) -> None:
    segmented.coordinator().tick()
    free = [Ulid(c.id) for c in segmented.ledger.compactions if c.state is CompactionState.SCHEDULED]
    worker = segmented.worker(engine=poisoned(lambda call: call.job == free[0]), max_concurrent_compactions=1)
    for _ in range(40):
        worker.tick()
        segmented.clock.advance_s(0.5)
    claimed = [Ulid(event.compaction) for event in segmented.seen(events.Claimed)]
    assert claimed[: len(free)] == free
    assert set(claimed[len(free) :]) == {free[0]}


def test_a_worker_rests_after_failures_in_a_row_only(segmented: Rig) -> None:
    segmented.coordinator().tick()
    script = chain([TaskFault.FAIL_BEFORE, TaskFault.NONE, TaskFault.FAIL_BEFORE], repeat(TaskFault.NONE))
    worker = segmented.worker(
        engine=InlineEngine(faults=lambda _: next(script)),
        max_concurrent_compactions=1,
        first_retry_pause_ms=1_000,
    )
    claimed_at_s: list[float] = []
    start_s = segmented.clock.monotonic_s()
    for _ in range(20):
        before = len(segmented.seen(events.Claimed))
        worker.tick()
        now_s = segmented.clock.monotonic_s() - start_s
        claimed_at_s += [now_s] * (len(segmented.seen(events.Claimed)) - before)
        segmented.clock.advance_s(0.5)
    # A failure is seen one tick after the claim, then comes a second of rest: not four the second time.
    assert [later - earlier for earlier, later in pairwise(claimed_at_s[:5])] == [1.5, 0.5, 1.5, 0.5]


def test_what_failed_is_left_alone_for_a_while_and_then_tried_again(rig: Rig) -> None:
    coordinator, worker = rig.coordinator(), rig.worker(engine=poisoned())
    until_failed(rig, coordinator, worker)
    first = rig.only.id
    tick = coordinator.tick()
    assert tick.is_idle
    (note,) = [note for note in tick.plan.notes if "backs off" in note]
    assert first in note
    assert REASON in note
    rig.clock.advance_s(FAILURE_PAUSE.after_ms(1) / 1000 - 10)
    assert coordinator.tick().is_idle
    assert rig.coordinator().tick().is_idle, "a new coordinator knows it too"
    rig.clock.advance_s(11)
    coordinator = rig.coordinator()
    assert len(coordinator.tick().plan.proposals) == 1
    rig.finish(coordinator, rig.worker("healthy"))
    rig.check()


def test_a_forgiven_failure_holds_nothing_back(rig: Rig) -> None:
    coordinator, worker = rig.coordinator(), rig.worker(engine=poisoned())
    until_failed(rig, coordinator, worker)
    assert coordinator.tick().is_idle
    rig.dataset().journal.forgive(rig.only.id)
    coordinator.tick()
    assert len(coordinator.tick().ledger.active()) == 1


@pytest.mark.parametrize(("attempts", "held_back"), [(0, False), (1, True)], ids=["refused", "tried"])
def test_what_was_refused_untried_holds_nothing_back(rig: Rig, attempts: int, held_back: bool) -> None:
    dataset = rig.dataset()
    (proposal,) = dataset.propose(dataset.snapshot(), Ledger()).proposals
    spec, earlier = dataset.encode_spec(proposal.spec), Ulid(RandomIds().ulid(rig.clock.now_ms()))
    dataset.journal.add_failure(FailedAttempt(earlier, "because", attempts, rig.clock.now_ms(), spec))
    assert rig.coordinator().tick().is_idle is held_back


def test_what_is_claimed_in_the_last_moment_is_not_given_up(rig: Rig) -> None:
    """The coordinator has counted, and is publishing that it failed, when a worker claims it once more."""
    armed: list[bool] = []
    last = rig.worker("last")
    coordinator = rig.coordinator(
        wrap=lambda store: Interposed(store, lambda call: bool(armed) and ledger_write(call), last.tick)
    )
    compaction_id = coordinator.tick().ledger.compactions[0].id
    for attempt in range(MAX_ATTEMPTS):
        rig.dataset().journal.add_attempt(compaction_id, Attempt(f"w{attempt}", REASON, attempt))
    # It has just been given back: the ledger has changed.
    rig.dataset().update_ledger(
        lambda latest: transitions.release(
            transitions.claim(latest, compaction_id, "w", rig.clock.now_ms()), compaction_id, "w"
        )
    )
    armed.append(True)
    coordinator.tick()
    assert rig.owner() == "last"
    assert not rig.seen(events.Failed)
    assert rig.dataset().journal.failures() == ()
    rig.finish(coordinator, last)
    rig.check()


def test_a_person_who_asks_is_not_held_back(rig: Rig) -> None:
    coordinator, worker = rig.coordinator(), rig.worker(engine=poisoned())
    until_failed(rig, coordinator, worker)
    result = compact(rig.dataset(), clock=rig.clock, take_over=True)
    assert len(result.committed) == 1
    rig.check()


def test_a_run_for_a_person_gives_up_says_why_and_goes_on(segmented: Rig) -> None:
    dataset = segmented.dataset()
    poison: list[str] = []

    def is_poison(call: SubmittedCall) -> bool:
        poison[1:] = []
        poison.append(call.job)
        return call.job == poison[0]

    result = compact(dataset, full=False, engine=poisoned(is_poison), clock=segmented.clock)
    (failure,) = result.failures
    assert failure.compaction == poison[0]
    assert REASON in failure.reason
    assert len(result.committed) == 5
    (noted,) = dataset.journal.failures()
    assert (noted.compaction, noted.attempts) == (failure.compaction, MAX_ATTEMPTS)
    segmented.check()


def test_the_second_failure_of_the_same_sources_pauses_longer(rig: Rig) -> None:
    coordinator, worker = rig.coordinator(), rig.worker(engine=poisoned())
    until_failed(rig, coordinator, worker)
    rig.clock.advance_s(FAILURE_PAUSE.after_ms(1) / 1000)
    rig.events.clear()
    until_failed(rig, coordinator, worker)
    assert rig.only.state is CompactionState.FAILED, "of those that are finished only the newest stays"
    rig.clock.advance_s(FAILURE_PAUSE.after_ms(1) / 1000)
    tick = coordinator.tick()
    assert tick.is_idle
    (failed,) = rig.seen(events.Failed)
    assert failed.compaction in str(tick.plan.notes)
    rig.clock.advance_s(FAILURE_PAUSE.after_ms(2) / 1000)
    coordinator.tick()
    assert not coordinator.tick().is_idle
    assert len(rig.dataset().journal.failures()) <= MAX_FAILURES


@pytest.mark.parametrize("number", range(1, 4))
def test_an_attempt_that_cannot_be_noted_is_noted_later(rig: Rig, number: int) -> None:
    """The store refuses the worker's first writes to the journal."""
    left = number

    def fail(_: int, call: Call) -> StoreFault | None:
        nonlocal left
        if call.method != "put" or "/lithify/attempts/" not in call.key or not left:
            return None
        left -= 1
        return StoreFault.FAIL_BEFORE

    worker = rig.worker(engine=poisoned(), wrap=lambda store: FaultyStore(store, fail))
    rig.coordinator().tick()
    worker.tick()
    for _ in range(number):
        with pytest.raises(StoreError, match="injected"):
            worker.tick()
        assert rig.owner() == "w"
    worker.tick()
    assert rig.owner() is None
    assert len(rig.dataset().journal.attempts()[rig.only.id]) == 1


def test_a_reclaim_that_cannot_be_noted_is_noted_later(rig: Rig) -> None:
    broken: list[bool] = []

    def fail(_: int, call: Call) -> StoreFault | None:
        is_note = call.method == "put" and "/lithify/attempts/" in call.key
        return StoreFault.FAIL_BEFORE if broken and is_note else None

    coordinator = rig.coordinator(wrap=lambda store: FaultyStore(store, fail))
    coordinator.tick()
    rig.worker("dead").tick()
    broken.append(True)
    with pytest.raises(StoreError, match="injected"):
        rig.pass_silently(coordinator)
    assert rig.owner() is None
    for _ in range(2):
        with pytest.raises(StoreError, match="injected"):
            coordinator.tick()
    broken.clear()
    coordinator.tick()
    (attempt,) = rig.dataset().journal.attempts()[rig.only.id]
    assert attempt.worker == "dead"
