"""Rules of a fleet, each broken on purpose: the world has to notice every one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from lithify.planning.admission import Budget, DropReason, WorkKey
from lithify.planning.fleet import admission, cadence, quotas, slots, task_offers
from lithify.planning.fleet.admission import QueueAdmission, TenantShare
from lithify.planning.fleet.fairness import FairTurns
from lithify.planning.fleet.faults import Faults
from lithify.planning.fleet.pending_tasks import PendingTask
from lithify.planning.fleet.placement import Placement
from lithify.planning.fleet.polling import PollBackoff
from lithify.planning.fleet.routing import Routing
from lithify.planning.fleet.slots import Slots, Usage
from lithify.planning.fleet.task_offers import HintChoice
from lithify.planning.rest import Rest
from tests.planning.fleet import rules
from tests.simulator.mutants import Mutant


def _never(*_: object, **__: object) -> bool:
    return False


class _NeverFair(FairTurns[Any]):
    def is_due(self, scope: object) -> bool:
        return False


class _NewestIsFair(FairTurns[Any]):
    """Who has waited for the fewest claims."""

    def longest(self, waiting: Iterable[Any]) -> Any:
        return self._turns.order(dict.fromkeys(waiting, 0.0))[-1]


def _by_age(want: PendingTask) -> tuple[int, str, str]:
    return want.since_ms, want.key.dataset, want.key.unit


def _by_priority(seen: Any) -> tuple[float, int]:
    return -seen.hint.priority, seen.since_ms


def _choose_by_age(self: QueueAdmission, able: Any, tenants: Any, lane: str) -> PendingTask:
    want: PendingTask = min(able, key=_by_age)
    self._count(want, dict.fromkeys(one.dataset for one in able), [want.dataset], lane)
    return want


def _no_limit(*_: object) -> Slots:
    return Slots(1_000, 1_000)


def _without_share(self: Any, want: PendingTask, room: Slots, share: int, tenants: Any) -> bool:
    return _honest_leaves_room(self, want, room, 1 << 30, tenants)


def _without_caps(self: Any, want: PendingTask, room: Slots, share: int, tenants: Any) -> bool:
    return _honest_leaves_room(self, want, room, share, dict.fromkeys(tenants, TenantShare()))


_honest_leaves_room = admission._Load.leaves_room


def _allow_all(self: Slots, usage: Usage, *, may_use_reserve: bool) -> bool:
    return usage.total < self.total


def _defer_uncounted(self: QueueAdmission) -> None:
    _honest_defer(self)
    self._deferred.clear()


def _defer_the_last(self: QueueAdmission) -> None:
    """Whosever it is."""
    while self._queued_count > self.limits.longest_backlog:
        key = self._budget.queued[-1].key
        self._budget.cancelled(key)
        want = self._remove(key)
        assert want is not None
        known = self._deferred.setdefault(key.dataset, admission._Deferral(want.tenant, Counter()))
        known.by_band[want.band] += 1


_honest_defer = QueueAdmission._defer


def _forgets_failures(self: Budget, key: WorkKey, now_ms: int) -> tuple[DropReason, ...]:
    self._running.pop(key, None)
    return ()


def _to_all(self: Routing[Any], cost_bytes: int, *_: object, **__: object) -> Any:
    return self._by_size[-1] if cost_bytes < 1 << 25 else self._by_size[0]


def _everybodys(self: Placement, member: str, urls: Iterable[str]) -> list[str]:
    return list(urls)


def _rarely(silence_ms: int, *, is_running: bool) -> int:
    return 600_000 if silence_ms > 20_000 else 5_000


def _only_when_rung(self: PollBackoff, now_ms: int, *, has_rung: bool) -> bool:
    return has_rung


def _for_ever(hint: task_offers.ClaimOffer, worker: str) -> int:
    return 0 if hint.worker in (worker, None) else 1 << 40


def _at_once(hint: task_offers.ClaimOffer, worker: str) -> int:
    return 0


def _ignored(self: HintChoice, hint: task_offers.ClaimOffer, now_ms: int) -> None:
    pass


def _nothing(worker: str, of: object, reserved: int) -> int:
    return 0


FIRST_SEED = 1_000


def _mutant(
    name: str, noticed_by: Iterable[str], *changes: tuple[Any, str, Any], first_seed: int = FIRST_SEED
) -> Mutant:
    return Mutant(name, tuple(noticed_by), changes, first_seed)


MUTANTS = (
    _mutant(
        "urgent work is admitted for ever",
        [rules.STARVED],
        (admission, "FairTurns", _NeverFair),
        first_seed=1_016,
    ),
    _mutant(
        "fair claims go to who has waited least",
        [rules.STARVED],
        (admission, "FairTurns", _NewestIsFair),
        first_seed=1_023,
    ),
    _mutant(
        "the oldest is admitted, however urgent others are",
        [rules.BAND],
        (QueueAdmission, "_choose", _choose_by_age),
        first_seed=1_013,
    ),
    _mutant("a worker goes by priority alone", [rules.HINT_BAND], (task_offers, "_order", _by_priority)),
    _mutant(
        "a worker claims what is urgent for ever",
        [rules.HINT_STARVED, rules.DONE],
        (task_offers, "FairTurns", _NeverFair),
        first_seed=1_028,
    ),
    _mutant("a member admits all it has", [rules.QUOTA, rules.RESERVE], (quotas, "quota", _no_limit)),
    _mutant("one dataset may have it all", [rules.SHARE], (admission._Load, "leaves_room", _without_share)),
    _mutant("a tenant may have it all", [rules.CAP], (admission._Load, "leaves_room", _without_caps)),
    _mutant("ordinary work takes the reserve", [rules.RESERVE], (Slots, "allow", _allow_all)),
    _mutant("no worker keeps a reserve", [rules.RESERVE], (slots, "reserved_of", _nothing)),
    _mutant("nothing is deferred", [rules.BACKLOG], (QueueAdmission, "_defer", lambda self: None)),
    _mutant("what is deferred is forgotten", [rules.COUNTED], (QueueAdmission, "_defer", _defer_uncounted)),
    _mutant(
        "a dataset may be deferred altogether",
        [rules.STARVED, rules.BAND],
        (QueueAdmission, "_defer", _defer_the_last),
        first_seed=1_003,
    ),
    _mutant(
        "what failed goes on at once", [rules.RESTS, rules.COUNTED], (Budget, "failed", _forgets_failures)
    ),
    _mutant("the work is always to blame", [rules.BLAME], (Faults, "is_suspect", _never), first_seed=1_013),
    _mutant("a poison worker goes on", [rules.SICK], (Rest, "lasts", _never), first_seed=1_015),
    _mutant("small work goes to the queue for large", [rules.ROUTED], (Routing, "route", _to_all)),
    _mutant("everybody watches everything", [rules.OWNER, rules.COUNTED], (Placement, "share", _everybodys)),
    _mutant(
        "what is silent is hardly looked at", [rules.SEEN], (cadence, "pause_ms", _rarely), first_seed=1_001
    ),
    _mutant(
        "boards are read when the bell rings only",
        [rules.IDLE, rules.LOST],
        (PollBackoff, "reads_boards", _only_when_rung),
        first_seed=1_004,
    ),
    _mutant(
        "what is for another is never for all", [rules.IDLE, rules.DONE], (task_offers, "delay_ms", _for_ever)
    ),
    _mutant("everybody claims at once", [rules.LOST], (task_offers, "delay_ms", _at_once)),
    _mutant("who lost tries again", [rules.LOST], (HintChoice, "lost", _ignored)),
    _mutant(
        "hints are for nobody, and for all at once",
        [rules.LOST],
        (task_offers, "meant_for", lambda *_: {}),
        (task_offers, "STEP_MS", 0),
    ),
)
