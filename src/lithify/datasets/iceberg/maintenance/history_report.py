"""Reports how much history a table keeps, and for whom, in a few small requests. It uses the table's loaded
metadata and Lithify's own folder. It reads no checkpoints of readers, because their store may be unavailable;
the last expiry run has published the oldest need."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pyiceberg.table.metadata import TableMetadata

from lithify.base.clock import Clock
from lithify.base.errors import CorruptObject
from lithify.base.ids import Ids
from lithify.coordination.expiry_runs import ExpiryRuns
from lithify.coordination.holds import ObjectHolds
from lithify.coordination.thresholds import ThresholdFiles
from lithify.datasets.iceberg.maintenance.history_size import needed_by_refs, past_of
from lithify.datasets.iceberg.maintenance.own_state import StateFolder, missing, recorded_in
from lithify.datasets.iceberg.maintenance.pending import Pending
from lithify.datasets.iceberg.maintenance.readers import Readers
from lithify.datasets.iceberg.maintenance.snapshot_pins import collect_needs, is_of_reader
from lithify.datasets.iceberg.model import IcebergLedger
from lithify.protocol.retained import Retained
from lithify.store.objects import ObjectStore
from lithify.watermarks.model import Needed

FoundT = TypeVar("FoundT")


def retained_of(
    metadata: TableMetadata | None,
    ledger: IcebergLedger | None,
    store: ObjectStore,
    folder: str,
    clock: Clock,
    ids: Ids,
    store_ms: Callable[[], int | None],
) -> Retained:
    """Return the retained history of the table whose own folder is `folder` of `store`. `store_ms` returns
    the time by the store's clock, and is called only if it is needed; if it returns `None`, no hold counts as
    expired."""
    damaged: list[str] = []

    def read(what: Callable[[], FoundT]) -> FoundT | None:
        try:
            return what()
        except CorruptObject as error:
            damaged.append(str(error))
            return None

    thresholds = ThresholdFiles(store, folder, clock, ids)
    holds = read(ObjectHolds(store, folder, thresholds, clock, ids).list) or ()
    readers = {reader.name for reader in read(Readers(store, folder, thresholds).list) or ()}
    threshold = read(thresholds.read)
    entries = read(Pending(store, folder, clock, ids).read) or ()
    runs = read(ExpiryRuns(store, folder).read) or {}
    lost = ""
    if metadata is not None and (recorded := recorded_in(metadata)).keys:
        lost = missing(recorded, read(StateFolder(store, folder, ids).read), readers, store_ms() or 0)
    needed: list[Needed] = []
    if metadata is not None:
        needed += collect_needs(metadata, holds, (), ledger, (store_ms() if holds else None) or 0).by
        needed += needed_by_refs(metadata)
    least = None if threshold is None else threshold.least
    if least is not None and any(is_of_reader(least.by, name) for name in readers):
        needed.append(least)
    waiting = [entry for entry in entries if not entry.blocked]
    return Retained(
        past=past_of(metadata),
        needed=tuple(sorted(needed, key=lambda one: (one.position, one.by))),
        readers=len(readers),
        threshold=threshold,
        pending_files=sum(entry.files for entry in waiting),
        pending_bytes=sum(entry.size_bytes for entry in waiting),
        blocked=tuple(entry.blocked for entry in entries if entry.blocked),
        runs=runs,
        lost=lost,
        damaged=tuple(damaged),
    )
