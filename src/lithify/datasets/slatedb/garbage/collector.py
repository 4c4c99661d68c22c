"""The garbage collector of a database."""

from __future__ import annotations

import random
from collections.abc import Mapping

from lithify.base import events
from lithify.base.clock import Clock
from lithify.base.events import GarbageCollected, Observer
from lithify.base.ids import Ids
from lithify.config.sections import CollectionSettings
from lithify.datasets.collecting import Due, PeriodicCollector
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.garbage.collection import GarbageKind, GarbageOptions, GarbageReport, collect
from lithify.datasets.slatedb.settings import GarbageCollectorSettings

_KINDS: Mapping[str, tuple[GarbageKind, ...]] = {
    "manifest_options": (GarbageKind.MANIFEST,),
    "wal_options": (GarbageKind.WAL,),
    "wal_fence_options": (GarbageKind.WAL_FENCE,),
    "compacted_options": (GarbageKind.COMPACTED,),
    "compactions_options": (GarbageKind.COMPACTIONS,),
    "detach_options": (GarbageKind.DETACH,),
    "lithify_options": (GarbageKind.PROGRESS, GarbageKind.ATTEMPTS, GarbageKind.STAGED),
}
assert set(_KINDS) == set(GarbageCollectorSettings.model_fields)


def by_kind(settings: GarbageCollectorSettings) -> dict[GarbageKind, CollectionSettings]:
    """Return the settings of every kind of garbage."""
    return {kind: getattr(settings, name) for name, kinds in _KINDS.items() for kind in kinds}


def garbage_collector(
    dataset: SlateDataset,
    clock: Clock,
    ids: Ids,
    *,
    settings: GarbageCollectorSettings | None = None,
    rng: random.Random | None = None,
    observer: Observer = events.ignore,
) -> PeriodicCollector[GarbageKind]:
    """Return the periodic collector of one database."""

    def collect_due(due: Due[GarbageKind]) -> GarbageCollected:
        how = GarbageOptions(due.min_age_ms, due.dry_run, due.kinds)
        return _event(dataset.url, collect(dataset.store, dataset.paths, clock, how, ids=ids, rng=rng))

    return PeriodicCollector(
        by_kind(GarbageCollectorSettings() if settings is None else settings), collect_due, clock, observer
    )


def _event(url: str, report: GarbageReport) -> GarbageCollected:
    counts = {kind.value: count for kind, count in report.counts.items()}
    return GarbageCollected(
        url,
        report.dry_run,
        {kind: count.deletable for kind, count in counts.items()},
        {kind: count.found - count.deletable for kind, count in counts.items()},
        sum(count.deletable_bytes for count in counts.values()),
        report.due_in_ms,
    )
