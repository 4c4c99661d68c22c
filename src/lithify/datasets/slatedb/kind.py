"""SlateDB databases as a kind of dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lithify.base.clock import Clock, SystemClock
from lithify.base.errors import Refused
from lithify.base.events import Observer
from lithify.base.ids import Ids, RandomIds, Ulid, parse_ulid
from lithify.config.model import Config
from lithify.datasets.collecting import PeriodicCollector, asked_for
from lithify.datasets.kind import DatasetRun, Kind, ShownPlan
from lithify.datasets.maintenance import Maintenance
from lithify.datasets.options import CommandArgs
from lithify.datasets.slatedb import view
from lithify.datasets.slatedb.checks import check_database
from lithify.datasets.slatedb.compaction.request import spec_of
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.format.ledger import SlateLedger
from lithify.datasets.slatedb.format.paths import DatabasePaths
from lithify.datasets.slatedb.garbage import collection
from lithify.datasets.slatedb.garbage.collector import by_kind, garbage_collector
from lithify.datasets.slatedb.mirroring.target import MirrorTarget
from lithify.datasets.slatedb.mirroring.view import show_points
from lithify.datasets.slatedb.model import Manifest, Spec
from lithify.datasets.slatedb.options import slate_options
from lithify.datasets.slatedb.planning.shape import Shape, shape_of
from lithify.datasets.slatedb.planning.tiered import parse_scheduler_options
from lithify.datasets.slatedb.settings import SlatedbSettings
from lithify.datasets.waiting import command_waiting
from lithify.planning.timeline.calendar import Calendar, Granularity
from lithify.protocol.finding import Finding
from lithify.protocol.proposal import MAX_PRIORITY, NOTHING_HELD, Held, Plan, Planner, Proposal
from lithify.protocol.status import Status
from lithify.store.objects import ObjectStore
from lithify.store.proof import proved
from lithify.store.resilience.waiting import WaitPolicy
from lithify.store.urls import open_store, with_wait
from lithify.views.blocks import Shown


class SlateKind:
    """How SlateDB databases are opened, planned and displayed."""

    def open(
        self,
        url: str,
        config: Config,
        clock: Clock,
        ids: Ids,
        wrap: Callable[[ObjectStore], ObjectStore],
        waiting: WaitPolicy,
    ) -> SlateDataset:
        options = slate_options(config.of(SlatedbSettings))
        given = config.store_options_of(url)
        store, root = open_store(url, given, waiting)
        return SlateDataset(
            proved(wrap(store), DatabasePaths(root).own_folder, ids),
            root,
            clock,
            ids,
            store_options=with_wait(given, waiting),
            options=options,
        )

    def check_settings(self, config: Config) -> None:
        settings = config.of(SlatedbSettings)
        for ignored in parse_scheduler_options(settings.scheduler_options).warnings:
            raise Refused(ignored)
        Calendar(Granularity(settings.segments.granularity), settings.segments.time_zone)
        slate_options(settings.model_copy(update={"merge_operator": None, "compaction_filter": None}))

    def own_place(self, dataset: SlateDataset) -> tuple[ObjectStore, str]:
        return dataset.store, dataset.paths.own_folder

    # Planning

    def planner(self, dataset: SlateDataset, args: CommandArgs, clock: Clock) -> Planner:
        """Return the planner for everything or for the scheduler's proposals, everywhere or in one
        segment."""
        return dataset.planner(full=args.full, segment=_segment(args))

    def request(self, dataset: SlateDataset, args: CommandArgs, clock: Clock) -> Planner:
        l0, runs = args.given.get("l0", ()), args.given.get("run", ())
        if args.full == bool(l0 or runs):
            raise Refused("add either --full, or sources with --l0 and --run")
        if args.full:
            return self.planner(dataset, args, clock)
        views, segment = [_view_id(given) for given in l0 if given != "all"], _segment(args) or b""

        def plan_asked(snapshot: Manifest, ledger: SlateLedger, held: Held = NOTHING_HELD, /) -> Plan:
            spec = spec_of(snapshot, ledger, segment, views, runs, all_l0="all" in l0)
            cost_bytes = dataset.cost_bytes(spec, snapshot)
            return Plan((Proposal(spec, MAX_PRIORITY, cost_bytes, "requested by an operator"),))

        return plan_asked

    # Display

    def show_plan(
        self,
        dataset: SlateDataset,
        snapshot: Manifest,
        ledger: SlateLedger,
        plan: Plan,
        args: CommandArgs,
        clock: Clock,
        details: None,
    ) -> ShownPlan:
        segments = dataset.segments(snapshot, ledger)
        timeline = None if segments is None else view.timeline_of(segments)
        return ShownPlan(view.show_plan(dataset.url, snapshot, ledger, plan, timeline), timeline)

    def look(self, snapshot: Manifest) -> Shape:
        return shape_of(snapshot)

    def show_run(self, run: DatasetRun) -> Shown:
        return view.show_run(run)

    def show_status(self, found: Status) -> Shown:
        return view.show_backlog(found.backlog)

    def show_spec(self, spec: Spec) -> Mapping[str, Any]:
        return view.spec_json(spec)

    def check(
        self,
        open_dataset: Callable[[], SlateDataset],
        find: Callable[[SlateDataset], Status],
        config: Config,
        now_ms: int,
    ) -> Iterator[Finding]:
        return check_database(open_dataset(), find, now_ms)

    def inspect(self, url: str, config: Config, part: str, args: CommandArgs) -> Shown:
        if part == "sst":
            from lithify.datasets.slatedb.format.sst_facts import (
                inspect_sst,  # imports the compiler, which few commands need
            )

            store, key = open_store(url, config.store_options_of(url), command_waiting(url, config))
            return view.show_sst(key, inspect_sst(store, key))
        waiting = command_waiting(url, config)
        if part == "points":
            store, root = open_store(url, config.store_options_of(url), waiting)
            mirror = MirrorTarget(store, root, SystemClock(), RandomIds())
            return show_points(mirror.url, mirror.read())
        dataset = self.open(url, config, SystemClock(), RandomIds(), lambda store: store, waiting)
        if part == "compactions":
            ledger = dataset.ledger()
            if ledger is None:
                raise Refused(f"{url} has no compactions file: no coordinator has ever run on it")
            return view.show_ledger(ledger)
        assert part == "manifest", part
        manifest_id = args.given.get("id")
        if manifest_id is None:
            return view.show_manifest(*dataset.latest_manifest())
        if manifest_id < 0:
            raise Refused(f"--id {manifest_id} is not a version of the manifest")
        return view.show_manifest(manifest_id, dataset.manifest(manifest_id))

    # Garbage

    def collector(
        self, dataset: SlateDataset, config: Config, clock: Clock, ids: Ids, observer: Observer
    ) -> PeriodicCollector[collection.GarbageKind]:
        settings = config.of(SlatedbSettings).garbage_collector_options
        return garbage_collector(dataset, clock, ids, settings=settings, observer=observer)

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
        settings = by_kind(config.of(SlatedbSettings).garbage_collector_options)
        fences = settings.pop(collection.GarbageKind.WAL_FENCE)
        if args.given.get("wal_fences"):  # by default services do not collect these
            settings[collection.GarbageKind.WAL_FENCE] = fences.model_copy(update={"dry_run": False})
        dues = asked_for(settings, dry_run=dry_run, min_age_ms=min_age_ms)
        store, root = open_store(url, config.store_options_of(url), command_waiting(url, config))
        paths = DatabasePaths(root)
        store = proved(store, paths.own_folder, ids)
        report = collection.collect_each(store, paths, clock, dues, dry_run=dry_run, ids=ids)
        return view.show_garbage(url, report)

    # History

    def maintenance(self, dataset: SlateDataset, clock: Clock, ids: Ids) -> Maintenance:
        raise Refused(
            f"{dataset.url}: this is a database, whose history SlateDB's own checkpoints keep; Lithify "
            "holds and expires only the history of tables"
        )


KIND: Kind[SlateDataset] = SlateKind()


def _segment(args: CommandArgs) -> bytes | None:
    given = args.given.get("segment")
    try:
        return None if given is None else bytes.fromhex(given)
    except ValueError:
        raise Refused(
            f"--segment {given!r} is not hexadecimal; `lithify inspect manifest` shows the prefixes"
        ) from None


def _view_id(given: str) -> Ulid:
    try:
        return parse_ulid(given)
    except ValueError:
        raise Refused(
            f"{given!r} is not the id of a view; `lithify inspect manifest` shows the ids"
        ) from None
