"""A process that keeps datasets compacted until it is stopped: coordinators, workers, metrics, a dashboard.

1. Each dataset has a coordinator. If one is refused at the start, because another may be alive or there is no
   dataset, the service ends before anything is written there.
2. A coordinator that is fenced later logs that and ends for good; the others continue, and the service ends
   with the last. If a store is away at the start, its coordinators begin when it is back. Any other error of
   one of several, such as a corrupt object, is logged once and retried with growing pauses; it does not end
   the others.
3. A dataset that was recreated at its URL, or restored from a backup, is another dataset: it is opened and
   coordinated from the start once it exists, and refused as at the start of the service.
4. One pool of workers serves all datasets (`lithify.service.worker_pool`). A worker has the name that is in
   the lease of its dataset's coordinator here, so that the next coordinator after a crash reclaims its
   compactions at once.
5. For a single dataset, coordinator and worker alternate in one thread, which halves the reads.
6. Records of commits are written in the background (`lithify.mirror.commit_recording`).
7. The log has the start and the stop of the service; between them, released compactions.
8. For the dashboard, reads are recorded (`lithify.mirror.dataset_mirror`); a thread seldom reads the details
   that nothing else here reads, regardless of viewers.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lithify import __version__
from lithify.api import arguments, wiring
from lithify.api.client import Dataset as ClientDataset
from lithify.api.client import Settings, settled
from lithify.base import events
from lithify.base.backoff import Backoff
from lithify.base.clock import SystemClock
from lithify.base.defects import contained
from lithify.base.errors import (
    CoordinatorAlive,
    DatasetNotFound,
    Fenced,
    LithifyError,
    Refused,
    Replaced,
    StoreUnavailable,
    Unsupported,
)
from lithify.base.events import Observer, each, ignore
from lithify.datasets.kind import DatasetPort
from lithify.datasets.registry import registered_for
from lithify.datasets.waiting import service_waiting
from lithify.engine.ports import Engine
from lithify.mirror.dataset_mirror import DatasetMirror
from lithify.observe.logs import FIELDS
from lithify.protocol.finding import Finding
from lithify.service.loops import once_back, run_coordinator, run_workers
from lithify.service.once_logger import OnceLogger
from lithify.service.worker_pool import QUARANTINE_PAUSE

if TYPE_CHECKING:
    from lithify.service.managed_dataset import Collector
    from lithify.service.worker_pool import WorkerPool

BESIDE_LOOK_S = 1.0
"""The interval of checks whether details are due to be read for a dashboard."""

_log = logging.getLogger("lithify")


@dataclass(frozen=True, slots=True)
class _Coordinated:
    dataset: DatasetPort
    collector: Collector | None
    """A collector works in its own thread, so it has its own handle of the dataset."""


class Service:
    """A service that coordinates and compacts datasets in this process until it is stopped, as `lithify run`
    does.

    Without `coordinates` it works for coordinators elsewhere (`lithify worker`); without `works` it only
    coordinates (`lithify coordinator`). The default of `works` is the setting `service.embedded_worker`.
    `settings` and `spark` are as in `lithify.open`; `on_event` is called with each event; `take_over` fences
    coordinators that may be alive. Close it, or use it as a context manager, to stop the Spark session that
    it has started.

    Raise `Refused` if there are no URLs, a URL is malformed, or no dataset can be opened; one of several that
    cannot be opened is retried. `engine` is for tests.
    """

    def __init__(
        self,
        urls: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
        *,
        settings: Settings | None = None,
        spark: Any = None,
        on_event: Observer | None = None,
        take_over: bool = False,
        coordinates: bool = True,
        works: bool | None = None,
        engine: Engine | None = None,
    ) -> None:
        self._urls = list(dict.fromkeys(arguments.places("urls", urls)))
        self._config = settled(settings)
        self._take_over = take_over
        self._coordinates = coordinates
        self._works = self._config.service.embedded_worker if works is None else works
        if not self._urls:
            raise Refused("name at least one dataset")
        if not (self._coordinates or self._works):
            raise Refused("a service must coordinate, work, or do both")
        port = self._config.metrics.port
        self._metrics = None if port is None else wiring.metrics(coordinates=coordinates)
        self._recorder = wiring.recorder(self._config, SystemClock())
        observers = [o for o in (on_event, self._metrics, self._recorder) if o is not None]
        self._observe: Observer = each(*observers) if observers else ignore
        self._stop: threading.Event | None = None
        is_shown = self._config.web.port is not None
        if is_shown:
            from lithify.web.serving import check

            check(self._config)
        self._shared = {
            url: DatasetMirror(url, SystemClock(), coordinates=coordinates) for url in self._urls if is_shown
        }
        self._watched: dict[str, ClientDataset] = {}
        self._refused: dict[str, LithifyError] = {}
        """Datasets that could not be coordinated when the service started, until that was tried again."""
        self._coordinated = {url: self._opened(url) for url in self._urls} if coordinates else {}
        """The value is `None` for a dataset that could not be opened yet."""
        self._raise_if_all_refused()
        self._gone: set[str] = set()
        """Datasets that were deleted, recreated or restored, until they are opened again."""
        self._closing = ExitStack()
        self._engine: Engine | None = engine
        if not self._works:
            self._engine = None
        elif engine is None:
            started = wiring.spark_engine(self._config, self._urls, spark)
            self._engine = self._closing.enter_context(started)
        self._pool: WorkerPool | None = None
        self._errors: list[BaseException] = []

    def __enter__(self) -> Service:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the Spark session that the service has started."""
        self._closing.close()

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set. Raise `CoordinatorAlive` if another coordinator may be running, `Fenced`
        if other processes have taken over all datasets, and any other error that ends the service."""
        self._stop = stop
        began_s = time.monotonic()
        with ExitStack() as stack:
            if self._recorder is not None:
                stack.callback(self._recorder.close)
            if self._metrics is not None:
                stack.enter_context(self._served())
            if self._shared:
                from lithify.web.serving import served

                stack.enter_context(served(self._urls, None, self._config, self))
            self._say(
                "started",
                version=__version__,
                coordinates=self._coordinates,
                works=self._works,
                datasets=len(self._urls),
                first=self._urls[0],
            )
            stack.callback(lambda: self._say("stopped", seconds=round(time.monotonic() - began_s, 1)))
            if self._engine is not None:
                telling = wiring.telling_of_compilation(self._config, self._urls, _log.info, after_s=0)
                stack.enter_context(telling)
            if self._shared:
                beside = threading.Thread(target=self._read_beside, args=(stop,), name="lithify-beside")
                stack.callback(beside.join)
                stack.callback(stop.set)
                beside.start()
            if self._is_alone:
                self._coordinate(self._urls[0], wiring.new_name(), stop)
            else:
                self._run_all(stop)

    def _say(self, message: str, **facts: object) -> None:
        _log.info(message, extra={FIELDS: facts})

    def findings(self) -> tuple[Finding, ...]:
        """Return the datasets that the workers back off from, with reasons. Any thread may call it."""
        return self._pool.findings() if self._pool is not None else ()

    def watched(self, url: str) -> ClientDataset:
        """Return a dataset as last read by this process, for viewing only and for one thread at a time. Raise
        `StoreUnavailable` if it was not read yet."""
        found = self._watched.get(url)
        if found is None:
            raise StoreUnavailable(f"{url}: this process has not read it yet")
        return found

    def acted_on(self, url: str) -> ClientDataset:
        """Open one of the datasets for changes, which viewers see at once."""
        return ClientDataset(url, self._config, observer=self._shared[url])

    def _read_beside(self, stop: threading.Event) -> None:
        """Read details for a dashboard, in a thread of its own."""
        readers: dict[str, Callable[[], Any]] = {
            url: partial(self._begin_beside, url) for url in self._shared
        }
        troubles = {
            url: OnceLogger(f"data that only the dashboard of {url} shows cannot be read") for url in readers
        }
        while not stop.is_set():
            for url, trouble in troubles.items():
                try:
                    with contained("reading for the dashboard"):
                        readers[url] = readers[url]()
                except LithifyError as error:
                    trouble.say(error)
                else:
                    trouble.is_over()
            stop.wait(BESIDE_LOOK_S)

    def _begin_beside(self, url: str) -> Callable[[], Any]:
        """Open a dataset for a dashboard. Return the function that reads its details from then on."""
        shared, dataset = self._shared[url], self._open(url)
        records = wiring.commit_records(dataset)
        self._watched[url] = ClientDataset(url, self._config, state_of=shared.state, commits=shared.newest)

        def look() -> Callable[[], Any]:
            shared.read_beside(dataset, records)
            return look

        return look

    def _is_ending(self) -> bool:
        return self._stop is not None and self._stop.is_set()

    def _served(self) -> Any:
        from lithify.observe.endpoint import READY_LIMIT_S, served

        assert self._metrics is not None
        service = self._config.service
        between_s = max(service.poll_interval_s, service.worker.compactions_poll_interval_s)
        return served(
            self._metrics,
            self._config.metrics.host,
            self._config.metrics.port or 0,
            ready_limit_s=max(READY_LIMIT_S, 5 * between_s),
        )

    def _made_anew(self, url: str, error: Replaced) -> None:
        self._observe(events.MadeAnew(url, str(error)))
        self._coordinated[url] = None
        self._gone.add(url)

    def _run_all(self, stop: threading.Event) -> None:
        names = {url: wiring.new_name() for url in self._coordinated}
        threads = [
            threading.Thread(target=self._coordinate_beside, args=(url, name, stop), name=f"lithify {url}")
            for url, name in names.items()
        ]
        for thread in threads:
            thread.start()
        try:
            if self._engine is None:
                stop.wait()
            else:
                self._pool = wiring.worker_pool(
                    self._urls, self._open, self._engine, self._config, self._observe, names
                )
                run_workers(self._pool, stop, random.Random(), self._config.service)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        if self._errors:
            raise self._errors[0]

    def _coordinate_beside(self, url: str, name: str, stop: threading.Event) -> None:
        try:
            self._coordinate(url, name, stop)
        except BaseException as error:
            self._errors.append(error)
            if isinstance(error, Fenced) and url in self._shared:
                self._shared[url].end(
                    f"another process coordinates {url} now, so this one no longer reads it; use the "
                    "dashboard of that process, or `lithify web`"
                )
            if isinstance(error, Fenced) and len(self._errors) < len(self._coordinated):
                _log.error("%s is now coordinated by another process: %s", url, error)
            else:
                stop.set()

    def _coordinate(self, url: str, name: str, stop: threading.Event) -> None:
        """Coordinate a dataset until `stop` is set. Raise `Fenced` and any error of a single dataset; at the
        start `CoordinatorAlive`, and the first refusal if all datasets were refused. After other errors of
        one of several, back off and retry."""
        trouble = OnceLogger(f"{url} cannot be coordinated now; this is retried")
        backoff, is_start = Backoff(QUARANTINE_PAUSE), True
        was_opened = self._coordinated[url] is not None
        while not stop.is_set():
            try:
                with contained(f"coordinating {url}"):
                    found = self._awaited(url, stop)
                    if found is not None:
                        self._run_coordinator(found, name, stop)
                return
            except Replaced as error:
                self._made_anew(url, error)
                backoff.succeeded()
                is_start = False
                continue
            except Fenced:
                raise
            except LithifyError as error:
                if self._is_alone or (is_start and was_opened and isinstance(error, CoordinatorAlive)):
                    raise
                if is_start:
                    self._refuse(url, error)
                trouble.say(error)
                backoff.failed(error, 0)
            self._coordinated[url], is_start = None, False
            stop.wait(backoff.pause_ms / 1000)

    @property
    def _is_alone(self) -> bool:
        """Whether a single dataset is coordinated, whose embedded worker works in the same thread."""
        return len(self._coordinated) == 1

    def _run_coordinator(self, found: _Coordinated, name: str, stop: threading.Event) -> None:
        worker = None
        if self._is_alone and self._engine is not None:
            room = wiring.room(self._engine, self._config)
            worker = wiring.worker(found.dataset, self._engine, self._config, self._observe, name, room=room)
        run_coordinator(
            wiring.coordinator(found.dataset, self._config, self._observe, worker),
            wiring.leadership(found.dataset, name),
            stop,
            random.Random(),
            self._config.service,
            take_over=self._take_over,
            worker=worker,
            collector=found.collector,
        )

    def _opened(self, url: str) -> _Coordinated | None:
        """Open a dataset. Raise any error of a single dataset, and refusals of the URL. Return `None` if its
        store is away, or if one of several cannot be opened; `_awaited` opens it later."""
        registered_for(url)
        try:
            with contained(f"opening {url}"):
                return self._open_both(url)
        except LithifyError as error:
            if len(self._urls) == 1 and not isinstance(error, StoreUnavailable):
                raise
            if _is_refusal(error):
                self._refused[url] = error
            _log.warning("%s cannot be opened now; this is retried: %s", url, error)
            return None

    def _refuse(self, url: str, error: LithifyError) -> None:
        """Note the refusal of a dataset at the start, and raise it if there is no other dataset left."""
        if _is_refusal(error):
            self._refused[url] = error
            self._raise_if_all_refused()

    def _raise_if_all_refused(self) -> None:
        if self._urls and self._coordinated and len(self._refused) == len(self._urls):
            raise next(iter(self._refused.values()))

    def _awaited(self, url: str, stop: threading.Event) -> _Coordinated | None:
        """Wait until the dataset's store is available and return the dataset; `None` if stopped before."""
        found = self._coordinated[url]
        if found is None:
            open_it = self._open_new if url in self._gone else self._open_both
            found = once_back(partial(open_it, url), stop, self._config.service)
        self._gone.discard(url)
        return found

    def _open_new(self, url: str) -> _Coordinated:
        """Open the successor of a dataset that is gone. While there is none, raise `StoreUnavailable`, so
        that the caller waits as for a store."""
        try:
            found = self._open_both(url)
            found.dataset.snapshot()
        except DatasetNotFound as error:
            raise StoreUnavailable(
                f"{url} does not exist any more; waiting until it is created again: {error}"
            ) from error
        return found

    def _open_both(self, url: str) -> _Coordinated:
        dataset = self._open(url)
        return _Coordinated(dataset, wiring.collector(self._open(url), self._config, self._observe))

    def _open(self, url: str) -> DatasetPort:
        """Open a dataset; each thread needs its own handle."""
        waiting = service_waiting(url, self._config, self._observe, self._is_ending)
        recorder = self._recorder
        count = None if recorder is None else recorder.counting(url)
        dataset = wiring.open_dataset(url, self._config, self._metrics, waiting, count, self._shared.get(url))
        # Events have the dataset's own spelling of its URL.
        if recorder is not None:
            records = wiring.commit_records(dataset)
            recorder.follow(dataset.url, records, coordinates=self._coordinates, counted_as=url)
        if self._metrics is not None:
            self._metrics.serves(dataset.url)
        return dataset


def _is_refusal(error: LithifyError) -> bool:
    """Return whether the operator has to act on the error. An unknown format is an error of the dataset: it
    may be damaged, or written by a newer version."""
    return isinstance(error, Refused) and not isinstance(error, Unsupported)
