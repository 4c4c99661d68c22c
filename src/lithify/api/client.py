"""Lithify for programs: what the commands do, as calls.

    import lithify

    with lithify.open("s3://bucket/my-db") as db:
        for proposal in db.plan(full=True):
            print(proposal.unit, proposal.bytes, proposal.reason)
        print(db.compact().bytes_read)

An opened dataset starts Spark when it first compacts, or uses the session it is given, which it never stops.
All errors are `lithify.LithifyError`s. Calls that only look write nothing; what is refused is refused before
the first write.
"""

from __future__ import annotations

import getpass
import os
import socket
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, get_args

from lithify.api import arguments, wiring
from lithify.api.results import Maintained, Proposals, Proposed, Result, result_of, show_error
from lithify.base.clock import Clock, SystemClock
from lithify.base.defects import contained
from lithify.base.errors import LithifyError, Refused, StoreUnavailable
from lithify.base.events import Observer, each, ignore
from lithify.base.ids import Ids, RandomIds, Ulid
from lithify.config.loading import load
from lithify.config.model import Config
from lithify.coordination.commit_records import CommitRecord
from lithify.datasets import kind as kinds
from lithify.datasets.holding import Held
from lithify.datasets.maintenance import (
    PARTS,
    ExpiryAsked,
    HoldRequest,
    Maintenance,
    MaintenanceResult,
    OrphansAsked,
)
from lithify.datasets.options import CommandArgs, KindOption
from lithify.datasets.registry import config_type, registered_for
from lithify.datasets.status_view import show_status
from lithify.datasets.waiting import command_waiting
from lithify.engine.ports import Engine
from lithify.mirror.commit_view import show_commits
from lithify.observe.progress import Totals
from lithify.protocol.model import CompactionState
from lithify.protocol.status import CompactionStatus, Status
from lithify.service import control, one_shot
from lithify.service.admission import starting
from lithify.service.status import status, under_way
from lithify.store.metered import RequestOutcome, Verb
from lithify.store.resilience.waiting import log_waiting
from lithify.views.blocks import Shown

WATCH_INTERVAL_MS = 2_000
"""How often a run reports how far its tasks are: as often as these report it."""
Settings = Config | Mapping[str, Any] | Path | str
"""Settings as such, as a mapping of their dotted names, or the path of a TOML file."""


@dataclass(frozen=True, slots=True)
class Job:
    """Compactions that were submitted, for a coordinator to see to."""

    dataset: Dataset
    ids: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def wait(self, *, timeout_s: float | None = None) -> list[control.CompactionOutcome]:
        """Wait until they have ended; how. `DeadlineExceeded` when they have not in time."""
        return self.dataset.wait(self.ids, timeout_s=timeout_s)

    def cancel(self) -> None:
        """Give them up."""
        self.dataset.cancel(*self.ids)


