"""Prometheus metrics of events and of the state of datasets.

1. Counters come from events: `Metrics` is an observer. Gauges of a dataset come from all ledgers, snapshots
   and plans that coordinator and worker read or make (`lithify.mirror.metered_reads`); nothing is read for
   metrics alone.
2. All names begin with `lithify_`, and all metrics have the dataset as a label, because a process may serve
   several. If the dataset's own system has a name for a metric, the metric has that name too.
3. The counters of a served dataset begin at zero (`serves`), so that the first event is an increase.
4. Claims are counted by the process that coordinates: transitions to Running between two ledgers it sees.
5. Labels of workers without a compaction are removed, so that their number is bounded.

Requests of Spark tasks on other machines are not counted, only those of this process.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, ProcessCollector
from prometheus_client.registry import Collector

from lithify import __version__
from lithify.base import events
from lithify.base.backlog import Backlog, Detail
from lithify.base.clock import Clock
from lithify.base.events import Event
from lithify.protocol.model import CompactionState
from lithify.protocol.proposal import Plan
from lithify.protocol.retained import Past
from lithify.protocol.transitions import AnyLedger
from lithify.store.metered import RequestOutcome, Verb

ACTIVE = tuple(state for state in CompactionState if not state.is_terminal)
_BUCKETS_S = (0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200)
_NO_STALL = float("inf")
FAILURES = ("reclaimed", "refused", "given_up", "attempt_failed", "engine_lost", "store_lost", "lost")
"""Classes of failures."""


@dataclass(slots=True)
class _MeteredAttempt:
    """A compaction that runs in this process."""

    worker: str
    started_s: float
    moved_bytes: int = 0
    moved_at_s: float = 0.0
    bytes_per_s: float = 0.0
    counted_bytes: int = 0
    """The bytes of it that `lithify_bytes_moved` includes."""
    finished_bytes: int = 0
    """Bytes read and written by finished ranges."""
    done_bytes: int = 0
    cost_bytes: int = 0


OtherNames = Callable[[str], Mapping[str, str]]
"""Returns the further names of a dataset's metrics, by name."""


def no_others(url: str) -> Mapping[str, str]:
    return {}


def _whole(label: str) -> str:
    """Return the label with lone surrogates escaped, which a path may contain: Prometheus requires UTF-8."""
    return label if label.isascii() else label.encode(errors="backslashreplace").decode()


class _WithOtherNames(Collector):
    """Collects the metrics of `registry`, and repeats those that have another name."""

    def __init__(self, registry: CollectorRegistry, other_names: OtherNames) -> None:
        self._registry = registry
        self._other_names = other_names

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [
                sample._replace(labels={name: _whole(text) for name, text in sample.labels.items()})
                for sample in family.samples
            ]
            yield family
            yield from self._again(family)

    def _again(self, family: Metric) -> Iterable[Metric]:
        found: dict[str, Metric] = {}
        for sample in family.samples:
            other = self._other_names(sample.labels.get("dataset", "")).get(family.name)
            if other is not None:
                renamed = found.setdefault(other, Metric(other, family.documentation, family.type))
                name = other + sample.name.removeprefix(family.name)
                renamed.samples.append(sample._replace(name=name))
        return found.values()


