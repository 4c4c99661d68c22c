"""Which hint a worker claims next.

A board says what may be claimed. The claim itself is a change of the dataset's ledger, so of two workers
that want the same one loses: that costs requests, and is not wrong.

1. *Whom it is for*: who puts a hint up knows which workers are idle, and names one for each (`meant_for`).
   All others leave it alone for `HANDOVER_MS` after they have seen it, and then one after the other,
   `STEP_MS` apart, in an order by hash that differs from hint to hint; and they take it only when they find
   it on its board once more. A hint for nobody, put up while nobody was idle, is for everybody at once.
2. *Slots*: ordinary work does not use the reserve (`slots`).
3. *Queue*: of the queues with something to claim the one whose turn it is by weight (`weighted`).
4. *Order*: the best band; in it what is meant for this worker, by priority, then age; else one of the first
   `SPREAD` by priority and age, which one differs from worker to worker. All that is on a board was admitted,
   in order and for as many as have room, so workers that become free together had better not all want the
   same. Every fourth claim is fair (`fairness`): it goes to the hint that most claims of this worker have
   passed over.
5. *Lost*: who lost a hint goes on to the next that is meant for it; what is not, it reads anew before: others
   may have had that too. The one it lost it leaves alone until that is another (it changed or was put up
   anew), or `LOST_MS` are over. What failed here is left to others for a pause that grows.

Age is since when this worker has seen the hint: by one clock, whatever those of the members say. Invariant:
with H hints that it may claim, each is taken, by this worker or another, within `longest_wait_claims(H)`
claims of this one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lithify.base.backoff import GrowingPause
from lithify.planning.admission import WorkKey
from lithify.planning.fleet.fairness import FairTurns
from lithify.planning.fleet.pending_tasks import may_use_reserve
from lithify.planning.fleet.placement import fraction, ranking
from lithify.planning.fleet.slots import Slots, Usage
from lithify.planning.fleet.weighted import WeightedTurns

HANDOVER_MS = 1_500
"""Somebody who asks the bell every second has looked by then."""
STEP_MS = 2_000
"""Longer than a claim takes on a slow store, and than it takes until another has looked."""
LONGEST_DELAY_MS = 20_000
LOST_MS = 30_000
SPREAD = 8
FAILURE_PAUSE = GrowingPause(first_ms=60_000, max_ms=600_000)


@dataclass(frozen=True, slots=True)
class Hint:
    """A compaction that may be claimed."""

    url: str
    """Of its dataset."""
    compaction: str
    """A ULID."""
    band: int
    """`lithify.planning.fleet.priorities`; 0 is the most urgent."""
    priority: float
    """0 (may wait) to 1 (urgent), inside the band."""
    bytes: int
    """That it reads."""
    since_ms: int
    """When it was first seen to be wanted, by the clock of who put the hint up."""
    attempts: int = 0
    """That came to nothing."""
    tenant: str | None = None
    worker: str | None = None
    """Whom it is for first."""
    idle_workers: int = 0
    """How many had a free slot when it was put up."""
    catalog: int = 0
    """The version of the catalog that it was admitted under."""
    board: str = field(default="", compare=False)
    """On whose board it was found."""

    @property
    def key(self) -> WorkKey:
        return WorkKey(self.url, self.compaction)

    @property
    def may_use_reserve(self) -> bool:
        return may_use_reserve(self.band, self.bytes)


def all_alike(worker: str) -> int:
    """No worker is given to before others."""
    return 0


def nobody(key: WorkKey) -> Collection[str]:
    """No worker has failed with it."""
    return ()


def meant_for(
    keys: Iterable[WorkKey],
    free: Mapping[str, int],
    failed_with: Callable[[WorkKey], Collection[str]] = nobody,
    rank: Callable[[str], int] = all_alike,
) -> dict[WorkKey, str]:
    """Whom hints are for, the first of them first, when workers have so many free slots: each slot is given
    once, so the last ones may be for nobody, and so is what has failed with all of them
    (`Faults.failed_with`). Those with the least `rank` are given to first; between equals it is another one
    for each hint, so that two who put up hints of different compactions rarely choose the same: that costs
    the second one's a handover."""
    left = {worker: slots for worker, slots in free.items() if slots > 0}
    found: dict[WorkKey, str] = {}
    for key in keys:
        able = left.keys() - set(failed_with(key))
        if able:
            worker = min(ranking(_text(key), able), key=rank)
            found[key] = worker
            left[worker] -= 1
            if not left[worker]:
                del left[worker]
        elif not left:
            break
    return found


def delay_ms(hint: Hint, worker: str) -> int:
    """How long `worker` leaves the hint to others after it has seen it."""
    if hint.worker == worker:
        return 0
    place = int(fraction(worker, _text(hint.key)) * hint.idle_workers)
    handover_ms = HANDOVER_MS if hint.worker is not None else 0
    return min(handover_ms + place * STEP_MS, LONGEST_DELAY_MS)


@dataclass(slots=True)
class _OfferedTask:
    hint: Hint
    queue: str
    since_ms: int
    found_ms: int
    """When it was on its board last."""
    lost_ms: int | None = None


