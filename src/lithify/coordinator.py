"""The coordinator of one dataset: schedules, reclaims, commits. One tick, over ports.

`start` fences older coordinators by taking the next epoch. Then each `tick`:

1. reads the ledger, then the snapshot (that order, so that the snapshot is at least as new);
2. stops for good when the ledger carries another epoch than its own;
3. takes Running compactions of silent workers back to Scheduled;
4. commits all Compacted ones, and those that need no worker, in one atomic publication each batch;
5. adds what the planner proposes, as Submitted;
6. validates what is Submitted: valid ones become Scheduled, the others Failed.

Steps 3, 5 and 6 are one publication of the ledger, and none at all when nothing changed, so an idle
dataset costs reads only. The snapshot is always published before the ledger that calls its
compactions Completed: after a crash between the two, the inputs are gone from the snapshot,
validation refuses the compaction, and marking it Failed loses nothing.

The coordinator keeps no state of its own that matters: everything is in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from lithify import telemetry
from lithify.clock import Clock
from lithify.compaction import protocol
from lithify.compaction.contract import Dataset, Plan, Proposal
from lithify.compaction.model import Compaction, State
from lithify.compaction.protocol import AnyCompaction, AnyLedger
from lithify.errors import Fenced
from lithify.ids import Ids, Ulid
from lithify.telemetry import Observer

WORKER_HEARTBEAT_TIMEOUT_MS = 30_000


@dataclass(frozen=True, slots=True)
class TickResult:
    """What the ledger looks like after a tick."""

    ledger: AnyLedger
    plan: Plan
    committed: tuple[Ulid, ...] = ()
    refused: tuple[tuple[Ulid, str], ...] = ()
    """Compactions found invalid in this tick, with the reason."""

    @property
    def is_idle(self) -> bool:
        """Nothing is active, nothing was proposed, and nothing was refused either: what is refused
        frees its sources only after the planner was asked."""
        return not (self.ledger.active() or self.plan.proposals or self.refused)


class Guard(Protocol):
    """Knows whether a coordinator may be alive, and announces this one."""

    @property
    def holder(self) -> str:
        """The name of this process: also its worker's."""
        ...

    def enter(self, *, take_over: bool) -> str | None:
        """Announce that this process is about to coordinate. `CoordinatorAlive`, before anything is
        written, when another coordinator may be at work. Gives the name of an earlier run that
        ended without giving back what it held."""
        ...

    def hold(self, epoch: int) -> None:
        """Announce, and keep announcing, that this process is the coordinator of `epoch`."""
        ...

    def give_back(self) -> None:
        """This process coordinates no longer."""
        ...