class Metrics:
    """All metrics of a process."""

    def __init__(self, clock: Clock, *, coordinates: bool, other_names: OtherNames = no_others) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._own = CollectorRegistry()
        self.registry.register(_WithOtherNames(self._own, other_names))
        self._clock = clock
        self._coordinates = coordinates
        self._lock = threading.Lock()
        self._plain_counters: list[Counter] = []
        """Counters without further labels than the dataset."""
        self._of_datasets: list[tuple[Counter | Gauge, tuple[str, ...]]] = []
        """Metrics and their labels, the dataset first."""
        self._attempts: dict[tuple[str, str], _MeteredAttempt] = {}
        self._waited_s: dict[tuple[str, str], float] = {}
        """Seconds counted so far, by dataset and store, while the store is away."""
        self._owners: dict[str, Mapping[str, str]] = {}
        """By dataset: the worker of each running compaction, as last seen."""
        self._heard: dict[str, Mapping[str, tuple[int, float]]] = {}
        """By dataset and worker: the worker's last heartbeat by its own clock, and when this process first
        saw it, by the monotonic clock."""
        self._served: dict[str, float] = {}
        """By dataset: when this process began to serve it, or polled it last."""
        self._looked: set[str] = set()
        """Datasets that have been polled."""
        self._make_common_metrics()
        self._make_own_metrics()
        self._make_history_metrics()
        build = Gauge("lithify_build_info", "What runs", ("version", "python"), registry=self._own)
        build.labels(__version__, platform.python_version()).set(1)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        counter = Counter(name, text, ("dataset", *labels), registry=self._own)
        self._of_datasets.append((counter, ("dataset", *labels)))
        if not labels:
            self._plain_counters.append(counter)
        return counter

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        gauge = Gauge(name, text, ("dataset", *labels), registry=self._own)
        self._of_datasets.append((gauge, ("dataset", *labels)))
        return gauge

    def forget(self, url: str) -> None:
        """Remove all metrics of a dataset."""
        with self._lock:
            for metric, labels in self._of_datasets:
                samples = [sample.labels for family in metric.collect() for sample in family.samples]
                for values in {
                    tuple(of[label] for label in labels) for of in samples if of["dataset"] == url
                }:
                    metric.remove(*values)
            with suppress(KeyError):
                self._seconds.remove(url)
            self._served.pop(url, None)
            self._looked.discard(url)
            self._owners.pop(url, None)
            self._heard.pop(url, None)
            self._needers.pop(url, None)
            self._attempts = {key: attempt for key, attempt in self._attempts.items() if key[0] != url}
            self._waited_s = {key: waited_s for key, waited_s in self._waited_s.items() if key[0] != url}

    def serves(self, url: str) -> None:
        """Begin to expect polls of the dataset, and set its counters to zero."""
        with self._lock:
            self._served.setdefault(url, self._clock.monotonic_s())
            for counter in self._plain_counters:
                counter.labels(url)
            for kind in FAILURES:
                self._failures.labels(url, kind)

    def looked_at(self, url: str) -> None:
        """Note that the dataset's ledger was read, or found to be absent."""
        with self._lock:
            self._served[url] = self._clock.monotonic_s()
            self._looked.add(url)
            self._last_look.labels(url).set(self._clock.now_ms() / 1000)

    def not_looked_at(self, limit_s: float) -> list[str]:
        """Return the datasets that should have been polled in the last `limit_s` seconds, and were not."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            return sorted(
                url for url, at_s in self._served.items() if url not in self._looked or now_s - at_s > limit_s
            )

    def _make_common_metrics(self) -> None:
        self._claimed = self._counter("lithify_jobs_claimed", "Compactions claimed by workers")
        self._reclaimed = self._counter("lithify_jobs_reclaimed", "Compactions reclaimed from silent workers")
        self._heartbeat = self._gauge(
            "lithify_worker_last_heartbeat_ms", "Wall-clock time of a worker's last heartbeat", "worker_id"
        )
        self._bytes = self._counter("lithify_bytes_compacted", "Bytes written by compactions", "worker_id")
        self._running = self._gauge(
            "lithify_running_compactions", "Compactions running on a worker of this process", "worker_id"
        )
        self._files = self._counter("lithify_files_written", "Files written by compactions", "worker_id")
        self._epoch = self._gauge("lithify_epoch", "Epoch of the coordinator")
        self._last = self._gauge(
            "lithify_last_compaction_timestamp_seconds", "Wall-clock time of the last commit"
        )
        self._being_compacted = self._gauge(
            "lithify_bytes_being_compacted", "Input bytes of running compactions"
        )
        self._throughput = self._gauge(
            "lithify_throughput_bytes_per_second", "Bytes that compactions of this process read and write"
        )
        self._moved = self._counter(
            "lithify_bytes_moved", "Bytes read and written by compactions, counted while they run"
        )
        self._done = self._gauge(
            "lithify_running_done_bytes",
            "Input bytes of compactions running in this process that are read already",
        )
        self._cost = self._gauge(
            "lithify_running_bytes", "Input bytes of compactions running in this process"
        )
        self._left = self._gauge(
            "lithify_running_seconds_left",
            "Estimated time until the compactions running in this process are done",
        )
        self._gc_count = self._counter("lithify_garbage_collections", "Garbage collections")
        self._gc_deleted = self._counter("lithify_garbage_deleted", "Objects deleted as garbage", "resource")
        self._gc_versions = self._gauge(
            "lithify_garbage_versions_left", "Versions left after a collection", "resource"
        )

    def _make_history_metrics(self) -> None:
        self._versions = self._gauge("lithify_history_versions", "Readable versions, including the newest")
        self._history_bytes = self._gauge(
            "lithify_history_bytes", "Bytes of files that only older versions need"
        )
        self._needed = self._gauge(
            "lithify_history_needed_since_seconds",
            "Wall-clock time from which on history is needed, by the member or hold that needs the oldest",
            "by",
        )
        self._pending_files = self._gauge("lithify_history_pending_files", "Files that wait to be deleted")
        self._pending_bytes = self._gauge("lithify_history_pending_bytes", "Bytes that wait to be deleted")
        self._history_runs = self._counter("lithify_history_runs", "Expiry runs, by outcome", "outcome")
        self._needers: dict[str, str] = {}
        """By dataset: the last seen member or hold that needs the oldest history."""

    def _make_own_metrics(self) -> None:
        self._states = self._gauge("lithify_compactions", "Active compactions, by state", "state")
        self._ages = self._gauge(
            "lithify_heartbeat_age_seconds",
            "Time since a worker's last heartbeat was seen by this process",
            "worker_id",
        )
        self._submitted = self._counter("lithify_submitted", "Compactions added by the planner")
        self._committed = self._counter("lithify_committed", "Compactions committed")
        self._failures = self._counter("lithify_failures", "Failures, by class", "kind")
        self._details: dict[str, Gauge] = {}
        """Gauges of single kinds of datasets about a backlog, by name."""
        self._last_look = self._gauge(
            "lithify_last_look_timestamp_seconds",
            "Wall-clock time of this process's last poll of the dataset",
        )
        self._quarantined = self._gauge(
            "lithify_quarantined", "1 while the dataset is quarantined after an error in this process"
        )
        self._cannot_compact = self._gauge(
            "lithify_cannot_compact",
            "1 while the dataset, or a part of it, cannot be compacted until an operator acts",
        )
        self._waiting = self._gauge(
            "lithify_store_waiting", "1 while this process waits for an unavailable store of the dataset"
        )
        self._waited = self._counter(
            "lithify_store_waited_seconds", "Time spent waiting for unavailable stores of the dataset"
        )
        self._stall = self._gauge(
            "lithify_seconds_until_stall", "Time until the writer stalls if nothing is compacted", "unit"
        )
        self._planned_units = self._gauge(
            "lithify_planned_units", "Units, by their status in the plan", "status"
        )
        self._planned_files = self._gauge(
            "lithify_planned_files", "Files, by their status in the plan", "status"
        )
        self._planned_bytes = self._gauge(
            "lithify_planned_bytes", "Bytes, by their status in the plan", "status"
        )
        self._ranges = self._counter("lithify_ranges_finished", "Ranges finished")
        self._read = self._counter("lithify_bytes_read", "Bytes read by compactions")
        self._cpu = self._counter("lithify_task_cpu_seconds", "CPU time of tasks")
        self._rows = self._counter("lithify_rows", "Rows in, out, and dropped by reason", "kind")
        self._memory = self._gauge("lithify_task_peak_memory_bytes", "Peak memory of the last task")
        self._seconds = Histogram(
            "lithify_compaction_seconds",
            "Time from claim to Compacted",
            ("dataset",),
            buckets=_BUCKETS_S,
            registry=self._own,
        )
        self._requests = Counter(
            "lithify_store_requests",
            "Requests of this process to the object store",
            ("verb", "answer"),
            registry=self._own,
        )

    def __call__(self, event: Event) -> None:
        """Take in an event."""
        with self._lock:
            self._take_in(event)

    def _take_in(self, event: Event) -> None:
        url = event.dataset
        match event:
            case events.EpochTaken(epoch=epoch):
                self._epoch.labels(url).set(epoch)
            case events.Submitted():
                self._submitted.labels(url).inc()
            case events.Reclaimed():
                self._reclaimed.labels(url).inc()
                self._failures.labels(url, "reclaimed").inc()
            case events.CompactionRefused():
                self._failures.labels(url, "refused").inc()
            case events.Failed():
                self._failures.labels(url, "given_up").inc()
            case events.Committed():
                self._committed.labels(url).inc()
                self._last.labels(url).set(self._clock.now_ms() // 1000)
            case events.Quarantined():
                self._quarantined.labels(url).set(1)
            case events.Recovered():
                self._quarantined.labels(url).set(0)
            case events.CannotCompact():
                self._cannot_compact.labels(url).set(1)
            case events.CanCompact():
                self._cannot_compact.labels(url).set(0)
            case events.WaitingForStore(url=store, since_s=since_s):
                self._take_in_waiting(url, store, since_s, is_over=False)
            case events.StoreBack(url=store, waited_s=waited_s):
                self._take_in_waiting(url, store, waited_s, is_over=True)
            case events.GarbageCollected(deleted=deleted, left=left, dry_run=dry_run):
                self._take_in_garbage(url, {} if dry_run else deleted, left)
            case events.HistoryRun():
                self._take_in_history(event)
            case _:
                self._follow(event)

    def _take_in_history(self, event: events.HistoryRun) -> None:
        url = event.dataset
        self._history_runs.labels(url, event.outcome).inc()
        self._pending_files.labels(url).set(event.pending_files)
        self._pending_bytes.labels(url).set(event.pending_bytes)
        before = self._needers.pop(url, event.needed_by)
        if before != event.needed_by:
            self._needed.remove(url, before)
        if event.needed_ms is not None:
            self._needers[url] = event.needed_by
            self._needed.labels(url, event.needed_by).set(event.needed_ms / 1000)

    def _take_in_garbage(self, url: str, deleted: Mapping[str, int], left: Mapping[str, int]) -> None:
        self._gc_count.labels(url).inc()
        for resource, count in deleted.items():
            self._gc_deleted.labels(url, resource).inc(count)
        for resource in ("manifest", "compactions"):
            if resource in left:
                self._gc_versions.labels(url, resource).set(left[resource])

    def _take_in_waiting(self, url: str, store: str, since_s: float, *, is_over: bool) -> None:
        if is_over and (url, store) not in self._waited_s:
            return  # Coordinator and workers of this process report the same wait.
        counted_s = self._waited_s.pop((url, store), 0.0)
        self._waited.labels(url).inc(max(0.0, since_s - counted_s))
        if not is_over:
            self._waited_s[url, store] = since_s
        self._waiting.labels(url).set(any(dataset == url for dataset, _ in self._waited_s))

    def _follow(self, event: Event) -> None:
        """Take in events of a worker of this process."""
        url, now_s = event.dataset, self._clock.monotonic_s()
        match event:
            case events.Claimed(compaction=compaction, worker=worker):
                self._attempts[url, compaction] = _MeteredAttempt(worker, now_s, moved_at_s=now_s)
                self._count_running(url, worker)
            case events.Heartbeat(compaction=compaction, bytes_moved=moved):
                attempt = self._attempts.get((url, compaction))
                if attempt is not None:
                    self._count_moved(url, attempt, moved)
                if attempt is not None and now_s > attempt.moved_at_s:
                    attempt.bytes_per_s = (moved - attempt.moved_bytes) / (now_s - attempt.moved_at_s)
                    attempt.moved_bytes, attempt.moved_at_s = moved, now_s
                    self._set_throughput(url)
            case events.Moved(compaction=compaction):
                attempt = self._attempts.get((url, compaction))
                if attempt is not None:
                    attempt.done_bytes, attempt.cost_bytes = event.done_bytes, event.cost_bytes
                    self._set_progress(url)
            case events.RangeFinished(compaction=compaction):
                self._count_range(url, event, self._worker_of(url, compaction))
                attempt = self._attempts.get((url, compaction))
                if attempt is not None:
                    attempt.finished_bytes += event.bytes_read + event.bytes_written
                    self._count_moved(url, attempt, attempt.finished_bytes)
            case events.Compacted(compaction=compaction):
                attempt = self._end(url, compaction)
                if attempt is not None:
                    self._seconds.labels(url).observe(now_s - attempt.started_s)
            case events.AttemptFailed(compaction=compaction):
                self._failures.labels(url, "attempt_failed").inc()
                self._end(url, compaction)
            case events.EngineLost(compaction=compaction):
                self._failures.labels(url, "engine_lost").inc()
                self._end(url, compaction)
            case events.StoreLost(compaction=compaction):
                self._failures.labels(url, "store_lost").inc()
                self._end(url, compaction)
            case events.GivenBack(compaction=compaction):
                self._end(url, compaction)
            case events.Lost(compaction=compaction):
                self._failures.labels(url, "lost").inc()
                self._end(url, compaction)
            case _:
                pass

    def _count_range(self, url: str, event: events.RangeFinished, worker: str) -> None:
        self._bytes.labels(url, worker).inc(event.bytes_written)
        self._files.labels(url, worker).inc(event.outputs)
        self._ranges.labels(url).inc()
        self._read.labels(url).inc(event.bytes_read)
        self._cpu.labels(url).inc(event.cpu_s)
        self._memory.labels(url).set(event.peak_memory_bytes)
        for kind, count in event.rows.items():
            self._rows.labels(url, kind).inc(count)

    def _worker_of(self, url: str, compaction: str) -> str:
        attempt = self._attempts.get((url, compaction))
        return attempt.worker if attempt is not None else ""

    def _end(self, url: str, compaction: str) -> _MeteredAttempt | None:
        attempt = self._attempts.pop((url, compaction), None)
        if attempt is not None:
            self._count_running(url, attempt.worker)
            self._set_throughput(url)
            self._set_progress(url)
        return attempt

    def _count_moved(self, url: str, attempt: _MeteredAttempt, moved_bytes: int) -> None:
        """Count the bytes moved since the claim that were not counted yet."""
        if moved_bytes > attempt.counted_bytes:
            self._moved.labels(url).inc(moved_bytes - attempt.counted_bytes)
            attempt.counted_bytes = moved_bytes

    def _set_progress(self, url: str) -> None:
        mine = [attempt for (u, _), attempt in self._attempts.items() if u == url]
        self._done.labels(url).set(sum(attempt.done_bytes for attempt in mine))
        self._cost.labels(url).set(sum(attempt.cost_bytes for attempt in mine))
        now_s = self._clock.monotonic_s()
        left = [
            (now_s - attempt.started_s) * (attempt.cost_bytes - attempt.done_bytes) / attempt.done_bytes
            for attempt in mine
            if attempt.done_bytes
        ]
        self._left.labels(url).set(max(left, default=0))

    def _count_running(self, url: str, worker: str) -> None:
        mine = sum(1 for (u, _), attempt in self._attempts.items() if (u, attempt.worker) == (url, worker))
        self._running.labels(url, worker).set(mine)

    def _set_throughput(self, url: str) -> None:
        total = sum(attempt.bytes_per_s for (u, _), attempt in self._attempts.items() if u == url)
        self._throughput.labels(url).set(total)

    def count_request(self, verb: Verb, answer: RequestOutcome) -> None:
        """Count a request to the object store."""
        self._requests.labels(verb.value, answer.value).inc()

    # State of datasets

    def saw_backlog(self, url: str, backlogs: Iterable[Backlog]) -> None:
        """Show the backlog of a snapshot that was read."""
        with self._lock:
            for backlog in backlogs:
                stall_s = _NO_STALL if backlog.stall_ms is None else backlog.stall_ms / 1000
                self._stall.labels(url, backlog.unit).set(stall_s)
                for detail in backlog.details:
                    if detail.metric and detail.value is not None:
                        labels = (backlog.unit,) if detail.by_unit else ()
                        self._gauge_of(detail).labels(url, *labels).set(detail.value)

    def _gauge_of(self, detail: Detail) -> Gauge:
        """Return a gauge that a kind defines; create it when a dataset first has it."""
        if detail.metric not in self._details:
            labels = ("unit",) if detail.by_unit else ()
            self._details[detail.metric] = self._gauge(detail.metric, detail.help, *labels)
        return self._details[detail.metric]

    def saw_past(self, url: str, past: Past | None) -> None:
        """Show the history of a snapshot that was read."""
        if past is not None:
            with self._lock:
                self._versions.labels(url).set(past.versions)
                self._history_bytes.labels(url).set(past.only_history_bytes)

    def saw_plan(self, url: str, plan: Plan) -> None:
        """Show the totals of a plan."""
        with self._lock:
            for status, total in plan.totals.items():
                self._planned_units.labels(url, status).set(total.units)
                self._planned_files.labels(url, status).set(total.files)
                self._planned_bytes.labels(url, status).set(total.size_bytes)

    def saw_ledger(self, url: str, ledger: AnyLedger, running_bytes: int | None = None) -> None:
        """Show a ledger that was read or published. `running_bytes` are the inputs of its running
        compactions, if known."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            for state in ACTIVE:
                count = sum(c.state is state for c in ledger.compactions)
                self._states.labels(url, state.value).set(count)
            self._set_owners(url, ledger, now_s)
            if running_bytes is not None:
                self._being_compacted.labels(url).set(running_bytes)

    def _set_owners(self, url: str, ledger: AnyLedger, now_s: float) -> None:
        owned = [(c.id, c.worker) for c in ledger.compactions if c.state is CompactionState.RUNNING]
        owners: dict[str, str] = {compaction: worker.id for compaction, worker in owned if worker is not None}
        before = self._owners.get(url)
        if before is not None and self._coordinates:
            self._claimed.labels(url).inc(sum(before.get(c) != w for c, w in owners.items()))
        self._owners[url] = owners
        beats: dict[str, int] = {}
        for _, worker in owned:
            if worker is not None:
                beats[worker.id] = max(beats.get(worker.id, 0), worker.last_heartbeat_ms)
        heard = self._heard.get(url, {})
        self._heard[url] = {
            worker_id: heard[worker_id] if heard.get(worker_id, (None,))[0] == at_ms else (at_ms, now_s)
            for worker_id, at_ms in beats.items()
        }
        for worker_id, (at_ms, seen_s) in self._heard[url].items():
            self._heartbeat.labels(url, worker_id).set(at_ms)
            self._ages.labels(url, worker_id).set(now_s - seen_s)
        for worker_id in set((before or {}).values()) - set(beats):
            self._heartbeat.remove(url, worker_id)
            self._ages.remove(url, worker_id)