class HintChoice:
    """What one worker goes by. May be lost. Not safe to share between threads."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._seen: dict[WorkKey, _OfferedTask] = {}
        self._failures: dict[WorkKey, tuple[int, int]] = {}
        """How often what failed here, and when last."""
        self._lost_ms = -1
        """When a claim was lost last."""
        self._fair: FairTurns[WorkKey] = FairTurns()
        self._queues: WeightedTurns[str] = WeightedTurns()

    def see(
        self, boards: Mapping[str, Iterable[Hint]], now_ms: int, members: Collection[str] | None = None
    ) -> None:
        """The boards say this now, by queue id; all of these queues, or of `members` only. What they do not
        say is gone."""
        before = self._seen
        self._seen = {
            key: seen
            for key, seen in before.items()
            if members is not None and (seen.queue not in boards or seen.hint.board not in members)
        }
        for queue, hints in boards.items():
            for hint in hints:
                known = before.get(hint.key)
                if known is not None and known.hint.attempts != hint.attempts:
                    known = None
                since_ms = now_ms if known is None else known.since_ms
                lost_ms = known.lost_ms if known is not None and known.hint == hint else None
                self._seen.setdefault(hint.key, _OfferedTask(hint, queue, since_ms, now_ms, lost_ms))
        self._fair.keep(self._seen.keys())
        self._failures = {
            key: (count, at_ms)
            for key, (count, at_ms) in self._failures.items()
            if now_ms - at_ms < 2 * FAILURE_PAUSE.max_ms
        }

    def next(
        self, slots: Mapping[str, Slots], usage: Usage, weights: Mapping[str, int], now_ms: int
    ) -> tuple[str, Hint] | None:
        """The id of the queue and the hint to claim now, if any. `slots` are this worker's, and `weights` the
        queues', by queue id; a queue that is not among the slots is not served."""
        able = self._able(slots, usage, now_ms)
        if not able:
            return None
        queue = self._queues.next({seen.queue: weights.get(seen.queue, 1) for seen in able})
        able = [seen for seen in able if seen.queue == queue]
        if self._fair.is_due(self._scope(queue, slots, usage)):
            longest = self._fair.longest(seen.hint.key for seen in able)
            return queue, self._seen[longest].hint
        return queue, self._first(able).hint

    def _first(self, able: Iterable[_OfferedTask]) -> _OfferedTask:
        ranked = sorted(able, key=_order)
        best = [seen for seen in ranked if seen.hint.band == ranked[0].hint.band]
        mine = next((seen for seen in best if seen.hint.worker == self._worker), None)
        if mine is not None:
            return mine
        return min(best[:SPREAD], key=lambda seen: fraction(self._worker, _text(seen.hint.key)))

    def claimed(
        self, hint: Hint, slots: Mapping[str, Slots], usage: Usage, weights: Mapping[str, int], now_ms: int
    ) -> None:
        """The claim succeeded. With what `next` was asked with."""
        seen = self._seen.get(hint.key)
        if seen is None:
            return
        queue = seen.queue
        able = [seen.hint.key for seen in self._able(slots, usage, now_ms) if seen.queue == queue]
        waiting = dict.fromkeys([*able, hint.key])
        is_fair = self._fair.longest(waiting) == hint.key
        self._fair.count(self._scope(queue, slots, usage), is_fair=is_fair)
        self._fair.had(hint.key, waiting)
        self._queues.had(queue, weights.get(queue, 1))
        self.leave(hint, now_ms)  # until it is off its board

    def lost(self, hint: Hint, now_ms: int) -> None:
        """Somebody else has it, or it is over."""
        self.leave(hint, now_ms)
        self._lost_ms = now_ms

    def leave(self, hint: Hint, now_ms: int) -> None:
        """Not now."""
        if (seen := self._seen.get(hint.key)) is not None:
            seen.lost_ms = now_ms

    def failed(self, key: WorkKey, now_ms: int) -> None:
        """It failed here: others should try first."""
        count, _ = self._failures.get(key, (0, 0))
        self._failures[key] = count + 1, now_ms

    def _able(self, slots: Mapping[str, Slots], usage: Usage, now_ms: int) -> Sequence[_OfferedTask]:
        return [
            seen
            for seen in self._seen.values()
            if seen.queue in slots
            and slots[seen.queue].allow(usage, may_use_reserve=seen.hint.may_use_reserve)
            and seen.found_ms >= seen.since_ms + delay_ms(seen.hint, self._worker)
            and (seen.hint.worker == self._worker or seen.found_ms > self._lost_ms)
            and (seen.lost_ms is None or now_ms >= seen.lost_ms + LOST_MS)
            and not FAILURE_PAUSE.lasts(*self._failures.get(seen.hint.key, (0, 0)), now_ms)
        ]

    def _scope(self, queue: str, slots: Mapping[str, Slots], usage: Usage) -> tuple[str, bool]:
        return queue, usage.ordinary < slots[queue].open


def _order(seen: _OfferedTask) -> tuple[int, float, int, int, str]:
    hint = seen.hint
    return hint.band, -hint.priority, seen.since_ms, hint.since_ms, _text(hint.key)


def _text(key: WorkKey) -> str:
    return f"{key.dataset}\n{key.unit}"
