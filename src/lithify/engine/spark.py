"""The engine on Spark: one Spark job of one task per call.

1. `submit` queues the call under its job. The first call starts the session in the background; `start` does
   so earlier, if calls are certain to come.
2. Twice as many driver threads as slots take calls from all jobs in turn, so that a small job does not wait
   behind a large one. Each thread runs its call as a Spark job of one task, in the scheduler pool and with
   the tag of its job, and completes the future with the outcome.
3. `cancel` ends the queued calls of the job, marks the running ones and interrupts their tag until their
   threads have returned. It repeats the interrupt, because that only reaches tasks that Spark has already
   started. A job name that is used again gets another tag.
4. A session that ends by itself (its JVM was killed, its cluster has forgotten it) is *lost*: its running
   calls end with `EngineDown`, and the next call opens another session, if the master answers. After
   `MAX_LOSSES` losses without a completed call in between, the engine has failed for good.
5. `close` cancels all jobs and closes the session.

Invariants: see `ports.Engine`. An engine whose session could not start has failed for good. Tasks end with
this process, because Spark's JVM ends with it and stops its executors' tasks. A Connect server interrupts the
tasks of a lost client only after its `spark.connect.execute.reattachable.senderMaxStreamDuration` and
`spark.connect.execute.manager.detachedTimeout` (2 and 5 minutes by default). In any case no attempt of a task
runs longer than `task_time_limit_s`.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any

from lithify.base.errors import Cancelled, EngineDown, EngineError, LithifyError
from lithify.engine import settings, versions
from lithify.engine.ambient import MASTER, ambient_settings
from lithify.engine.failure import essential_cause
from lithify.engine.given import given_session
from lithify.engine.masters import check_master
from lithify.engine.ports import ArgumentT, ResultT
from lithify.engine.session import Session, open_session
from lithify.engine.task import Limits, decode_outcome, encode_request

THREADS_PER_SLOT = 2
"""Driver threads for each slot, so that a slot never waits for the driver."""
TASK_TIME_LIMIT_S = 3600.0
MAX_LOSSES = 3
CLOSE_LIMIT_S = 30.0
"""How long `close` waits for a session that is being started. A signal that interrupts an import leaves
Python's import lock taken; a session that imports anything then never starts. Its JVM ends with this
process."""
_CANCEL_ATTEMPTS = 100
_CANCEL_INTERVAL_S = 0.2

_log = logging.getLogger("lithify")


@dataclass(slots=True, eq=False)
class _Call:
    function: Callable[[Any], Any]
    argument: Any
    future: Future[Any] = field(default_factory=Future)
    is_cancelled: bool = False


@dataclass(slots=True, eq=False)
class _Job:
    """The calls of one job, from its first submit to its end or cancellation."""

    name: str
    tag: str
    pool: int
    queued: deque[_Call] = field(default_factory=deque)
    running: set[_Call] = field(default_factory=set)


class SparkEngine:
    """Runs calls on Spark (`ports.Engine`). Parameters as in `session.open_session`."""

    def __init__(
        self,
        master: str | None = None,
        *,
        app_name: str = "lithify",
        conf: Mapping[str, str] | None = None,
        preload: str | None = None,
        slots: int | None = None,
        task_time_limit_s: float = TASK_TIME_LIMIT_S,
        spark: Any = None,
    ) -> None:
        """Without `master`, and for settings missing in `conf`, the ambient settings apply (`ambient`), and
        then `local[*]`. `slots` overrides how many calls run at once, for clusters of unknown size. `spark`
        is another program's `SparkSession`; it replaces a session of Lithify's own and is never stopped.
        Raise `Refused` without a PySpark that Lithify supports."""
        if spark is None:
            versions.installed_version()  # raises if there is none
        ambient = ambient_settings(os.environ) if spark is None else {}
        decided = ambient.pop(MASTER, "local[*]")
        self.master = master = decided if master is None else master
        if settings.is_connect(master):
            ambient = {}  # the server has its own settings
        both = ambient | dict(conf or {}) if spark is None else {}
        self._open: Callable[[], Session] = partial(open_session, master, app_name, both, preload)
        self._check: Callable[[], object] = partial(check_master, master)
        local = settings.parse_local(master, settings.usable_cpus())
        if spark is not None:
            self._open = self._check = partial(given_session, spark)
            local = None
        self.is_open = spark is None and settings.is_open(master, both)
        """Whether any program that reaches the ports of Lithify's own driver can run code in it."""
        if slots is None:
            slots = local.cores if local else settings.dynamic_slots({MASTER: master, **both})
        self._slots = slots
        self._task_time_limit_s = task_time_limit_s
        self._tag_prefix = f"lithify-{uuid.uuid4().hex}"
        self._tag_numbers = itertools.count()
        self._lock = threading.RLock()
        self._jobs: OrderedDict[str, _Job] = OrderedDict()
        self._cancelled_jobs: set[_Job] = set()
        self._starter: Future[Session] | None = None
        self._failure: LithifyError | None = None
        """Why no session can be opened any more."""
        self._lost: Session | None = None
        """A lost session, to be closed before another one is opened."""
        self._losses = 0
        """Number of losses since a call last completed."""
        self._threads: ThreadPoolExecutor | None = None
        self._is_closed = False

    def __enter__(self) -> SparkEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def slots(self) -> int:
        return self._slots or 0

    @property
    def failure(self) -> LithifyError | None:
        return self._failure

    def check(self) -> None:
        if self._starter is None:
            self._check()

    def start(self) -> None:
        self._start()

    def submit(
        self, job: str, function: Callable[[ArgumentT], ResultT], argument: ArgumentT
    ) -> Future[ResultT]:
        call = _Call(function, argument)
        with self._lock:
            if self._is_closed:
                raise EngineError(f"the engine is closed and cannot run a call of {job}")
            if self._failure is not None:
                call.future.set_exception(self._failure)
                return call.future
            record = self._jobs.get(job) or self._new_job(job)
            record.queued.append(call)
            if self._threads is not None:
                self._threads.submit(self._run_next)
        self.start()
        return call.future

    def cancel(self, job: str) -> None:
        with self._lock:
            record = self._jobs.pop(job, None)
            if record is None:
                return
            queued = list(record.queued)
            record.queued.clear()
            running = list(record.running)
            for call in running:
                call.is_cancelled = True
            if running:
                self._cancelled_jobs.add(record)
        for call in queued:
            _fail(call.future, Cancelled(f"{job} was cancelled before its task started"))
        if running:
            self._interrupt(record, running)

    def close(self) -> None:
        with self._lock:
            is_first = not self._is_closed
            self._is_closed = True
            names = list(self._jobs)
        if not is_first:
            return
        failures: list[EngineError] = []
        try:
            for name in names:
                try:
                    self.cancel(name)
                except EngineError as error:
                    failures.append(error)
        finally:
            with self._lock:  # only now: a session may have been lost meanwhile
                starter, lost = self._starter, self._lost
            for open_session in (_started(starter), lost):
                if open_session is not None:
                    open_session.close()
            if self._threads is not None:
                self._threads.shutdown(wait=True, cancel_futures=True)
        if failures:
            raise failures[0]

    # Starting

    def _start(self) -> Future[Session]:
        """Return the session's future; the first caller starts the session in the background. A closed engine
        starts none."""
        with self._lock:
            if self._starter is not None:
                return self._starter
            starter: Future[Session] = Future()
            if self._is_closed:
                starter.set_exception(EngineError("the engine is closed"))
                return starter
            self._starter = starter
        threading.Thread(target=self._start_session, args=(starter,), daemon=True).start()
        return starter

    def _start_session(self, starter: Future[Session]) -> None:
        with self._lock:
            lost, self._lost = self._lost, None
        try:
            if lost is not None:
                lost.close()
            self._check()
            session = self._open()
            slots = self._slots or session.slots()
        except BaseException as error:
            failure = _why_down(error)
            starter.set_exception(failure)
            self._fail_all(failure)
            return
        with self._lock:
            self._slots = slots
            if self._threads is None:
                count = slots * THREADS_PER_SLOT
                self._threads = ThreadPoolExecutor(count, thread_name_prefix="lithify-call")
                for _ in range(sum(len(job.queued) for job in self._jobs.values())):
                    self._threads.submit(self._run_next)
        starter.set_result(session)  # last, and without the lock: `close` may be waiting for it

    def _lose(self, session: Session, cause: str) -> None:
        """Record that the session has ended by itself. The next call opens another, unless too many were
        lost."""
        with self._lock:
            starter = self._starter
            if starter is None or not starter.done() or starter.exception() is not None:
                return
            if starter.result() is not session:
                return  # already recorded by another call
            self._starter, self._lost = None, session
            self._losses += 1
            is_over = self._losses >= MAX_LOSSES
        if is_over:
            self._fail_all(EngineDown(f"Spark was lost {self._losses} times in a row; last cause: {cause}"))

    def _fail_all(self, error: LithifyError) -> None:
        with self._lock:
            self._failure = error
            calls = [call for job in self._jobs.values() for call in job.queued]
            self._jobs.clear()
        for call in calls:
            _fail(call.future, error)

    # Running

    def _new_job(self, name: str) -> _Job:
        """Return a job with the lowest free pool number. Spark never forgets a pool, so numbers are
        reused."""
        used = {job.pool for job in (*self._jobs.values(), *self._cancelled_jobs)}
        pool = next(number for number in itertools.count() if number not in used)
        job = _Job(name, f"{self._tag_prefix}-{next(self._tag_numbers)}", pool)
        self._jobs[name] = job
        return job

    def _run_next(self) -> None:
        taken = self._take()
        if taken is None:
            return
        job, call = taken
        if not call.future.set_running_or_notify_cancel():
            self._finish(job, call)
            return
        try:
            result = self._run(job, call)
            if call.is_cancelled:
                raise Cancelled(f"{job.name} was cancelled")
            call.future.set_result(result)
        except BaseException as error:
            ending = Cancelled(f"{job.name} was cancelled") if call.is_cancelled else error
            call.future.set_exception(ending)
        finally:
            self._finish(job, call)

    def _take(self) -> tuple[_Job, _Call] | None:
        """Return the next call, from the job whose turn was longest ago."""
        with self._lock:
            job = next((job for job in self._jobs.values() if job.queued), None)
            if job is None:
                return None
            self._jobs.move_to_end(job.name)
            call = job.queued.popleft()
            job.running.add(call)
            return job, call

    def _finish(self, job: _Job, call: _Call) -> None:
        with self._lock:
            job.running.discard(call)
            if not job.running and not job.queued:
                self._cancelled_jobs.discard(job)
                if self._jobs.get(job.name) is job:
                    del self._jobs[job.name]

    def _run(self, job: _Job, call: _Call) -> Any:
        if self._failure is not None:
            raise self._failure
        starter = self._start()
        while not wait([starter], _CANCEL_INTERVAL_S).done:
            if call.is_cancelled:
                raise Cancelled(f"{job.name} was cancelled")
        session = starter.result()
        limits = Limits(session.max_attempts, self._task_time_limit_s)
        request = encode_request(call.function, call.argument, limits)
        if call.is_cancelled:
            raise Cancelled(f"{job.name} was cancelled")
        try:
            outcome = session.run(
                request, tag=job.tag, pool=f"lithify-{job.pool}", description=f"lithify {job.name}"
            )
        except Exception as error:
            cause = str(error) if isinstance(error, EngineError) else essential_cause(str(error))
            if not call.is_cancelled and (isinstance(error, EngineDown) or session.is_over()):
                self._lose(session, cause)
                raise EngineDown(f"Spark was lost while it ran a task of {job.name}: {cause}") from error
            raise EngineError(f"a task of {job.name} failed: {cause}") from error
        self._losses = 0
        return decode_outcome(outcome)

    # Stopping

    def _interrupt(self, job: _Job, running: list[_Call]) -> None:
        """Return when the running calls have ended. Those on a lost session, and those that wait for the next
        one, end by themselves."""
        futures = [call.future for call in running]
        for _ in range(_CANCEL_ATTEMPTS):
            starter = self._starter
            if starter is not None and starter.done() and starter.exception() is None:
                try:
                    starter.result().interrupt(job.tag)
                except Exception as error:
                    cause = essential_cause(str(error))
                    raise EngineError(f"{job.name} could not be cancelled: {cause}") from error
            if not wait(futures, _CANCEL_INTERVAL_S).not_done:
                return
        raise EngineError(
            f"{job.name} still runs on Spark after {_CANCEL_ATTEMPTS} attempts to cancel it; its output "
            "will never be used"
        )


def _why_down(error: BaseException) -> LithifyError:
    if isinstance(error, LithifyError) and not isinstance(error, EngineError):
        return error  # needs an operator's decision
    return EngineDown(str(error) if isinstance(error, EngineError) else f"Spark could not start: {error!r}")


def _started(starter: Future[Session] | None) -> Session | None:
    """Return the session to close, or `None` if there is none within the limit; it is closed when it is
    there."""
    if starter is None:
        return None
    try:
        return starter.result() if starter.exception(CLOSE_LIMIT_S) is None else None
    except TimeoutError:
        _log.warning("Spark has not started within %g s; this process no longer waits for it", CLOSE_LIMIT_S)
        starter.add_done_callback(lambda late: late.result().close() if late.exception() is None else None)
        return None


def _fail(future: Future[Any], error: LithifyError) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
