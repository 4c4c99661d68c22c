"""A keeper: watches many datasets, and coordinates the few that have something to do. One tick, over ports.

Each `tick`:

1. Every `BEAT_EVERY_MS` it says that it lives (`lithify.fleet.pulse`: also while a round takes longer, from
   beside it), and looks at the members and the catalog. From these follows which datasets are its own
   (`lithify.planning.fleet.placement`); those that are not any more it gives back at once. What others knew
   of those that are new to it it reads from their memories, the newest first.
2. Every `WAKES_EVERY_S` it looks who wants something of its own to be looked at now.
3. It looks at what is due (`lithify.fleet.watched`), several at a time. What is idle is only read, ever more
   rarely.
4. What each look wants, and what failed for good, goes to the admission of its queue
   (`lithify.planning.fleet.admission`). That admits as much as the queue's workers have slots for, by this
   keeper's part of what is wanted by all; what was admitted is looked at again at once, which starts it. A
   queue that is paused admits nothing; one that drains or is gone is nobody's, so its wants go to the next.
5. What may be claimed stands on its boards (`lithify.fleet.own_boards`). So that it need not wait for what
   takes longer, steps 3 to 5 are done first for all but what may have something to commit, and then for
   that; and of what was admitted it looks first at what it leads already.
6. The first of the live keepers lets old versions of the catalog go (`lithify.fleet.catalog_history`), and
   what members left whose object was lost.
7. Garbage of what it committed is collected when it is time to (`lithify.fleet.garbage_times`); of what
   cannot be looked at, once it can.

Everything here but the ledgers may be lost: a keeper that starts finds the datasets by the catalog, what runs
by their ledgers, and what is wanted by planning anew. Two keepers that both believe to own a dataset, because
they have seen different members, only get in each other's way: the ledger and the epoch decide.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from lithify.clock import Clock, monotonic_ms
from lithify.defects import contained
from lithify.errors import LithifyError
from lithify.fleet.catalog import Catalog, Queue, QueueState, Rule
from lithify.fleet.catalog_files import FollowedCatalog
from lithify.fleet.catalog_history import RUN_EVERY_S, Ended
from lithify.fleet.discovery import Discovery, FindDatasets
from lithify.fleet.files import FleetFiles
from lithify.fleet.garbage_times import GarbageTimes
from lithify.fleet.members import (
    BEAT_EVERY_MS,
    DEAD_AFTER_MS,
    FORGOTTEN_AFTER_MS,
    MAX_TROUBLED,
    Amounts,
    Load,
    Member,
    Role,
    Says,
    combined,
    unheard,
)
from lithify.fleet.memory import Known
from lithify.fleet.others import Others
from lithify.fleet.own_boards import Claimable, IdleWorkers, OwnBoards
from lithify.fleet.pulse import Pulse
from lithify.fleet.wakes import MAX_AGE_MS, Wake
from lithify.fleet.watched import Peers, Watched, WatchPorts
from lithify.planning.admission import WorkKey
from lithify.planning.fleet.admission import Active, QueueAdmission, QueueLimits
from lithify.planning.fleet.admission import Tenant as TenantTreatment
from lithify.planning.fleet.bands import Band, rank
from lithify.planning.fleet.hints import Hint
from lithify.planning.fleet.named import Named
from lithify.planning.fleet.pace import backlog_ms
from lithify.planning.fleet.placement import Placement
from lithify.planning.fleet.quarantine import Entry, Quarantine
from lithify.planning.fleet.quotas import quota, tenant_cap
from lithify.planning.fleet.routing import Route, Routing
from lithify.planning.fleet.waits import NO_WAITS, Waits
from lithify.planning.fleet.wants import Want
from lithify.store import together

WAKES_EVERY_S = 5.0
REMEMBER_EVERY_S = 60.0
LOOKS_AT_ONCE = 32
_NOTHING = Known()

Collect = Callable[[str, Rule], None]
"""Have the garbage of a dataset collected; does not wait for it."""


def _always(rule: Rule) -> bool:
    return True


def _untold(url: str) -> None:
    """Nobody is told."""


@dataclass(frozen=True, slots=True)
class KeeperPorts:
    """What a keeper needs."""

    files: FleetFiles
    watch: WatchPorts
    find: FindDatasets
    collect: Collect
    clock: Clock
    host: str
    version: str
    looks_at_once: int = LOOKS_AT_ONCE
    collects: Callable[[Rule], bool] = _always
    """Whether garbage of datasets of a rule is to be collected."""
    left: Callable[[str], None] = _untold
    """Told of a dataset that it is not watched any more."""
    says: Says = unheard


@dataclass(slots=True)
class _Times:
    """When what was last done, by the monotonic clock."""

    beat_s: float = float("-inf")
    wakes_s: float = float("-inf")
    remembered_s: float = float("-inf")
    truncated_s: float = float("-inf")


class Keeper:
    """One keeper of a fleet, under a name of its own."""

    def __init__(self, name: str, ports: KeeperPorts) -> None:
        """`DatasetNotFound` when there is no such fleet, `CorruptObject` when its catalog cannot be used."""
        self.name = name
        self._ports = ports
        self._files = ports.files
        self._clock = ports.clock
        self._catalog = FollowedCatalog(ports.files.catalog)
        self._discovery = Discovery(ports.find, ports.clock)
        self._pulse = Pulse(name, ports.files.members, ports.clock)
        self._peers = Peers(name)
        self._others = Others()
        self._quarantine = Quarantine()
        self._datasets: Mapping[str, Rule] = {}
        self._watched: dict[str, Watched] = {}
        self._admissions: dict[str, QueueAdmission] = {}
        """By queue id."""
        self._queue_of: dict[WorkKey, str] = {}
        """Where what was admitted has gone, by queue id."""
        self._catalog_of: dict[WorkKey, int] = {}
        """The version of the catalog under which what is admitted or under way was admitted."""
        self._boards = OwnBoards(name, ports.files)
        self._garbage_times = GarbageTimes()
        self._named = Named()
        self._waits: dict[tuple[str, str | None], Waits] = {}
        """By queue id and tenant: how long what was claimed had waited."""
        self._paces: dict[str, int] = {}
        """By queue id, how fast its workers are, or were when there were some."""
        self._times = _Times()
        self.truncation: Ended | None = None
        """How the last run over old versions of the catalog ended, if this one ever made any."""

    @property
    def watched(self) -> Mapping[str, Watched]:
        """Its own datasets, by URL."""
        return self._watched

    @property
    def datasets(self) -> Mapping[str, Rule]:
        """All that the fleet has, by URL, as of the last sign of life."""
        return self._datasets

    @property
    def not_found(self) -> Mapping[str, LithifyError]:
        """What could not be looked up, by pattern."""
        return self._discovery.problems

    @property
    def quarantined(self) -> Mapping[str, Entry]:
        """What is left alone because something is wrong with it, by URL."""
        return self._quarantine.entries

    @property
    def problem(self) -> LithifyError | None:
        """What is wrong with the newest catalog, if it is not the one that is followed."""
        return self._catalog.problem

    def tick(self) -> float:
        """One round of the algorithm above; seconds until the next one is due. When the fleet's own store
        fails the datasets go on all the same; then the error is raised, and what could not be done is done in
        a later round."""
        with self._pulse.round():
            return self._round()

    def beat(self) -> None:
        """Say again that it lives, if a round takes long (`lithify.fleet.pulse`). Any thread may call it."""
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
        """Give everything back, and leave. What is under way goes on."""
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
        member = self._member()
        self._ports.says(member, self._catalog.now.catalog)
        self._pulse.say(member)
        if member.needs < member.catalog and not self._files.history.allows(member.needs):
            self._catalog_of = dict.fromkeys(self._catalog_of, member.catalog)
        listed = self._files.members.listed()
        alive = {seen.name for seen in listed if seen.is_alive} | {self.name}
        says = {seen.name: seen.says for seen in listed if seen.is_alive and seen.says is not None}
        says.pop(self.name, None)
        self._peers.alive = frozenset(name for name in alive if name.startswith(f"{Role.KEEPER.value}-"))
        self._peers.dead = frozenset(seen.name for seen in listed if seen.name not in alive)
        self._peers.workers = frozenset(name for name in alive if name.startswith(f"{Role.WORKER.value}-"))
        self._others = Others.of(says.values())
        self._boards.heard(says)
        self._paces |= self._others.paces
        self._forget(seen.name for seen in listed if seen.silent_ms >= FORGOTTEN_AFTER_MS)
        self._own(self._discovery.datasets(self._catalog.now.catalog))
        self._times.beat_s = now_s

    def _own(self, datasets: Mapping[str, Rule]) -> None:
        """Watch those that are this keeper's. One that is treated otherwise now is known as it was."""
        self._datasets = datasets
        placement = Placement(self._peers.alive)
        mine = {url: rule for url, rule in datasets.items() if placement.owner(url) == self.name}
        known = self._known_to_others([url for url in mine if url not in self._watched])
        for url in [url for url, watched in self._watched.items() if mine.get(url) != watched.rule]:
            watched = self._watched.pop(url)
            watched.leave()
            if url in mine:  # what is under way stays as it was admitted
                known[url] = watched.known
            else:
                self._forget_admitted(url, ())
                self._garbage_times.forget(url)
                self._ports.left(url)
            for admission in self._admissions.values():
                admission.forget(url)
        self._quarantine.keep(mine)
        for url, of_url in known.items():
            self._watched[url] = Watched(
                url, mine[url], self._ports.watch, self._peers, self._quarantine, of_url
            )

    def _known_to_others(self, urls: Sequence[str]) -> dict[str, Known]:
        """What whoever watched these last knows of them; it is a hint only."""
        memories = self._files.memory.others(self.name) if urls else ()
        return {url: next((m[url] for m in memories if url in m), _NOTHING) for url in urls}

    def _forget(self, names: Iterable[str]) -> None:
        """Delete what members left that have been dead for long."""
        gone = [name for name in names if name != self.name]
        if gone:
            self._files.boards.forget(gone)
        for name in gone:
            self._files.memory.forget(name)
            self._files.members.leave(name)

    def _member(self) -> Member:
        queues = self._catalog.now.catalog.queues
        having = {w.rule.tenant_of(w.url) for w in self._watched.values() if w.demand.is_any}
        self._name_tenants(having)
        load = {queue.id: self._load(queue) for queue in queues}
        self._waits = {place: waits for place, waits in self._waits.items() if self._is_told_of(*place)}
        number = self._catalog.now.number
        bad = self._quarantine.entries
        return Member(
            name=self.name,
            role=Role.KEEPER,
            host=self._ports.host,
            version=self._ports.version,
            catalog=number,
            datasets=len(self._watched),
            load=load,
            quarantined=len(bad),
            troubled={url: entry.why for url, entry in list(bad.items())[:MAX_TROUBLED]},
            at_ms=self._clock.now_ms(),
            needs=min((number, *self._catalog_of.values())),
        )

    def _name_tenants(self, having: Iterable[str | None]) -> None:
        special = {tenant.name for tenant in self._catalog.now.catalog.tenants}
        self._named.see(having, special, monotonic_ms(self._clock))

    def _is_told_of(self, queue_id: str, tenant: str | None) -> bool:
        is_named = tenant is None or self._named.name(tenant) is not None
        return is_named and self._catalog.now.catalog.with_id(queue_id) is not None

    def _load(self, queue: Queue) -> Load:
        """What this one has to do with a queue."""
        now_ms = self._clock.now_ms()
        admission = self._admission(queue)
        figures = admission.figures()
        parts: dict[str | None, list[Amounts]] = {}
        for tenant, of in admission.by_tenant().items():
            parts.setdefault(self._named.name(tenant), []).append(
                Amounts(
                    waiting=of.queued,
                    waiting_bytes=of.queued_bytes,
                    deferred=of.deferred,
                    demand=of.demand,
                    lowest=of.lowest,
                    oldest_ms=None if of.oldest_since_ms is None else max(0, now_ms - of.oldest_since_ms),
                    youngest_ms=None
                    if of.youngest_since_ms is None
                    else max(0, now_ms - of.youngest_since_ms),
                )
            )
        for hint in self._boards.hints(queue.id):
            age_ms = max(0, now_ms - hint.since_ms)
            of_hint = Amounts(
                queued=1,
                queued_bytes=hint.bytes,
                lowest=rank(Band(hint.band), hint.priority),
                oldest_ms=age_ms,
                youngest_ms=age_ms,
            )
            parts.setdefault(self._named.name(hint.tenant), []).append(of_hint)
        for (queue_id, tenant), waits in self._waits.items():
            if queue_id == queue.id:
                parts.setdefault(self._named.name(tenant), []).append(Amounts(waits=waits))
        pace = self._paces.get(queue.id, 0)
        return Load(
            resting=figures.resting,
            demand={band.value: n for band, n in figures.demand.items()},
            tenants={tenant: _with_backlog(combined(of), pace) for tenant, of in parts.items()},
        )

    # Looking

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
        return self._clock.now_ms() - wake.since_ms > MAX_AGE_MS

    def _look(self, due: Sequence[Watched]) -> None:
        if len(due) > 1 and self._ports.looks_at_once > 1:
            together.all_of((watched.look for watched in due), self._ports.looks_at_once)
        else:
            for watched in due:
                watched.look()
        for watched in due:
            self._offer(watched)

    def _offer(self, watched: Watched) -> None:
        """Tell the queues what a look has found."""
        catalog, now_ms = self._catalog.now.catalog, monotonic_ms(self._clock)
        for key in watched.take_given_up():
            failed_in = self._admissions.get(self._queue_of.get(key, ""))
            if failed_in is not None:
                failed_in.failed(key, now_ms)
        for key, worker, has_succeeded in watched.take_tried():
            if has_succeeded:
                self._peers.faults.succeeded(key, worker)
            else:
                self._peers.faults.failed(key, worker)
        routing = Routing(catalog.queues)
        for want, waited_ms in watched.demand.take_claimed():
            queue_id = self._queue_id(want, watched.rule, routing, catalog)
            self._name_tenants([want.tenant])
            place = queue_id, self._named.name(want.tenant)
            self._waits[place] = self._waits.get(place, NO_WAITS).plus(waited_ms)
        wants: dict[str, list[Want]] = {}
        active: dict[str, list[Active]] = {}
        for want in watched.demand.wants:
            queue_id = self._queue_id(want, watched.rule, routing, catalog)
            if want.key in watched.admitted:
                active.setdefault(queue_id, []).append(Active(want))
            else:
                wants.setdefault(queue_id, []).append(want)
        for one in watched.demand.active:
            active.setdefault(self._queue_id(one.want, watched.rule, routing, catalog), []).append(one)
        under_way = {one.want.key for one in watched.demand.active} | watched.admitted
        if watched.is_known:
            self._forget_admitted(watched.url, under_way)
        for key in under_way:  # what somebody else admitted counts from when it is seen
            self._catalog_of.setdefault(key, self._catalog.now.number)
        for queue in catalog.queues:
            admission = self._admission(queue)
            admission.follow(watched.url, active.get(queue.id, ()))
            admission.offer(watched.url, wants.get(queue.id, ()), now_ms)

    def _forget_admitted(self, url: str, under_way: Collection[WorkKey]) -> None:
        """Of this dataset nothing else is admitted or under way any more."""
        known = self._queue_of.keys() | self._catalog_of.keys()
        for key in [key for key in known if key.dataset == url and key not in under_way]:
            self._queue_of.pop(key, None)
            self._catalog_of.pop(key, None)

    def _queue_id(self, want: Want, rule: Rule, routing: Routing[Queue], catalog: Catalog) -> str:
        """What was admitted to a queue stays there, as long as there is one."""
        queue_id = self._queue_of.get(want.key)
        if queue_id is not None and catalog.with_id(queue_id) is not None:
            return queue_id
        routes = (Route(rule.queue),) if rule.queue is not None else ()
        return routing.route(want.cost_bytes, routes, unit=want.key.unit).id

    def _admission(self, queue: Queue) -> QueueAdmission:
        limits = QueueLimits(queue.longest_backlog, queue.largest_share)
        admission = self._admissions.get(queue.id)
        if admission is None:
            admission = self._admissions[queue.id] = QueueAdmission(limits)
        admission.limits = limits
        return admission

    # Admission

    def _admit(self) -> bool:
        """Let start what there is room for; whether there was anything."""
        catalog = self._catalog.now.catalog
        has_admitted = False
        for queue in catalog.queues:
            if queue.state is not QueueState.ACTIVE:
                continue
            admission = self._admission(queue)
            slots = self._others.slots.get(queue.id, 0)
            figures = admission.figures()
            demands = {**self._others.demands.get(queue.id, {}), self.name: figures.demand}
            room = quota(self.name, slots, queue.reserved_slots, demands)
            tenants = self._tenants(queue.id, catalog, figures.demand_by_tenant)
            for want in admission.admit(room, slots, tenants):
                self._queue_of[want.key] = queue.id
                self._catalog_of[want.key] = self._catalog.now.number
                self._watched[want.dataset].admit(want.key)
                has_admitted = True
            for url in admission.recall(monotonic_ms(self._clock)):
                if url in self._watched:
                    self._watched[url].wake()
        gone = [queue_id for queue_id in self._admissions if catalog.with_id(queue_id) is None]
        for queue_id in gone:
            del self._admissions[queue_id]
        return has_admitted

    def _tenants(
        self, queue_id: str, catalog: Catalog, own: Mapping[str | None, int]
    ) -> dict[str | None, TenantTreatment]:
        """How tenants are treated in a queue: of a cap, this keeper's part."""
        of_others = self._others.tenant_demands.get(queue_id, {})
        treated: dict[str | None, TenantTreatment] = {}
        for tenant in catalog.tenants:
            demands = {name: of.get(tenant.name, 0) for name, of in of_others.items()}
            demands[self.name] = own.get(tenant.name, 0)
            cap = tenant.most_running
            part = None if cap is None else tenant_cap(self.name, cap, demands)
            treated[tenant.name] = TenantTreatment(tenant.weight, part)
        return treated

    # Boards

    def _write_boards(self) -> None:
        catalog, faults = self._catalog.now.catalog, self._peers.faults
        placement = Placement(self._peers.alive)
        workers = IdleWorkers(
            self._others.free,
            faults.is_suspect,
            faults.failed_with,
            lambda worker: placement.owner(worker) == self.name,
        )
        queue_ids = {queue.id for queue in catalog.queues}
        self._boards.write(self._claimable(catalog), queue_ids, workers, self._now_s())

    def _claimable(self, catalog: Catalog) -> Iterator[Claimable]:
        routing = Routing(catalog.queues)
        for watched in self._watched.values():
            tenant = watched.rule.tenant_of(watched.url) if watched.demand.free else None
            for free in watched.demand.free:
                want = Want(free.key, free.band, free.priority, free.bytes, free.since_ms, tenant)
                hint = Hint(
                    url=watched.url,
                    compaction=free.compaction,
                    band=free.band,
                    priority=free.priority,
                    bytes=free.bytes,
                    since_ms=free.since_ms,
                    attempts=free.attempts,
                    tenant=tenant,
                    catalog=self._catalog_of.get(free.key, self._catalog.now.number),
                )
                yield Claimable(self._queue_id(want, watched.rule, routing, catalog), free.key, hint)

    # Garbage and memory

    def _collect(self) -> None:
        now_ms = self._clock.now_ms()
        for url, watched in self._watched.items():
            if watched.error is not None:
                continue  # who cannot look at it cannot collect either
            is_due = self._garbage_times.is_due(url, watched.known, now_ms, is_at_rest=watched.is_at_rest)
            if is_due and self._has_collected(url, watched.rule):
                self._garbage_times.has_collected(url, now_ms)
                watched.known = replace(watched.known, collected_ms=now_ms)

    def _has_collected(self, url: str, rule: Rule) -> bool:
        """Whether it was handed to collection. Where that fails (the rule is of a newer version, say) the
        others go on, and the next look tells why."""
        with suppress(LithifyError), contained(f"having garbage of {url} collected"):
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
        """Let old versions of the catalog go, if this is the first of the live keepers."""
        if self.name != min(self._peers.alive):
            self._times.truncated_s = float("-inf")
        elif now_s - self._times.truncated_s >= RUN_EVERY_S:
            self._times.truncated_s = now_s
            self._forget_strangers()
            self.truncation = self._files.history.run()

    def _forget_strangers(self) -> None:
        """Delete what members left whose own object was lost, so that nobody can tell when they died."""
        listed = self._files.members.listed()
        before_ms = max((seen.last_ms for seen in listed), default=0) - FORGOTTEN_AFTER_MS
        known = {seen.name for seen in listed}
        self._files.boards.forget_strangers(known, before_ms)
        self._files.memory.forget_strangers(known, before_ms)

    def _known(self) -> dict[str, Known]:
        return {url: watched.known for url, watched in self._watched.items()}

    # Time

    def _due_in_s(self) -> float:
        """Seconds until something is due, at most until the next sign of life."""
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


def _with_backlog(amounts: Amounts, bytes_per_s: int) -> Amounts:
    """What is deferred is as large as the rest, as far as anybody knows."""
    count, size = amounts.queued + amounts.waiting, amounts.queued_bytes + amounts.waiting_bytes
    deferred_bytes = amounts.deferred * (size // count if count else 0)
    total_ms = backlog_ms(count + amounts.deferred, size + deferred_bytes, bytes_per_s)
    return replace(amounts, backlog_ms=total_ms)
