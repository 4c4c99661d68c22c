"""A process of a fleet that runs a fleet coordinator, a fleet worker, or both, until it is stopped.

1. If the process cannot work at all (no such fleet, no such queue, no Spark master), it ends before anything
   is written.
2. The coordinator ticks in its own thread, the worker in the caller's. They communicate only through the
   store, as they do if they are in different processes.
3. A failed round is logged once and retried after a pause. Its unfinished work is in the ledgers.
4. One more thread collects garbage, one dataset after the other, so that commits do not wait for it.
5. Records of commits, and of work for them, are written in the background
   (`lithify.mirror.commit_recording`).
6. For a dashboard in the same process (`lithify.fleet.fleet_mirror`), the coordinator's reads and writes are
   recorded; one more thread reads the remaining details.
7. One more thread writes heartbeats of both while a round takes long (`lithify.fleet.members`), so that a
   slow member does not count as dead.
8. At the end the worker releases unfinished compactions, and the coordinator its leaderships.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lithify.api import wiring
from lithify.base.defects import contained
from lithify.base.errors import EngineDown, LithifyError, Refused
from lithify.base.events import Event, Observer, each, ignore
from lithify.config.model import Config
from lithify.datasets.kind import DatasetPort
from lithify.datasets.registry import registered_for
from lithify.datasets.waiting import service_waiting
from lithify.engine.ports import Engine
from lithify.fleet.catalog.model import DatasetRule
from lithify.fleet.coordinator import FleetCoordinator, FleetCoordinatorPorts
from lithify.fleet.files import FleetFiles
from lithify.fleet.members import FleetRole, ReportListener, new_member_name, unheard
from lithify.fleet.status import fleet_status
from lithify.fleet.watched_dataset import WatchPorts
from lithify.fleet.worker import FleetWorker, FleetWorkerPorts, NoSource
from lithify.protocol.proposal import Plan
from lithify.service.once_logger import OnceLogger

if TYPE_CHECKING:
    from lithify.fleet.fleet_mirror import SharedFleet
    from lithify.mirror.commit_recording import Recorder
    from lithify.mirror.dataset_mirror import DatasetMirror
    from lithify.service.coordinator import Coordinator, CountAttempts
    from lithify.service.slots import WorkerSlots
    from lithify.service.worker import Worker
    from lithify.store.metered import RequestOutcome, Verb
    from lithify.store.resilience.waiting import WaitPolicy

    Count = Callable[[Verb, RequestOutcome], None]

PAUSE_S = 5.0
"""The pause after a failed round."""
LEAST_PAUSE_S = 0.05
MAX_OPENED = 256
"""The maximum number of datasets that a worker keeps open while none of their compactions run here."""
MAX_CONFIGS = 1_000
JOIN_S = 10.0
PULSE_LOOK_S = 1.0
"""The interval of checks whether a round takes so long that a heartbeat is due."""
BESIDE_LOOK_S = 1.0
"""The interval of checks whether details are due to be read for a dashboard."""

_log = logging.getLogger("lithify")


class FleetProcess:
    """A process that serves the fleet at `url`; see `lithify.api.fleets.Fleet.run`."""

    def __init__(
        self,
        url: str,
        config: Config,
        *,
        queues: Sequence[str] = (),
        keeps: bool = True,
        works: bool = True,
        exit_when_idle_s: float | None = None,
        spark: Any = None,
        engine: Engine | None = None,
        on_event: Observer = ignore,
        shared: SharedFleet | None = None,
    ) -> None:
        """`keeps` and `works` start the fleet coordinator and the fleet worker. The coordinator's reads are
        recorded in `shared`."""
        from lithify.base.clock import SystemClock
        from lithify.base.ids import RandomIds

        if not (keeps or works):
            raise Refused("a process of a fleet must coordinate, work, or do both")
        self._url = url
        self._config = config
        self._queues = queues
        self._exit_when_idle_s = exit_when_idle_s
        self._spark = spark
        self._engine = engine
        roles = [role for role, does in ((FleetRole.COORDINATOR, keeps), (FleetRole.WORKER, works)) if does]
        self._metrics = None if config.metrics.port is None else wiring.fleet_metrics(roles)
        self._observe = on_event if self._metrics is None else each(on_event, self._metrics)
        self._commits, self._work_done = _recorder(), _recorder()
        """Recorders of the coordinator, which commits the work of any process, and of the worker."""
        self._clock = SystemClock()
        self._ids = RandomIds()
        self._stop = threading.Event()
        self._opened: OrderedDict[tuple[str, frozenset[tuple[str, str]]], DatasetPort] = OrderedDict()
        """Open datasets of the worker, by URL and settings of the rule; the least recently used first."""
        self._configs: OrderedDict[tuple[str, frozenset[tuple[str, str]]], Config] = OrderedDict()
        self._lock = threading.Lock()
        self._due = ToCollect()
        self._has_left = threading.Event()
        self._worker: FleetWorker | None = None
        self._shared = shared if keeps else None
        self._coordinator = self._new_coordinator() if keeps else None
        self._works = works

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set, or all of the worker's queues are deleted."""
        self._stop = stop
        with self._served(), closing(self._commits), closing(self._work_done):
            self._run(stop)

    def _served(self) -> AbstractContextManager[None]:
        """Serve metrics during the block, if the settings enable them."""
        from lithify.observe.endpoint import served

        if self._metrics is None:
            return nullcontext()
        return served(self._metrics, self._config.metrics.host, self._config.metrics.port or 0)

    def _run(self, stop: threading.Event) -> None:
        if not self._works:
            with _LoopThreads(stop, self._loops(), self._end):
                stop.wait()
            return
        engine = self._engine
        if engine is not None:
            self._run_with(engine, stop)
            return
        rules = self._files().catalog.read().catalog.rules
        patterns = [rule.pattern for rule in rules if _is_known(rule.pattern)]
        with wiring.spark_engine(self._config, patterns, self._spark, f"fleet {self._url}") as started:
            self._run_with(started, stop)

    def _run_with(self, engine: Engine, stop: threading.Event) -> None:
        worker = self._worker = self._new_worker(engine)
        worker.start()
        with _LoopThreads(stop, self._loops(), self._end):
            try:
                self._work(worker, stop)
            finally:
                stop.set()
                self._close("the workers", worker.close)

    def _loops(self) -> dict[str, Callable[[], None]]:
        """Return the loops that run in threads of their own, by thread name; the fleet coordinator's is the
        first."""
        loops = {"lithify-coordinator": self._keep, "lithify-gc": self._collect, "lithify-pulse": self._beat}
        return loops if self._shared is None else loops | {"lithify-beside": self._read_beside}

    def _work(self, worker: FleetWorker, stop: threading.Event) -> None:
        settings = self._config.service
        trouble = OnceLogger("the workers could not finish a round and retry")
        while not stop.is_set() and not worker.is_over:
            pause_s = LEAST_PAUSE_S
            try:
                with contained("a round of the workers"):
                    changed = worker.tick()
                if not changed:
                    pause_s = max(LEAST_PAUSE_S, worker.due_in_s())
                _finished(trouble, worker.problem)
                self._finished_round(FleetRole.WORKER)
            except EngineDown:
                raise
            except LithifyError as error:
                trouble.say(error)
                pause_s = PAUSE_S
            if worker.idle_s:
                stop.wait(pause_s)
            else:
                worker.wait(min(pause_s, settings.commit_compacted_interval_s))
            if self._exit_when_idle_s is not None and worker.idle_s >= self._exit_when_idle_s:
                _log.info("nothing to do for %d s; exiting", round(worker.idle_s))
                return

    def _keep(self) -> None:
        coordinator, stop = self._coordinator, self._stop
        if coordinator is None:
            return
        trouble = OnceLogger("the coordinator could not finish a round and retries")
        while not stop.is_set():
            try:
                with contained("a round of the coordinator"):
                    pause_s = max(LEAST_PAUSE_S, coordinator.tick())
                if self._shared is not None:
                    self._shared.keep(coordinator.watched)
                    self._shared.saw_datasets(coordinator.datasets, coordinator.not_found)
                _finished(trouble, coordinator.problem)
                self._finished_round(FleetRole.COORDINATOR)
            except LithifyError as error:
                trouble.say(error)
                pause_s = PAUSE_S
            stop.wait(pause_s)
        self._close("the coordinator", coordinator.close)

    def _finished_round(self, role: FleetRole) -> None:
        if self._metrics is not None:
            self._metrics.finished_round(role)

    def _close(self, what: str, close: Callable[[], None]) -> None:
        """Let a member leave the fleet. If that fails, other members take over its work when its leases
        expire."""
        try:
            with contained(f"the end of {what}"):
                close()
        except LithifyError as error:
            _log.error("%s could not leave the fleet cleanly: %s", what, error)

    def _collect(self) -> None:
        while (due := self._due.take()) is not None:
            url, rule = due
            try:
                with contained(f"collecting garbage of {url}"):
                    config = self._config_of(rule)
                    collector = wiring.collector(self._open(url, rule), config, self._observe)
                    if collector is not None:
                        collector.tick()
                        self._due.done(url, collector.due_in_ms)
            except LithifyError as error:
                _log.error("garbage of %s was not collected: %s", url, error)

    def _beat(self) -> None:
        members = [member for member in (self._coordinator, self._worker) if member is not None]
        trouble = OnceLogger("this process could not write its heartbeat")
        while not self._has_left.wait(PULSE_LOOK_S):
            try:
                with contained("a heartbeat"):
                    for member in members:
                        member.beat()
            except LithifyError as error:
                trouble.say(error)
            else:
                trouble.is_over()

    def _read_beside(self) -> None:
        assert self._shared is not None
        assert self._coordinator is not None, "it reads what this coordinator has read"
        files, trouble = (
            self._files(),
            OnceLogger("data that only the fleet's dashboard shows cannot be read"),
        )
        while not self._stop.wait(BESIDE_LOOK_S):
            failed = False
            for shared in (None, *self._shared.due()):
                try:
                    with contained("reading for the dashboard"):
                        if shared is not None:
                            self._read_dataset_beside(shared)
                        elif self._shared.is_status_due():
                            self._shared.saw_status(fleet_status(files, self._clock.now_ms()))
                except LithifyError as error:
                    failed = True
                    trouble.say(error)
            if not failed:
                trouble.is_over()

    def _read_dataset_beside(self, shared: DatasetMirror) -> None:
        assert self._shared is not None
        assert self._coordinator is not None
        rule = self._coordinator.datasets.get(shared.url)
        if rule is None:
            return
        try:
            dataset = self._open(shared.url, rule, shared=shared)
        except BaseException:
            shared.missed_beside()  # else it would be first in every round
            raise
        self._shared.read_beside(shared, dataset, wiring.commit_records(dataset))

    def _end(self) -> None:
        """Stop garbage collection and heartbeats, after all members have left."""
        self._has_left.set()
        self._due.end()

    def _files(self) -> FleetFiles:
        waiting = self._waiting(self._url, self._config)
        return wiring.fleet_files(
            self._url, self._config, waiting, self._clock, self._ids, self._count_request
        )

    def _config_of(self, rule: DatasetRule) -> Config:
        """Return the settings for a rule's datasets. Raise `Refused` if the rule sets something that is not
        allowed here."""
        if not rule.settings:
            return wiring.config_of(rule, self._config, self._url)
        key = rule.pattern, frozenset(rule.settings.items())
        with self._lock:
            if key not in self._configs:
                self._configs[key] = wiring.config_of(rule, self._config, self._url)
                if len(self._configs) > MAX_CONFIGS:
                    self._configs.popitem(last=False)
            return self._configs[key]

    def _found(self, rule: DatasetRule) -> list[str]:
        config = self._config_of(rule)
        return wiring.find_datasets(rule, config, self._waiting(rule.pattern, config))

    def _name(self, role: FleetRole) -> str:
        return new_member_name(role, self._ids.ulid(self._clock.now_ms()))

    def _new_coordinator(self) -> FleetCoordinator:
        name = self._name(FleetRole.COORDINATOR)

        def coordinator(
            dataset: DatasetPort, rule: DatasetRule, admit: Callable[[Plan], Plan], counts: CountAttempts
        ) -> Coordinator:
            from lithify.service.coordinator import Coordinator

            self._follow(self._commits, dataset, rule, coordinates=True)
            return Coordinator(
                dataset,
                self._clock,
                self._ids,
                admit=admit,
                counts=counts,
                options=wiring.coordinator_options(self._config_of(rule)),
                observer=each(self._observe, self._commits),
            )

        watch = WatchPorts(
            self._open_watched,
            coordinator,
            lambda dataset: wiring.leadership(dataset, name),
            self._clock,
            self._config.service,
            self._observe,
        )
        from lithify import __version__

        ports = FleetCoordinatorPorts(
            self._files(),
            watch,
            self._found,
            self._due.add,
            self._clock,
            socket.gethostname(),
            __version__,
            collects=lambda rule: self._config_of(rule).service.collect_garbage,
            collected=self._due.take_done,
            left=self._commits.forget,
            says=self._says,
        )
        return FleetCoordinator(name, ports)

    def _new_worker(self, engine: Engine) -> FleetWorker:
        from lithify import __version__
        from lithify.service.worker_pool import WorkerPool

        name = self._name(FleetRole.WORKER)

        def open_worker(url: str, room: WorkerSlots) -> Worker:
            return wiring.worker(self._kept_open(url), engine, self._config, observe, name, room=room)

        observe = each(self._observe, self._work_done)
        options = wiring.worker_options(self._config)
        pool = WorkerPool(
            NoSource(),
            open_worker,
            wiring.room(engine, self._config),
            self._clock,
            heartbeat_interval_ms=options.heartbeat_interval_ms,
            observer=observe,
        )
        ports = FleetWorkerPorts(
            self._files(), pool, self._clock, socket.gethostname(), __version__, self._says
        )
        return FleetWorker(name, ports, self._queues)

    def _kept_open(self, url: str) -> DatasetPort:
        """Return a dataset of the worker. It is opened once per rule settings, and cached."""
        assert self._worker is not None, "it asks for it"
        rule = self._worker.rule_for(url)
        key = url, frozenset(rule.settings.items())
        dataset = self._opened.pop(key, None)
        if dataset is None:
            dataset = self._open(url, rule, self._work_done)
            self._follow(self._work_done, dataset, rule, coordinates=False)
        self._opened[key] = dataset
        if len(self._opened) > MAX_OPENED:
            self._let_go(self._worker)
        return dataset

    def _let_go(self, worker: FleetWorker) -> None:
        """Drop the handle of the least recently used dataset that has no compaction running here."""
        idle = next((url for url, _ in self._opened if not worker.works_on(url)), None)
        if idle is not None:
            for key in [key for key in self._opened if key[0] == idle]:
                del self._opened[key]
            self._work_done.forget(idle)

    def _open_watched(self, url: str, rule: DatasetRule) -> DatasetPort:
        shared = None if self._shared is None else self._shared.of(url)
        dataset = self._open(url, rule, self._commits, shared)
        if self._metrics is None:
            return dataset
        from lithify.mirror.metered_reads import metered_backlog

        return metered_backlog(dataset, self._metrics.saw_backlog, self._clock)

    def _open(
        self,
        url: str,
        rule: DatasetRule,
        recorder: Recorder | None = None,
        shared: DatasetMirror | None = None,
    ) -> DatasetPort:
        """Open a dataset; each thread needs its own handle. `recorder` counts its requests, `shared` records
        its reads and writes."""
        config = self._config_of(rule)
        count = self._count_request
        if recorder is not None and config.service.keep_history_ms:
            count = _both(count, recorder.counting(url))
        waiting = self._waiting(url, config)
        return wiring.open_dataset(url, config, waiting=waiting, count=count, shared=shared)

    def _follow(
        self, recorder: Recorder, dataset: DatasetPort, rule: DatasetRule, *, coordinates: bool
    ) -> None:
        """Record the dataset's commits, or the work for them, unless the settings disable records."""
        keep_ms = self._config_of(rule).service.keep_history_ms
        if keep_ms:
            records = wiring.commit_records(dataset)
            recorder.follow(dataset.url, records, coordinates=coordinates, keep_ms=keep_ms)

    @property
    def _count_request(self) -> Callable[[Verb, RequestOutcome], None] | None:
        return None if self._metrics is None else self._metrics.count_request

    @property
    def _says(self) -> ReportListener:
        return unheard if self._metrics is None else self._metrics.says

    def _waiting(self, url: str, config: Config) -> WaitPolicy:
        """Return the rules for waiting for a store. All its datasets share them, and one wait is reported
        once."""
        store = "/".join(url.split("/")[:3]) if "://" in url else url
        return replace(service_waiting(store, config, self._tell, self._is_ending), is_shared=True)

    def _tell(self, event: Event) -> None:
        self._observe(event)

    def _is_ending(self) -> bool:
        return self._stop.is_set()


