"""Whose fault a failed attempt is: the work's, or the worker's.

Poison work fails wherever it is tried: it has to rest, or it uses up the slots. A poison worker fails
whatever it tries, and fast, so that it would drain a queue by itself: its failures must not make the work
rest, and it should get no more of it.

1. A worker is *suspect* while it has failed with at least `SUSPECT_DATASETS` datasets since its last
   success, and no success at all meanwhile. One success ends that.
2. A failure of a suspect worker is its own, and does not count against the work, as long as there is a
   worker that is not suspect (`excuses`): who has nobody else has to believe it. Everything else is the
   work's fault. What was tried too often is given up, and rests (`QueueAdmission.failed`).
3. While a worker is suspect hints are not meant for it, and what has failed with a worker is meant for
   others first (`hints.meant_for`). It rests by itself as well (`lithify.planning.rest`).

What is remembered is bounded: of workers and of work those with the oldest failures are forgotten first.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import TypeVar

from lithify.planning.admission import WorkKey

KeyT = TypeVar("KeyT")

SUSPECT_DATASETS = 3
MAX_REMEMBERED = 10_000
_MAX_NAMES = 16


class FaultOrigin(Enum):
    """Who is to blame for a failed attempt."""

    WORK = "work"
    WORKER = "worker"


class Faults:
    """What one member has seen fail. May be lost: everybody is innocent then."""

    def __init__(self) -> None:
        self._failing: dict[str, set[str]] = {}
        """By worker, datasets that failed with it since its last success."""
        self._tried: dict[WorkKey, set[str]] = {}
        """By work, workers with which it failed by its own fault."""

    def failed(self, key: WorkKey, worker: str) -> FaultOrigin:
        """An attempt failed. Whose fault that is."""
        failing = self._failing.pop(worker, set())
        if len(failing) < _MAX_NAMES:
            failing.add(key.dataset)
        _put(self._failing, worker, failing)
        if self.is_suspect(worker):
            return FaultOrigin.WORKER
        tried = self._tried.pop(key, set())
        if len(tried) < _MAX_NAMES:
            tried.add(worker)
        _put(self._tried, key, tried)
        return FaultOrigin.WORK

    def succeeded(self, key: WorkKey, worker: str) -> None:
        """An attempt succeeded."""
        self._failing.pop(worker, None)
        self._tried.pop(key, None)

    def forget(self, dataset: str) -> None:
        """It is another one now: nothing that failed of it before counts."""
        for key in [key for key in self._tried if key.dataset == dataset]:
            del self._tried[key]
        for failing in self._failing.values():
            failing.discard(dataset)

    def is_suspect(self, worker: str) -> bool:
        """Whether whatever it tries fails."""
        return len(self._failing.get(worker, ())) >= SUSPECT_DATASETS

    def failed_with(self, key: WorkKey) -> frozenset[str]:
        """Workers with which it failed by its own fault."""
        return frozenset(self._tried.get(key, ()))

    def excuses(self, worker: str, workers: Collection[str]) -> bool:
        """Whether a failure of this worker is its own, when these are alive."""
        return self.is_suspect(worker) and any(not self.is_suspect(other) for other in workers)


def _put(known: dict[KeyT, set[str]], key: KeyT, value: set[str]) -> None:
    known[key] = value
    if len(known) > MAX_REMEMBERED:
        del known[next(iter(known))]
