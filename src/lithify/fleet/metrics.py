"""Prometheus metrics of a process of a fleet: of queues always, of a dataset only while it is hot.

1. The metrics are the heartbeat that a member writes every `BEAT_EVERY_MS`: so the sum over all processes
   is what `lithify fleet status` shows. Each process reports its own share alone: a coordinator the
   datasets it watches, a worker its slots.
2. Tenants are reported by name as far as in the heartbeat (`lithify.planning.fleet.labels`). Every queue
   has series without a tenant from the start: an autoscaler needs a 0, not a missing value.
3. A dataset with events in this process, or near its limit, has its own series (`lithify.observe.metrics`),
   at most `MAX_HOT` datasets at a time, until neither was so for `COLD_AFTER_S`: those of events, and those
   of its backlog in the process that polls it. Events are also counted over all datasets.

So the number of series grows neither with the number of datasets nor with that of tenants.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from lithify.base.backlog import Backlog
from lithify.base.clock import Clock
from lithify.base.events import Event
from lithify.fleet.catalog.model import Catalog
from lithify.fleet.members import Amounts, FleetMember, FleetRole, Load
from lithify.observe.metrics import Metrics
from lithify.planning.fleet.overdue import is_near_limit
from lithify.planning.fleet.waits import BOUNDS_MS, Waits
from lithify.store.metered import RequestOutcome, Verb

MAX_HOT = 100
COLD_AFTER_S = 600.0


class FleetMetrics:
    """All metrics of a process with these members of a fleet."""

    def __init__(self, clock: Clock, of_datasets: Metrics, roles: Iterable[FleetRole]) -> None:
        self._clock = clock
        self._of_datasets = of_datasets
        self._lock = threading.Lock()
        self._hot: dict[str, float] = {}
        """Time of the last event, by dataset; the coldest first."""
        self._said: dict[FleetRole, tuple[FleetMember, dict[str, str]]] = {}
        """Last heartbeats, with the names of queues by id."""
        self._rounds = dict.fromkeys(roles, float("-inf"))
        """When each member last finished a round."""
        self.registry: CollectorRegistry = of_datasets.registry
        self.registry.register(_Told(self))
        self._events = Counter(
            "lithify_fleet_events", "Events of datasets, by event", ("event",), registry=self.registry
        )

    def __call__(self, event: Event) -> None:
        """Count an event; the observer."""
        self._events.labels(type(event).__name__).inc()
        if self._keeps_hot(event.dataset):
            self._of_datasets(event)

    def saw_backlog(self, url: str, backlogs: Collection[Backlog]) -> None:
        """Show the backlog of a dataset while it is hot; one that is near its limit is hot."""
        is_near = any(map(is_near_limit, backlogs))
        if self._keeps_hot(url) if is_near else self._is_hot(url):
            self._of_datasets.saw_backlog(url, backlogs)

    def _is_hot(self, url: str) -> bool:
        with self._lock:
            return url in self._hot

    def _keeps_hot(self, url: str) -> bool:
        """Return whether the dataset has series of its own; it has from now on, if there are not too many."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            is_hot = self._hot.pop(url, None) is not None
            cold = [one for one, at_s in self._hot.items() if now_s - at_s > COLD_AFTER_S]
            for one in cold:
                del self._hot[one]
            if is_hot or len(self._hot) < MAX_HOT:
                self._hot[url] = now_s
                is_hot = True
        for one in cold:
            self._of_datasets.forget(one)
        return is_hot

    def says(self, member: FleetMember, catalog: Catalog) -> None:
        """Record a heartbeat of a member of this process."""
        with self._lock:
            self._said[member.role] = member, {queue.id: queue.name for queue in catalog.queues}

    def finished_round(self, role: FleetRole) -> None:
        """Record that a member has finished a round."""
        with self._lock:
            self._rounds[role] = self._clock.monotonic_s()

    def count_request(self, verb: Verb, answer: RequestOutcome) -> None:
        """Count one request to an object store."""
        self._of_datasets.count_request(verb, answer)

    def not_looked_at(self, limit_s: float) -> list[str]:
        """Name the members whose last round ended longer ago, as texts for a health check."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            late = [role for role, at_s in self._rounds.items() if now_s - at_s > limit_s]
        return [f"the datasets of this {role.value}" for role in late]

    def told(self) -> list[tuple[FleetMember, dict[str, str]]]:
        """Return the last heartbeats of this process's members."""
        with self._lock:
            return list(self._said.values())


