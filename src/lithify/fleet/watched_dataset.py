"""A dataset as a fleet coordinator watches it: only read until it has work.

Each `look`:

1. *Watching*: read ledger and snapshot without writing anything, and plan. The proposals are *pending
   tasks*, which wait for admission (`lithify.fleet.coordinator`).
2. *Leading* begins when a pending task was admitted, or when the ledger has active work without a
   coordinator: take lease and epoch. From then on, each poll is a tick of the dataset's coordinator, which
   plans again from the current state and starts the admitted tasks.
3. Respect a lease that is held. If its holder is a live member, that member will resign: back off for
   `RESIGNS_WITHIN_S`. If it is a dead member, take over without waiting. In any other case, and if the end
   of a lease could not be written, check the holder in the background, which takes as long as a lease; then
   poll the dataset once more, since it may have been coordinated and released meanwhile. While another
   process coordinates it, only watch.
4. After `REST_S` without active work and pending tasks, resign the leadership.
   With the operator's consent (`DatasetRule.take_over_ms`), take over from a program other than Lithify once
   that cannot be at work: wanted work has stood without a sign of life (`OverdueWatch.is_abandoned`).
5. Report claimable tasks to the fleet coordinator, which offers them, regardless of the process that
   scheduled them.

An error of a dataset is logged once and delays its next polls, longer each time (`Backoff`); it never leaves
this object. A missing dataset is polled once in
`MISSING_PAUSE_S`; one that existed before is polled after a tenth of the time it has been missing.

A dataset that was recreated at its URL or restored from a backup (`Replaced`) is another dataset:
everything known, pending, admitted, led or held against the old one is dropped, and nothing more is written
for it. The new one is opened and polled at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from lithify.base import concurrency, events
from lithify.base.backoff import AWAY_PAUSE, Backoff, GrowingPause
from lithify.base.clock import Clock, monotonic_ms
from lithify.base.concurrency import both
from lithify.base.defects import contained
from lithify.base.errors import (
    CoordinatorAlive,
    DatasetNotFound,
    Fenced,
    LithifyError,
    Replaced,
)
from lithify.base.events import Observer
from lithify.config.model import ServiceSettings
from lithify.coordination.leadership import Leadership
from lithify.datasets.kind import DatasetPort
from lithify.fleet.catalog.model import Coordinates, DatasetRule
from lithify.fleet.demand import Demand
from lithify.fleet.handover import DatasetCheckpoint
from lithify.planning.admission import WorkKey
from lithify.planning.fleet.faults import Faults
from lithify.planning.fleet.overdue import NOTHING_OVERDUE, OverdueWatch, OverdueWork
from lithify.planning.fleet.polling import SURE_MS, pause_ms
from lithify.protocol.attempts import Attempt
from lithify.protocol.model import Ledger
from lithify.protocol.proposal import Plan
from lithify.protocol.transitions import AnyCompaction, AnyLedger
from lithify.service.coordinator import Coordinator, CountAttempts, report_refusal
from lithify.service.failures import Failures
from lithify.service.managed_dataset import CoordinationPolicy, ManagedDataset

REST_S = 600.0
MISSING_PAUSE_S = 3_600.0
FIRST_MISSING_PAUSE_S = 5.0
_GONE_TO_PAUSE = 10
RESIGNS_WITHIN_S = 60.0
"""Within this time, a live member learns that another one owns its dataset."""
ELSEWHERE_PAUSE_S = 60.0
"""How long a dataset that another process coordinates is only watched."""
FRESH_S = 2.0
"""How long a read counts as current."""
BY_OWNER = "its rule leaves it to its owner, and no process begins the work"
TAKEN_BACK = "Lithify took it over as requested, and another system has taken it back since"
QUARANTINE_PAUSE = GrowingPause(first_ms=5_000, max_ms=1_800_000)
MAX_FAILED_TICKS = 5
"""Consecutive failures after which another process may lead, or this one later."""


class Peers:
    """The members of the fleet, as a coordinator last read them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive: frozenset[str] = frozenset({name})
        """Names of the live coordinators."""
        self.dead: frozenset[str] = frozenset()
        self.workers: frozenset[str] = frozenset()
        """Names of the live workers."""
        self.newest_ms = 0
        """The newest write of any member, by the store's clock."""
        self.faults = Faults()

    def excuses(self, worker: str) -> bool:
        """Return whether a failure of this worker is no evidence against the task it tried."""
        return self.faults.excuses(worker, self.workers)


