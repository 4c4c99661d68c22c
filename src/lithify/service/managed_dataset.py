"""A dataset that this process coordinates. One-shot runs, services and fleets all drive theirs with it; they
differ in a `CoordinationPolicy`.

1. `lead` takes lease and epoch. The policy says which other coordinators may be fenced.
2. Each `tick` renews the lease, also while the process rests, and runs one pass of the coordinator. A `round`
   is a tick and then one pass of the embedded worker, with what the coordinator has just read.
3. `rest` waits until the next round is due: briefly while anything is active, otherwise for one poll
   interval, or until a task of the embedded worker ends.
4. With `retries`, an error of a round is logged once, and the next round retries; `Fenced` always ends the
   coordinator, and an engine that has failed for good the process. Without it, errors are raised: a one-shot
   run ends with them, and a fleet backs off from the dataset.
5. `resign` ends the lease. Before that, the embedded worker releases its unfinished compactions; what it
   cannot release is reclaimed when its heartbeats time out, or by the next run.
6. Garbage is collected in a thread of its own, because listing and deleting can take long, and no commit may
   wait for that. A failed collection is logged and retried when the collector is due again; no error in it
   ends the coordinator. At the end, a running collection gets a moment to finish; otherwise it dies with the
   process, which is safe at any point.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, TypeVar

from lithify.base.defects import contained
from lithify.base.errors import Fenced, LithifyError
from lithify.coordination.leadership import Leadership, Term
from lithify.service.coordinator import Coordinator, TickResult
from lithify.service.once_logger import OnceLogger
from lithify.service.worker import Worker
from lithify.service.worker_pool import release

MAX_REST_S = 6.0
"""Longest wait of a coordinator without checking its lease, however rarely it polls the dataset: a process
that asks whether it is alive waits `LEASE_MS` for the answer."""

JITTER = 0.1
"""Each pause is longer by up to this share."""

ResultT = TypeVar("ResultT")


def _not_known_dead(holder: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class CoordinationPolicy:
    """How a process coordinates a dataset."""

    active_pause_s: float
    """The pause between two rounds while anything is active."""
    idle_pause_s: float
    wait: Callable[[float], object]
    """Wait for this time. Return true if the process is stopped, which ends the wait early."""
    rng: random.Random | None = None
    """Makes pauses longer at random, so that many processes do not read the store in step."""
    take_over: bool = False
    """Whether to fence a coordinator that may be alive."""
    is_dead: Callable[[str], bool] = _not_known_dead
    """Return whether the holder of a lease is known to be dead, so that it is not challenged."""
    adopts_before_ms: int | None = None
    """See `Leadership.acquire`."""
    retries: bool = True
    """Whether rounds go on after an error."""
    until_idle: bool = False
    """Whether the process ends once nothing is left to do: rounds then follow each other at once while
    anything changes, and a state that this process has just written is not read again."""

    def pause_s(self, *, is_active: bool) -> float:
        """Return the pause before the next round."""
        return self.active_pause_s if is_active else self.idle_pause_s


class ManagedDataset:
    """The coordination of one dataset by this process; see the module. As a context manager, it resigns at
    the end of the block."""

    def __init__(
        self,
        coordinator: Coordinator,
        leadership: Leadership,
        policy: CoordinationPolicy,
        *,
        worker: Worker | None = None,
        collector: Collector | None = None,
        is_known: bool = False,
    ) -> None:
        """`worker` is the embedded worker; `collector` collects garbage in a thread of its own. `is_known`:
        this process has read the dataset just now, so the first tick does not."""
        self.coordinator = coordinator
        self.is_known = is_known
        self.policy = policy
        self._leadership = leadership
        self._worker = worker
        self._collector = collector
        self._stack = ExitStack()
        self._pause_s = policy.idle_pause_s
        self._has_changed = False
        """Whether the last round changed anything that the next one may continue."""
        self._trouble = OnceLogger("the coordinator could not finish a round and retries")
        self._workers_trouble = OnceLogger("the embedded worker could not finish a round and retries")

    def __enter__(self) -> ManagedDataset:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def lead(self) -> Term:
        """Begin a term, and return it. Raise `CoordinatorAlive` if another coordinator may be alive."""
        policy = self.policy
        with ExitStack() as stack:
            term = stack.enter_context(
                self._leadership.acquire(
                    take_over=policy.take_over,
                    is_dead=policy.is_dead,
                    adopts_before_ms=policy.adopts_before_ms,
                )
            )
            stack.push(self._release)
            self.coordinator.start(term)
            stack.enter_context(collecting(self._collector))
            self._stack = stack.pop_all()
        return term

    def resign(self) -> None:
        """End the term, if there is one."""
        self._stack.close()

    def tick(self) -> TickResult:
        """Renew the lease and run one pass of the coordinator."""
        self._leadership.renew()
        is_known, self.is_known = self.is_known, False
        return self.coordinator.tick(is_known=is_known)

    def round(self) -> TickResult | None:
        """Tick the coordinator, then the embedded worker. Return `None` if the coordinator had an error."""
        policy, worker = self.policy, self._worker
        tick = self._tried("a round of the coordinator", self.tick, self._trouble)
        is_active = tick is not None and bool(tick.ledger.active() or tick.refused)
        self._pause_s = policy.pause_s(is_active=is_active)
        self._has_changed = False
        if worker is not None:
            seen = None if tick is None else tick.seen
            what = f"a round over {worker.url}"
            changed = self._tried(what, lambda: worker.tick(seen), self._workers_trouble)
            worker.room.check_engine()
            self._has_changed = bool(changed)
            if not policy.until_idle:
                worker.take_failures()  # events have reported them
        if policy.until_idle and tick is not None:
            self.is_known = self._has_changed
            self._has_changed = self._has_changed or bool(tick.committed or tick.refused)
        return tick

    def rest(self) -> None:
        """Wait until the next round is due, and keep the lease meanwhile."""
        worker = self._worker
        if worker is not None and worker.is_busy:
            worker.wait(min(self._pause_s, MAX_REST_S))
            # Finished tasks are published next, which shows whether anything is new.
            self.is_known = self.policy.until_idle and all(future.done() for future in worker.pending)
        elif not self._has_changed:
            self._wait(self._pause_s)

    def _wait(self, wait_s: float) -> None:
        if self.policy.rng is not None:
            wait_s *= 1 + self.policy.rng.uniform(0, JITTER)
        while wait_s > MAX_REST_S:
            if self.policy.wait(MAX_REST_S):
                return
            wait_s -= MAX_REST_S
            self._tried("a check of the lease", self._leadership.renew, self._trouble, is_round=False)
        self.policy.wait(wait_s)

    def _release(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the embedded worker's compactions. A run that ends because it is idle has none."""
        if self._worker is not None and not (self.policy.until_idle and error is None):
            release(self._worker, error if self.policy.until_idle else None)

    def _tried(
        self, what: str, action: Callable[[], ResultT], trouble: OnceLogger, *, is_round: bool = True
    ) -> ResultT | None:
        """Return the result of `action`; `None` if it failed and is retried in the next round."""
        if not self.policy.retries:
            return action()
        try:
            with contained(what):
                result = action()
        except Fenced:
            raise
        except LithifyError as error:
            trouble.say(error)
            return None
        if is_round:
            trouble.is_over()
        return result


MIN_WAIT_S = 1.0
JOIN_TIMEOUT_S = 5.0

_log = logging.getLogger("lithify")


class Collector(Protocol):
    """A periodic collector of one dataset's garbage."""

    def tick(self) -> float:
        """Collect the garbage that is due. Return the seconds until more is due."""
        ...

    def wait_s(self) -> float:
        """Return the seconds until garbage is due; infinite if never."""
        ...


@contextmanager
def collecting(collector: Collector | None) -> Iterator[None]:
    """Collect garbage while the block runs; `None` collects nothing."""
    if collector is None:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_collect, args=(collector, ended), name="lithify-gc", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(JOIN_TIMEOUT_S)


def _collect(collector: Collector, ended: threading.Event) -> None:
    wait_s = 0.0
    while not ended.wait(min(wait_s, threading.TIMEOUT_MAX)):
        try:
            with contained("collecting garbage"):
                wait_s = collector.tick()
        except LithifyError as error:
            _log.error("garbage was not collected: %s", error)
            wait_s = collector.wait_s()
        wait_s = max(wait_s, MIN_WAIT_S)