class _Told(Collector):
    """Gauges, computed from the last heartbeats on each scrape, so that no stale ones remain."""

    def __init__(self, metrics: FleetMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        told = self._metrics.told()
        yield from _of_members(member for member, _ in told)
        loads = [
            (member.role, names[queue_id], load)
            for member, names in told
            for queue_id, load in member.load.items()
            if queue_id in names
        ]
        yield from _of_queues(loads)
        yield from _of_tenants(
            [
                (role, queue, tenant or "", amounts)
                for role, queue, load in loads
                for tenant, amounts in {None: Amounts(), **load.tenants}.items()
            ]
        )


def _of_members(members: Iterable[FleetMember]) -> Iterator[Metric]:
    alive = GaugeMetricFamily("lithify_fleet_members", "1 for each member of a fleet", labels=("role",))
    catalog = GaugeMetricFamily(
        "lithify_fleet_catalog", "Version of the catalog that the member works with", labels=("role",)
    )
    datasets = GaugeMetricFamily("lithify_fleet_datasets", "Datasets that a coordinator watches", labels=())
    quarantined = GaugeMetricFamily(
        "lithify_fleet_quarantined", "Datasets that a coordinator has quarantined after an error", labels=()
    )
    elsewhere = GaugeMetricFamily(
        "lithify_fleet_elsewhere",
        "Datasets with wanted work that another process coordinates, as far as a coordinator knows",
        labels=(),
    )
    near_limit = GaugeMetricFamily(
        "lithify_fleet_near_limit", "Datasets near a stall with nothing under way", labels=()
    )
    for member in members:
        alive.add_metric((member.role.value,), 1)
        catalog.add_metric((member.role.value,), member.catalog)
        if member.role is FleetRole.COORDINATOR:
            datasets.add_metric((), member.datasets)
            quarantined.add_metric((), member.quarantined)
            elsewhere.add_metric((), member.elsewhere)
            near_limit.add_metric((), member.near_limit)
    yield from (alive, catalog, datasets, quarantined, elsewhere, near_limit)


def _of_queues(loads: Iterable[tuple[FleetRole, str, Load]]) -> Iterator[Metric]:
    workers = GaugeMetricFamily("lithify_queue_workers", "1 for each worker of the queue", labels=("queue",))
    slots = GaugeMetricFamily(
        "lithify_queue_slots", "Compactions that the queue's workers can run at once", labels=("queue",)
    )
    pace = GaugeMetricFamily(
        "lithify_queue_slot_bytes_per_second", "Input bytes per second of a worker's slot", labels=("queue",)
    )
    resting = GaugeMetricFamily(
        "lithify_queue_resting", "Pending tasks that back off after a failure", labels=("queue",)
    )
    for role, queue, load in loads:
        if role is FleetRole.WORKER:
            workers.add_metric((queue,), 1)
            slots.add_metric((queue,), load.slots)
            pace.add_metric((queue,), load.bytes_per_s)
        else:
            resting.add_metric((queue,), load.resting)
    yield from (workers, slots, pace, resting)


def _of_tenants(told: list[tuple[FleetRole, str, str, Amounts]]) -> Iterator[Metric]:
    for role, name, text, value in _GAUGES:
        family = GaugeMetricFamily(f"lithify_queue_{name}", text, labels=("queue", "tenant"))
        for who, queue, tenant, amounts in told:
            found = value(amounts)
            if who is role and found is not None:
                family.add_metric((queue, tenant), found)
        yield family
    waited = HistogramMetricFamily(
        "lithify_queue_wait_seconds",
        "Time from when a task was first seen until it was claimed",
        labels=("queue", "tenant"),
    )
    for who, queue, tenant, amounts in told:
        if who is FleetRole.COORDINATOR:
            waited.add_metric((queue, tenant), _buckets(amounts.waits), amounts.waits.total_ms / 1000)
    yield waited


def _buckets(waits: Waits) -> list[tuple[str, float]]:
    """Return cumulative buckets, as Prometheus expects: each includes all shorter ones."""
    names = [*(str(bound_ms / 1000) for bound_ms in BOUNDS_MS), "+Inf"]
    return [(name, sum(waits.counts[: n + 1])) for n, name in enumerate(names)]


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


_GAUGES: tuple[tuple[FleetRole, str, str, Callable[[Amounts], float | None]], ...] = (
    (FleetRole.WORKER, "running", "Running compactions", lambda of: of.running),
    (FleetRole.COORDINATOR, "queued", "Compactions that can be claimed", lambda of: of.queued),
    (
        FleetRole.COORDINATOR,
        "queued_bytes",
        "Input bytes of the compactions that can be claimed",
        lambda of: of.queued_bytes,
    ),
    (FleetRole.COORDINATOR, "waiting", "Pending tasks that are not admitted yet", lambda of: of.waiting),
    (
        FleetRole.COORDINATOR,
        "waiting_bytes",
        "Input bytes of the pending tasks that are not admitted yet",
        lambda of: of.waiting_bytes,
    ),
    (
        FleetRole.COORDINATOR,
        "deferred",
        "Pending tasks that are deferred because the backlog is full",
        lambda of: of.deferred,
    ),
    (
        FleetRole.COORDINATOR,
        "lowest_priority",
        "Lowest priority that waits, over all priority classes: 0 (may wait) to 1 (urgent)",
        lambda of: of.lowest_priority,
    ),
    (
        FleetRole.COORDINATOR,
        "oldest_seconds",
        "How long the oldest unclaimed task has waited",
        lambda of: _seconds(of.oldest_ms),
    ),
    (
        FleetRole.COORDINATOR,
        "youngest_seconds",
        "How long the youngest unclaimed task has waited",
        lambda of: _seconds(of.youngest_ms),
    ),
    (
        FleetRole.COORDINATOR,
        "backlog_seconds",
        "How long one slot would take for all unclaimed tasks",
        lambda of: _seconds(of.backlog_ms),
    ),
)
