"""Attribution of failed attempts: to the work, or to the worker.

Poison work fails on every worker: it has to back off, or it uses up the slots. A poison worker fails with all
work, and fast, so that it would drain a queue by itself: its failures must not make the work back off, and it
should get no more of it.

1. A worker is *suspect* while it has failed with at least `SUSPECT_DATASETS` datasets since its last success.
One success ends that.
2. A failure of a suspect worker is attributed to the worker and does not count against the work, as long as
there is a worker that is not suspect (`excuses`). All other failures are attributed to the work. Work that
was tried too often fails for good, and backs off (`QueueAdmission.failed`).
3. Task offers are not meant for a suspect worker, and work that has failed with a worker is meant for others
first (`task_offers.meant_for`). The worker also backs off by itself (`lithify.service.slots`).

Memory is bounded: the workers and the work with the oldest failures are forgotten first.
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
    """The cause of a failed attempt."""

    WORK = "work"
    WORKER = "worker"


class Faults:
    """The failures that one member has seen. May be lost: then no worker is suspect."""

    def __init__(self) -> None:
        self._failing: dict[str, set[str]] = {}
        """By worker, the datasets that failed with it since its last success."""
        self._tried: dict[WorkKey, set[str]] = {}
        """By work, the workers on which it failed by its own fault."""

    def failed(self, key: WorkKey, worker: str) -> FaultOrigin:
        """Record a failed attempt and return its cause."""
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
        """Record a successful attempt."""
        self._failing.pop(worker, None)
        self._tried.pop(key, None)

    def forget(self, dataset: str) -> None:
        """Forget all failures of a dataset that was replaced by another one."""
        for key in [key for key in self._tried if key.dataset == dataset]:
            del self._tried[key]
        for failing in self._failing.values():
            failing.discard(dataset)

    def is_suspect(self, worker: str) -> bool:
        """Return whether the worker fails with all work."""
        return len(self._failing.get(worker, ())) >= SUSPECT_DATASETS

    def failed_with(self, key: WorkKey) -> frozenset[str]:
        """Return the workers on which the work failed by its own fault."""
        return frozenset(self._tried.get(key, ()))

    def excuses(self, worker: str, workers: Collection[str]) -> bool:
        """Return whether a failure of this worker is attributed to it, given the live `workers`."""
        return self.is_suspect(worker) and any(not self.is_suspect(other) for other in workers)


def _put(known: dict[KeyT, set[str]], key: KeyT, value: set[str]) -> None:
    known[key] = value
    if len(known) > MAX_REMEMBERED:
        del known[next(iter(known))]