@dataclass(frozen=True, slots=True)
class WatchPorts:
    """The dependencies for watching a dataset."""

    open_dataset: Callable[[str, DatasetRule], DatasetPort]
    coordinator: Callable[[DatasetPort, DatasetRule, Callable[[Plan], Plan], CountAttempts], Coordinator]
    """Create a coordinator that starts the part of a plan that the first function returns, and counts the
    attempts that the second one counts."""
    leadership: Callable[[DatasetPort], Leadership]
    """Return the leadership, in the name of this member."""
    clock: Clock
    settings: ServiceSettings
    observe: Observer = events.ignore


@dataclass(slots=True)
class _Lead:
    managed: ManagedDataset
    busy_s: float
    """When there was last something to do."""
    seen_s: float = float("-inf")
    """When it was last read."""


@dataclass(slots=True)
class _Asking:
    """A check of the lease's holder, in the background."""

    leadership: Leadership
    error: LithifyError | None = None
    is_over: bool = False


class WatchedDataset:
    """The dataset at `url`, which belongs to the fleet by `rule`."""

    def __init__(
        self,
        url: str,
        rule: DatasetRule,
        ports: WatchPorts,
        peers: Peers,
        known: DatasetCheckpoint,
        backoff: Backoff | None = None,
    ) -> None:
        self.url = url
        self.rule = rule
        self.backoff = backoff if backoff is not None else Backoff(QUARANTINE_PAUSE)
        self._ports = ports
        self._peers = peers
        self._clock = ports.clock
        self._dataset: DatasetPort | None = None
        self._failures: Failures | None = None
        self._seen: tuple[AnyLedger | None, object] | None = None
        self._glanced_s: float | None = None
        """When the dataset was last polled without leading it."""
        self._lead: _Lead | None = None
        self._asking: _Asking | None = None
        self._elsewhere_until_s = 0.0
        self._elsewhere = ""
        """Why another process coordinates the dataset, if it was found to."""
        self._overdue = OverdueWatch()
        self._reported_overdue = NOTHING_OVERDUE
        self._left_alone_since_s: float | None = None
        """Since when a live member has held the lease of a dataset that this one should lead."""
        self._admitted: set[WorkKey] = set()
        """Tasks that may start and have not."""
        self._plan = Plan()
        """The plan before admission."""
        self._tried: list[tuple[WorkKey, str, bool]] = []
        self._gone_since_s: float | None = None
        """Since when the dataset is missing, if it ever existed."""
        self._replacements = 0
        """The number of consecutive replacements."""
        self._is_another = False
        self.error: LithifyError | None = None
        """The error of the last poll."""
        self.refusal = ""
        """The reason why nothing of the dataset can be compacted; empty if something can be."""
        self._reported = ""
        self.never_commits = False
        """Whether nothing of the dataset can or may be compacted, so that only its other duties are done."""
        self.known = known
        self.next_look_s = 0.0
        """By the monotonic clock."""
        self.demand = Demand(url)
        self._given_up: list[WorkKey] = []

    @property
    def is_led(self) -> bool:
        """Whether this fleet coordinator leads the dataset now."""
        return self._lead is not None

    @property
    def is_known(self) -> bool:
        """Whether the active work is known, even if there is none."""
        return self._seen is not None or isinstance(self.error, DatasetNotFound)

    @property
    def is_at_rest(self) -> bool:
        """Whether there is no active work."""
        return not self.demand.active

    @property
    def may_coordinate(self) -> bool:
        """Whether the fleet coordinates the dataset as far as is known, and so does its duties."""
        return self._seen is not None and not self._why_elsewhere

    @property
    def may_commit(self) -> bool:
        """Whether a poll may find finished work and commit it, which takes longest."""
        return self.is_led and not self._admitted and self.demand.is_being_worked_on

    @property
    def overdue(self) -> OverdueWork:
        """Work that is wanted and that no process does."""
        return self._overdue.work

    @property
    def admitted(self) -> frozenset[WorkKey]:
        """Tasks that were admitted and have not started."""
        return frozenset(self._admitted)

    def admit(self, key: WorkKey) -> None:
        """Allow this task to start at the next poll, which is due now. A state read just now need not be read
        again: publishing fails if it was not the latest."""
        self._admitted.add(key)
        if self._lead is not None:
            self._lead.managed.is_known = self._now_s() - self._lead.seen_s < FRESH_S
        self.wake()

    def wake(self) -> None:
        """Make the next poll due now."""
        self.next_look_s = 0.0

    def take_given_up(self) -> tuple[WorkKey, ...]:
        """Return and clear the tasks that failed for good since the last call."""
        given_up, self._given_up = tuple(self._given_up), []
        return given_up

    def take_tried(self) -> tuple[tuple[WorkKey, str, bool], ...]:
        """Return and clear the attempts since the last call: task, worker, and whether it succeeded."""
        tried, self._tried = tuple(self._tried), []
        return tried

    def take_replaced(self) -> bool:
        """Return and clear whether another dataset was found at the URL since the last call."""
        is_another, self._is_another = self._is_another, False
        return is_another

    def look(self) -> None:
        """Run one round of the algorithm above."""
        try:
            with contained(f"polling {self.url}"):
                self._look()
        except DatasetNotFound as error:
            self._forget(error)
        except Replaced as error:
            self._made_anew(error)
        except LithifyError as error:
            self._failed(error)
        else:
            rounds = self.backoff.succeeded()
            if rounds:
                self._ports.observe(events.Recovered(self.url, rounds))
            self.error, self._replacements, self._gone_since_s = None, 0, None

    def leave(self) -> None:
        """Stop watching the dataset: another coordinator owns it, or it has left the fleet."""
        self._resign_quietly()
        self.demand.drop()

    # Polling

    def _look(self) -> None:
        dataset = self._opened()
        if self._lead is None and not self._should_lead():
            if self._asking is not None and self._asking.is_over:
                self._asking = None  # whichever process leads, this one has nothing to do there any more
            self._glance(dataset)
        if self._lead is None and self._should_lead():
            self._seek_leadership(dataset)
        if self._lead is not None:
            self._tick(dataset, self._lead)

    def _opened(self) -> DatasetPort:
        if self._dataset is None:
            self._dataset = self._ports.open_dataset(self.url, self.rule)
            self._failures = Failures(self._dataset, self._clock)
        return self._dataset

    def _glance(self, dataset: DatasetPort) -> None:
        now_s = self._now_s()
        # After so long, all known files may have been collected, and an apparent lack of changes may be one.
        if self._glanced_s is not None and (now_s - self._glanced_s) * 1000 > SURE_MS:
            found, snapshot = dataset.ledger(), dataset.snapshot()
        else:
            found, snapshot = dataset.glance()
        self._glanced_s = now_s
        ledger = found if found is not None else Ledger()
        if self._may_lead:
            plan = self._planned(dataset, ledger, snapshot)
            self._see(dataset, ledger, snapshot, plan, bool(plan.proposals))
        else:
            wanted = Plan()
            with suppress(LithifyError), contained(f"planning {self.url}"):  # its coordinator plans it
                wanted = dataset.propose(snapshot, ledger)
            self._see(dataset, ledger, snapshot, Plan(), bool(wanted.proposals))
        self._rest_until_next_look()

    def _planned(self, dataset: DatasetPort, ledger: AnyLedger, snapshot: object) -> Plan:
        assert self._failures is not None, "made with the dataset"
        planned = self._failures.held_back(dataset.propose)
        plan = planned(snapshot, ledger)
        if plan.proposals:
            self._failures.refresh(ledger)
            plan = planned(snapshot, ledger)
        self._note_refusal(plan)
        return plan

    def _tick(self, dataset: DatasetPort, lead: _Lead) -> None:
        try:
            if not lead.managed.is_known:
                lead.seen_s = self._now_s()
            result = lead.managed.tick()
        except Replaced:
            raise
        except Fenced as error:
            self._lost(str(error))
            raise
        self._see(dataset, result.ledger, result.seen.snapshot, self._plan, bool(self._plan.proposals))
        self._given_up += (WorkKey(self.url, dataset.identify(c.spec).key) for c, _ in result.failed)
        now_s = self._now_s()
        for compaction_id in result.committed:
            done = result.ledger.get(compaction_id)
            if done is not None and done.worker is not None:
                self._tried.append((WorkKey(self.url, dataset.identify(done.spec).key), done.worker.id, True))
        if result.committed:
            self.known = replace(self.known, committed_ms=self._clock.now_ms())
        is_busy = self.demand.is_any or bool(result.refused or result.committed)
        if is_busy:
            lead.busy_s = now_s
        elif now_s - lead.busy_s >= REST_S:
            self._resign()
        is_active = bool(self.demand.active or self._admitted or result.refused)
        self.next_look_s = now_s + lead.managed.policy.pause_s(is_active=is_active)

    def _see(
        self, dataset: DatasetPort, ledger: AnyLedger, snapshot: object, plan: Plan, is_wanted: bool
    ) -> None:
        now_ms = self._clock.now_ms()
        if self._seen is None:
            # The age of the writer's last write is known from the first poll on.
            newest_ms = dataset.newest_ms(snapshot)
            self.known = replace(
                self.known, changed_ms=max(self.known.changed_ms or 0, min(newest_ms, now_ms)) or now_ms
            )
        elif self._seen[0] != ledger or self._seen[1] != snapshot:
            self.known = replace(self.known, changed_ms=now_ms)
        self._seen = ledger, snapshot
        tenant = self.rule.tenant_of(self.url)
        self.demand.see(dataset, ledger, snapshot, plan, now_ms, is_led=self.is_led, tenant=tenant)
        self._admitted.intersection_update(want.key for want in self.demand.wants)
        self._note_overdue(dataset, ledger, snapshot, is_wanted)

    def _note_overdue(
        self, dataset: DatasetPort, ledger: AnyLedger, snapshot: object, is_wanted: bool
    ) -> None:
        self._overdue.saw(
            ledger,
            is_wanted=is_wanted,
            active_units={dataset.identify(c.spec).unit for c in ledger.active()},
            backlogs=dataset.backlog(snapshot, self._clock.now_ms()),
            elsewhere=self._why_elsewhere,
            now_s=self._now_s(),
        )
        found, before = self._overdue.work, self._reported_overdue
        if found.elsewhere and found.elsewhere != before.elsewhere:
            self._ports.observe(events.CoordinatedElsewhere(self.url, found.elsewhere))
        if found.near_limit and not before.near_limit:
            self._ports.observe(events.NearLimit(self.url, found.near_limit))
        self._reported_overdue = found

    @property
    def _why_elsewhere(self) -> str:
        """Return why the fleet does not coordinate the dataset, as far as is known."""
        if self.is_led:
            return ""
        return BY_OWNER if self.rule.coordinates is Coordinates.OWNER else self._elsewhere

    def _note_refusal(self, plan: Plan) -> None:
        self.never_commits = bool(plan.refusal) or plan.is_left_out
        self._reported = report_refusal(self.url, plan, self._reported, self._ports.observe)
        self.refusal = plan.refusal

    def _rest_until_next_look(self) -> None:
        now_ms = self._clock.now_ms()
        silence_ms = now_ms - (self.known.changed_ms if self.known.changed_ms is not None else now_ms)
        is_running = not self.is_at_rest or self._asking is not None or bool(self._admitted)
        now_s = self._now_s()
        pause_s = pause_ms(max(0, silence_ms), is_running=is_running) / 1000
        self.next_look_s = now_s + min(pause_s, self._overdue.due_in_s(now_s))

    # Leading

    @property
    def _may_lead(self) -> bool:
        """Whether this fleet may coordinate the dataset, as far as is known."""
        is_ours = self.rule.coordinates is Coordinates.FLEET
        return is_ours and self._now_s() >= self._elsewhere_until_s

    def _should_lead(self) -> bool:
        is_asking = self._asking is not None and not self._asking.is_over
        return self._may_lead and not is_asking and bool(self._admitted or self.demand.active)

    def _seek_leadership(self, dataset: DatasetPort) -> None:
        """Take the leadership, or start checking its holder. The dataset is read after taking the lease: a
        process suspended before that read sees the changes made meanwhile, and one suspended after it is
        refused the lease if there were changes."""
        asking = self._asking
        if asking is None:
            leadership = self._ports.leadership(dataset)
            _, found = both(lambda: self._glance(dataset), leadership.read_ahead)
        else:
            leadership, found = asking.leadership, None
            self._glance(dataset)
            self._asking = None
        if not self._should_lead():
            return
        if asking is not None and asking.error is not None:
            if not isinstance(asking.error, CoordinatorAlive):
                raise asking.error
            self._is_elsewhere(asking.error.why)
            return
        holder = found.lease.holder if found is not None and found.lease is not None else None
        is_open = found is not None and found.is_open
        if is_open and holder in self._peers.alive - {self._peers.name} and self._leaves_time():
            return  # it resigns once it has seen the same members
        self._left_alone_since_s = None
        dead = self._peers.dead
        if is_open and holder != self._peers.name and holder not in dead:
            self._ask(leadership)
            return
        self._take_leadership(dataset, leadership, dead)

    def _ask(self, leadership: Leadership) -> None:
        asking = _Asking(leadership)

        def ask() -> None:
            try:
                with contained(f"reading the lease of {self.url}"):
                    leadership.ask_ahead()
            except LithifyError as error:
                asking.error = error
            asking.is_over = True

        self._asking = asking
        concurrency.background.start(ask)

    def _take_leadership(self, dataset: DatasetPort, leadership: Leadership, dead: Collection[str]) -> None:
        adopts_ms = self.rule.take_over_ms if self._overdue.is_abandoned(self._now_s()) else None
        settings = self._ports.settings
        policy = CoordinationPolicy(
            settings.commit_compacted_interval_s,
            settings.poll_interval_s,
            self._clock.sleep_s,
            is_dead=dead.__contains__,
            adopts_before_ms=adopts_ms,
            retries=False,
        )
        coordinator = self._ports.coordinator(dataset, self.rule, self._take_plan, self._count_attempts)
        managed = ManagedDataset(coordinator, leadership, policy, is_known=True)
        try:
            with contained(f"taking the leadership of {self.url}"):
                managed.lead()
        except CoordinatorAlive as error:
            self._is_elsewhere(error.why if adopts_ms is None else f"{error.why}; {TAKEN_BACK}")
            return
        self._elsewhere = ""
        self._lead = _Lead(managed, self._now_s())

    def _leaves_time(self) -> bool:
        """Return whether the holder of the lease may still be about to resign."""
        if self._left_alone_since_s is None:
            self._left_alone_since_s = self._now_s()
        return self._now_s() - self._left_alone_since_s < RESIGNS_WITHIN_S

    def _take_plan(self, plan: Plan) -> Plan:
        """Return the part of the plan that may start."""
        self._plan = plan
        dataset = self._opened()
        keys = ((p, WorkKey(self.url, dataset.identify(p.spec).key)) for p in plan.proposals)
        return replace(plan, proposals=tuple(p for p, key in keys if key in self._admitted))

    def _count_attempts(self, compaction: AnyCompaction, attempts: Sequence[Attempt]) -> int:
        """Return the number of attempts that are evidence against the compaction; report all of them to the
        fleet coordinator."""
        key = WorkKey(self.url, self._opened().identify(compaction.spec).key)
        new = self.demand.note_attempts(compaction.id, attempts)
        self._tried += ((key, attempt.worker, False) for attempt in new)
        return sum(not self._peers.excuses(attempt.worker) for attempt in attempts)

    def _is_elsewhere(self, why: str) -> None:
        """Record that another process coordinates the dataset."""
        self._elsewhere = why
        self._elsewhere_until_s = self._now_s() + ELSEWHERE_PAUSE_S
        self._admitted.clear()
        self.demand.wants = ()

    def _lost(self, why: str) -> None:
        self._is_elsewhere(why)
        self._resign_quietly()

    def _resign(self) -> None:
        """Release the leadership if this process has it."""
        self._asking = None
        lead, self._lead = self._lead, None
        if lead is not None:
            with lead.managed:
                lead.managed.coordinator.settle()

    # Errors

    def _forget(self, error: LithifyError) -> None:
        """Record that there is no dataset at the URL."""
        if self._gone_since_s is None and self._seen is not None:
            self._gone_since_s = self._now_s()
        self._drop()
        self.error = error
        self.next_look_s = self._now_s() + self._missing_pause_s()

    def _missing_pause_s(self) -> float:
        if self._gone_since_s is None:
            return MISSING_PAUSE_S
        gone_s = self._now_s() - self._gone_since_s
        return min(max(gone_s / _GONE_TO_PAUSE, FIRST_MISSING_PAUSE_S), MISSING_PAUSE_S)

    def _made_anew(self, error: Replaced) -> None:
        """Record that another dataset, or none, is at the URL."""
        self._gone_since_s = self._now_s()
        self._drop()
        self.known, self.error, self._is_another = DatasetCheckpoint(), None, True
        self._elsewhere_until_s, self._left_alone_since_s = 0.0, None
        self._given_up.clear()
        self._tried.clear()
        self.backoff.succeeded()
        self._replacements += 1
        pause_ms = AWAY_PAUSE.after_ms(self._replacements - 1)  # do not loop on a store that loses objects
        self.next_look_s = self._now_s() + pause_ms / 1000
        self._ports.observe(events.MadeAnew(self.url, str(error)))

    def _drop(self) -> None:
        """Drop everything known, led or pending of the dataset."""
        self._resign_quietly()
        self._dataset = self._failures = self._seen = self._glanced_s = None
        self._elsewhere, self._reported_overdue = "", NOTHING_OVERDUE
        self._overdue.clear()
        self.demand.drop()
        self._admitted.clear()
        self._plan = Plan()

    def _failed(self, error: LithifyError) -> None:
        self.error = error
        self.demand.free = ()  # no worker could claim it
        is_news = self.backoff.failed(error, monotonic_ms(self._clock))
        pause_s = self.backoff.pause_ms / 1000
        if is_news:
            self._ports.observe(events.Quarantined(self.url, str(error), pause_s))
        self.next_look_s = self._now_s() + pause_s
        if self.backoff.rounds >= MAX_FAILED_TICKS and not self.backoff.is_away:
            self._resign_quietly()

    def _resign_quietly(self) -> None:
        try:
            with contained(f"releasing {self.url}"):
                self._resign()
        except LithifyError as error:
            self.error = error

    def _now_s(self) -> float:
        return self._clock.monotonic_s()
