"""Maintenance operations of a table, for commands and programs: holds, readers, expiry, orphan files, and
rewriting of deletes and manifests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lithify.base.clock import Clock
from lithify.base.errors import HoldLapsed, Refused, StoreError
from lithify.base.ids import Ids
from lithify.coordination.holds import ObjectHolds, Placed
from lithify.coordination.thresholds import ThresholdFiles
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.maintenance import history_view as view
from lithify.datasets.iceberg.maintenance.deleting import DEFAULT_MAX_PERCENT
from lithify.datasets.iceberg.maintenance.expire import DEFAULT_GRACE_MS, DONE, ExpireOptions, Expirer
from lithify.datasets.iceberg.maintenance.expiry_policy import position_of
from lithify.datasets.iceberg.maintenance.orphan_runs import OrphanRuns
from lithify.datasets.iceberg.maintenance.orphans import OrphanOptions, remove_orphans
from lithify.datasets.iceberg.maintenance.own_state import FolderIdentity
from lithify.datasets.iceberg.maintenance.snapshot_pins import SNAPSHOT, snapshot_at
from lithify.datasets.iceberg.rewriting.rewrite_deletes import DeleteRewriter
from lithify.datasets.iceberg.rewriting.rewrite_equality import EqualityRewriter
from lithify.datasets.iceberg.rewriting.rewrite_manifests import ManifestRewriter
from lithify.datasets.iceberg.rewriting.view import show_deletes, show_equality, show_manifests
from lithify.datasets.maintenance import ExpiryAsked, HoldRequest, MaintenanceResult, OrphansAsked
from lithify.views.blocks import Shown


class TableMaintenance:
    """Implements `lithify.datasets.maintenance.Maintenance` for a table."""

    def __init__(self, dataset: IcebergDataset, clock: Clock, ids: Ids) -> None:
        self._dataset = dataset
        self._clock = clock
        self._ids = ids
        store, folder = dataset.store, dataset.own_folder
        self.thresholds = ThresholdFiles(store, folder, clock, ids)
        self._holds = ObjectHolds(store, folder, self.thresholds, clock, ids)

    def left_out(self) -> frozenset[str]:
        return self._dataset.policy(self._dataset.load(), of_data=False).left_out

    # Holds

    def hold(self, wanted: HoldRequest, lease_ms: int, name: str | None, owner: str) -> Placed:
        table = self._dataset.load()
        snapshot = self._wanted(table, wanted)
        state = self._dataset.begin_state(table)
        about = {SNAPSHOT: snapshot.snapshot_id}
        position = position_of(table.metadata, snapshot.snapshot_id)
        placed = self._holds.take(name, owner, position, lease_ms, about)
        # An expiry that began before, or another program's, may have expired the snapshot meanwhile.
        table = self._dataset.load()
        if table.metadata.snapshot_by_id(snapshot.snapshot_id) is None:
            self._holds.release(placed)
            raise Refused(f"{self._dataset.url}: snapshot {snapshot.snapshot_id} was expired meanwhile")
        try:
            self._record(table, state, placed)
        except Exception:
            self._holds.release(placed)
            raise
        return placed

    def _record(self, table: Table, state: FolderIdentity, placed: Placed) -> None:
        """Record in the table that there is a hold. Raise `Refused` if the folder was removed meanwhile: the
        published threshold was removed with it, so whether the hold came in time is unknown."""
        until_ms = placed.hold.until_ms
        assert until_ms is not None, "each hold is a lease"
        self._dataset.record.hold(table, state, until_ms, until_ms - placed.lease_ms)
        self._dataset.state.check(state)

    def renew(self, placed: Placed | str, lease_ms: int | None = None) -> Placed:
        found = self._holds.find(placed) if isinstance(placed, str) else placed
        state = self._dataset.begin_state(self._dataset.load())
        renewed = self._holds.renew(found, lease_ms)
        snapshot_id, table = renewed.about.get(SNAPSHOT), self._dataset.load()
        if not any(s.snapshot_id == snapshot_id for s in table.metadata.snapshots):
            self._holds.release(renewed)
            raise HoldLapsed(f"hold {renewed.name}: another program has expired its snapshot {snapshot_id}")
        self._record(table, state, renewed)
        return renewed

    def release(self, placed: Placed | str) -> None:
        self._holds.release(placed)

    def holds(self) -> tuple[Placed, ...]:
        placed = self._holds.list()
        store_ms = self._dataset.store_ms() if any(one.hold.until_ms is not None for one in placed) else None
        if store_ms is None:
            return placed  # without the store's time none counts as expired
        return tuple(one for one in placed if not one.hold.has_lapsed(store_ms))

    def show_hold(self, placed: Placed) -> Shown:
        return view.show_hold(self._dataset.url, placed)

    def show_holds(self) -> Shown:
        return view.show_holds(self._dataset.url, self.holds())

    def _wanted(self, table: Table, wanted: HoldRequest) -> Snapshot:
        metadata = table.metadata
        if wanted.version is not None and wanted.at_ms is not None:
            raise Refused("name a snapshot or a time, not both")
        if wanted.version is not None:
            snapshot = metadata.snapshot_by_id(wanted.version)
            if snapshot is None:
                raise Refused(f"{self._dataset.url}: there is no snapshot {wanted.version}")
            return snapshot
        newest = metadata.current_snapshot()
        if newest is None:
            raise Refused(f"{self._dataset.url}: the table has no snapshot that could be held")
        if wanted.at_ms is None:
            return newest
        found = snapshot_at(metadata, wanted.at_ms)
        if found is None:
            raise Refused(
                f"{self._dataset.url}: the table no longer records which snapshot was current then; name "
                "the snapshot"
            )
        return found

    # Readers

    def add_reader(self, reader: str, name: str | None, options: Mapping[str, Any]) -> Shown:
        standing = self._dataset.add_reader(reader, name, continuous=bool(options.get("continuous", False)))
        return view.show_readers(self._dataset.url, [standing])

    def drop_reader(self, name: str) -> Shown:
        return view.show_dropped(self._dataset.url, self._dataset.drop_reader(name))

    def show_readers(self) -> Shown:
        return view.show_readers(self._dataset.url, self._dataset.standings(self._dataset.load()))

    # Files

    def remove_orphans(self, asked: OrphansAsked, tell: Callable[[str], None]) -> Shown:
        options = OrphanOptions(
            older_than_ms=asked.older_than_ms,
            dry_run=not asked.delete,
            max_percent=DEFAULT_MAX_PERCENT if asked.max_percent is None else asked.max_percent,
        )
        found = remove_orphans(self._dataset, self._clock, self._ids, options, tell)
        try:
            OrphanRuns(self._dataset.store, self._dataset.own_folder).note(found, self._clock.now_ms())
        except StoreError as error:  # the caller may have no right to write
            found.notes.append(f"the result could not be saved for `lithify plan`: {error}")
        return view.show_orphans(self._dataset.url, found)

    # Expiry

    def expire(self, asked: ExpiryAsked) -> MaintenanceResult:
        options = ExpireOptions(
            older_than_ms=asked.older_than_ms,
            retain_last=asked.retain_last,
            grace_ms=DEFAULT_GRACE_MS if asked.grace_ms is None else asked.grace_ms,
            dry_run=asked.dry_run,
            accept_loss=asked.accept_loss,
        )
        found = Expirer(self._dataset, self._clock, self._ids).run(options)
        shown = view.show_expiry(self._dataset.url, found, options.grace_ms)
        return MaintenanceResult(found.outcome.value, found.outcome in DONE, shown)

    # Deletes and manifests

    def rewrite_equality_deletes(self, *, dry_run: bool) -> MaintenanceResult:
        found = EqualityRewriter(self._dataset, self._clock).run(dry_run=dry_run)
        shown = show_equality(self._dataset.url, found)
        return MaintenanceResult(found.outcome.value, found.is_done, shown)

    def rewrite_deletes(self, *, dry_run: bool) -> MaintenanceResult:
        found = DeleteRewriter(self._dataset, self._clock).run(dry_run=dry_run)
        shown = show_deletes(self._dataset.url, found)
        return MaintenanceResult(found.outcome.value, found.is_done, shown)

    def rewrite_manifests(self, *, dry_run: bool) -> MaintenanceResult:
        found = ManifestRewriter(self._dataset, self._clock).run(dry_run=dry_run)
        shown = show_manifests(self._dataset.url, found)
        return MaintenanceResult(found.outcome.value, found.is_done, shown)
