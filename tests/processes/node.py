"""One Lithify process of these tests: `python -m tests.processes.node OPTIONS`, OPTIONS being JSON.

It does what the commands `coordinator`, `worker` and `run` do, but looks every few milliseconds, prints
every event as one line of JSON (with the time, `at_ms`), and can be told to die: `die_after_writes` is
the number of the write to the store after which the process kills itself.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass, field
from typing import TypeVar

from lithify.base.clock import SystemClock
from lithify.base.events import Event
from lithify.base.ids import RandomIds
from lithify.config.model import ServiceSettings
from lithify.coordination.leadership import Leadership
from lithify.datasets.slatedb.kernel.warm_up import warm_up
from lithify.engine.ports import Engine
from lithify.engine.spark import SparkEngine
from lithify.service.coordinator import Coordinator
from lithify.service.loops import run_coordinator, run_workers
from lithify.service.options import CoordinatorOptions, WorkerOptions
from lithify.service.slots import WorkerSlots
from lithify.service.worker import Worker
from lithify.service.worker_pool import UrlList, WorkerPool
from lithify.store.objects import ObjectStore
from lithify.store.wrapped import Call, WrappedStore
from lithify.testing.engine import InlineEngine
from tests.compacting import dataset_at
from tests.pools import every

ResultT = TypeVar("ResultT")
PRELOAD = "lithify.datasets.slatedb.kernel.warm_up:warm_up"
INLINE = "inline"
READY = "Ready"
"""What a process with an engine prints when it begins to look for work."""
_WARM_JOBS_PER_SLOT = 100
"""A job costs a third as much then as the first ones do."""
_WRITES = frozenset({"create", "put", "replace", "delete", "commit"})


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """What to run. Without a `name` a worker gets a new one."""

    role: str
    """`coordinator`, `worker` or `run`."""
    url: str
    more_urls: Sequence[str] = ()
    """A worker may work for several databases."""
    name: str = ""
    master: str = "local[1]"
    """Of Spark; `inline` runs ranges in the process itself."""
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    poll_interval_ms: int = 100
    heartbeat_interval_ms: int = 500
    heartbeat_min_interval_ms: int = 200
    worker_heartbeat_timeout_ms: int = 3_000
    max_concurrent_compactions: int = 4
    max_sst_size: int = 256 * 1024
    cores: Sequence[int] = ()
    """The processor cores that this process and all it starts may use; any, if there is none."""
    warm_s: float = 0.0
    """How long all slots work on nothing, with everything loaded, before this process is ready; then they
    run as many jobs as it takes until Spark's JVMs have compiled what a job needs."""
    take_over: bool = True
    die_after_writes: int = 0
    """0: live."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class MortalStore(WrappedStore):
    """Kills this process after a number of writes, before it learns of their success. The lease is renewed
    by a thread of its own at no fixed moment: renewals do not count, so that the same number is the same
    write in every run."""

    def __init__(self, inner: ObjectStore, writes: int) -> None:
        super().__init__(inner)
        self._left = writes

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        result = action()
        if call.method in _WRITES and not (
            call.method == "replace" and call.key.endswith("/coordinator.json")
        ):
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return result


def main(options: NodeOptions) -> None:
    """Run until SIGTERM."""
    if options.cores:
        os.sched_setaffinity(0, options.cores)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    every_s = options.poll_interval_ms / 1000
    loop = every(every_s)
    if options.role == "coordinator":
        _coordinate(options, stop, loop, None)
        return
    with _engine(options) as engine:
        # Nothing is claimed before tasks can run: compiling the kernel anew may take longer than a timeout.
        engine.submit("start", abs, -1).result()
        if options.warm_s:
            warm_up()
            _warm_slots(engine, options.warm_s)
        print(json.dumps({"event": READY}), flush=True)
        room = WorkerSlots(engine, _worker_options(options))
        if options.role == "worker":
            pool = WorkerPool(
                UrlList([options.url, *options.more_urls]),
                lambda url, shared: _worker(options, url, engine, shared),
                room,
                SystemClock(),
            )
            run_workers(pool, stop, random.Random(), loop)
        else:
            _coordinate(options, stop, loop, _worker(options, options.url, engine, room))


def _warm_slots(engine: Engine, warm_s: float) -> None:
    """Let calls last until every slot, also one that comes late, has run some, and then run many."""
    for calls, sleep_s in ((2, warm_s / 2), (_WARM_JOBS_PER_SLOT, 0.01)):
        for call in [engine.submit("warm", time.sleep, sleep_s) for _ in range(calls * engine.slots)]:
            call.result()


def _coordinate(
    options: NodeOptions, stop: threading.Event, loop: ServiceSettings, worker: Worker | None
) -> None:
    def wrap(store: ObjectStore) -> ObjectStore:
        return MortalStore(store, options.die_after_writes) if options.die_after_writes else store

    dataset, clock, ids = dataset_at(options.url, wrap=wrap), SystemClock(), RandomIds()
    timeout_ms = options.worker_heartbeat_timeout_ms
    coordinator = Coordinator(dataset, clock, ids, options=CoordinatorOptions(timeout_ms), observer=report)
    leadership = Leadership(dataset, clock, ids)
    run_coordinator(
        coordinator, leadership, stop, random.Random(), loop, take_over=options.take_over, worker=worker
    )


def _engine(options: NodeOptions) -> AbstractContextManager[Engine]:
    if options.master == INLINE:
        return closing(InlineEngine())
    return SparkEngine(options.master, conf=options.spark_conf, preload=PRELOAD)


def _worker_options(options: NodeOptions) -> WorkerOptions:
    return WorkerOptions(
        max_concurrent_compactions=options.max_concurrent_compactions,
        heartbeat_interval_ms=options.heartbeat_interval_ms,
        heartbeat_min_interval_ms=options.heartbeat_min_interval_ms,
    )


def _worker(options: NodeOptions, url: str, engine: Engine, room: WorkerSlots) -> Worker:
    clock = SystemClock()
    name = options.name or f"lithify-{RandomIds().ulid(clock.now_ms())}"
    dataset = dataset_at(url, max_sst_size=options.max_sst_size)
    return Worker(dataset, engine, clock, name, room=room, observer=report)


def report(event: Event) -> None:
    """One line of JSON."""
    line = {"event": type(event).__name__, "at_ms": int(time.time() * 1000), **asdict(event)}
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(NodeOptions(**json.loads(sys.argv[1])))
