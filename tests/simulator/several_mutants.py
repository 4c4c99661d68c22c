"""Fairness between datasets, broken on purpose: the world of several datasets has to notice every mutant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

from simulator.several import rules

from lithify.base.backoff import GrowingPause
from lithify.base.clock import monotonic_ms
from lithify.base.errors import StoreError
from lithify.base.ids import Ulid
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.plan import plan_table
from lithify.planning.turns import Turns
from lithify.protocol.proposal import NOTHING_HELD, Held, Plan, Planner
from lithify.protocol.running import Claim
from lithify.protocol.transitions import AnyLedger
from lithify.service import failures, worker, worker_pool
from lithify.service.coordinator import Coordinator
from lithify.service.failures import Failures
from lithify.service.slots import Rest
from lithify.service.worker import Worker
from lithify.service.worker_pool import WorkerPool
from tests.simulator.mutants import Mutant


def _filter_what_was_planned(self: Failures, planner: Planner) -> Callable[[object, AnyLedger], Plan]:
    def plan(snapshot: object, ledger: AnyLedger) -> Plan:
        held = self._held(failures.given_up(self._known, ledger))
        return failures.without(planner(snapshot, ledger, NOTHING_HELD), held, self._dataset)

    return plan


class _SameAgain(Turns[Any]):
    """Who had the last turn has the next."""

    _last: Any = None

    def order(self, offers: Mapping[Any, float]) -> list[Any]:
        return sorted(super().order(offers), key=lambda key: key != self._last)

    def had(self, key: Any, waiting: Any) -> None:
        self._last = key


def _by_priority_alone(self: Turns[Any], key: Any, priority: float) -> float:
    return priority


def _by_id(self: Worker, candidates: tuple[Ulid, ...], *, is_contested: bool = False) -> dict[Ulid, float]:
    return {compaction: -float(number) for number, compaction in enumerate(sorted(candidates))}


def _revive_at_rest(self: IcebergDataset, snapshot: Any, ledger: AnyLedger, held: Held = NOTHING_HELD) -> Any:
    now_us = self._clock.now_ms() * 1000
    revive = self._may_revive and not ledger.active()
    return plan_table(snapshot, ledger, now_us, revive_deferred=revive, held=held)


class _NeverRaised(Exception):
    """In place of an error that is told apart."""


_honest_give_back = Worker._give_back


def _give_back_anew(self: Worker, running: Claim, error: Exception) -> None:
    running.attempt, running.is_attempt_noted = None, False
    _honest_give_back(self, running, error)


_honest_lasts = Rest.lasts


def _all_rest(self: Rest, url: str, now_ms: int) -> bool:
    return _honest_lasts(self, url, now_ms) or self._pause.lasts(*self._of_process, now_ms)


_honest_look = WorkerPool._look


def _all_are_quarantined(self: WorkerPool, member: Any) -> bool:
    pauses = (
        m.backoff.error is not None and monotonic_ms(self._clock) - m.backoff.failed_ms < self._pause_ms(m)
        for m in self._members.values()
    )
    if any(pauses):
        member.is_well = False
        return False
    return _honest_look(self, member)


_honest_commit = Coordinator._commit


def _commit_two(self: Coordinator, ledger: AnyLedger, snapshot: object) -> Any:
    """What is done waits for another that is."""
    done = [c for c in ledger.compactions if c.state.name == "COMPACTED"]
    return _honest_commit(self, ledger if len(done) > 1 else type(ledger)(ledger.epoch), snapshot)


def _never(*_: object, **__: object) -> bool:
    return False


MUTANTS = (
    Mutant(
        "what is held back takes the planner's slots",
        (rules.PLANNED,),
        ((Failures, "held_back", _filter_what_was_planned),),
    ),
    Mutant(
        "a pool goes on with the dataset that had the last turn",
        (rules.TURNS, rules.URGENT),
        ((worker_pool, "Turns", _SameAgain),),
    ),
    Mutant(
        "who waits grows no more urgent",
        (rules.TURNS, rules.URGENT),
        ((Turns, "_urgency", _by_priority_alone),),
    ),
    Mutant(
        "the oldest is claimed next, however urgent others are",
        (rules.URGENT,),
        ((Worker, "_ranks", _by_id),),
    ),
    Mutant(
        "deferred chunks come back only when nothing is active",
        (rules.PLANNED,),
        ((IcebergDataset, "timeline", _revive_at_rest),),
        first_seed=5_016,
    ),
    Mutant(
        "what nobody foresaw in one dataset ends the pool",
        (rules.SURVIVES,),
        ((worker_pool, "contained", lambda what: nullcontext()),),
    ),
    Mutant(
        "a ledger that does not decode ends the pool",
        (rules.SURVIVES,),
        ((worker_pool, "LithifyError", StoreError),),
    ),
    Mutant(
        "an engine that is gone burns attempts",
        (rules.ENGINE,),
        ((worker, "EngineDown", _NeverRaised),),
        first_seed=5_004,
    ),
    Mutant(
        "a failure is noted anew when giving back failed",
        (rules.ONCE,),
        ((Worker, "_give_back", _give_back_anew),),
    ),
    Mutant(
        "one dataset that fails makes all rest",
        (rules.IDLE,),
        ((Rest, "lasts", _all_rest),),
        first_seed=5_044,
    ),
    Mutant(
        "one dataset in quarantine takes all with it",
        (rules.RETURNS, rules.IDLE),
        ((WorkerPool, "_look", _all_are_quarantined),),
    ),
    Mutant(
        "a quarantine never ends",
        (rules.RETURNS,),
        ((worker_pool, "QUARANTINE_PAUSE", GrowingPause(1 << 40, 1 << 40)),),
    ),
    Mutant(
        "there is no quarantine",
        (rules.PAUSES,),
        ((worker_pool, "QUARANTINE_PAUSE", GrowingPause(0, 0)),),
    ),
    Mutant(
        "what failed is claimed again at once",
        (rules.PAUSES,),
        ((Worker, "_is_paused", _never),),
        first_seed=5_006,
    ),
    Mutant(
        "a dataset that fails does not rest",
        (rules.PAUSES,),
        ((Rest, "lasts", _never),),
    ),
    Mutant(
        "what has ended keeps its slot until its dataset can be told",
        (rules.IDLE,),
        ((Claim, "is_running", True),),
        first_seed=5_000,
    ),
    Mutant(
        "nothing is ever given up",
        (rules.GIVEN_UP,),
        ((Coordinator, "_exhausted", lambda *_: []),),
    ),
    Mutant(
        "what is done waits for another that is",
        (rules.COMMITTED, rules.DRAINED),
        ((Coordinator, "_commit", _commit_two),),
    ),
)
