"""Rules of coordinators and workers, broken on purpose: the world of a fleet has to notice every mutant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from simulator.fleet import rules

from lithify.base.backoff import GrowingPause
from lithify.base.ids import Ulid
from lithify.coordination.leadership import Leadership
from lithify.fleet import coordinator_queues, task_publisher, watched_dataset, worker
from lithify.fleet.catalog.files import FollowedCatalog, Numbered
from lithify.fleet.catalog.history import CatalogHistory
from lithify.fleet.catalog.model import QueueState
from lithify.fleet.garbage_times import GarbageTimes
from lithify.fleet.members import FleetMember, ListedMember, MemberFiles
from lithify.fleet.task_queue_files import BoardFiles
from lithify.fleet.watched_dataset import Peers, WatchedDataset
from lithify.planning.admission import Budget, DropReason, WorkKey
from lithify.planning.fleet import admission
from lithify.planning.fleet import task_offers as hints
from lithify.planning.fleet.admission import QueueAdmission, TenantShare
from lithify.planning.fleet.fairness import FairTurns
from lithify.planning.fleet.overdue import OverdueWatch
from lithify.planning.fleet.pending_tasks import PendingTask
from lithify.planning.fleet.placement import Placement
from lithify.planning.fleet.polling import PollBackoff
from lithify.planning.fleet.routing import Routing
from lithify.planning.fleet.slots import Slots, Usage
from lithify.planning.fleet.task_offers import ClaimOffer
from lithify.protocol import transitions
from lithify.protocol.heartbeat_gate import SilenceWatch
from lithify.protocol.model import CompactionState
from lithify.protocol.transitions import AnyLedger
from lithify.service.slots import Rest
from lithify.store.versions import Version, VersionedFiles
from tests.simulator.mutants import Mutant


def _never(*_: object, **__: object) -> bool:
    return False


def _nothing(*_: object) -> None:
    return None


def _nothing_seen(self: OverdueWatch, *_: object, **__: object) -> None: ...


class _NeverFair(FairTurns[Any]):
    def is_due(self, scope: object) -> bool:
        return False


_honest_leaves_room = admission._Load.leaves_room


def _leave_room_to_one(self: Any, want: Any, room: Any, share: int, tenants: Any) -> bool:
    return _honest_leaves_room(self, want, room, 1 << 30, tenants)


def _write_over(self: VersionedFiles, base: Version | None, data: bytes) -> Version:
    version = Version(base.id + 1 if base is not None else 1, data)
    self._store.put(self.key(version.id), data)
    return version


def _try_again(ledger: AnyLedger, compaction_id: Ulid) -> AnyLedger:
    return ledger.update(
        compaction_id,
        lambda c: replace(c, state=CompactionState.SCHEDULED, worker=None, outputs=(), progress=None),
    )


def _all_running(self: SilenceWatch, ledger: AnyLedger, now_s: float) -> tuple[Ulid, ...]:
    return tuple(c.id for c in ledger.compactions if c.state is CompactionState.RUNNING)


def _lead_always(self: WatchedDataset) -> bool:
    return self._may_lead and self._asking is None


_honest_seek = WatchedDataset._seek_leadership


def _take_for_dead(self: WatchedDataset, dataset: Any) -> None:
    alive, dead = self._peers.alive, self._peers.dead
    self._peers.alive, self._peers.dead = frozenset({self._peers.name}), alive | dead
    try:
        _honest_seek(self, dataset)
    finally:
        self._peers.alive, self._peers.dead = alive, dead


_honest_refresh = FollowedCatalog.refresh


def _hear_of_no_pause(self: FollowedCatalog, *, was_away: bool = False) -> bool:
    is_news = _honest_refresh(self, was_away=was_away)
    catalog = self.now.catalog
    queues = tuple(replace(queue, state=QueueState.ACTIVE) for queue in catalog.queues)
    self.now = Numbered(self.now.number, replace(catalog, queues=queues))
    return is_news


_honest_read = BoardFiles.read_of


def _read_all_queues(self: BoardFiles, queue_id: str, members: Iterable[str]) -> tuple[Any, ...]:
    folders = {queue_id, *(meta.key.split("/")[2] for meta in self._store.list(self._folder))}
    return tuple(h for folder in sorted(folders) for h in _honest_read(self, folder, self.members(folder)))


_honest_beat = MemberFiles.beat


def _need_the_newest(self: MemberFiles, member: FleetMember) -> None:
    _honest_beat(self, replace(member, needs=member.catalog))


_honest_write = BoardFiles.write


def _leave_the_last(self: BoardFiles, queue_id: str, member: str, hints: Iterable[Any]) -> None:
    if hints := tuple(hints):
        _honest_write(self, queue_id, member, hints)


def _only_when_rung(self: PollBackoff, now_ms: int, *, has_rung: bool) -> bool:
    return has_rung


class _NewestIsFair(FairTurns[Any]):
    """Who has waited for the fewest claims."""

    def longest(self, waiting: Iterable[Any]) -> Any:
        return self._turns.order(dict.fromkeys(waiting, 0.0))[-1]


def _choose_by_age(self: QueueAdmission, able: Any, tenants: Any, lane: str) -> PendingTask:
    want: PendingTask = min(able, key=lambda one: (one.since_ms, one.dataset, one.key.unit))
    self._count(want, dict.fromkeys(one.dataset for one in able), [want.dataset], lane)
    return want


def _no_limit(*_: object) -> Slots:
    return Slots(1_000, 1_000)


def _without_caps(self: Any, want: PendingTask, room: Slots, share: int, tenants: Any) -> bool:
    return _honest_leaves_room(self, want, room, share, dict.fromkeys(tenants, TenantShare()))


def _allow_all(self: Slots, usage: Usage, *, may_use_reserve: bool) -> bool:
    return usage.total < self.total


_honest_defer = QueueAdmission._defer


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


def _forget_failures(self: Budget, key: WorkKey, now_ms: int) -> tuple[DropReason, ...]:
    self._running.pop(key, None)
    return ()


def _to_the_largest(self: Routing[Any], cost_bytes: int, named: str | None = None) -> Any:
    return self._by_size[-1] if cost_bytes < 1 << 25 else self._by_size[0]


class _Anybody(str):
    """Is everybody."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True


