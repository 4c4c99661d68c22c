"""The demand of a dataset on its fleet, from one poll to the next.

A poll reads a ledger and a snapshot and makes a plan. They yield

1. *pending tasks*: proposals of the plan that the ledger does not have yet;
2. *active* compactions, regardless of the process that submitted them, and among them the *free* ones,
   which may be claimed;
3. compactions *claimed* since the previous poll, and how long they had waited. Those that were claimed and
   committed in between are still in the ledger.

A task keeps the time at which it was first seen to be pending, even when it becomes active. A dataset's own
values of priority and size are not trusted beyond their bounds. Uses no clock and no store: the caller
passes the time.
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
    """When the task was first seen to be pending, by this member's clock."""
    attempts: int = 0
    """The number of its known attempts that failed."""


class Demand:
    """The demand of the dataset at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.wants: tuple[PendingTask, ...] = ()
        """Tasks that may be admitted, or were admitted and have not started."""
        self.active: tuple[Active, ...] = ()
        """Active compactions."""
        self.free: tuple[Free, ...] = ()
        """Compactions that may be claimed."""
        self._since_ms: dict[WorkKey, int] = {}
        """When each pending task was first seen."""
        self._active_since_ms: dict[Ulid, int] = {}
        """When each active compaction was first seen to be pending, or was submitted."""
        self._asked: set[Ulid] = set()
        """Active compactions that another process has submitted."""
        self._attempts: dict[Ulid, set[Attempt]] = {}
        """Known attempts of active compactions."""
        self._free_before: dict[Ulid, PendingTask] = {}
        """Compactions that could be claimed at the last poll."""
        self._once_claimed: set[Ulid] = set()
        """Active compactions that were claimed at least once."""
        self._claimed: list[tuple[PendingTask, int]] = []

    @property
    def is_any(self) -> bool:
        """Whether any task is pending or active."""
        return bool(self.wants or self.active)

    @property
    def is_being_worked_on(self) -> bool:
        """Whether an active compaction was seen to be claimed."""
        return bool(self._once_claimed)

    def take_claimed(self) -> tuple[tuple[PendingTask, int], ...]:
        """Return and clear the tasks claimed since the last call, with the milliseconds each had waited since
        it was first seen. Only tasks seen waiting count, not those already running at the first poll."""
        claimed, self._claimed = tuple(self._claimed), []
        return claimed

    def drop(self) -> None:
        """Drop everything known of the dataset."""
        self.wants, self.active, self.free = (), (), ()

    def note_attempts(self, compaction_id: Ulid, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Record attempts of an active compaction; return those that were not known."""
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
        """Take in the result of a poll. `is_led`: compactions submitted here are this process's own.
        `tenant`: the owner of the work."""
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
            task = dataset.identify(compaction.spec)
            band = bands.get(task.unit, PriorityClass.NORMAL)
            if compaction.id in self._asked:
                band = min(band, PriorityClass.ASKED)
            key = WorkKey(self.url, task.key)
            since_ms = self._active_since_ms.get(compaction.id)
            if since_ms is None:
                since_ms = self._since_ms.get(key)
            if since_ms is None:  # submitted by another process; its id is at most as old as its sources
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
        """Return the proposals that have not started."""
        wants = []
        for proposal in plan.proposals:
            task = dataset.identify(proposal.spec)
            key = WorkKey(self.url, task.key)
            if key in started:
                continue
            band = bands.get(task.unit, PriorityClass.NORMAL)
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
        """Record compactions that were free or pending at the last poll and are claimed now; only the first
        claim counts, not one after a release."""
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
