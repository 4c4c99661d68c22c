"""Requests that do not depend on each other go out together: a far store answers all of them in the time of
one.

Each action but the first, which the caller's thread does, has a daemon thread: an interrupt of the caller is
not held up by what others wait for, nor is the end of the process. All have ended when `together` returns; of
several failures the first in the order of the actions is raised.
"""

from __future__ import annotations

from collections.abc import Callable
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
"""Simulations put one here that does everything in the caller's thread."""


def together(*actions: Callable[[], ResultT]) -> list[ResultT]:
    """What the actions give, in their order."""
    if not actions:
        return []
    others = [beside.start(action) for action in actions[1:]]
    failures: list[Exception] = []
    results: list[ResultT] = []
    for finish in (actions[0], *others):
        try:
            results.append(finish())
        except Exception as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return results


def both(first: Callable[[], FirstT], second: Callable[[], SecondT]) -> tuple[FirstT, SecondT]:
    """What two actions give."""
    found_first: list[FirstT] = []
    found_second: list[SecondT] = []
    together(lambda: found_first.append(first()), lambda: found_second.append(second()))
    return found_first[0], found_second[0]