class ToCollect:
    """The queue of datasets whose garbage is due, first in, first out; a dataset is in it at most once.
    Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rules: dict[str, DatasetRule] = {}
        """The latest rule of each dataset, by URL."""
        self._done: list[tuple[str, int | None]] = []
        self._is_over = False

    def add(self, url: str, rule: DatasetRule) -> None:
        with self._changed:
            self._rules[url] = rule
            self._changed.notify()

    def take(self) -> tuple[str, DatasetRule] | None:
        """Wait for the next dataset and return it; `None` after `end`."""
        with self._changed:
            self._changed.wait_for(lambda: self._rules or self._is_over)
            if self._is_over:
                return None
            url = next(iter(self._rules))
            return url, self._rules.pop(url)

    def done(self, url: str, due_in_ms: int | None) -> None:
        """Record that a dataset was collected, and when more is due."""
        with self._changed:
            self._done.append((url, due_in_ms))

    def take_done(self) -> tuple[tuple[str, int | None], ...]:
        """Return the datasets that were collected since the last call."""
        with self._changed:
            done, self._done = tuple(self._done), []
            return done

    def end(self) -> None:
        """End the queue: `take` returns `None` from now on."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()


class _LoopThreads:
    """Threads that run loops during a block; the first one is the fleet coordinator's. At the end of the
    block, set `stop`, join that one, call `end`, and join the others for at most `JOIN_S` each."""

    def __init__(
        self,
        stop: threading.Event,
        loops: dict[str, Callable[[], None]],
        end: Callable[[], None],
    ) -> None:
        self._stop = stop
        self._end = end
        self._keeping, *self._others = (
            threading.Thread(target=loop, name=name, daemon=True) for name, loop in loops.items()
        )

    def __enter__(self) -> None:
        for thread in (self._keeping, *self._others):
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._keeping.join()
        self._end()
        for thread in self._others:
            thread.join(JOIN_S)


def _is_known(pattern: str) -> bool:
    """Return whether a kind of datasets has such URLs. A rule with another pattern is reported as its own
    problem."""
    try:
        registered_for(pattern)
    except Refused:
        return False
    return True


def _recorder() -> Recorder:
    from lithify.base.clock import SystemClock
    from lithify.mirror.commit_recording import Recorder

    return Recorder(SystemClock(), keep_ms=0)


def _both(first: Count | None, second: Count) -> Count:
    def count(verb: Verb, answer: RequestOutcome) -> None:
        if first is not None:
            first(verb, answer)
        second(verb, answer)

    return count


def _finished(trouble: OnceLogger, problem: LithifyError | None) -> None:
    """Note the end of a round; `problem` is the error in a catalog that could not be used."""
    if problem is None:
        trouble.is_over()
    else:
        trouble.say(problem, "the fleet's newest catalog cannot be used; the previous one stays in use")
