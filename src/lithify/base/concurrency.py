"""Helpers that run independent requests concurrently: a distant store answers all in the time of one.

1. `both` runs the first of two actions in the caller's thread, the second in a daemon thread. Daemon threads
   run many actions: `all_of` returns all results, `each_of` yields them one by one and holds few of them.
2. So neither an interrupt of the caller nor the end of the process waits for requests in other threads.
3. All started actions have ended when a result is returned or an error raised; of several errors the first
   action's is raised. A caller that abandons `each_of` leaves started actions to end by themselves.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeVar

FirstT = TypeVar("FirstT")
SecondT = TypeVar("SecondT")
ResultT = TypeVar("ResultT")


class _Threads:
    """Daemon threads that wait for the next request."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Callable[[], None]]] = []

    def start(self, work: Callable[[], None]) -> None:
        try:
            mailbox = self._idle.pop()
        except IndexError:
            mailbox = SimpleQueue()
            threading.Thread(target=self._serve, args=(mailbox,), name="lithify-request", daemon=True).start()
        mailbox.put(work)

    def _serve(self, mailbox: SimpleQueue[Callable[[], None]]) -> None:
        while True:
            mailbox.get()()
            self._idle.append(mailbox)

    def forget(self) -> None:
        """Forget all threads; a forked process has none of them."""
        self._idle = []


_threads = _Threads()
os.register_at_fork(after_in_child=_threads.forget)


def start_thread(work: Callable[[], None]) -> None:
    """Run `work` in a daemon thread."""
    _threads.start(work)


class Background:
    """Runs actions concurrently with the caller."""

    def start(self, action: Callable[[], ResultT]) -> Callable[[], ResultT]:
        """Start an action. Return a function that waits for its end, and returns its result or raises its
        error."""
        outcomes: SimpleQueue[tuple[ResultT | None, BaseException | None]] = SimpleQueue()

        def run() -> None:
            try:
                outcomes.put((action(), None))
            except BaseException as error:  # raised again in the caller's thread
                outcomes.put((None, error))

        start_thread(run)

        def result() -> ResultT:
            found, error = outcomes.get()
            if error is not None:
                raise error
            return found  # type: ignore[return-value]

        return result


background = Background()
"""Simulations replace it by one that runs all actions in the caller's thread, sooner or later."""


def both(first: Callable[[], FirstT], second: Callable[[], SecondT]) -> tuple[FirstT, SecondT]:
    """Return the results of two actions. The first runs in the caller's thread."""
    finish = background.start(second)
    try:
        found = first()
    except Exception:
        with suppress(Exception):
            finish()
        raise
    return found, finish()


def all_of(actions: Iterable[Callable[[], ResultT]], most: int) -> list[ResultT]:
    """Return the results of all actions, in order. Run at most `most` at once; after a failure, start no
    more."""
    return list(each_of(actions, most))


def each_of(actions: Iterable[Callable[[], ResultT]], most: int) -> Iterator[ResultT]:
    """Yield the results of all actions, in order. At most `most` actions run or wait to be consumed."""
    under_way: deque[Callable[[], ResultT]] = deque()
    try:
        for action in actions:
            if len(under_way) == most:
                yield under_way.popleft()()
            under_way.append(background.start(action))
        while under_way:
            yield under_way.popleft()()
    except Exception:
        for finish in under_way:
            with suppress(Exception):
                finish()
        raise