class Dataset:
    """An opened dataset. To be closed, or used as a context: that ends the Spark it has started."""

    def __init__(
        self,
        url: str | os.PathLike[str],
        config: Config,
        *,
        spark: Any = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
        engine: Engine | None = None,
        opened: kinds.DatasetPort | None = None,
        through: Callable[[kinds.DatasetPort], kinds.DatasetPort] = lambda dataset: dataset,
        commits: Callable[[int | None, int], tuple[CommitRecord, ...]] | None = None,
    ) -> None:
        """See `open`. It may be `opened` already. What it does goes `through` that, and commits are found by
        the other, if it is given: for who shows what a service has read (`lithify.mirror.dataset_mirror`)."""
        url = arguments.place("url", url)
        self._kind: kinds.Kind[Any] = registered_for(url).load()
        self._config = config
        self._clock = clock if clock is not None else SystemClock()
        self._ids = ids if ids is not None else RandomIds()
        self._spark = spark
        self._engine = engine
        self._closing = ExitStack()
        self._listener: Observer = log_waiting
        self._requests: Callable[[Verb, RequestOutcome], None] | None = None
        """What is told of requests to its store, while somebody counts them."""
        if opened is None:
            waiting = command_waiting(url, config, lambda event: self._listener(event))
            opened = wiring.open_dataset(url, config, waiting=waiting, count=self._count)
        self._dataset = through(opened)
        self._commits = commits if commits is not None else wiring.commit_records(self._dataset).newest

    @property
    def url(self) -> str:
        """Where it lies."""
        return self._dataset.url

    def __enter__(self) -> Dataset:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the Spark that was started for it, if any."""
        self._closing.close()

    def plan(self, *, full: bool = False, **options: Any) -> Proposals:
        """What would be compacted now: what the planner finds worth it, or everything (`full`)."""
        args = self._asked("plan", full, options)
        planner = self._kind.planner(self._dataset, args, self._clock)
        snapshot, ledger, choice = starting(self._dataset, self._clock, planner)
        plan = choice.plan
        drawn = self._kind.show_plan(self._dataset, snapshot, ledger, plan, args, self._clock)
        found = tuple(
            Proposed(self._dataset.identify(p.spec).unit, p.cost_bytes, p.priority, p.reason)
            for p in plan.proposals
        )
        return Proposals(found, plan.notes, drawn.shown, drawn.timeline)

    def compact(
        self,
        *,
        full: bool = False,
        take_over: bool = False,
        on_event: Observer | None = None,
        **options: Any,
    ) -> Result:
        """Compact until nothing is left to do. `CoordinatorAlive`, before anything is written, when a
        coordinator may be at work and this is not to `take_over`."""
        args, totals = self._asked("compact", full, options), Totals()
        with self._listening(on_event):
            return self._compact(args, totals, take_over, on_event)

    def _count(self, verb: Verb, answer: RequestOutcome) -> None:
        if self._requests is not None:
            self._requests(verb, answer)

    @contextmanager
    def _recording(self) -> Iterator[Observer | None]:
        """Meanwhile each commit leaves a record (`history`), unless the settings say that none does."""
        recorder = wiring.recorder(self._config, self._clock)
        if recorder is None:
            yield None
            return
        recorder.follow(self.url, wiring.commit_records(self._dataset), coordinates=True)
        self._requests = recorder.counting(self.url)
        try:
            yield recorder
        finally:
            self._requests = None
            recorder.close()

    def _compact(
        self, args: CommandArgs, totals: Totals, take_over: bool, on_event: Observer | None
    ) -> Result:
        with self._recording() as recorder:
            return self._compact_recorded(args, totals, take_over, on_event, recorder)

    def _compact_recorded(
        self,
        args: CommandArgs,
        totals: Totals,
        take_over: bool,
        on_event: Observer | None,
        recorder: Observer | None,
    ) -> Result:
        started_s = self._clock.monotonic_s()
        summary = one_shot.run(
            self._dataset,
            self._started_engine(),
            self._clock,
            self._ids,
            wiring.leadership(self._dataset),
            planner=self._kind.planner(self._dataset, args, self._clock),
            take_over=take_over,
            options=replace(
                wiring.worker_options(self._config),
                watch_interval_ms=None if on_event is None else WATCH_INTERVAL_MS,
            ),
            coordinator_options=wiring.coordinator_options(self._config),
            observer=_observer(totals, recorder, on_event),
        )
        seconds = self._clock.monotonic_s() - started_s
        before, after = self._kind.look(summary.before), self._kind.look(summary.after)
        shown = self._kind.show_run(kinds.DatasetRun(self.url, before, after, summary, totals, seconds))
        return result_of(summary, totals, seconds, shown)

    def submit(self, *, full: bool = False, **options: Any) -> Job:
        """Ask the coordinator for what `lithify submit` can ask for."""
        planner = self._kind.request(self._dataset, self._asked("submit", full, options), self._clock)
        _, _, choice = starting(self._dataset, self._clock, planner)
        plan = choice.plan
        if plan.refusal:
            raise Refused(plan.refusal)
        if not plan.proposals:
            raise Refused("; ".join((f"there is nothing to compact in {self.url}", *plan.notes)))
        specs = [proposal.spec for proposal in plan.proposals]
        submitted = control.submit(self._dataset, self._clock, self._ids, specs)
        again = ("submit again when these have ended",) if choice.waiting else ()
        return Job(self, submitted, (*plan.notes, *again))

    def wait(
        self,
        ids: Sequence[str] | None = None,
        *,
        timeout_s: float | None = None,
        on_look: Callable[[Sequence[CompactionStatus]], None] | None = None,
    ) -> list[control.CompactionOutcome]:
        """Wait until these compactions have ended, or all that are under way now; how. `on_look` is told
        again and again how they stand. Here and below an id may be cut to its end, as people see it."""
        timeout_s = arguments.optional(arguments.real, "timeout_s", timeout_s)
        given = arguments.optional(arguments.texts, "ids", ids)
        self._dataset.snapshot()  # refuses where there is nothing
        wanted = control.active(self._dataset) if given is None else control.identified(self._dataset, given)
        poll_s = self._config.service.commit_compacted_interval.total_seconds()
        timeout_ms = wiring.heartbeat_timeout_ms(self._config)

        def look() -> None:
            if on_look is not None:
                found = under_way(self._dataset, timeout_ms)
                on_look([c for c in found if c.id in wanted])

        return control.wait(
            self._dataset, self._clock, wanted, poll_s=poll_s, timeout_s=timeout_s, on_look=look
        )

    def cancel(self, *ids: str) -> list[Ulid]:
        """Give up compactions that are under way; their ids."""
        wanted = control.identified(self._dataset, arguments.texts("ids", ids))
        control.cancel(self._dataset, self._clock, wanted)
        return wanted

    def retry(self, *ids: str) -> Job:
        """Submit compactions again that have failed for good."""
        given = arguments.texts("ids", ids)
        self._dataset.snapshot()  # refuses where there is nothing
        wanted = control.identified(self._dataset, given)
        return Job(self, control.retry(self._dataset, self._clock, self._ids, wanted))

    def status(self) -> Status:
        """What runs, what waits and why, and how close the writer is to a stall."""
        return status(self._dataset, self._clock, wiring.heartbeat_timeout_ms(self._config))

    def show_status(self, found: Status | None = None) -> Shown:
        """The same, or what was found before. Its `document` is what `lithify status --json` prints."""
        return show_status(self.status() if found is None else found)

    def history(self, *, last: int | None = None, since: datetime | None = None) -> tuple[CommitRecord, ...]:
        """What was committed, why and at what cost, oldest first: since a time; of that the `last` ones."""
        since_ms = arguments.optional(arguments.time_ms, "since", since)
        last = arguments.optional(arguments.natural, "last", last)
        self._dataset.snapshot()  # refuses where there is nothing
        return self._commits(last, since_ms or 0)

    def show_history(self, *, last: int | None = None, since: datetime | None = None) -> Shown:
        """The same. Its `document` is what `lithify history --json` prints."""
        return show_commits(self.url, self.history(last=last, since=since))

    def is_coordinated(self) -> bool | None:
        """Whether a coordinator is alive; `None` when that cannot be seen."""
        return self._dataset.coordinator().is_alive

    def is_of_fleet(self) -> bool:
        """Whether the last one to coordinate it was a fleet, which does so again when there is work."""
        from lithify.fleet.members import is_keeper

        return is_keeper(self._dataset.coordinator().holder)

    def collect_garbage(
        self, *, delete: bool = False, min_age_s: float | None = None, **options: Any
    ) -> Shown:
        """What is not needed any more; deleted, if so wished. Its `document` is what `lithify gc --json`
        prints."""
        min_age_ms = arguments.optional(arguments.milliseconds, "min_age_s", min_age_s)
        args = self._asked("gc", False, options)
        return self._kind.collect(
            self.url,
            self._config,
            args,
            self._clock,
            self._ids,
            dry_run=not delete,
            min_age_ms=min_age_ms,
        )

    # History

    def hold(
        self,
        *,
        snapshot: int | None = None,
        at: datetime | None = None,
        lease_s: float = 3600,
        name: str | None = None,
    ) -> Held:
        """Keep a snapshot, by default the newest, and all that came after it, until the lease ends or it is
        released. As a context it renews itself. `Refused` when it may be gone already."""
        wanted = HoldRequest(
            arguments.optional(arguments.number, "snapshot", snapshot),
            arguments.optional(arguments.time_ms, "at", at),
        )
        lease_ms = arguments.milliseconds("lease_s", lease_s)
        name = arguments.optional(arguments.text, "name", name)
        began_s = self._clock.monotonic_s()
        maintenance = self._maintenance()
        placed = maintenance.hold(wanted, lease_ms, name, _owner())
        return Held(maintenance, placed, self._clock, began_s)

    def put_hold(
        self,
        *,
        snapshot: int | None = None,
        at: datetime | None = None,
        lease_s: float = 3600,
        name: str | None = None,
    ) -> Shown:
        """The same, to be renewed by name. Its `document` is what `lithify hold --json` prints."""
        held = self.hold(snapshot=snapshot, at=at, lease_s=lease_s, name=name)
        return self._maintenance().show_hold(held.placed)

    def renew_hold(self, name: str, *, lease_s: float | None = None) -> Shown:
        """Begin the lease of a hold anew. `HoldLapsed` when that is too late."""
        maintenance = self._maintenance()
        lease_ms = arguments.optional(arguments.milliseconds, "lease_s", lease_s)
        return maintenance.show_hold(maintenance.renew(arguments.text("name", name), lease_ms))

    def release_hold(self, name: str) -> None:
        """Give a hold up; no error when there is none."""
        self._maintenance().release(arguments.text("name", name))

    def holds(self) -> tuple[str, ...]:
        """The names of all holds that have not lapsed."""
        return tuple(placed.name for placed in self._maintenance().holds())

    def show_holds(self) -> Shown:
        """All of them. Its `document` is what `lithify hold --list --json` prints."""
        return self._maintenance().show_holds()

    def add_reader(self, checkpoint: str, *, name: str | None = None, **options: Any) -> Shown:
        """Register a reader, from which nothing is taken that it has not read (`lithify readers add`)."""
        args = self._asked("readers add", False, options)
        name = arguments.optional(arguments.text, "name", name)
        return self._maintenance().add_reader(arguments.place("checkpoint", checkpoint), name, args.given)

    def drop_reader(self, name: str) -> Shown:
        """Wait for a reader no more: by its name or its checkpoint folder."""
        return self._maintenance().drop_reader(arguments.place("name", name))

    def show_readers(self) -> Shown:
        """All readers, and where they stand."""
        return self._maintenance().show_readers()

    def expire(
        self,
        *,
        older_than: datetime | None = None,
        retain_last: int | None = None,
        grace_s: float | None = None,
        dry_run: bool = False,
        accept_loss: bool = False,
    ) -> MaintenanceResult:
        """Let go what the table's policy lets go and nobody needs, and delete files of which that was done a
        grace period ago. Its `outcome` says what came of it, in a word. `accept_loss`: although holds or
        readers that the table records are lost."""
        args = ExpiryAsked(
            arguments.optional(arguments.time_ms, "older_than", older_than),
            arguments.optional(arguments.number, "retain_last", retain_last),
            arguments.optional(arguments.milliseconds, "grace_s", grace_s),
            dry_run,
            accept_loss,
        )
        return self._maintenance().expire(args)

    def rewrite_position_delete_files(self, *, dry_run: bool = False) -> MaintenanceResult:
        """Drop the table's delete files that apply to nothing, and merge small ones that delete by position.
        Rows stay. Its `outcome` says what came of it."""
        return self._maintenance().rewrite_deletes(dry_run=dry_run)

    def rewrite_manifests(self, *, dry_run: bool = False) -> MaintenanceResult:
        """Merge small manifests of the table, and sort their entries by partition and time, so that a query
        opens few of them. Rows, files and their numbers stay. Its `outcome` says what came of it."""
        return self._maintenance().rewrite_manifests(dry_run=dry_run)

    def remove_orphans(
        self,
        *,
        delete: bool = False,
        older_than: datetime | None = None,
        max_percent: int | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> Shown:
        """Files under the table's location that nothing names and that are older than that, by default than
        three days; deleted, if so wished. Its `document` is what `lithify remove-orphans --json` prints;
        `tell` is told now and then how far it is."""
        older_than_ms = arguments.optional(arguments.time_ms, "older_than", older_than)
        max_percent = arguments.optional(arguments.number, "max_percent", max_percent)
        return self._maintenance().remove_orphans(OrphansAsked(older_than_ms, delete, max_percent), tell)

    def maintain(
        self, *, skip: Collection[str] = (), take_over: bool = False, on_event: Observer | None = None
    ) -> Maintained:
        """Do once all that keeps a table in shape (`PARTS`): compact its data, drop and merge delete files,
        merge and sort manifests, let go the history that nobody needs, delete what Lithify left behind and
        what was expired a grace period ago; but for what is in `skip`, and what the table's own policy leaves
        out. A part that is refused or fails stops none of the others (`Maintained.errors`). `Refused` before
        anything is done where datasets of the kind have no history."""
        skip = arguments.texts("skip", skip)
        unknown = sorted(set(skip) - set(PARTS))
        if unknown:
            raise Refused(f"{', '.join(unknown)}: no part of maintenance; parts are {', '.join(PARTS)}")
        maintenance = self._maintenance()
        skip = {*skip, *maintenance.left_out()}

        def compact() -> tuple[Shown, bool]:
            compacted = self.compact(take_over=take_over, on_event=on_event)
            return compacted.shown, not (compacted.failed or compacted.stuck)

        def done(result: MaintenanceResult) -> tuple[Shown, bool]:
            return result.shown, result.is_done

        # Rewritten data leave fewer deletes, these fewer manifests; the expiry lets go what all replaced.
        pieces: dict[str, Callable[[], tuple[Shown, bool]]] = {
            "data": compact,
            "deletes": lambda: done(maintenance.rewrite_deletes(dry_run=False)),
            "manifests": lambda: done(maintenance.rewrite_manifests(dry_run=False)),
            "expiry": lambda: done(self.expire()),
            "files": lambda: (self.collect_garbage(delete=True), True),
        }
        found: dict[str, tuple[Shown, bool]] = {}
        errors: dict[str, LithifyError] = {}
        for part in (part for part in PARTS if part not in skip):
            try:
                with contained(f"maintaining the {part} of {self.url}"):
                    found[part] = pieces[part]()
            except StoreUnavailable:
                raise  # the other parts would only wait as long
            except LithifyError as error:
                errors[part] = error
                found[part] = show_error(error), False
        shown = {part: shown for part, (shown, _) in found.items()}
        return Maintained(self.url, shown, all(is_done for _, is_done in found.values()), errors)

    def _maintenance(self) -> Maintenance:
        found: Maintenance = self._kind.maintenance(self._dataset, self._clock, self._ids)
        return found

    def _asked(self, command: str, full: bool, options: Mapping[str, Any]) -> CommandArgs:
        registered = registered_for(self.url)
        known = [o for o in registered.load_options().options if command in o.commands and o.setting is None]
        unknown = options.keys() - {option.name for option in known}
        if unknown:
            has = ", ".join(option.name for option in known) or "none"
            raise Refused(
                f"{', '.join(sorted(unknown))}: no option of a {registered.noun} here; it has: {has}"
            )
        given = {o.name: _checked(o, options[o.name]) for o in known if options.get(o.name) is not None}
        return CommandArgs(full, given)

    @contextmanager
    def _listening(self, on_event: Observer | None) -> Iterator[None]:
        """Meanwhile it is told of waiting for the store as well."""
        if on_event is None:
            yield
            return
        self._listener = on_event
        try:
            yield
        finally:
            self._listener = log_waiting

    def _started_engine(self) -> Engine:
        if self._engine is None:
            engine = wiring.spark_engine(self._config, [self.url], self._spark)
            self._engine = self._closing.enter_context(engine)
        return self._engine


def open(
    url: str | os.PathLike[str],
    *,
    settings: Settings | None = None,
    spark: Any = None,
    clock: Clock | None = None,
    ids: Ids | None = None,
    engine: Engine | None = None,
) -> Dataset:
    """Open a database or table, by its URL or path. `spark` is a `SparkSession` of yours, classic or Connect;
    without one Lithify starts Spark itself when it has to (setting `spark.master`). `clock`, `ids` and
    `engine` are for tests (`lithify.testing`)."""
    return Dataset(url, settled(settings), spark=spark, clock=clock, ids=ids, engine=engine)


def settled(settings: Settings | None) -> Config:
    """The settings that were given, on top of the defaults."""
    if isinstance(settings, Config):
        return settings
    if isinstance(settings, Mapping):
        arguments.mapping("settings", settings)
        given = {name: (f"the setting {name}", value) for name, value in settings.items()}
        loaded = load(None, given, config_type())
    else:
        file = arguments.optional(arguments.place, "settings", settings)
        loaded = load(None if file is None else Path(file), None, config_type())
    for text in loaded.warnings:
        warnings.warn(text, FutureWarning, stacklevel=4)
    return loaded.config


def _observer(*observers: Observer | None) -> Observer:
    given = [observer for observer in observers if observer is not None]
    return each(*given) if given else ignore


def _checked(option: KindOption, given: Any) -> Any:
    """What was given for an option. `Refused` when it is not of its type."""
    of_one = {"str": arguments.text, "int": arguments.number}
    several = get_args(option.type)
    check = of_one.get((several or (option.type,))[0].__name__)
    if check is None:
        return given
    if not several:
        return check(option.name, given)
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise Refused(f"{option.name}: {given!r} is not several; give a list")
    return [check(option.name, one) for one in given]


def _owner() -> str:
    """Who puts a hold, for people."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container may have no name for its user
        return socket.gethostname()


__all__ = [
    "PARTS",
    "CommitRecord",
    "CompactionState",
    "Dataset",
    "Job",
    "Status",
    "open",
]
