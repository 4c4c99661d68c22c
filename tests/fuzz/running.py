"""One command in this process.

1. Time is virtual as far as Lithify waits for it: sleeping moves the clock. More than `MAX_WAITS_S` of
   waiting is a command that never ends.
2. Ranges run in this process at once (`lithify.testing.engine`).
3. Services are told to stop after `LOOKS` looks at the signal, which are some rounds.

Everything else is the command as it is: settings, options, messages, exit codes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

from click.testing import CliRunner, Result

from lithify.base.clock import SystemClock
from lithify.testing.engine import InlineEngine
from tests.cli.invoking import COMMAND, logging_as_before

LOOKS = 24
MAX_WAITS_S = 7200.0


class Endless(BaseException):
    """The command waits and waits."""


class _Waited:
    """By how much time has moved on. All of one process move together."""

    seconds = 0.0


_REAL_NOW_MS, _REAL_MONOTONIC_S = SystemClock.now_ms, SystemClock.monotonic_s


def _now_ms(clock: SystemClock) -> int:
    return _REAL_NOW_MS(clock) + round(_Waited.seconds * 1000)


def _monotonic_s(clock: SystemClock) -> float:
    return _REAL_MONOTONIC_S(clock) + _Waited.seconds


def _sleep_s(_: SystemClock, duration_s: float) -> None:
    if threading.current_thread() is not threading.main_thread():
        time.sleep(0)
        return
    if duration_s < 0:
        raise ValueError("a negative time to sleep")
    _Waited.seconds += duration_s
    if _Waited.seconds > MAX_WAITS_S:
        raise Endless


class StopSoon(threading.Event):
    """A stop signal that comes after some looks at it, whichever way one looks: a service that rests for
    years looks again and again meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self._left = LOOKS

    def is_set(self) -> bool:
        self._left -= 1
        return self._left < 0

    def wait(self, timeout: float | None = None) -> bool:
        SystemClock().sleep_s(timeout or 0.0)
        return self.is_set()


class Engine(InlineEngine):
    """As the commands use Spark."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _stopping() -> nullcontext[StopSoon]:
    return nullcontext(StopSoon())


def _engine(*_: Any) -> Engine:
    return Engine()


@contextmanager
def without_waiting() -> Iterator[None]:
    """Commands that are run inside do not wait and start no Spark."""
    _Waited.seconds = 0.0
    with (
        # The methods, not the name: a module that is imported in here would keep another class for ever.
        mock.patch.multiple(SystemClock, now_ms=_now_ms, monotonic_s=_monotonic_s, sleep_s=_sleep_s),
        mock.patch("lithify.api.wiring.spark_engine", _engine),
        mock.patch("lithify.api.wiring.stop_on_signals", _stopping),
        logging_as_before(),
    ):
        yield


def run(arguments: Sequence[str]) -> Result:
    """Run `lithify` with these arguments. What it does not foresee is raised."""
    with without_waiting():
        return CliRunner().invoke(COMMAND, list(arguments), catch_exceptions=False)
