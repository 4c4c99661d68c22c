"""Routing of work to queues.

1. The rule of a dataset may name a queue, which takes all its work, whatever its cost.
2. Else the first queue, by size, whose largest size exceeds the cost.
3. A draining queue accepts no work: it goes on to the next queue by size. So does work for a named queue that
drains or does not exist any more. A paused queue accepts and keeps its work.

Invariant: exactly one queue has no limit, and it does not drain; no two limits are equal. So all work has
exactly one queue.
"""

from __future__ import annotations

from collections.abc import Iterable
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


class Routing(Generic[QueueT]):
    """The queues of a fleet. Raises `Refused` when they leave some work without a queue, or with two."""

    def __init__(self, queues: Iterable[QueueT]) -> None:
        self._by_name = {queue.name: queue for queue in queues}
        limited = [q for q in self._by_name.values() if q.largest_bytes is not None]
        unlimited = [q for q in self._by_name.values() if q.largest_bytes is None]
        if len(unlimited) != 1:
            names = ", ".join(queue.name for queue in unlimited) or "none"
            raise Refused(
                f"exactly one queue must have no largest size, for work that no other takes; here: {names}"
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

    def route(self, cost_bytes: int, named: str | None = None) -> QueueT:
        """Return the queue of work of this cost; `named` is the queue that the dataset's rule names."""
        queue = self._by_name.get(named) if named is not None else None
        if queue is not None and not queue.is_draining:
            return queue
        return next(
            q
            for q in self._by_size
            if not q.is_draining and (q.largest_bytes is None or cost_bytes < _limit(q))
        )


def _limit(queue: Routed) -> int:
    assert queue.largest_bytes is not None
    return queue.largest_bytes
