"""Routing of work to queues.

1. The rule of a dataset may have *routes*: conditions on the unit and the age of its data, and the name of a
queue. The first route that holds names the queue, whatever the cost of the work.
2. Else the first queue, by size, whose largest size exceeds the cost.
3. A draining queue accepts no work: it goes on to the next queue by size. So does work of a route whose queue
drains or does not exist any more. A paused queue accepts and keeps its work.

Invariant: exactly one queue has no limit, and it does not drain; no two limits are equal. So all work has
exactly one queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

from lithify.base.errors import Refused


class Routed(Protocol):
    """The properties of a queue that routing needs."""

    @property
    def name(self) -> str: ...

    @property
    def largest_bytes(self) -> int | None:
        """Accepts work that costs less; `None`: no limit."""

    @property
    def is_draining(self) -> bool: ...


QueueT = TypeVar("QueueT", bound=Routed)


@dataclass(frozen=True, slots=True)
class Route:
    """The queue for some of a rule's work."""

    queue: str
    """The queue's name."""
    units: str = "*"
    """A shell pattern for names of units: segments, chunks, partitions."""
    min_age_ms: int = 0
    """Only units whose newest data is at least this old."""

    def holds(self, unit: str, age_ms: int | None) -> bool:
        """Return whether the route applies to this unit, with data of this age (`None`: unknown, which never
        counts as old enough)."""
        return fnmatchcase(unit, self.units) and (self.min_age_ms <= 0 or (age_ms or 0) >= self.min_age_ms)


class Routing(Generic[QueueT]):
    """The queues of a fleet. Raises `Refused` when they leave some work without a queue, or with two."""

    def __init__(self, queues: Iterable[QueueT]) -> None:
        self._by_name = {queue.name: queue for queue in queues}
        limited = [q for q in self._by_name.values() if q.largest_bytes is not None]
        unlimited = [q for q in self._by_name.values() if q.largest_bytes is None]
        if len(unlimited) != 1:
            names = ", ".join(queue.name for queue in unlimited) or "none"
            raise Refused(
                f"exactly one queue must have no largest size, for what no other takes; here: {names}"
            )
        if unlimited[0].is_draining:
            raise Refused(
                f"queue {unlimited[0].name} has no largest size, so it must not drain: no other takes all"
            )
        limited.sort(key=_limit)
        for one, other in pairwise(limited):
            if one.largest_bytes == other.largest_bytes:
                raise Refused(
                    f"queues {one.name} and {other.name} both have the largest size {one.largest_bytes}"
                )
        self._by_size = [*limited, *unlimited]

    def route(
        self, cost_bytes: int, routes: Sequence[Route] = (), *, unit: str = "", age_ms: int | None = None
    ) -> QueueT:
        """Return the queue of work of this cost."""
        for route in routes:
            named = self._by_name.get(route.queue)
            if named is not None and not named.is_draining and route.holds(unit, age_ms):
                return named
        return next(
            q
            for q in self._by_size
            if not q.is_draining and (q.largest_bytes is None or cost_bytes < _limit(q))
        )


def _limit(queue: Routed) -> int:
    assert queue.largest_bytes is not None
    return queue.largest_bytes
