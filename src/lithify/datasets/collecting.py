"""The schedule of garbage collection for all kinds of datasets (SlateDB's garbage collector options).

Each kind of garbage has its own interval and minimum age. A tick collects what is due; kinds that are due
together and have equal settings are collected together, so that the dataset's state is read once. With the
defaults that is one collection per interval, the first at the first tick.

A failed collection is due again after its interval, like a successful one: its cause rarely disappears within
seconds, and garbage can wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from lithify.base import events
from lithify.base.clock import Clock
from lithify.base.errors import LithifyError
from lithify.base.events import Observer
from lithify.config.sections import CollectionSettings

KindT = TypeVar("KindT")
"""The kinds of garbage of one kind of dataset."""
ReportT = TypeVar("ReportT")


@dataclass(frozen=True, slots=True)
class Due(Generic[KindT]):
    """Kinds of garbage to collect together now."""

    min_age_ms: int
    dry_run: bool
    kinds: frozenset[KindT]


def due_kinds(
    settings: Mapping[KindT, CollectionSettings], began_s: Mapping[KindT, float], now_s: float
) -> tuple[Due[KindT], ...]:
    """Return the collections that are due; `began_s` has the start of each kind's last one, if any."""
    return _together(
        (kind, how.min_age_ms, how.dry_run)
        for kind, how in settings.items()
        if kind not in began_s or now_s >= began_s[kind] + how.interval.total_seconds()
    )


def asked_for(
    settings: Mapping[KindT, CollectionSettings], *, dry_run: bool, min_age_ms: int | None
) -> tuple[Due[KindT], ...]:
    """Return the collections of a one-time request, those that delete first. `dry_run` and a given
    `min_age_ms` override the settings of each kind."""
    dues = _together(
        (kind, how.min_age_ms if min_age_ms is None else min_age_ms, dry_run or how.dry_run)
        for kind, how in settings.items()
    )
    return tuple(sorted(dues, key=lambda due: due.dry_run))


def _together(collections: Iterable[tuple[KindT, int, bool]]) -> tuple[Due[KindT], ...]:
    """Group kinds of garbage that are collected with the same minimum age (ms) and dry run."""
    kinds: dict[tuple[int, bool], set[KindT]] = {}
    for kind, min_age_ms, dry_run in collections:
        kinds.setdefault((min_age_ms, dry_run), set()).add(kind)
    return tuple(Due(*how, frozenset(some)) for how, some in kinds.items())


def carried_out(
    dues: Iterable[Due[KindT]], collect: Callable[[Due[KindT]], ReportT]
) -> tuple[tuple[Due[KindT], ReportT], ...]:
    """Carry out the collections and return their reports. If some fail, finish the others, then raise the
    first failure."""
    done: list[tuple[Due[KindT], ReportT]] = []
    failures: list[LithifyError] = []
    for due in dues:
        try:
            done.append((due, collect(due)))
        except LithifyError as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return tuple(done)


def until_due_s(
    settings: Mapping[KindT, CollectionSettings], began_s: Mapping[KindT, float], now_s: float
) -> float:
    """Return the seconds until something is due; infinite if nothing ever is."""
    next_s = (
        began_s[kind] + how.interval.total_seconds() if kind in began_s else now_s
        for kind, how in settings.items()
    )
    return max(0.0, min(next_s, default=float("inf")) - now_s)


def sooner(one_ms: int | None, other_ms: int | None) -> int | None:
    """Return the earlier of two times that may be unknown."""
    return min((ms for ms in (one_ms, other_ms) if ms is not None), default=None)


class PeriodicCollector(Generic[KindT]):
    """Collects the garbage of one dataset periodically. `collect` carries out one collection."""

    def __init__(
        self,
        settings: Mapping[KindT, CollectionSettings],
        collect: Callable[[Due[KindT]], events.GarbageCollected],
        clock: Clock,
        observer: Observer = events.ignore,
    ) -> None:
        self.settings = settings
        self._collect = collect
        self._clock = clock
        self._observe = observer
        self._began_s: dict[KindT, float] = {}
        self.due_in_ms: int | None = None
        """When more can be collected even if the dataset does not change, as of the last tick; `None` if that
        is never, or unknown."""

    def tick(self) -> float:
        """Collect what is due. Return the seconds until something is due again. If some collections fail,
        finish the others, then raise the first failure."""
        now_s = self._clock.monotonic_s()

        def begin(due: Due[KindT]) -> None:
            self._began_s.update(dict.fromkeys(due.kinds, now_s))
            done = self._collect(due)
            self._observe(done)
            self.due_in_ms = sooner(self.due_in_ms, done.due_in_ms)

        self.due_in_ms = None
        carried_out(due_kinds(self.settings, self._began_s, now_s), begin)
        return self.wait_s()

    def wait_s(self) -> float:
        """Return the seconds until something is due; infinite if nothing ever is."""
        return until_due_s(self.settings, self._began_s, self._clock.monotonic_s())
