"""Iceberg tables as a kind of dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pyiceberg.table import Table

from lithify.base.clock import Clock
from lithify.base.errors import Refused
from lithify.base.events import Observer
from lithify.base.ids import Ids
from lithify.config.model import Config
from lithify.datasets.collecting import PeriodicCollector, asked_for
from lithify.datasets.iceberg import view
from lithify.datasets.iceberg.checks import check_table
from lithify.datasets.iceberg.compaction.request import everything, request
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.format.ownership import OWN_FOLDER
from lithify.datasets.iceberg.io.catalogs import open_catalog, parse_url, store_of
from lithify.datasets.iceberg.io.state_location import STATE_FOLDER, open_state_location
from lithify.datasets.iceberg.maintenance import garbage
from lithify.datasets.iceberg.maintenance.deleting import DEFAULT_MAX_PERCENT, check_percent
from lithify.datasets.iceberg.maintenance.duties import duties
from lithify.datasets.iceberg.maintenance.operations import TableMaintenance
from lithify.datasets.iceberg.maintenance.plan_details import UNREAD, PlanDetails
from lithify.datasets.iceberg.model import ChunkSpec, IcebergLedger, TableState
from lithify.datasets.iceberg.plan import timeline_policy
from lithify.datasets.iceberg.policy import parse_policy
from lithify.datasets.iceberg.settings import IcebergSettings
from lithify.datasets.kind import DatasetRun, Kind, ShownPlan
from lithify.datasets.options import CommandArgs
from lithify.datasets.waiting import command_waiting
from lithify.protocol.finding import Finding
from lithify.protocol.proposal import NOTHING_HELD, Held, Plan, Planner
from lithify.protocol.status import Status
from lithify.store.keys import join
from lithify.store.objects import ObjectStore
from lithify.store.proof import proved
from lithify.store.resilience.waiting import WaitPolicy
from lithify.views.blocks import Shown, Timeline
from lithify.views.timeline import TABLE_WORDS, UNORDERED_WORDS


class IcebergKind:
    """The kind of Iceberg tables: how they are opened, queried and shown."""

    def open(
        self,
        url: str,
        config: Config,
        clock: Clock,
        ids: Ids,
        wrap: Callable[[ObjectStore], ObjectStore],
        waiting: WaitPolicy,
    ) -> IcebergDataset:
        """Open a table. Requests to its catalog bypass `wrap`."""

        def open_place(table: Table) -> tuple[ObjectStore, str]:
            store, root = store_of(table)
            own = join(root, OWN_FOLDER, str(table.metadata.table_uuid))
            # If the state is elsewhere, only data is written here.
            return proved(wrap(store), own, ids) if state is None else wrap(store), root

        parsed = parse_url(url)
        catalog = open_catalog(parsed.catalog, config.store_options_of(url), waiting)
        settings = config.of(IcebergSettings)
        location = settings.state_location.strip()
        options = config.store_options_of(location)
        state = open_state_location(location, catalog, options, wrap) if location else None
        if state is not None:
            state = replace(state, store=proved(state.store, join(state.key, STATE_FOLDER), ids))
        return IcebergDataset(
            catalog,
            parsed,
            clock,
            ids,
            options=settings.properties,
            unrelated=settings.unrelated,
            open_place=open_place,
            state_location=state,
        )

    def check_settings(self, config: Config) -> None:
        parse_policy({}, "iceberg.properties", config.of(IcebergSettings).properties)

    def own_place(self, dataset: IcebergDataset) -> tuple[ObjectStore, str]:
        return dataset.store, dataset.own_folder

    # Queries

    def planner(self, dataset: IcebergDataset, args: CommandArgs, clock: Clock) -> Planner:
        """Return a planner of the tasks that the timeline finds worthwhile, or of all tasks as if none had to
        wait."""

        def plan_everything(state: TableState, ledger: IcebergLedger, held: Held = NOTHING_HELD, /) -> Plan:
            return request(state, ledger, _now_us(clock), held=held, alone=dataset.alone)

        return plan_everything if args.full else dataset.propose

    def request(self, dataset: IcebergDataset, args: CommandArgs, clock: Clock) -> Planner:
        names = args.given.get("chunk")
        if args.full == bool(names):
            raise Refused("add either --full, or chunks with --chunk")

        def plan_asked(state: TableState, ledger: IcebergLedger, held: Held = NOTHING_HELD, /) -> Plan:
            return request(state, ledger, _now_us(clock), names, held, dataset.alone)

        return plan_asked

    # Showing

    def show_plan(
        self,
        dataset: IcebergDataset,
        snapshot: TableState,
        ledger: IcebergLedger,
        plan: Plan,
        args: CommandArgs,
        clock: Clock,
        details: PlanDetails | None,
    ) -> ShownPlan:
        now_us = _now_us(clock)
        drawn = everything(snapshot, ledger, now_us) if args.full else dataset.timeline(snapshot, ledger)
        words = TABLE_WORDS if snapshot.is_timed else UNORDERED_WORDS
        timeline = Timeline(drawn, timeline_policy(snapshot.policy).calendar, words)
        now_ms = clock.now_ms()
        shown = view.show_plan(dataset.url, snapshot, plan, timeline, details or UNREAD, now_ms)
        return ShownPlan(shown, timeline)

    def look(self, snapshot: TableState) -> view.Facts:
        return view.facts_of(snapshot)

    def show_run(self, run: DatasetRun) -> Shown:
        return view.show_run(run)

    def show_status(self, found: Status) -> Shown:
        return view.show_status(found)

    def show_spec(self, spec: ChunkSpec) -> Mapping[str, Any]:
        return view.spec_json(spec)

    def check(
        self,
        open_dataset: Callable[[], IcebergDataset],
        find: Callable[[IcebergDataset], Status],
        config: Config,
        now_ms: int,
    ) -> Iterator[Finding]:
        return check_table(open_dataset, find, now_ms)

    def inspect(self, url: str, config: Config, part: str, args: CommandArgs) -> Shown:
        raise AssertionError(f"tables have no part {part} to inspect")

    # Garbage

    def collector(
        self, dataset: IcebergDataset, config: Config, clock: Clock, ids: Ids, observer: Observer
    ) -> PeriodicCollector[Any]:
        settings = garbage.by_kind(config.of(IcebergSettings).garbage)
        return duties(dataset, clock, ids, settings, observer)

    def collect(
        self,
        url: str,
        config: Config,
        args: CommandArgs,
        clock: Clock,
        ids: Ids,
        *,
        dry_run: bool,
        min_age_ms: int | None,
    ) -> Shown:
        max_percent = args.given.get("max_percent")
        percent = DEFAULT_MAX_PERCENT if max_percent is None else max_percent
        check_percent(percent)
        settings = garbage.by_kind(config.of(IcebergSettings).garbage)
        dues = asked_for(settings, dry_run=dry_run, min_age_ms=min_age_ms)
        dataset = self.open(url, config, clock, ids, lambda store: store, command_waiting(url, config))
        report = garbage.collect_each(dataset, clock, dues, dry_run=dry_run, max_percent=percent)
        return view.show_garbage(dataset.url, report)

    # History

    def maintenance(self, dataset: IcebergDataset, clock: Clock, ids: Ids) -> TableMaintenance:
        return TableMaintenance(dataset, clock, ids)


KIND: Kind[IcebergDataset] = IcebergKind()


def _now_us(clock: Clock) -> int:
    return clock.now_ms() * 1000
