"""Requests that do not depend on each other go out together: a far store answers all of them in the time of
one.

Each action runs in a thread of its own. All have ended when `together` returns or raises; of several failures
the first in the order of the actions is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

FirstT = TypeVar("FirstT")
SecondT = TypeVar("SecondT")
ResultT = TypeVar("ResultT")


def together(*actions: Callable[[], ResultT]) -> list[ResultT]:
    """What the actions give, in their order."""
    with ThreadPoolExecutor(max(1, len(actions)), thread_name_prefix="lithify-together") as pool:
        futures = [pool.submit(action) for action in actions]
    return [future.result() for future in futures]


def both(first: Callable[[], FirstT], second: Callable[[], SecondT]) -> tuple[FirstT, SecondT]:
    """What two actions give."""
    with ThreadPoolExecutor(2, thread_name_prefix="lithify-together") as pool:
        found: tuple[Future[FirstT], Future[SecondT]] = pool.submit(first), pool.submit(second)
    return found[0].result(), found[1].result()
