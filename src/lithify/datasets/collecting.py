"""The schedule of garbage collection for all kinds of datasets (SlateDB's garbage collector options).

Each kind of garbage has its own interval and minimum age. A tick collects what is due; kinds that are due
together and have equal options are collected together, so that the dataset's state is read once. With the
defaults that is one collection per interval, the first at the first tick.

A failed collection is due again after its interval, like a successful one: its cause rarely disappears within
seconds, and garbage can wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from lithify.base import events
from lithify.base.clock import Clock
from lithify.base.errors import LithifyError, Refused
from lithify.base.events import Observer
from lithify.config.durations import to_milliseconds
from lithify.config.sections import CollectionSettings

DEFAULT_INTERVAL_MS = 600_000

KindT = TypeVar("KindT")
"""The kinds of garbage of one kind of dataset."""
ReportT = TypeVar("ReportT")


@dataclass(frozen=True, slots=True)
class DirectoryOptions:
    """How one kind of garbage is collected."""

    interval_ms: int = DEFAULT_INTERVAL_MS
    min_age_ms: int = 300_000
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.interval_ms < 1:
            raise Refused(f"the garbage collection interval is {self.interval_ms} ms; it must be at least 1")
        if self.min_age_ms < 0:
            raise Refused(f"the minimum age of garbage is {self.min_age_ms} ms; it cannot be negative")

    @classmethod
    def of(cls, settings: CollectionSettings) -> DirectoryOptions:
        return cls(to_milliseconds(settings.interval), to_milliseconds(settings.min_age), settings.dry_run)


@dataclass(frozen=True, slots=True)
class Due(Generic[KindT]):
    """Kinds of garbage to collect together now."""

    min_age_ms: int
    dry_run: bool
    kinds: frozenset[KindT]


def due_kinds(
    options: Mapping[KindT, DirectoryOptions], began_s: Mapping[KindT, float], now_s: float
) -> tuple[Due[KindT], ...]:
    """Return the collections that are due; `began_s` has the start of each kind's last one, if any."""
    together: dict[tuple[int, bool], set[KindT]] = {}
    for kind, kind_options in options.items():
        if kind not in began_s or now_s >= began_s[kind] + kind_options.interval_ms / 1000:
            together.setdefault((kind_options.min_age_ms, kind_options.dry_run), set()).add(kind)
    return tuple(
        Due(min_age_ms, dry_run, frozenset(kinds)) for (min_age_ms, dry_run), kinds in together.items()
    )


def asked_for(
    options: Mapping[KindT, DirectoryOptions], *, dry_run: bool, min_age_ms: int | None
) -> tuple[Due[KindT], ...]:
    """Return the collections of a one-time request, those that delete first. `dry_run` and a given
    `min_age_ms` override the options of each kind."""
    given: Mapping[str, int] = {} if min_age_ms is None else {"min_age_ms": min_age_ms}
    chosen = {kind: replace(o, dry_run=dry_run or o.dry_run, **given) for kind, o in options.items()}
    return tuple(sorted(due_kinds(chosen, {}, 0.0), key=lambda due: due.dry_run))


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
    options: Mapping[KindT, DirectoryOptions], began_s: Mapping[KindT, float], now_s: float
) -> float:
    """Return the seconds until something is due; infinite if nothing ever is."""
    next_s = (
        began_s[kind] + o.interval_ms / 1000 if kind in began_s else now_s for kind, o in options.items()
    )
    return max(0.0, min(next_s, default=float("inf")) - now_s)


class PeriodicCollector(Generic[KindT]):
    """Collects the garbage of one dataset periodically. `collect` carries out one collection."""

    def __init__(
        self,
        options: Mapping[KindT, DirectoryOptions],
        collect: Callable[[Due[KindT]], events.GarbageCollected],
        clock: Clock,
        observer: Observer = events.ignore,
    ) -> None:
        self.options = options
        self._collect = collect
        self._clock = clock
        self._observe = observer
        self._began_s: dict[KindT, float] = {}

    def tick(self) -> float:
        """Collect what is due. Return the seconds until something is due again. If some collections fail,
        finish the others, then raise the first failure."""
        now_s = self._clock.monotonic_s()

        def begin(due: Due[KindT]) -> None:
            self._began_s.update(dict.fromkeys(due.kinds, now_s))
            self._observe(self._collect(due))

        carried_out(due_kinds(self.options, self._began_s, now_s), begin)
        return self.wait_s()

    def wait_s(self) -> float:
        """Return the seconds until something is due; infinite if nothing ever is."""
        return until_due_s(self.options, self._began_s, self._clock.monotonic_s())