class Coordinator:
    """Schedules, reclaims and commits the compactions of one dataset.

    `plan` replaces the dataset's own planner, for runs that compact what a person asked for.
    """

    def __init__(
        self,
        dataset: Dataset,
        clock: Clock,
        ids: Ids,
        *,
        plan: Callable[[object, AnyLedger], Plan] | None = None,
        worker_heartbeat_timeout_ms: int = WORKER_HEARTBEAT_TIMEOUT_MS,
        observer: Observer = telemetry.ignore,
    ) -> None:
        self._dataset = dataset
        self._clock = clock
        self._ids = ids
        self._plan = plan if plan is not None else dataset.propose
        self._timeout_ms = worker_heartbeat_timeout_ms
        self._observe = observer
        self._epoch: int | None = None

    @property
    def epoch(self) -> int:
        """The epoch taken by `start`."""
        if self._epoch is None:
            raise AssertionError("the coordinator has not been started")
        return self._epoch

    def start(self, predecessor: str | None = None) -> None:
        """Take the next epoch and clean up what an earlier coordinator left. What the worker
        `predecessor`, known to be dead, was running is taken back at once."""
        self._epoch = self._dataset.take_epoch()
        epoch = self._epoch

        def change(latest: AnyLedger) -> AnyLedger:
            latest = protocol.recover(latest, epoch)
            held = [c.id for c in latest.active() if protocol.owns(latest, c.id, predecessor or "")]
            return protocol.reclaim(latest, held)

        self._dataset.update_ledger(change)
        self._observe(telemetry.EpochTaken(self._dataset.url, epoch))

    def tick(self) -> TickResult:
        """One round of the algorithm above. `Fenced` ends this coordinator for good."""
        ledger = self._read()
        committed, refused = self._commit(ledger)
        stale = protocol.stale(ledger, self._clock.now_ms(), self._timeout_ms)
        snapshot = self._dataset.snapshot()
        outcome = _Scheduled(Plan(), (), ())

        def change(latest: AnyLedger) -> AnyLedger:
            nonlocal outcome
            protocol.check_epoch(latest, self.epoch)
            still_stale = set(protocol.stale(latest, self._clock.now_ms(), self._timeout_ms)) & set(stale)
            latest = protocol.reclaim(latest, sorted(still_stale))
            latest, outcome = self._schedule(latest, snapshot, tuple(sorted(still_stale)))
            return latest

        before = ledger
        ledger = self._dataset.update_ledger(change)
        self._report(before, outcome)
        return TickResult(ledger, outcome.plan, committed, (*refused, *outcome.refused))

    def fail(self, compaction_id: Ulid) -> None:
        """Give a compaction up for good."""

        def change(latest: AnyLedger) -> AnyLedger:
            protocol.check_epoch(latest, self.epoch)
            return protocol.trim(protocol.fail(latest, compaction_id))

        self._dataset.update_ledger(change)

    def _read(self) -> AnyLedger:
        ledger = self._dataset.ledger()
        if ledger is None:
            raise Fenced("the ledger this coordinator created is gone; another party rebuilt the dataset")
        protocol.check_epoch(ledger, self.epoch)
        return ledger

    def _commit(self, ledger: AnyLedger) -> tuple[tuple[Ulid, ...], tuple[tuple[Ulid, str], ...]]:
        snapshot = self._dataset.snapshot()
        ready = tuple(
            c
            for c in ledger.compactions
            if c.state is State.COMPACTED
            or (
                c.state is State.SUBMITTED
                and not self._dataset.needs_worker(c, snapshot)
                and self._dataset.validate(c, snapshot, ledger) is None
            )
        )
        if not ready:
            return (), ()
        verdicts = self._dataset.commit(ready, self.epoch)

        def change(latest: AnyLedger) -> AnyLedger:
            protocol.check_epoch(latest, self.epoch)
            for compaction_id, refusal in verdicts.items():
                settle = protocol.complete if refusal is None else protocol.fail
                latest = settle(latest, compaction_id)
            return protocol.trim(latest)

        self._dataset.update_ledger(change)
        committed = tuple(c for c, refusal in verdicts.items() if refusal is None)
        failed = tuple((c, refusal) for c, refusal in verdicts.items() if refusal is not None)
        for compaction_id in committed:
            self._observe(telemetry.Committed(self._dataset.url, compaction_id))
        for compaction_id, reason in failed:
            self._observe(telemetry.Refused(self._dataset.url, compaction_id, reason))
        return committed, failed

    def _schedule(
        self, ledger: AnyLedger, snapshot: object, reclaimed: tuple[Ulid, ...]
    ) -> tuple[AnyLedger, _Scheduled]:
        plan = self._plan(snapshot, ledger)
        now_ms = self._clock.now_ms()
        added: list[tuple[Ulid, Proposal]] = []
        for proposal in plan.proposals:
            new: AnyCompaction = Compaction(
                self._ids.ulid(protocol.next_id_ms(ledger, now_ms)), proposal.spec
            )
            ledger = protocol.submit(ledger, new)
            added.append((new.id, proposal))
        refused: list[tuple[Ulid, str]] = []
        for compaction in ledger.compactions:
            if compaction.state is not State.SUBMITTED:
                continue
            refusal = self._dataset.validate(compaction, snapshot, ledger)
            if refusal is not None:
                refused.append((compaction.id, refusal))
                ledger = protocol.fail(ledger, compaction.id)
            elif self._dataset.needs_worker(compaction, snapshot):
                ledger = protocol.schedule(ledger, compaction.id)
        if refused:
            ledger = protocol.trim(ledger)
        return ledger, _Scheduled(plan, tuple(added), tuple(refused), reclaimed)

    def _report(self, before: AnyLedger, outcome: _Scheduled) -> None:
        url = self._dataset.url
        for compaction_id in outcome.reclaimed:
            entry = before.get(compaction_id)
            owner = entry.worker.id if entry is not None and entry.worker is not None else "unknown"
            self._observe(telemetry.Reclaimed(url, compaction_id, owner))
        for compaction_id, proposal in outcome.added:
            self._observe(telemetry.Submitted(url, compaction_id, proposal.reason, proposal.cost_bytes))
        for compaction_id, reason in outcome.refused:
            self._observe(telemetry.Refused(url, compaction_id, reason))


@dataclass(frozen=True, slots=True)
class _Scheduled:
    plan: Plan
    added: tuple[tuple[Ulid, Proposal], ...]
    refused: tuple[tuple[Ulid, str], ...]
    reclaimed: tuple[Ulid, ...] = ()
