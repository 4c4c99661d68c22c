"""The part of a call that runs inside a Spark task.

1. The driver pickles the function (by name), its argument and the limits into a request.
2. The task unpickles it, arms the time limit, runs the function and pickles the outcome.
3. A `LithifyError` that another attempt cannot change is the outcome at once. A `StoreError`, an
   `EngineError` or any foreign exception is raised, so that Spark retries the task, on another machine if
   possible. On the last attempt it is the outcome too, so that the driver gets the whole error.
4. The driver turns the outcome into the result or the error.

Invariants: requests and outcomes stay under `MAX_MESSAGE_BYTES`. The kernel's timer kills a task that exceeds
its time limit, also inside compiled code. So no attempt outlives its driver by more than the limit, even if
nothing else stops it.
"""

from __future__ import annotations

import contextlib
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lithify.base.errors import EngineError, LithifyError, StoreError
from lithify.base.redaction import redact

if TYPE_CHECKING:
    import pyarrow as pa

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Maximum size of a pickled argument or result. Data goes through the object store."""

OUTCOME_SCHEMA = "outcome binary"
_RETRIED = (StoreError, EngineError)


@dataclass(frozen=True, slots=True)
class Limits:
    max_attempts: int
    """How often Spark runs the task before it fails."""
    time_limit_s: float
    """Longest run of one attempt."""


@dataclass(frozen=True, slots=True)
class _TaskRequest:
    function: Callable[[Any], Any]
    argument: Any
    limits: Limits


@dataclass(frozen=True, slots=True)
class _Outcome:
    result: Any = None
    error: LithifyError | None = None
    trace: str = ""


def encode_request(function: Callable[[Any], Any], argument: Any, limits: Limits) -> bytes:
    """Return the bytes to send to the task. Raise `EngineError` if they are too large, or cannot be
    pickled."""
    _check_importable(function)
    try:
        request = pickle.dumps(_TaskRequest(function, argument, limits), pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise EngineError(f"the argument of {_name(function)} cannot be pickled: {error}") from error
    if len(request) > MAX_MESSAGE_BYTES:
        raise EngineError(
            f"the argument of {_name(function)} has {len(request)} bytes, more than {MAX_MESSAGE_BYTES}: "
            "make the range smaller"
        )
    return request


def run_request(request: bytes) -> bytes:
    """Run a request inside a task of classic Spark or of Spark Connect."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return run_attempt(request, context.attemptNumber() if context is not None else 0)


def run_request_in_arrow(request: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Call `run_request` for the only row of the only partition, in the form that `mapInArrow` expects."""
    import pyarrow as pa

    for batch in batches:
        for _ in range(batch.num_rows):
            yield pa.RecordBatch.from_arrays([pa.array([run_request(request)], pa.binary())], ["outcome"])


def run_attempt(request: bytes, attempt: int) -> bytes:
    """Run a request as attempt number `attempt` (from 0). Return the outcome's bytes, or raise an exception
    so that Spark retries."""
    call: _TaskRequest = pickle.loads(request)
    try:
        with _time_limit(call.limits.time_limit_s):
            outcome = _Outcome(result=call.function(call.argument))
    except Exception as error:
        is_final = isinstance(error, LithifyError) and not isinstance(error, _RETRIED)
        if not is_final and attempt + 1 < call.limits.max_attempts:
            again = _portable(error)
            again.add_note(f"In the task:\n{_trace(error)}")
            raise again from None  # Spark would log the causes, which may contain secrets
        outcome = _Outcome(error=_portable(error), trace=_trace(error))
    return _encode_outcome(outcome, _name(call.function))


def decode_outcome(data: bytes) -> Any:
    """Return the result of a call, or raise its error."""
    outcome: _Outcome = pickle.loads(data)
    if outcome.error is None:
        return outcome.result
    if outcome.trace:
        outcome.error.add_note(f"In the task:\n{outcome.trace}")
    raise outcome.error


def _check_importable(function: Callable[[Any], Any]) -> None:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    found = None
    if module and name and module != "__main__":
        with contextlib.suppress(ImportError, AttributeError):
            found = getattr(sys.modules.get(module) or import_module(module), name)
    if found is not function:
        raise EngineError(
            f"{_name(function)} cannot run on Spark: a task needs a top-level function of an installed module"
        )


def _name(function: Callable[[Any], Any]) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


def _encode_outcome(outcome: _Outcome, name: str) -> bytes:
    try:
        data = pickle.dumps(outcome, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        data = pickle.dumps(_Outcome(error=EngineError(f"the result of {name} cannot be pickled: {error}")))
    if len(data) > MAX_MESSAGE_BYTES:
        message = f"the result of {name} has {len(data)} bytes, more than {MAX_MESSAGE_BYTES}"
        data = pickle.dumps(_Outcome(error=EngineError(message)))
    return data


def _portable(error: Exception) -> LithifyError:
    """Return the error itself if it survives pickling, else an `EngineError` with the same message."""
    if isinstance(error, LithifyError):
        with contextlib.suppress(Exception):
            copy = pickle.loads(pickle.dumps(error))
            if type(copy) is type(error) and str(copy) == str(error):
                copy.__cause__ = copy.__context__ = None
                return copy
        return EngineError(str(error))
    return EngineError("".join(traceback.format_exception_only(error)).strip())


def _trace(error: Exception) -> str:
    return redact("".join(traceback.format_exception(error, limit=-8)).strip())


@contextlib.contextmanager
def _time_limit(limit_s: float) -> Iterator[None]:
    """Let the kernel kill this process if the block takes longer than `limit_s`.

    The signal keeps its default action, because a Python handler would run only after compiled code returns.
    Spark retries the task of a dead worker, up to its limit of attempts.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python workers run tasks in the main thread; only tests do not
        return
    previous = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    # A process has one such timer: restore an earlier one afterwards.
    left_s, interval_s = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        signal.setitimer(signal.ITIMER_REAL, left_s, interval_s)
