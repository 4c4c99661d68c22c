"""SlateDB's garbage collector options, and a database's collector that uses them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from lithify.base import events
from lithify.base.clock import Clock
from lithify.base.events import GarbageCollected, Observer
from lithify.base.ids import Ids
from lithify.datasets.collecting import DirectoryOptions, Due, PeriodicCollector
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.garbage.collection import GarbageKind, GarbageOptions, GarbageReport, collect
from lithify.datasets.slatedb.settings import GarbageCollectorSettings


@dataclass(frozen=True, slots=True)
class GarbageCollectorOptions:
    """Collector options with SlateDB's names and defaults; a kind whose options are `None` is not collected.
    As in SlateDB, zero-byte files of the write-ahead log are not deleted unless requested."""

    manifest_options: DirectoryOptions | None = field(default_factory=DirectoryOptions)
    wal_options: DirectoryOptions | None = field(default_factory=DirectoryOptions)
    wal_fence_options: DirectoryOptions | None = None
    compacted_options: DirectoryOptions | None = field(default_factory=DirectoryOptions)
    compactions_options: DirectoryOptions | None = field(default_factory=DirectoryOptions)
    detach_options: DirectoryOptions | None = field(default_factory=DirectoryOptions)
    """Its minimum age has no effect: a reference is needed or not."""
    lithify_options: DirectoryOptions | None = field(default_factory=DirectoryOptions)
    """Lithify's notes about the database, and partly written files of killed writers."""

    @classmethod
    def of(cls, settings: GarbageCollectorSettings) -> GarbageCollectorOptions:
        """Return the options of these settings."""
        return cls(
            **{option.name: DirectoryOptions.of(getattr(settings, option.name)) for option in fields(cls)}
        )

    def by_kind(self) -> Mapping[GarbageKind, DirectoryOptions]:
        """Return the options of every kind that is collected."""
        chosen = {kind: getattr(self, name) for name, kinds in _KINDS.items() for kind in kinds}
        return {kind: options for kind, options in chosen.items() if options is not None}


_KINDS: Mapping[str, tuple[GarbageKind, ...]] = {
    "manifest_options": (GarbageKind.MANIFEST,),
    "wal_options": (GarbageKind.WAL,),
    "wal_fence_options": (GarbageKind.WAL_FENCE,),
    "compacted_options": (GarbageKind.COMPACTED,),
    "compactions_options": (GarbageKind.COMPACTIONS,),
    "detach_options": (GarbageKind.DETACH,),
    "lithify_options": (GarbageKind.PROGRESS, GarbageKind.ATTEMPTS, GarbageKind.STAGED),
}
assert set(_KINDS) == {f.name for f in fields(GarbageCollectorOptions)}


def garbage_collector(
    dataset: SlateDataset,
    clock: Clock,
    ids: Ids,
    *,
    options: GarbageCollectorOptions | None = None,
    rng: random.Random | None = None,
    observer: Observer = events.ignore,
) -> PeriodicCollector[GarbageKind]:
    """Return the periodic collector of one database."""
    chosen = options if options is not None else GarbageCollectorOptions()

    def collect_due(due: Due[GarbageKind]) -> GarbageCollected:
        how = GarbageOptions(due.min_age_ms, due.dry_run, due.kinds)
        return _event(dataset.url, collect(dataset.store, dataset.paths, clock, how, ids=ids, rng=rng))

    return PeriodicCollector(chosen.by_kind(), collect_due, clock, observer)


def _event(url: str, report: GarbageReport) -> GarbageCollected:
    counts = {kind.value: count for kind, count in report.counts.items()}
    return GarbageCollected(
        url,
        report.dry_run,
        {kind: count.deletable for kind, count in counts.items()},
        {kind: count.found - count.deletable for kind, count in counts.items()},
        sum(count.deletable_bytes for count in counts.values()),
    )
