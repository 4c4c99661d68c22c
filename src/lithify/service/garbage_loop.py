"""Garbage collection beside a coordinator: a thread that ticks a collector.

It has a thread of its own because listing and deleting can take long, and no commit may wait for that.
A collection that fails is reported and tried again when the collector says so; nothing that goes wrong
in it ends the coordinator. At the end a collection under way is given a moment to finish; if it does
not, it dies with the process, which is safe at any point.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from lithify.base.defects import contained
from lithify.base.errors import LithifyError

MIN_WAIT_S = 1.0
JOIN_TIMEOUT_S = 5.0

_log = logging.getLogger("lithify")


class Collector(Protocol):
    """Collects the garbage of one dataset, again and again."""

    def tick(self) -> float:
        """Collect what is due; seconds until something is again."""
        ...

    def wait_s(self) -> float:
        """Seconds until something is due; infinite when nothing ever is."""
        ...


@contextmanager
def collecting(collector: Collector | None) -> Iterator[None]:
    """Collect while the block runs. `None` collects nothing."""
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
