"""What a dataset asks of its fleet, from one look at it to the next.

A look brings a ledger, a snapshot and a plan. Of them come

1. *wants*: what the plan proposes and the ledger does not have yet;
2. what is *active*, whoever submitted it, and of that what is *free*: what may be claimed;
3. what was *claimed* since the look before, and how long it had waited. What was claimed and committed in
   between is still in the ledger.

What is wanted keeps the time at which it was first seen to be wanted, when it gets under way too. What a
dataset says of its priority and size is anybody's, and goes no further than into its bounds. No clock and no
store: who looks says what time it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from lithify.base.ids import Ulid, ulid_ms
from lithify.datasets.kind import DatasetPort
from lithify.planning.admission import WorkKey
from lithify.planning.fleet.admission import Active
from lithify.planning.fleet.pending_tasks import MOST_BYTES, PendingTask
from lithify.planning.fleet.priorities import PriorityClass, band_of
from lithify.protocol import transitions
from lithify.protocol.attempts import Attempt
from lithify.protocol.model import CompactionState
from lithify.protocol.proposal import Plan
from lithify.protocol.transitions import AnyCompaction, AnyLedger

_CLAIMED = (CompactionState.RUNNING, CompactionState.COMPACTED, CompactionState.COMPLETED)


@dataclass(frozen=True, slots=True)
class Free:
    """A compaction that may be claimed."""

    compaction: Ulid
    key: WorkKey
    band: PriorityClass
    priority: float
    bytes: int
    since_ms: int
    """When it was first seen to be wanted, by this member's clock."""
    attempts: int = 0
    """At it that are known and came to nothing."""


