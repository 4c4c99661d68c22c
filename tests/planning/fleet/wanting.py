"""Wants in a line."""

from __future__ import annotations

from collections.abc import Iterable

from lithify.planning.admission import WorkKey
from lithify.planning.fleet.admission import Active
from lithify.planning.fleet.pending_tasks import PendingTask
from lithify.planning.fleet.priorities import PriorityClass

LARGE_BYTES = 1 << 30


def key(name: str) -> WorkKey:
    """`dataset/unit`, or the unit `u` of a dataset."""
    dataset, _, unit = name.partition("/")
    return WorkKey(dataset, unit or "u")


def want(
    name: str,
    band: PriorityClass = PriorityClass.NORMAL,
    priority: float = 0.5,
    *,
    cost: int = LARGE_BYTES,
    since_ms: int = 0,
    tenant: str | None = None,
    after: Iterable[str] = (),
) -> PendingTask:
    return PendingTask(key(name), band, priority, cost, since_ms, tenant, tuple(map(key, after)))


def names(wants: Iterable[PendingTask]) -> list[str]:
    return [f"{w.dataset}/{w.key.unit}" if w.key.unit != "u" else w.dataset for w in wants]


def active(wants: Iterable[PendingTask], *, takes_slot: bool = True) -> list[Active]:
    return [Active(one, takes_slot) for one in wants]
