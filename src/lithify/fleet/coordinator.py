"""The fleet coordinator: watches many datasets and coordinates the few that have work.

Each `tick`:

1. Every `BEAT_EVERY_MS`, write the heartbeat (`lithify.fleet.members` repeats it from another thread
   while a round takes longer) and read the members and the catalog. They determine which datasets this
   coordinator owns (`lithify.planning.fleet.placement`). Datasets it owns no longer are released at once.
   For newly owned datasets, read the checkpoints of the other coordinators, the newest first.
2. Every `WAKES_EVERY_S`, read the refresh requests for its own datasets.
3. Poll the datasets that are due (`lithify.fleet.watched_dataset`), several at a time. Idle datasets are
   only read, less and less often.
4. Pass pending tasks and final failures to their queues (`lithify.fleet.coordinator_queues`). Poll the
   datasets of admitted tasks again at once, which starts these tasks.
5. Publish task offers (`lithify.fleet.task_publisher`). Steps 3 to 5 run first for all datasets except
   those that may have something to commit, and then for those, so that offers need not wait for slow
   commits. Of the datasets with admitted tasks, those that this coordinator already leads are polled first.
6. The first of the live coordinators deletes old catalog versions (`lithify.fleet.catalog.history`) and the
   files of members whose member object was lost.
7. Collect garbage and do the other duties of each dataset when something is due
   (`lithify.fleet.garbage_times`); for datasets that cannot be read, once they can be read.

All state except the ledgers may be lost: a coordinator that starts finds the datasets in the catalog, the
running work in their ledgers, and the pending tasks by planning again. Two coordinators that both believe
they own a dataset, because they have seen different members, only slow each other down: ledger and epoch
decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from lithify.base import concurrency
from lithify.base.backoff import Backoff
from lithify.base.clock import Clock
from lithify.base.defects import contained
from lithify.base.errors import LithifyError
from lithify.fleet.catalog.files import FollowedCatalog
from lithify.fleet.catalog.history import RUN_EVERY_S, HistoryRunEnd
from lithify.fleet.catalog.model import DatasetRule
from lithify.fleet.coordinator_queues import OwnQueues, PeerSummary
from lithify.fleet.discovery import Discovery, FindDatasets
from lithify.fleet.files import FleetFiles
from lithify.fleet.garbage_times import GarbageTimes
from lithify.fleet.handover import DatasetCheckpoint
from lithify.fleet.members import (
    BEAT_EVERY_MS,
    DEAD_AFTER_MS,
    FORGOTTEN_AFTER_MS,
    MAX_OVERDUE,
    MAX_TROUBLED,
    FleetMember,
    FleetRole,
    MemberHeartbeat,
    OverdueDataset,
    ReportListener,
    unheard,
)
from lithify.fleet.notifications import MAX_AGE_MS, Wake
from lithify.fleet.task_publisher import Claimable, IdleWorkers, OwnBoards
from lithify.fleet.watched_dataset import Peers, WatchedDataset, WatchPorts
from lithify.planning.fleet.overdue import NOTHING_OVERDUE
from lithify.planning.fleet.pending_tasks import PendingTask
from lithify.planning.fleet.placement import Placement
from lithify.planning.fleet.routing import Routing
from lithify.planning.fleet.task_offers import ClaimOffer

WAKES_EVERY_S = 5.0
REMEMBER_EVERY_S = 60.0
LOOKS_AT_ONCE = 32
_NOTHING = DatasetCheckpoint()

Collect = Callable[[str, DatasetRule], None]
"""Request garbage collection and the other duties of a dataset without waiting for them."""
Collected = Callable[[], Iterable[tuple[str, int | None]]]
"""Return the datasets whose duties have been done since the last call, each with the time in milliseconds
until more is due; `None` if that is never, or unknown."""


def _always(rule: DatasetRule) -> bool:
    return True


def _untold(url: str) -> None:
    """Ignore the call."""


@dataclass(frozen=True, slots=True)
class FleetCoordinatorPorts:
    """The dependencies of a fleet coordinator."""

    files: FleetFiles
    watch: WatchPorts
    find: FindDatasets
    collect: Collect
    clock: Clock
    host: str
    version: str
    looks_at_once: int = LOOKS_AT_ONCE
    collects: Callable[[DatasetRule], bool] = _always
    """Return whether garbage is collected in datasets of a rule."""
    collected: Collected = tuple
    left: Callable[[str], None] = _untold
    """Called with the URL of a dataset that is not watched any more."""
    says: ReportListener = unheard


@dataclass(slots=True)
class _Times:
    """Times of the last run of each step, by the monotonic clock."""

    beat_s: float = float("-inf")
    wakes_s: float = float("-inf")
    remembered_s: float = float("-inf")
    truncated_s: float = float("-inf")


class FleetCoordinator:
    """A coordinator of a fleet, with a unique name."""

    def __init__(self, name: str, ports: FleetCoordinatorPorts) -> None:
        """Raise `DatasetNotFound` if there is no such fleet, and `CorruptObject` if its catalog is
        unusable."""
        self.name = name
        self._ports = ports
        self._files = ports.files
        self._clock = ports.clock
        self._catalog = FollowedCatalog(ports.files.catalog)
        self._discovery = Discovery(ports.find, ports.clock)
        self._pulse = MemberHeartbeat(name, ports.files.members, ports.clock)
        self._peers = Peers(name)
        self._others = PeerSummary()
        self._datasets: Mapping[str, DatasetRule] = {}
        self._watched: dict[str, WatchedDataset] = {}
        self._queues = OwnQueues(name, ports.clock)
        self._boards = OwnBoards(name, ports.files)
        self._garbage_times = GarbageTimes()
        self._times = _Times()
        self.truncation: HistoryRunEnd | None = None
        """The result of this coordinator's last run over old catalog versions; `None` if it has never made
        one."""

    @property
    def watched(self) -> Mapping[str, WatchedDataset]:
        """Datasets owned by this coordinator, by URL."""
        return self._watched

    @property
    def datasets(self) -> Mapping[str, DatasetRule]:
        """All datasets of the fleet, by URL, as of the last heartbeat."""
        return self._datasets

    @property
    def not_found(self) -> Mapping[str, LithifyError]:
        """Errors of failed lookups, by pattern."""
        return self._discovery.problems

    @property
    def quarantined(self) -> Mapping[str, str]:
        """Datasets that are not polled for now because something is wrong with them, by URL, with the
        reason."""
        return {url: w.backoff.why for url, w in self._watched.items() if w.backoff.is_quarantined}

    @property
    def needs(self) -> int:
        """The oldest catalog version that this coordinator uses."""
        return self._queues.oldest_catalog(self._catalog.now)

    @property
    def problem(self) -> LithifyError | None:
        """The error in the newest catalog, if an older one is followed because of it."""
        return self._catalog.problem

    def tick(self) -> float:
        """Run one round of the algorithm above and return the seconds until the next one is due. If the
        fleet's own store fails, the datasets are processed nevertheless; then the error is raised, and later
        rounds retry the steps that failed."""
        with self._pulse.round():
            return self._round()

    def beat(self) -> None:
        """Repeat the heartbeat if a round takes long (`lithify.fleet.members`). Any thread may call it."""
        self._pulse.beat()

    def _round(self) -> float:
        now_s = self._now_s()
        errors: list[LithifyError] = []

        def attempt(step: Callable[[], None]) -> None:
            try:
                step()
            except LithifyError as error:
                errors.append(error)

        attempt(partial(self._beat, now_s))
        attempt(partial(self._hear_wakes, now_s))
        due = [watched for watched in self._watched.values() if watched.next_look_s <= now_s]
        committing = [watched for watched in due if watched.may_commit]
        for group in ([watched for watched in due if not watched.may_commit], committing):
            self._look(group)
            if self._admit():
                admitted = [watched for watched in self._watched.values() if watched.admitted]
                self._look([watched for watched in admitted if watched.is_led])
                attempt(self._write_boards)
                self._look([watched for watched in admitted if not watched.is_led])
            attempt(self._write_boards)
        self._collect()
        attempt(partial(self._remember, now_s))
        attempt(partial(self._truncate, now_s))
        if errors:
            raise errors[0]
        return self._due_in_s()

    def close(self) -> None:
        """Release all datasets and leave the fleet. Running work continues."""
        with self._pulse.round():
            for watched in self._watched.values():
                watched.leave()
            self._boards.clear()
            self._files.memory.write(self.name, self._known())
            self._pulse.leave()

    # Members, catalog, datasets

    def _beat(self, now_s: float) -> None:
        if (now_s - self._times.beat_s) * 1000 < BEAT_EVERY_MS:
            return
        self._catalog.refresh(was_away=(now_s - self._times.beat_s) * 1000 > DEAD_AFTER_MS)
        if self._catalog.was_replaced:
            self._queues.catalogs_are_gone(self._catalog.now)
        member = self._member()
        self._ports.says(member, self._catalog.now.catalog)
        self._pulse.say(member)
        if member.needs < member.catalog and not self._files.history.allows(member.needs):
            self._queues.catalogs_are_gone(self._catalog.now)
        listed = self._files.members.listed()
        alive = {seen.name for seen in listed if seen.is_alive} | {self.name}
        says = {seen.name: seen.says for seen in listed if seen.is_alive and seen.says is not None}
        says.pop(self.name, None)
        self._peers.alive = frozenset(
            name for name in alive if name.startswith(f"{FleetRole.COORDINATOR.value}-")
        )
        self._peers.dead = frozenset(seen.name for seen in listed if seen.name not in alive)
        self._peers.newest_ms = max((seen.last_ms for seen in listed), default=0)
        self._peers.workers = frozenset(
            name for name in alive if name.startswith(f"{FleetRole.WORKER.value}-")
        )
        self._others = PeerSummary.of(says.values())
        self._boards.heard(says)
        self._queues.heard(self._others)
        self._forget(seen.name for seen in listed if seen.silent_ms >= FORGOTTEN_AFTER_MS)
        self._own(self._discovery.datasets(self._catalog.now.catalog))
        self._times.beat_s = now_s

    def _own(self, datasets: Mapping[str, DatasetRule]) -> None:
        """Watch the datasets that this coordinator owns. If the rule of one has changed, keep its
        checkpoint."""
        self._datasets = datasets
        placement = Placement(self._peers.alive)
        mine = {url: rule for url, rule in datasets.items() if placement.owner(url) == self.name}
        known = self._known_to_others([url for url in mine if url not in self._watched])
        backoffs: dict[str, Backoff] = {}
        for url in [url for url, watched in self._watched.items() if mine.get(url) != watched.rule]:
            watched = self._watched.pop(url)
            watched.leave()
            if url in mine:  # running work keeps the settings it was admitted with
                known[url] = watched.known
                backoffs[url] = watched.backoff
            else:
                self._queues.forget_admitted(url)
                self._garbage_times.forget(url)
                self._ports.left(url)
            self._queues.forget(url)
        for url, of_url in known.items():
            self._watched[url] = WatchedDataset(
                url, mine[url], self._ports.watch, self._peers, of_url, backoffs.get(url)
            )

    def _known_to_others(self, urls: Sequence[str]) -> dict[str, DatasetCheckpoint]:
        """Return the newest checkpoint that another coordinator has of each dataset; it is only a hint."""
        memories = self._files.memory.others(self.name) if urls else ()
        return {url: next((m[url] for m in memories if url in m), _NOTHING) for url in urls}

    def _forget(self, names: Iterable[str]) -> None:
        """Delete the files of members that have been dead for long."""
        gone = [name for name in names if name != self.name]
        if gone:
            self._files.boards.forget(gone)
        for name in gone:
            self._files.memory.forget(name)
            self._files.members.leave(name)

    def _member(self) -> FleetMember:
        now = self._catalog.now
        having = {w.rule.tenant_of(w.url) for w in self._watched.values() if w.demand.is_any}
        bad = dict(self.quarantined)
        bad |= {
            w.url: f"its data cannot be compacted: {w.refusal}" for w in self._watched.values() if w.refusal
        }
        overdue = self._overdue()
        return FleetMember(
            name=self.name,
            role=FleetRole.COORDINATOR,
            host=self._ports.host,
            version=self._ports.version,
            catalog=now.number,
            datasets=len(self._watched),
            load=self._queues.loads(now.catalog, having, self._boards.hints),
            quarantined=len(bad),
            troubled=dict(list(bad.items())[:MAX_TROUBLED]),
            at_ms=self._clock.now_ms(),
            needs=self.needs,
            elsewhere=sum(bool(one.elsewhere) for one in overdue),
            near_limit=sum(bool(one.near_limit) for one in overdue),
            overdue=tuple(overdue[:MAX_OVERDUE]),
        )

    def _overdue(self) -> list[OverdueDataset]:
        """Return the datasets with overdue work, those near a stall first."""
        found = [
            OverdueDataset(url, work.elsewhere, work.near_limit, work.is_stalling)
            for url, watched in self._watched.items()
            if watched.error is None and (work := watched.overdue) != NOTHING_OVERDUE
        ]
        return sorted(found, key=lambda one: (not one.is_stalling, not one.near_limit, one.url))

    # Polling

    def _hear_wakes(self, now_s: float) -> None:
        if now_s - self._times.wakes_s < WAKES_EVERY_S:
            return
        for wake in self._files.wakes.listed():
            watched = self._watched.get(wake.url)
            if watched is not None:
                watched.wake()
            if watched is not None or self._is_old(wake):
                self._files.wakes.done(wake)
        self._times.wakes_s = now_s

    def _is_old(self, wake: Wake) -> bool:
        """Compare by the store's clock, as far as members have written lately; this one has."""
        return self._peers.newest_ms - wake.since_ms > MAX_AGE_MS

    def _look(self, due: Sequence[WatchedDataset]) -> None:
        if len(due) > 1 and self._ports.looks_at_once > 1:
            concurrency.all_of((watched.look for watched in due), self._ports.looks_at_once)
        else:
            for watched in due:
                watched.look()
        for watched in due:
            self._offer(watched)

    def _offer(self, watched: WatchedDataset) -> None:
        """Pass the results of a poll to the queues."""
        now = self._catalog.now
        if watched.take_replaced():
            self._queues.forget(watched.url)
            self._queues.forget_admitted(watched.url)
            self._garbage_times.forget(watched.url)
            self._peers.faults.forget(watched.url)
        for key in watched.take_given_up():
            self._queues.failed(key)
        for key, worker, has_succeeded in watched.take_tried():
            if has_succeeded:
                self._peers.faults.succeeded(key, worker)
            else:
                self._peers.faults.failed(key, worker)
        self._queues.follow(watched.demand, watched.rule, watched.admitted, now, is_known=watched.is_known)

    def _admit(self) -> bool:
        """Admit tasks as far as limits allow; return whether any were admitted."""
        admitted = self._queues.admit(self._catalog.now, self._others)
        for want in admitted:
            self._watched[want.dataset].admit(want.key)
        for url in self._queues.recall(self._catalog.now.catalog):
            if url in self._watched:
                self._watched[url].wake()
        return bool(admitted)

    # Task offers

    def _write_boards(self) -> None:
        faults, placement = self._peers.faults, Placement(self._peers.alive)
        workers = IdleWorkers(
            self._others.free,
            faults.is_suspect,
            faults.failed_with,
            lambda worker: placement.owner(worker) == self.name,
        )
        queue_ids = {queue.id for queue in self._catalog.now.catalog.queues}
        self._boards.write(self._claimable(), queue_ids, workers, self._now_s())

    def _claimable(self) -> Iterator[Claimable]:
        now = self._catalog.now
        routing = Routing(now.catalog.queues)
        for watched in self._watched.values():
            tenant = watched.rule.tenant_of(watched.url) if watched.demand.free else None
            for free in watched.demand.free:
                want = PendingTask(free.key, free.band, free.priority, free.bytes, free.since_ms, tenant)
                hint = ClaimOffer(
                    url=watched.url,
                    compaction=free.compaction,
                    band=free.band,
                    priority=free.priority,
                    bytes=free.bytes,
                    since_ms=free.since_ms,
                    attempts=free.attempts,
                    tenant=tenant,
                    catalog=self._queues.catalog_of(free.key, now),
                )
                queue_id = self._queues.queue_id(want, watched.rule, routing, now.catalog)
                yield Claimable(queue_id, free.key, hint)

    # Garbage and checkpoints

    def _collect(self) -> None:
        now_ms = self._clock.now_ms()
        for url, due_in_ms in self._ports.collected():
            if url in self._watched:
                self._garbage_times.done(url, now_ms)
                known, due_ms = self._watched[url].known, None if due_in_ms is None else now_ms + due_in_ms
                self._watched[url].known = replace(known, collected_ms=now_ms, due_ms=due_ms)
        for url, watched in self._watched.items():
            if watched.error is not None or not watched.may_coordinate:
                continue  # a dataset that cannot be read cannot be collected either
            is_due = self._garbage_times.is_due(
                url,
                watched.known,
                now_ms,
                is_at_rest=watched.is_at_rest,
                never_commits=watched.never_commits,
            )
            if is_due and self._has_collected(url, watched.rule):
                self._garbage_times.requested(url, now_ms)

    def _has_collected(self, url: str, rule: DatasetRule) -> bool:
        """Return whether the dataset was handed to collection. If that fails (for example, because a newer
        version wrote the rule), the other datasets proceed, and the next poll reports the reason."""
        with suppress(LithifyError), contained(f"requesting garbage collection of {url}"):
            if self._ports.collects(rule):
                self._ports.collect(url, rule)
                return True
        return False

    def _remember(self, now_s: float) -> None:
        if now_s - self._times.remembered_s < REMEMBER_EVERY_S:
            return
        is_first = self._times.remembered_s == float("-inf")
        self._times.remembered_s = now_s
        if not is_first:
            self._files.memory.write(self.name, self._known())

    def _truncate(self, now_s: float) -> None:
        """Delete old catalog versions if this is the first of the live coordinators."""
        if self.name != min(self._peers.alive):
            self._times.truncated_s = float("-inf")
        elif now_s - self._times.truncated_s >= RUN_EVERY_S:
            self._times.truncated_s = now_s
            self._forget_strangers()
            self.truncation = self._files.history.run()

    def _forget_strangers(self) -> None:
        """Delete the files of members whose own object was lost, so that their time of death is unknown."""
        listed = self._files.members.listed()
        before_ms = max((seen.last_ms for seen in listed), default=0) - FORGOTTEN_AFTER_MS
        known = {seen.name for seen in listed}
        self._files.boards.forget_strangers(known, before_ms)
        self._files.memory.forget_strangers(known, before_ms)

    def _known(self) -> dict[str, DatasetCheckpoint]:
        return {url: watched.known for url, watched in self._watched.items()}

    # Time

    def _due_in_s(self) -> float:
        """Return the seconds until a step is due, at most until the next heartbeat."""
        now_s = self._now_s()
        due_s = [
            self._boards.due_s,
            self._times.beat_s + BEAT_EVERY_MS / 1000,
            self._times.wakes_s + WAKES_EVERY_S,
        ]
        due_s += [watched.next_look_s for watched in self._watched.values()]
        return max(0.0, min(due_s) - now_s)

    def _now_s(self) -> float:
        return self._clock.monotonic_s()