class Demand:
    """Of the dataset at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.wants: tuple[PendingTask, ...] = ()
        """What could be admitted, or was and has not started."""
        self.active: tuple[Active, ...] = ()
        """What is under way."""
        self.free: tuple[Free, ...] = ()
        """What may be claimed."""
        self._since_ms: dict[WorkKey, int] = {}
        """When what is wanted was first wanted."""
        self._active_since_ms: dict[Ulid, int] = {}
        """When what is under way was first wanted, or submitted."""
        self._asked: set[Ulid] = set()
        """What somebody else has submitted, of what is under way."""
        self._attempts: dict[Ulid, set[Attempt]] = {}
        """Those that are known, of what is under way."""
        self._free_before: dict[Ulid, PendingTask] = {}
        """What could be claimed at the last look."""
        self._once_claimed: set[Ulid] = set()
        """Of what is under way."""
        self._claimed: list[tuple[PendingTask, int]] = []

    @property
    def is_any(self) -> bool:
        """Whether anything is wanted or under way."""
        return bool(self.wants or self.active)

    @property
    def is_being_worked_on(self) -> bool:
        """Whether something under way was seen to be claimed."""
        return bool(self._once_claimed)

    def take_claimed(self) -> tuple[tuple[PendingTask, int], ...]:
        """What somebody has claimed since the last call, and for how many milliseconds it had waited since it
        was first seen to be wanted. Only what was seen to wait: not what ran when this began to watch."""
        claimed, self._claimed = tuple(self._claimed), []
        return claimed

    def drop(self) -> None:
        """Nothing is known of it any more."""
        self.wants, self.active, self.free = (), (), ()

    def note_attempts(self, compaction_id: Ulid, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Those of these attempts at what is under way that were not known."""
        known = self._attempts.setdefault(compaction_id, set())
        new = [attempt for attempt in attempts if attempt not in known]
        known.update(attempts)
        return new

    def see(
        self,
        dataset: DatasetPort,
        ledger: AnyLedger,
        snapshot: object,
        plan: Plan,
        now_ms: int,
        *,
        is_led: bool,
        tenant: str | None,
    ) -> None:
        """This was found by a look. `is_led`: what is submitted here is ours. `tenant`: whose work it is."""
        bands = {
            backlog.unit: band_of(stall_ms=backlog.stall_ms, waiting=backlog.waiting, limit=backlog.limit)
            for backlog in dataset.backlog(snapshot, now_ms)
        }
        under_way = ledger.active()
        self._asked = {
            c.id
            for c in under_way
            if c.id in self._asked or (c.state is CompactionState.SUBMITTED and not is_led)
        }

        def want(compaction: AnyCompaction) -> PendingTask:
            band = bands.get(dataset.unit(compaction.spec), PriorityClass.NORMAL)
            if compaction.id in self._asked:
                band = min(band, PriorityClass.ASKED)
            key = WorkKey(self.url, dataset.name(compaction.spec))
            since_ms = self._active_since_ms.get(compaction.id)
            if since_ms is None:
                since_ms = self._since_ms.get(key)
            if since_ms is None:  # somebody else has submitted it; its id is as old as its sources at most
                since_ms = min(ulid_ms(compaction.id), now_ms)
            priority = _bounded(dataset.priority(compaction.spec, snapshot))
            cost_bytes = _bounded_bytes(dataset.cost_bytes(compaction.spec, snapshot))
            return PendingTask(key, band, priority, cost_bytes, since_ms, tenant)

        wanted = {c.id: want(c) for c in under_way}
        self.active = tuple(Active(wanted[c.id], c.state is not CompactionState.COMPACTED) for c in under_way)
        self.free = tuple(
            Free(c.id, w.key, w.band, w.priority, w.cost_bytes, w.since_ms, len(self._attempts.get(c.id, ())))
            for c in transitions.claimable(ledger)
            for w in (wanted[c.id],)
        )
        self._note_claims(ledger, {w.key for w in self.wants}, wanted, now_ms)
        self.wants = self._wanted(dataset, plan, bands, {w.key for w in wanted.values()}, now_ms, tenant)
        self._since_ms = {want.key: want.since_ms for want in self.wants}

    def _wanted(
        self,
        dataset: DatasetPort,
        plan: Plan,
        bands: Mapping[str, PriorityClass],
        started: Collection[WorkKey],
        now_ms: int,
        tenant: str | None,
    ) -> tuple[PendingTask, ...]:
        """What is proposed and has not started."""
        wants = []
        for proposal in plan.proposals:
            key = WorkKey(self.url, dataset.name(proposal.spec))
            if key in started:
                continue
            band = bands.get(dataset.unit(proposal.spec), PriorityClass.NORMAL)
            since_ms = self._since_ms.get(key, now_ms)
            after = tuple(WorkKey(self.url, name) for name in proposal.after)
            priority = _bounded(proposal.priority)
            cost_bytes = _bounded_bytes(proposal.cost_bytes)
            wants.append(PendingTask(key, band, priority, cost_bytes, since_ms, tenant, after))
        return tuple(wants)

    def _note_claims(
        self,
        ledger: AnyLedger,
        wanted_before: Collection[WorkKey],
        wanted: Mapping[Ulid, PendingTask],
        now_ms: int,
    ) -> None:
        """What was free, or only wanted, at the last look and is claimed now; for the first time, not again
        after it was given back."""
        new = {c: w for c, w in wanted.items() if c not in self._active_since_ms and w.key in wanted_before}
        for compaction_id, want in {**new, **self._free_before}.items():
            found = ledger.get(compaction_id)
            if found is not None and found.state in _CLAIMED and compaction_id not in self._once_claimed:
                self._claimed.append((want, max(0, now_ms - want.since_ms)))
        running = {c.id for c in ledger.active() if c.state in _CLAIMED}
        self._once_claimed = {c for c in wanted if c in running or c in self._once_claimed}
        self._active_since_ms = {c: want.since_ms for c, want in wanted.items()}
        self._attempts = {c: known for c, known in self._attempts.items() if c in wanted}
        self._free_before = {f.compaction: wanted[f.compaction] for f in self.free}


def _bounded(priority: float) -> float:
    return min(max(priority, 0.0), 1.0)


def _bounded_bytes(cost_bytes: int) -> int:
    return min(max(cost_bytes, 0), MOST_BYTES)
