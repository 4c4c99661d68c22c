"""Requests that do not depend on each other go out together: a far store answers all in the time of one.

1. Of two, the caller's thread does the first, a daemon thread the second (`both`). Of many, daemon threads do
   all: for who needs all answers (`all_of`), or takes one after another and holds few of them (`each_of`).
2. So an interrupt of the caller is not held up by what others wait for, nor is the end of the process.
3. All that were begun have ended when an answer is returned or an error raised; of several failures the first
   one's is raised. Only who stops taking from `each_of` leaves some of them to end by themselves.
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
    """Threads that wait for the next request. They do not keep the process alive."""

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
        """In a process that was forked: none of them is there."""
        self._idle = []


_threads = _Threads()
os.register_at_fork(after_in_child=_threads.forget)


def start_thread(work: Callable[[], None]) -> None:
    """Do it beside, in a thread that does not keep the process alive."""
    _threads.start(work)


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


def all_of(actions: Iterable[Callable[[], ResultT]], most: int) -> list[ResultT]:
    """What each of these gives, in their order. So many go on at once, and after a failure none is begun."""
    return list(each_of(actions, most))


def each_of(actions: Iterable[Callable[[], ResultT]], most: int) -> Iterator[ResultT]:
    """The same one after another, as they are taken. No more than so many go on or wait to be taken."""
    under_way: deque[Callable[[], ResultT]] = deque()
    try:
        for action in actions:
            if len(under_way) == most:
                yield under_way.popleft()()
            under_way.append(beside.start(action))
        while under_way:
            yield under_way.popleft()()
    except Exception:
        for finish in under_way:
            with suppress(Exception):
                finish()
        raise
