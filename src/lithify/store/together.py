"""Two requests that do not depend on each other go out together: a far store answers both in the time of one.

The caller's thread does the first, a daemon thread the second: an interrupt of the caller is not held up by
what the other waits for, nor is the end of the process. Both have ended when `both` returns or raises an
error; of two failures the first one's is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeVar

from lithify.store.hedging import start_thread

FirstT = TypeVar("FirstT")
SecondT = TypeVar("SecondT")
ResultT = TypeVar("ResultT")


class Beside:
    """Does things beside the caller."""

    def start(self, action: Callable[[], ResultT]) -> Callable[[], ResultT]:
        """Begin; calling what is returned waits for the end, and gives or raises what the action did."""
        outcomes: SimpleQueue[tuple[ResultT | None, BaseException | None]] = SimpleQueue()

        def run() -> None:
            try:
                outcomes.put((action(), None))
            except BaseException as error:  # it is the caller's
                outcomes.put((None, error))

        start_thread(run)

        def result() -> ResultT:
            found, error = outcomes.get()
            if error is not None:
                raise error
            return found  # type: ignore[return-value]

        return result


beside = Beside()
"""Simulations put one here that does everything in the caller's thread, sooner or later."""


def both(first: Callable[[], FirstT], second: Callable[[], SecondT]) -> tuple[FirstT, SecondT]:
    """What two actions give. The caller's thread does the first."""
    finish = beside.start(second)
    try:
        found = first()
    except Exception:
        with suppress(Exception):
            finish()
        raise
    return found, finish()
