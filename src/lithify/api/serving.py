"""A process that keeps datasets compacted until it is stopped: coordinators, workers, metrics.

1. Each dataset has a coordinator. One that is refused when the service starts, because another may be alive
   or the dataset is none, ends the service before anything is written there. One that is fenced later ends
   for good and says so, and the others go on; the service ends with the last. One whose store is away starts
   when it is back. What else stands in the way of one of several, such as damage, is said once and tried
   again after growing pauses; from then on that one never ends the others. One that was made anew at its URL,
   or restored from a backup, is another dataset: it is opened and coordinated from the start, once it is
   there, and refused as it would be when the service starts.
2. One pool of workers works on all of them (`lithify.service.worker_pool`). A worker has the name that is in
   the lease of its dataset's coordinator here, so that whoever starts after a crash takes back at once what
   it held.
3. A single dataset is coordinated and worked on in turns, in one thread, which reads it half as often.
4. Metrics and the dashboard are served where the settings say so.
5. Each commit leaves a record, which nobody waits for (`lithify.mirror.commit_recording`).
6. The log says when it has started and when it has stopped; between them, what was given back.
7. For the dashboard what is read here is kept (`lithify.mirror.dataset_mirror`), and a thread reads seldom
   what nobody reads here anyway, whoever looks.
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
from lithify.base.clock import SystemClock
from lithify.base.defects import contained
from lithify.base.errors import (
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
from lithify.datasets.waiting import service_waiting
from lithify.engine.ports import Engine
from lithify.mirror.dataset_mirror import DatasetMirror, SharingRecords, sharing, watching
from lithify.observe.logs import FIELDS
from lithify.protocol.finding import Finding
from lithify.service.loops import once_back, run_coordinator, run_workers
from lithify.service.once_logger import OnceLogger
from lithify.service.worker_pool import QUARANTINE_PAUSE

if TYPE_CHECKING:
    from lithify.service.garbage_loop import Collector
    from lithify.service.worker import Worker
    from lithify.service.worker_pool import WorkerPool

BESIDE_LOOK_S = 1.0
"""Between two looks whether something is to be read for a dashboard."""

_log = logging.getLogger("lithify")


@dataclass(frozen=True, slots=True)
class _Coordinated:
    dataset: DatasetPort
    collector: Collector | None
    """It works in a thread of its own, so it has opened the dataset for itself."""


class Service:
    """Coordinates datasets and works on them, in this process, until stopped: `lithify run`. Without
    `coordinates` it works for coordinators elsewhere (`lithify worker`), without `works` it leaves the work
    to others (`lithify coordinator`); left out, the setting `service.embedded_worker` says whether it
    works."""

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
            raise Refused("a service coordinates, works, or does both")
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
        """Opened for a dashboard."""
        self._coordinated = {url: self._opened(url) for url in self._urls} if coordinates else {}
        """`None` for those whose stores are away."""
        self._gone: set[str] = set()
        """Those that were deleted, made anew or restored, until they are opened again."""
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
        """End the Spark that was started for it."""
        self._closing.close()

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set."""
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
            if len(self._coordinated) == 1:
                self._run_one(self._urls[0], stop)
            else:
                self._run_all(stop)

    def _say(self, message: str, **facts: object) -> None:
        _log.info(message, extra={FIELDS: facts})

    def findings(self) -> tuple[Finding, ...]:
        """Datasets that the workers here leave alone for now, and why. Any thread may ask."""
        return self._pool.findings() if self._pool is not None else ()

    def watched(self, url: str) -> ClientDataset:
        """One of its datasets as it is read here anyway, for a dashboard; `StoreUnavailable` before it was.
        For one thread at a time, and only to look."""
        found = self._watched.get(url)
        if found is None:
            raise StoreUnavailable(f"{url}: this process has not read it yet")
        return found

    def acted_on(self, url: str) -> ClientDataset:
        """The same, to do something with. What that changes is known to who watches at once."""
        return ClientDataset(
            url,
            self._config,
            through=partial(sharing, shared=self._shared[url], clock=SystemClock()),
        )

    def _read_beside(self, stop: threading.Event) -> None:
        """For a dashboard, in a thread of its own."""
        readers: dict[str, Callable[[], Any]] = {
            url: partial(self._begin_beside, url) for url in self._shared
        }
        troubles = {
            url: OnceLogger(f"what only the dashboard of {url} shows cannot be read") for url in readers
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
        """Open the dataset at `url` for a dashboard; what is to be called again and again from then on."""
        shared, dataset = self._shared[url], self._open(url)
        records = wiring.commit_records(dataset)
        through = partial(watching, shared=shared)
        self._watched[url] = ClientDataset(url, self._config, through=through, commits=shared.newest)

        def look() -> Callable[[], Any]:
            shared.read_beside(dataset, records)
            return look

        return look

    def _is_ending(self) -> bool:
        return self._stop is not None and self._stop.is_set()

    def _served(self) -> Any:
        from lithify.observe.endpoint import READY_LIMIT_S, served

        assert self._metrics is not None
        options = wiring.loop_options(self._config)
        between_s = max(options.poll_interval_s, options.compactions_poll_interval_s)
        return served(
            self._metrics,
            self._config.metrics.host,
            self._config.metrics.port or 0,
            ready_limit_s=max(READY_LIMIT_S, 5 * between_s),
        )

    def _run_one(self, url: str, stop: threading.Event) -> None:
        name = wiring.new_name()
        while (found := self._awaited(url, stop)) is not None:
            worker = None
            if self._engine is not None:
                room = wiring.room(self._engine, self._config)
                worker = wiring.worker(
                    found.dataset, self._engine, self._config, self._observe, name, room=room
                )
            try:
                self._coordinate(found, name, stop, worker)
                return
            except Replaced as error:
                self._made_anew(url, error)

    def _made_anew(self, url: str, error: Replaced) -> None:
        """Another dataset is in its place, or will be."""
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
                run_workers(self._pool, stop, random.Random(), wiring.loop_options(self._config))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        if self._errors:
            raise self._errors[0]

    def _coordinate_beside(self, url: str, name: str, stop: threading.Event) -> None:
        """In a thread of its own."""
        try:
            self._try_to_coordinate(url, name, stop)
        except BaseException as error:
            self._errors.append(error)
            if isinstance(error, Fenced) and url in self._shared:
                self._shared[url].end(
                    f"{url} is coordinated by another process now, so this one does not follow it any more; "
                    "look at that one's dashboard, or at `lithify web`"
                )
            if isinstance(error, Fenced) and len(self._errors) < len(self._coordinated):
                _log.error("%s is coordinated by another process from here on: %s", url, error)
            else:
                stop.set()

    def _try_to_coordinate(self, url: str, name: str, stop: threading.Event) -> None:
        """Coordinate one of several, again and again where that cannot begin. Raises `Fenced`, and what
        refuses it at the start."""
        trouble = OnceLogger(f"{url} is not coordinated for now, and that is tried again")
        failures, may_refuse = 0, self._coordinated[url] is not None
        while not stop.is_set():
            try:
                with contained(f"coordinating {url}"):
                    found = self._awaited(url, stop)
                    if found is not None:
                        self._coordinate(found, name, stop, None)
                return
            except Replaced as error:
                self._made_anew(url, error)
                failures, may_refuse = 0, False
                continue
            except Fenced:
                raise
            except LithifyError as error:
                if may_refuse and _is_refusal(error):
                    raise
                trouble.say(error)
            self._coordinated[url], may_refuse, failures = None, False, failures + 1
            stop.wait(QUARANTINE_PAUSE.after_ms(failures) / 1000)

    def _coordinate(
        self, found: _Coordinated, name: str, stop: threading.Event, worker: Worker | None
    ) -> None:
        run_coordinator(
            wiring.coordinator(found.dataset, self._config, self._observe, worker),
            wiring.leadership(found.dataset, name),
            stop,
            random.Random(),
            wiring.loop_options(self._config),
            take_over=self._take_over,
            worker=worker,
            collector=found.collector,
        )

    def _opened(self, url: str) -> _Coordinated | None:
        """What is refused is so from the start. What cannot be reached is opened when it can (`_awaited`); so
        is one of several that cannot be read."""
        try:
            with contained(f"opening {url}"):
                return self._open_both(url)
        except LithifyError as error:
            if _is_refusal(error) or (len(self._urls) == 1 and not isinstance(error, StoreUnavailable)):
                raise
            _log.warning("%s is opened later: %s", url, error)
            return None

    def _awaited(self, url: str, stop: threading.Event) -> _Coordinated | None:
        """What is coordinated at `url`, once its store is there; `None` when told to stop before."""
        found = self._coordinated[url]
        if found is None:
            open_it = self._open_new if url in self._gone else self._open_both
            found = once_back(partial(open_it, url), stop, wiring.loop_options(self._config))
        self._gone.discard(url)
        return found

    def _open_new(self, url: str) -> _Coordinated:
        """Open what is in the place of a dataset that is gone. As long as nothing is there it is waited for,
        as for a store that is away."""
        try:
            found = self._open_both(url)
            found.dataset.snapshot()
        except DatasetNotFound as error:
            raise StoreUnavailable(f"{url} is gone, and waited for: {error}") from error
        return found

    def _open_both(self, url: str) -> _Coordinated:
        dataset = self._open(url)
        return _Coordinated(dataset, wiring.collector(self._open(url), self._config, self._observe))

    def _open(self, url: str) -> DatasetPort:
        """A dataset belongs to one thread, so each opens its own."""
        waiting = service_waiting(url, self._config, self._observe, self._is_ending)
        recorder = self._recorder
        count = None if recorder is None else recorder.counting(url)
        shared = self._shared.get(url)
        dataset = wiring.open_dataset(url, self._config, self._metrics, waiting, count, shared)
        # Events call it as it calls itself.
        if recorder is not None:
            records = wiring.commit_records(dataset)
            if shared is not None:
                records = SharingRecords(records, shared)
            recorder.follow(dataset.url, records, coordinates=self._coordinates, counted_as=url)
        if self._metrics is not None:
            self._metrics.serves(dataset.url)
        return dataset


def _is_refusal(error: LithifyError) -> bool:
    """Whether it is for who started the service to do something about it. A format that is not known is the
    dataset's own matter: it may be damage, or the work of a newer version."""
    return isinstance(error, Refused) and not isinstance(error, Unsupported)