def _rarely(silence_ms: int, *, is_running: bool) -> int:
    return 90_000 if silence_ms > 20_000 else 5_000


def _for_ever(hint: ClaimOffer, worker: str) -> int:
    return 0 if hint.worker in (worker, None) else 1 << 40


def _at_once(hint: ClaimOffer, worker: str) -> int:
    return 0


MUTANTS = (
    Mutant(
        "boards are read when the bell rings only",
        (rules.WORK, rules.LOST, rules.DONE, rules.STARVED),
        ((PollBackoff, "reads_boards", _only_when_rung),),
        is_long=True,
    ),
    Mutant(
        "urgent work is admitted for ever",
        (rules.TURNS,),
        ((admission, "FairTurns", _NeverFair),),
    ),
    Mutant(
        "fair claims go to who has waited least",
        (rules.TURNS,),
        ((admission, "FairTurns", _NewestIsFair),),
    ),
    Mutant(
        "the oldest is admitted, however urgent others are",
        (rules.BAND,),
        ((QueueAdmission, "_choose", _choose_by_age),),
        first_seed=5_013,
    ),
    Mutant(
        "a coordinator admits all it has",
        (rules.QUOTA, rules.RESERVE),
        ((coordinator_queues, "quota", _no_limit),),
    ),
    Mutant(
        "one dataset may have all slots",
        (rules.SHARE,),
        ((admission._Load, "leaves_room", _leave_room_to_one),),
    ),
    Mutant(
        "a tenant may have all slots",
        (rules.CAP,),
        ((admission._Load, "leaves_room", _without_caps),),
        first_seed=5_257,
    ),
    Mutant(
        "ordinary work takes the reserve", (rules.RESERVE,), ((Slots, "allow", _allow_all),), first_seed=5_109
    ),
    Mutant(
        "no worker keeps a reserve",
        (rules.RESERVE,),
        ((worker, "reserved_of", lambda *_: 0),),
        first_seed=5_109,
    ),
    Mutant("nothing is deferred", (rules.BACKLOG,), ((QueueAdmission, "_defer", _nothing),)),
    Mutant(
        "what is deferred is forgotten", (rules.COUNTED,), ((QueueAdmission, "_defer", _defer_uncounted),)
    ),
    Mutant(
        "a dataset may be deferred altogether",
        (rules.TURNS, rules.BAND),
        ((QueueAdmission, "_defer", _defer_the_last),),
        first_seed=5_142,
    ),
    Mutant(
        "what failed goes on at once",
        (rules.RESTS, rules.COUNTED),
        ((Budget, "failed", _forget_failures),),
        first_seed=5_327,
    ),
    Mutant("a worker that always fails goes on", (rules.SICK,), ((Rest, "lasts", _never),)),
    Mutant("small work goes to the queue for large", (rules.ROUTED,), ((Routing, "route", _to_the_largest),)),
    Mutant(
        "all coordinators watch all datasets",
        (rules.OWNER,),
        ((Placement, "owner", lambda self, url: _Anybody()),),
    ),
    Mutant(
        "a silent dataset is hardly polled",
        (rules.SEEN,),
        ((watched_dataset, "pause_ms", _rarely),),
        is_long=True,
    ),
    Mutant(
        "what is for one worker is never for all",
        (rules.WORK, rules.DONE, rules.STARVED),
        ((hints, "delay_ms", _for_ever),),
        first_seed=5_179,
    ),
    Mutant(
        "all workers claim at once",
        (rules.LOST,),
        ((hints, "delay_ms", _at_once),),
        first_seed=5_159,
        is_long=True,
    ),
    Mutant(
        "offers are for nobody, and for all at once",
        (rules.LOST,),
        ((task_publisher, "meant_for", lambda *_: {}), (hints, "STEP_MS", 0)),
        first_seed=5_159,
        is_long=True,
    ),
    Mutant(
        "what is urgent has it all, for ever",
        (rules.STARVED, rules.TURNS, rules.SHARE),
        (
            (admission, "FairTurns", _NeverFair),
            (hints, "FairTurns", _NeverFair),
            (admission._Load, "leaves_room", _leave_room_to_one),
        ),
        first_seed=5_003,
    ),
    Mutant("versions are written over", (rules.ONCE,), ((VersionedFiles, "_create", _write_over),)),
    Mutant(
        "what was committed is tried again", (rules.COMMITTING,), ((transitions, "complete", _try_again),)
    ),
    Mutant("whoever runs counts as silent", (rules.BEATING,), ((SilenceWatch, "silent", _all_running),)),
    Mutant("all datasets are led", (rules.IDLE,), ((WatchedDataset, "_should_lead", _lead_always),)),
    Mutant(
        "who leads is taken for dead",
        (rules.PEACE,),
        ((WatchedDataset, "_seek_leadership", _take_for_dead),),
        first_seed=5_005,
    ),
    Mutant(
        "who has ever been a member lives",
        (rules.FAILOVER, rules.LOST, rules.DONE, rules.STARVED),
        ((ListedMember, "is_alive", True),),
        first_seed=5_160,
    ),
    Mutant("nobody is excused", (rules.BLAME,), ((Peers, "excuses", _never),), first_seed=5_104),
    Mutant(
        "what is broken is looked at in every round",
        (rules.PAUSES,),
        ((watched_dataset, "QUARANTINE_PAUSE", GrowingPause(0, 0)),),
        first_seed=5_005,
    ),
    Mutant(
        "nobody hears that a queue is paused",
        (rules.PAUSED,),
        ((FollowedCatalog, "refresh", _hear_of_no_pause),),
        first_seed=5_022,
    ),
    Mutant(
        "a worker reads the boards of all queues",
        (rules.QUEUES,),
        ((BoardFiles, "read_of", _read_all_queues),),
        first_seed=5_000,
    ),
    Mutant(
        "all say that they need the newest catalog",
        (rules.NEEDED,),
        ((MemberFiles, "beat", _need_the_newest),),
        first_seed=5_004,
    ),
    Mutant("no catalog ever goes", (rules.GONE,), ((CatalogHistory, "run", _nothing),), first_seed=5_004),
    Mutant(
        "what nobody foresaw in a dataset ends its coordinator",
        (rules.SURVIVES,),
        ((watched_dataset, "contained", lambda what: nullcontext()),),
        first_seed=5_153,
    ),
    Mutant(
        "nobody notices that a dataset was made anew",
        (rules.ANEW, rules.ONCE, rules.SURVIVES),
        (
            (VersionedFiles, "_check_history", _nothing),
            (VersionedFiles, "_why_not_there", _nothing),
        ),
    ),
    Mutant(
        "what was written to another dataset stays there",
        (rules.ANEW, rules.ONCE, rules.COMMITTING),
        ((VersionedFiles, "_take_back", _nothing),),
        first_seed=5_012,
    ),
    Mutant(
        "a dataset that was made anew is not opened anew",
        (rules.ANEW,),
        ((WatchedDataset, "_drop", _nothing),),
    ),
    Mutant("idle datasets are never cared for", (rules.CARED,), ((GarbageTimes, "_is_due_again", _never),)),
    Mutant("nobody tells of work elsewhere", (rules.TOLD,), ((OverdueWatch, "saw", _nothing_seen),)),
    Mutant(
        "all datasets count as coordinated elsewhere",
        (rules.TOLD, rules.CARED),
        ((WatchedDataset, "_why_elsewhere", "it is elsewhere"),),
    ),
    Mutant(
        "an owner that may be alive is fenced",
        (rules.FENCED,),
        ((Leadership, "_adopts", lambda *_: True),),
    ),
    Mutant(
        "the last hint stays on its board",
        (rules.LEFT,),
        ((BoardFiles, "write", _leave_the_last),),
        first_seed=5_005,
    ),
)
