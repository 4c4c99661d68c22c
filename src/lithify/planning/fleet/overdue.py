"""Overdue work of one dataset: work that is wanted, and that no process does. Pure.

1. *Coordinated elsewhere*: the fleet may not coordinate the dataset, and what is wanted has stood for
   `OVERDUE_S`: no process has published a new ledger. If compactions are active in the ledger, for
   `SILENT_S`, since a process may work on them for long without a sign.
2. *Near its limit*: at least `NEAR_PART` of what may wait for a unit has waited for `OVERDUE_S`, and no
   compaction of the unit is active.

Times are of the coordinator's monotonic clock, in seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from lithify.base.backlog import Backlog
from lithify.planning.fleet.priorities import NEAR_STALL_MS

OVERDUE_S = 30.0
SILENT_S = 900.0
ABANDONED_S = 60.0
"""A coordinator of any system begins wanted work earlier than this: SlateDB's polls every five seconds."""
NEAR_PART = 0.75


def is_near_limit(backlog: Backlog) -> bool:
    """Return whether so many wait that the writer may stall soon; a limit of 0 is unknown."""
    return 0 < backlog.limit * NEAR_PART <= backlog.waiting


@dataclass(frozen=True, slots=True)
class OverdueWork:
    """Why the work of a dataset is overdue; empty texts if it is not."""

    elsewhere: str = ""
    """Why the fleet does not coordinate the dataset although work is wanted."""
    near_limit: str = ""
    """The units that are near their limit although nothing is under way."""
    is_stalling: bool = False
    """Whether the writer of such a unit is stalled, or will be soon."""


NOTHING_OVERDUE = OverdueWork()


class OverdueWatch:
    """Follows a dataset from one poll to the next."""

    def __init__(self) -> None:
        self.work = NOTHING_OVERDUE
        self._wanted_since_s: float | None = None
        """Since when work has been wanted and the ledger unchanged."""
        self._near_since_s: dict[str, float] = {}
        """By unit, since when it has been near its limit without active work."""
        self._is_active = False
        self._ledger: object = None

    def saw(
        self,
        ledger: object,
        *,
        is_wanted: bool,
        active_units: Collection[str],
        backlogs: Iterable[Backlog],
        elsewhere: str,
        now_s: float,
    ) -> None:
        """Take in a poll. `ledger`: changes with each sign of life of a coordinator or worker. `elsewhere`:
        why the fleet does not coordinate the dataset; empty if it may."""
        self._is_active = bool(active_units)
        if not (is_wanted or self._is_active) or not elsewhere:
            self._wanted_since_s = None
        elif self._wanted_since_s is None or ledger != self._ledger:
            self._wanted_since_s = now_s
        self._ledger = ledger
        near = {one.unit: one for one in backlogs if is_near_limit(one) and one.unit not in active_units}
        self._near_since_s = {unit: self._near_since_s.get(unit, now_s) for unit in near}
        standing = [near[unit] for unit, at_s in self._near_since_s.items() if now_s - at_s >= OVERDUE_S]
        self.work = OverdueWork(
            elsewhere if self.has_stood_for_s(now_s) >= self._patience_s else "",
            ", ".join(_described(one) for one in standing),
            any(one.stall_ms is not None and one.stall_ms <= NEAR_STALL_MS for one in standing),
        )

    def has_stood_for_s(self, now_s: float) -> float:
        """Return how long wanted work has stood without a sign of life; negative if none is wanted, or the
        fleet coordinates the dataset."""
        return -1.0 if self._wanted_since_s is None else now_s - self._wanted_since_s

    def due_in_s(self, now_s: float) -> float:
        """Return the time until the next poll may find something overdue; infinite if nothing stands."""
        due_s = [at_s + OVERDUE_S for at_s in self._near_since_s.values()]
        if self._wanted_since_s is not None:
            due_s.append(self._wanted_since_s + self._patience_s)
        return min((at_s - now_s for at_s in due_s if at_s > now_s), default=float("inf"))

    def is_abandoned(self, now_s: float) -> bool:
        """Return whether no coordinator can be at work: a live one would have done something by now."""
        return self.has_stood_for_s(now_s) >= max(ABANDONED_S, self._patience_s)

    def clear(self) -> None:
        """Forget everything: it is another dataset, or cannot be read."""
        self.work, self._ledger, self._wanted_since_s = NOTHING_OVERDUE, None, None
        self._near_since_s.clear()

    @property
    def _patience_s(self) -> float:
        return SILENT_S if self._is_active else OVERDUE_S


def _described(one: Backlog) -> str:
    says = f"{one.waiting} of {one.limit} wait" + (f" in {one.unit}" if one.unit else "")
    if one.stall_ms is None:
        return says
    return f"{says}, and the writer " + (
        f"stalls in {one.stall_ms // 1000} s" if one.stall_ms >= 1000 else "is stalled"
    )
