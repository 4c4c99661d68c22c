"""When which garbage of a database is collected (SlateDB's garbage collector options).

Each kind has an interval and a minimum age of its own. A tick collects what is due; kinds that are due
at the same time and have the same age are collected together, so that ledger and manifests are read
once. With the defaults that is one collection every ten minutes, the first one at the first tick.

A failed collection is due again after its interval, like a successful one: what is wrong rarely goes away
within seconds, and garbage can wait.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from lithify import telemetry
from lithify.clock import Clock
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.garbage import (
    DEFAULT_MIN_AGE_MS,
    Count,
    GarbageOptions,
    Kind,
    Report,
    collect,
)
from lithify.errors import LithifyError, Refused
from lithify.ids import Ids
from lithify.telemetry import Observer

DEFAULT_INTERVAL_MS = 600_000


@dataclass(frozen=True, slots=True)
class DirectoryOptions:
    """How one kind of garbage is collected."""

    interval_ms: int = DEFAULT_INTERVAL_MS
    min_age_ms: int = DEFAULT_MIN_AGE_MS
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.interval_ms < 1:
            raise Refused(f"the garbage collection interval is {self.interval_ms} ms; it must be at least 1")
        if self.min_age_ms < 0:
            raise Refused(f"the minimum age of garbage is {self.min_age_ms} ms; it cannot be negative")


@dataclass(frozen=True, slots=True)
class GarbageCollectorOptions:
    """SlateDB's names and defaults; `None` leaves a kind alone. As in SlateDB, zero-byte files of the
    write-ahead log are not deleted unless that is asked for."""

    manifest_options: DirectoryOptions | None = field(default_factory=DirectoryOptions)
    wal_options: DirectoryOptions | None = field(default_factory=DirectoryOptions)
    wal_fence_options: DirectoryOptions | None = None
    compacted_options: DirectoryOptions | None = field(default_factory=DirectoryOptions)
    compactions_options: DirectoryOptions | None = field(default_factory=DirectoryOptions)
    detach_options: DirectoryOptions | None = field(default_factory=DirectoryOptions)
    """Its minimum age means nothing: a tie is needed or not."""
    lithify_options: DirectoryOptions | None = field(default_factory=DirectoryOptions)
    """What Lithify notes beside the database, and what killed writers left half written."""

    def by_kind(self) -> Mapping[Kind, DirectoryOptions]:
        """The options of every kind that is collected."""
        chosen = {kind: getattr(self, name) for name, kinds in _KINDS.items() for kind in kinds}
        return {kind: options for kind, options in chosen.items() if options is not None}


_KINDS: Mapping[str, tuple[Kind, ...]] = {
    "manifest_options": (Kind.MANIFEST,),
    "wal_options": (Kind.WAL,),
    "wal_fence_options": (Kind.WAL_FENCE,),
    "compacted_options": (Kind.COMPACTED,),
    "compactions_options": (Kind.COMPACTIONS,),
    "detach_options": (Kind.DETACH,),
    "lithify_options": (Kind.PROGRESS, Kind.ATTEMPTS, Kind.STAGED),
}
assert set(_KINDS) == {f.name for f in fields(GarbageCollectorOptions)}


def due_kinds(
    options: Mapping[Kind, DirectoryOptions], began_s: Mapping[Kind, float], now_s: float
) -> tuple[GarbageOptions, ...]:
    """The collections that are due when each kind was last begun at `began_s`, if ever."""
    together: dict[tuple[int, bool], set[Kind]] = {}
    for kind, kind_options in options.items():
        if kind not in began_s or now_s >= began_s[kind] + kind_options.interval_ms / 1000:
            together.setdefault((kind_options.min_age_ms, kind_options.dry_run), set()).add(kind)
    return tuple(
        GarbageOptions(min_age_ms, dry_run, frozenset(kinds))
        for (min_age_ms, dry_run), kinds in together.items()
    )


def until_due_s(
    options: Mapping[Kind, DirectoryOptions], began_s: Mapping[Kind, float], now_s: float
) -> float:
    """How long nothing is due; infinite when nothing is ever collected."""
    next_s = (
        began_s[kind] + o.interval_ms / 1000 if kind in began_s else now_s for kind, o in options.items()
    )
    return max(0.0, min(next_s, default=float("inf")) - now_s)


class GarbageCollector:
    """Collects the garbage of one database, again and again."""

    def __init__(
        self,
        dataset: SlateDataset,
        clock: Clock,
        ids: Ids,
        *,
        options: GarbageCollectorOptions | None = None,
        rng: random.Random | None = None,
        observer: Observer = telemetry.ignore,
    ) -> None:
        self._dataset = dataset
        self._clock = clock
        self._ids = ids
        self._options = (options if options is not None else GarbageCollectorOptions()).by_kind()
        self._rng = rng
        self._observe = observer
        self._began_s: dict[Kind, float] = {}

    def tick(self) -> float:
        """Collect what is due; seconds until something is again. Of several collections that fail, the
        others are done first and the first failure is raised."""
        now_s = self._clock.monotonic_s()
        failures: list[LithifyError] = []
        for options in due_kinds(self._options, self._began_s, now_s):
            self._began_s.update(dict.fromkeys(options.kinds, now_s))
            try:
                self._report(self._collect(options))
            except LithifyError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return self.wait_s()

    def wait_s(self) -> float:
        """Seconds until something is due; infinite when nothing ever is."""
        return until_due_s(self._options, self._began_s, self._clock.monotonic_s())

    def _collect(self, options: GarbageOptions) -> Report:
        return collect(
            self._dataset.store, self._dataset.paths, self._clock, options, ids=self._ids, rng=self._rng
        )

    def _report(self, report: Report) -> None:
        deleted = {kind.value: count.deletable for kind, count in report.counts.items()}
        left = {kind.value: _left(count) for kind, count in report.counts.items()}
        bytes_deleted = sum(count.deletable_bytes for count in report.counts.values())
        self._observe(
            telemetry.GarbageCollected(self._dataset.url, report.dry_run, deleted, left, bytes_deleted)
        )


def _left(count: Count) -> int:
    return count.found - count.deletable
