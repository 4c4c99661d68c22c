"""Keyed logs as a kind of dataset: `kafka+file:///backup/orders-0`, `kafka+s3://bucket/prefix`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lithify.base.clock import Clock, SystemClock
from lithify.base.errors import Refused
from lithify.base.events import GarbageCollected, Observer
from lithify.base.ids import Ids, RandomIds
from lithify.config.model import Config
from lithify.coordination.groups import GroupFiles
from lithify.coordination.holds import checked_name
from lithify.datasets.collecting import Due, PeriodicCollector, asked_for
from lithify.datasets.kafka import view
from lithify.datasets.kafka.buckets.copies import checked_topic
from lithify.datasets.kafka.buckets.live_topic import LiveTopic, build_order, check_live
from lithify.datasets.kafka.buckets.topic_copy import TopicCopy
from lithify.datasets.kafka.checks import check_log
from lithify.datasets.kafka.cleaning.cleaning_tasks import OWN_FOLDER
from lithify.datasets.kafka.dataset import LogDataset
from lithify.datasets.kafka.garbage import collect
from lithify.datasets.kafka.members import LogMember
from lithify.datasets.kafka.model import LogLedger, LogSnapshot, LogSpec
from lithify.datasets.kafka.places import open_folder, open_places
from lithify.datasets.kafka.settings import KafkaSettings
from lithify.datasets.kind import DatasetRun, Kind, ShownPlan
from lithify.datasets.maintenance import Maintenance
from lithify.datasets.options import CommandArgs
from lithify.datasets.waiting import command_waiting
from lithify.protocol.finding import Finding
from lithify.protocol.proposal import Plan, Planner
from lithify.protocol.status import Status
from lithify.store.keys import join
from lithify.store.objects import ObjectStore
from lithify.store.proof import proved
from lithify.store.resilience.waiting import WaitPolicy
from lithify.views.blocks import Shown


class LogKind:
    """Opens and shows keyed logs."""

    def open(
        self,
        url: str,
        config: Config,
        clock: Clock,
        ids: Ids,
        wrap: Callable[[ObjectStore], ObjectStore],
        waiting: WaitPolicy,
    ) -> LogDataset:
        settings = config.of(KafkaSettings)
        name = None if settings.copy_to is None else checked_topic(settings.copy_to)
        source, output = open_places(url, settings.output, config, waiting, name)
        store = proved(wrap(output.store), join(output.root, OWN_FOLDER), ids)
        # Lithify never writes to the source's store, unless the output is in the same one.
        read = store if source.store is output.store else wrap(source.store)
        places = (read, source.root), (store, output.root)
        if name is not None:
            return TopicCopy(url, *places, clock, ids, settings, source.options, output.options)
        if settings.live:
            check_live(url, settings)
            return LiveTopic(url, *places, clock, ids, settings, source.options, output.options)
        member = _member(url, settings, config, clock, ids, waiting)
        return LogDataset(url, *places, clock, ids, settings, source.options, output.options, member)

    def check_settings(self, config: Config) -> None:
        settings = config.of(KafkaSettings)
        for check, value in (
            (checked_topic, settings.copy_to),
            (checked_name, settings.member),
            (build_order, settings.broker_build),
        ):
            if value is not None:
                check(value)

    def own_place(self, dataset: LogDataset) -> tuple[ObjectStore, str]:
        return dataset.store, dataset.own_folder

    # Asking

    def planner(self, dataset: LogDataset, args: CommandArgs, clock: Clock) -> Planner:
        return dataset.planner(full=args.full)

    def request(self, dataset: LogDataset, args: CommandArgs, clock: Clock) -> Planner:
        if not args.full:
            raise Refused("add --full: a keyed log is compacted as a whole")
        return self.planner(dataset, args, clock)

    # Showing

    def show_plan(
        self,
        dataset: LogDataset,
        snapshot: LogSnapshot,
        ledger: LogLedger,
        plan: Plan,
        args: CommandArgs,
        clock: Clock,
        details: None,
    ) -> ShownPlan:
        return ShownPlan(view.show_plan(dataset.url, snapshot, plan))

    def look(self, snapshot: LogSnapshot) -> view.Look:
        return view.look(snapshot)

    def show_run(self, run: DatasetRun) -> Shown:
        return view.show_run(run)

    def show_status(self, found: Status) -> Shown:
        return view.show_status(found.snapshot)

    def show_spec(self, spec: LogSpec) -> Mapping[str, Any]:
        return view.spec_json(spec)

    def check(
        self,
        open_dataset: Callable[[], LogDataset],
        find: Callable[[LogDataset], Status],
        config: Config,
        now_ms: int,
    ) -> Iterator[Finding]:
        return check_log(open_dataset, find, now_ms, config.of(KafkaSettings))

    def inspect(self, url: str, config: Config, part: str, args: CommandArgs) -> Shown:
        assert part == "segments", part
        dataset = self._opened(url, config)
        return view.show_segments(dataset, dataset.snapshot())

    # Garbage

    def collector(
        self, dataset: LogDataset, config: Config, clock: Clock, ids: Ids, observer: Observer
    ) -> PeriodicCollector[str]:
        def collect_due(due: Due[str]) -> GarbageCollected:
            return collect(dataset, min_age_ms=due.min_age_ms, dry_run=due.dry_run).event(dataset.url)

        settings = {"all": config.of(KafkaSettings).garbage}
        return PeriodicCollector(settings, collect_due, clock, observer)

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
        (due,) = asked_for({"all": config.of(KafkaSettings).garbage}, dry_run=dry_run, min_age_ms=min_age_ms)
        dataset = self._opened(url, config, clock, ids)
        report = collect(dataset, min_age_ms=due.min_age_ms, dry_run=due.dry_run)
        return view.show_garbage(url, report)

    # History

    def maintenance(self, dataset: LogDataset, clock: Clock, ids: Ids) -> Maintenance:
        raise Refused(f"{dataset.url}: this is a keyed log, which has no history besides its own records")

    def _opened(
        self, url: str, config: Config, clock: Clock | None = None, ids: Ids | None = None
    ) -> LogDataset:
        waiting = command_waiting(url, config)
        return self.open(
            url, config, clock or SystemClock(), ids or RandomIds(), lambda store: store, waiting
        )


KIND: Kind[LogDataset] = LogKind()


def _member(
    url: str, settings: KafkaSettings, config: Config, clock: Clock, ids: Ids, waiting: WaitPolicy
) -> LogMember | None:
    if settings.group is None:
        return None
    if settings.member is None:
        raise Refused(f"{url}: belongs to a group, in which it needs a name; set kafka.member")
    folder = open_folder(settings.group, config, waiting)
    store = proved(folder.store, folder.root, ids)
    return LogMember(GroupFiles(store, folder.root, clock, ids), checked_name(settings.member))
