"""The choice of the task offer that a worker claims next.

A board lists compactions that may be claimed. The claim itself is a change of the dataset's ledger, so if two
workers want the same offer, one loses: that costs requests, but does no harm.

1. *Addressee*: the publishing member knows which workers are idle, and names one for each offer
(`meant_for`). All other workers ignore it for `HANDOVER_MS` after they have seen it, and then may claim it
one after the other, `STEP_MS` apart, in an order by hash that differs from offer to offer; and only if they
find it on its board once more. An offer without addressee, published while no worker was idle, is for all at
once.
2. *Slots*: ordinary work does not use the reserve (`slots`).
3. *Queue*: of the queues with claimable offers, the one whose turn it is by weight (`weighted`).
4. *Order*: the best priority class; in it the offers meant for this worker, by priority, then age; else one
of the first `SPREAD` by priority and age, which one differs from worker to worker. All offers on a board were
admitted, in order and for as many as have slots, so workers that become free together should not all want the
same. Every fourth claim is fair (`fairness`): it goes to the offer that most claims of this worker have
passed over.
5. *Lost claims*: a worker that lost a claim goes on to the next offer meant for it; before claiming any other
it reads the boards again, since others may have claimed that too. It ignores the lost offer until that
changes or is published anew, or `LOST_MS` are over. Work that failed here is left to other workers for a
pause that grows.

Age counts since this worker has seen the offer: by one clock, whatever the clocks of the members show.
Invariant: of H offers that it may claim, each is claimed, by this worker or another, within
`longest_wait_claims(H)` claims of this one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Interval

from lithify.base.backoff import GrowingPause
from lithify.base.documents import Count, Ratio, WholeText
from lithify.planning.admission import WorkKey
from lithify.planning.fleet.fairness import FairTurns, WeightedTurns
from lithify.planning.fleet.pending_tasks import may_use_reserve
from lithify.planning.fleet.placement import fraction, ranking
from lithify.planning.fleet.slots import Slots, Usage

HANDOVER_MS = 1_500
"""Any worker that polls every second has polled by then."""
STEP_MS = 2_000
"""Longer than a claim takes on a slow store, and than it takes until another worker has polled."""
LONGEST_DELAY_MS = 20_000
LOST_MS = 30_000
SPREAD = 8
FAILURE_PAUSE = GrowingPause(first_ms=60_000, max_ms=600_000)


@dataclass(frozen=True, slots=True)
class ClaimOffer:
    """A task offer: a compaction that may be claimed."""

    url: WholeText
    """The dataset's URL."""
    compaction: WholeText
    """A ULID."""
    band: Annotated[int, Interval(ge=0, le=1_000)]
    """Priority class (`lithify.planning.fleet.priorities`); 0 is the most urgent."""
    priority: Ratio
    """0 (may wait) to 1 (urgent), inside the priority class."""
    bytes: Count
    """Bytes that it reads."""
    since_ms: Count
    """When the task was first seen, by the clock of the publishing member."""
    attempts: Count = 0
    """Number of failed attempts."""
    tenant: WholeText | None = None
    worker: WholeText | None = None
    """The worker that may claim it first."""
    idle_workers: Count = 0
    """How many workers had a free slot when it was published."""
    catalog: Count = 0
    """The version of the catalog that it was admitted under."""
    board: str = field(default="", compare=False)
    """The board on which it was found."""

    @property
    def key(self) -> WorkKey:
        return WorkKey(self.url, self.compaction)

    @property
    def may_use_reserve(self) -> bool:
        return may_use_reserve(self.band, self.bytes)


def all_alike(worker: str) -> int:
    """Rank all workers equally."""
    return 0


def nobody(key: WorkKey) -> Collection[str]:
    """Return no workers: none has failed with the work."""
    return ()


def meant_for(
    keys: Iterable[WorkKey],
    free: Mapping[str, int],
    failed_with: Callable[[WorkKey], Collection[str]] = nobody,
    rank: Callable[[str], int] = all_alike,
) -> dict[WorkKey, str]:
    """Return the addressees of task offers, in the order of the offers, given the workers' free slots. Each
    slot is assigned once, so the last offers may have none, nor does work that has failed on all of them
    (`Faults.failed_with`). Workers with the lowest `rank` come first; among equals the choice differs from
    offer to offer, so that two members that publish offers of different compactions rarely choose the same
    worker: that costs the second offer a handover."""
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


def delay_ms(hint: ClaimOffer, worker: str) -> int:
    """Return how long `worker` leaves the offer to others after it has seen it."""
    if hint.worker == worker:
        return 0
    place = int(fraction(worker, _text(hint.key)) * hint.idle_workers)
    handover_ms = HANDOVER_MS if hint.worker is not None else 0
    return min(handover_ms + place * STEP_MS, LONGEST_DELAY_MS)


@dataclass(slots=True)
class _OfferedTask:
    hint: ClaimOffer
    queue: str
    since_ms: int
    found_ms: int
    """When it was last on its board."""
    lost_ms: int | None = None


class HintChoice:
    """The state by which one worker chooses offers. May be lost. Not thread-safe."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._seen: dict[WorkKey, _OfferedTask] = {}
        self._failures: dict[WorkKey, tuple[int, int]] = {}
        """Number of failures here by work, and the time of the last one."""
        self._lost_ms = -1
        """When a claim was last lost."""
        self._fair: FairTurns[WorkKey] = FairTurns()
        self._queues: WeightedTurns[str] = WeightedTurns()

    def see(
        self, boards: Mapping[str, Iterable[ClaimOffer]], now_ms: int, members: Collection[str] | None = None
    ) -> None:
        """Replace the offers, by queue id, of all these queues, or of the boards of `members` only. Offers
        that are not listed any more are dropped."""
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
    ) -> tuple[str, ClaimOffer] | None:
        """Return the queue id and the offer to claim now, if any. `slots` are this worker's, and `weights`
        the queues', by queue id; a queue that has no slots here is not served."""
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
        self,
        hint: ClaimOffer,
        slots: Mapping[str, Slots],
        usage: Usage,
        weights: Mapping[str, int],
        now_ms: int,
    ) -> None:
        """Record a successful claim. The arguments are those of `next`."""
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

    def lost(self, hint: ClaimOffer, now_ms: int) -> None:
        """Record that another worker has claimed it, or that it has ended."""
        self.leave(hint, now_ms)
        self._lost_ms = now_ms

    def leave(self, hint: ClaimOffer, now_ms: int) -> None:
        """Ignore the offer for now."""
        if (seen := self._seen.get(hint.key)) is not None:
            seen.lost_ms = now_ms

    def failed(self, key: WorkKey, now_ms: int) -> None:
        """Record that it failed here: other workers should try first."""
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
