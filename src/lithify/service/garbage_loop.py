"""Garbage collection next to a coordinator: a thread that ticks a collector.

It has its own thread because listing and deleting can take long, and no commit may wait for that. A failed
collection is reported and retried when the collector is due again; no error in it ends the coordinator. At
the end, a running collection gets a moment to finish; otherwise it dies with the process, which is safe at
any point.
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
