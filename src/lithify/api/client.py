"""The Python API for one dataset, with the same operations as the command line.

    import lithify

    with lithify.open("s3://bucket/my-db") as db:
        for proposal in db.plan(full=True):
            print(proposal.unit, proposal.bytes, proposal.reason)
        print(db.compact().bytes_read)

A dataset starts Spark at its first compaction, or uses the session it was given and never stops that one. All
errors are `lithify.LithifyError`s. Calls that only read write nothing; `Refused` is raised before the first
write.
"""

from __future__ import annotations

import getpass
import os
import socket
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

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
from lithify.coordination.observers import DatasetObserver
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
from lithify.datasets.registry import config_type, registered_for
from lithify.datasets.status_view import show_status
from lithify.datasets.waiting import command_waiting
from lithify.engine.ports import Engine
from lithify.mirror.commit_view import show_commits
from lithify.mirror.dataset_mirror import MirroredState
from lithify.observe.progress import Totals
from lithify.protocol.model import CompactionState
from lithify.protocol.status import CompactionStatus, Status
from lithify.service import control, one_shot
from lithify.service.admission import starting
from lithify.service.status import status, under_way
from lithify.store.metered import RequestOutcome, Verb
from lithify.store.resilience.waiting import log_waiting
from lithify.views import text
from lithify.views.blocks import Line, Shown

WATCH_INTERVAL_MS = 2_000
"""How often a run reports the progress of its tasks, which is as often as the tasks report it."""
_COMMITS_OF_A_PACE = 10
_LEAST_BYTES_OF_A_PACE = 10_000_000
"""The time of compactions that have read less is that of their start and end."""
Settings = Config | Mapping[str, Any] | Path | str
"""A `Config`, a mapping from dotted names to values, or the path of a TOML file."""


@dataclass(frozen=True, slots=True)
class Job:
    """Compactions that were submitted to a dataset's coordinator, by `Dataset.submit` or `Dataset.retry`.
    `notes` say why the rest was not submitted."""

    dataset: Dataset
    ids: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def wait(self, *, timeout_s: float | None = None) -> list[control.CompactionOutcome]:
        """Wait until all have ended and return their outcomes, in the order of `ids`. Raise
        `DeadlineExceeded` if they have not ended within `timeout_s` seconds; they continue then."""
        return self.dataset.wait(self.ids, timeout_s=timeout_s)

    def cancel(self) -> None:
        """Cancel the compactions. Raise `Refused` if one has ended or is about to be committed, and for
        datasets that SlateDB's own coordinator manages."""
        self.dataset.cancel(*self.ids)


class Dataset:
    """An open database, table or log; returned by `lithify.open`. Close it, or use it as a context manager,
    to stop the Spark session that it has started.

    Several methods take `options`: the options that the dataset's kind adds to the corresponding command, in
    Python spelling. An option that does not exist there is `Refused`.
    """

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
        observer: DatasetObserver | None = None,
        state_of: Callable[[kinds.DatasetPort], kinds.DatasetState] = lambda dataset: dataset,
        commits: Callable[[int | None, int], tuple[CommitRecord, ...]] | None = None,
    ) -> None:
        """Open the dataset at `url`, or use `opened`. The last three parameters are for dashboards
        (`lithify.mirror.dataset_mirror`): `observer` sees what is read and written; `state_of` and `commits`
        return what is displayed, in place of reads of the dataset and of commit records."""
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
        """The callback for requests to the dataset's store, while a recorder counts them."""
        if opened is None:
            waiting = command_waiting(url, config, lambda event: self._listener(event))
            opened = wiring.open_dataset(url, config, waiting=waiting, count=self._count)
        if observer is not None:
            opened.observers.add(observer)
        self._dataset = opened
        self._state_of = state_of
        self._commits = commits if commits is not None else wiring.commit_records(self._dataset).newest

    @property
    def url(self) -> str:
        """The URL or path of the dataset."""
        return self._dataset.url

    def __enter__(self) -> Dataset:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the Spark session that the dataset has started, if any."""
        self._closing.close()

    def plan(self, *, full: bool = False, **options: Any) -> Proposals:
        """Return the compactions that would run now, the most urgent first: those that the planner considers
        worth their cost, or with `full` everything that can be compacted."""
        args = arguments.for_command(self.url, "plan", full, options)
        planner, state = self._kind.planner(self._dataset, args, self._clock), self._state_of(self._dataset)
        snapshot, ledger, choice = starting(self._dataset, self._clock, planner, state)
        plan, details = choice.plan, state.plan_details()
        drawn = self._kind.show_plan(self._dataset, snapshot, ledger, plan, args, self._clock, details)
        cost_bytes = sum(proposal.cost_bytes for proposal in plan.proposals)
        shown = _with_verdict(drawn.shown, self._seconds_for(cost_bytes))
        found = tuple(
            Proposed(self._dataset.identify(p.spec).unit, p.cost_bytes, p.priority, p.reason)
            for p in plan.proposals
        )
        return Proposals(found, plan.notes, shown, drawn.timeline)

    def _seconds_for(self, cost_bytes: int) -> float | None:
        """Estimate how long it takes to read so many bytes, from the newest commits. `None` if these have
        read too little to tell."""
        records = self.history(last=_COMMITS_OF_A_PACE) if cost_bytes else ()
        read, seconds = sum(r.bytes_read for r in records), sum(r.seconds for r in records)
        return cost_bytes * seconds / read if read >= _LEAST_BYTES_OF_A_PACE else None

    def compact(
        self,
        *,
        full: bool = False,
        take_over: bool = False,
        on_event: Observer | None = None,
        **options: Any,
    ) -> Result:
        """Compact until nothing is left to do, on Spark, and return what was done. With `full`, compact
        everything, not only what the planner considers worth its cost. `on_event` is called with each event,
        such as progress about every two seconds.

        Raise `CoordinatorAlive` before anything is written if another coordinator may be running, unless
        `take_over` is set, which fences that one; `Refused` if the dataset cannot be compacted; `Fenced` if
        another coordinator takes over meanwhile.
        """
        args, totals = arguments.for_command(self.url, "compact", full, options), Totals()
        with self._listening(on_event), self._recording() as recorder:
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

    def _count(self, verb: Verb, answer: RequestOutcome) -> None:
        if self._requests is not None:
            self._requests(verb, answer)

    @contextmanager
    def _recording(self) -> Iterator[Observer | None]:
        """Write a record of each commit (`history`) during the block, unless the settings disable records."""
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

    def submit(self, *, full: bool = False, **options: Any) -> Job:
        """Submit compactions to the dataset's coordinator and return without waiting. The `options` are those
        of `lithify submit`. Raise `Refused` if there is nothing to compact or no coordinator has ever run."""
        args = arguments.for_command(self.url, "submit", full, options)
        planner = self._kind.request(self._dataset, args, self._clock)
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
        """Wait until compactions have ended and return their outcomes. By default wait for all that are
        active now. `on_look` is called with their status after each poll. `timeout_s` is in seconds.

        Here and in `cancel` and `retry`, an id may be shortened to its end, as displayed. Raise `Refused` for
        an unknown id, and `DeadlineExceeded` after `timeout_s`; the compactions continue then.
        """
        timeout_s = arguments.optional(arguments.real, "timeout_s", timeout_s)
        given = arguments.optional(arguments.texts, "ids", ids)
        self._dataset.snapshot()  # Raises an error if there is no dataset.
        wanted = control.active(self._dataset) if given is None else control.identified(self._dataset, given)
        poll_s = self._config.service.commit_compacted_interval.total_seconds()
        timeout_ms = self._config.service.worker_heartbeat_timeout_ms

        def look() -> None:
            if on_look is not None:
                found = under_way(self._dataset, timeout_ms)
                on_look([c for c in found if c.id in wanted])

        return control.wait(
            self._dataset, self._clock, wanted, poll_s=poll_s, timeout_s=timeout_s, on_look=look
        )

    def cancel(self, *ids: str) -> list[Ulid]:
        """Cancel active compactions, all or none, and return their ids. Raise `Refused` if one has ended or
        is about to be committed."""
        wanted = control.identified(self._dataset, arguments.texts("ids", ids))
        control.cancel(self._dataset, self._clock, wanted)
        return wanted

    def retry(self, *ids: str) -> Job:
        """Submit compactions again that have failed for good, under new ids. Raise `Refused` for others."""
        given = arguments.texts("ids", ids)
        self._dataset.snapshot()  # Raises an error if there is no dataset.
        wanted = control.identified(self._dataset, given)
        return Job(self, control.retry(self._dataset, self._clock, self._ids, wanted))

    def status(self) -> Status:
        """Return the active and pending compactions, why they wait, and how close the writer is to a
        stall."""
        timeout_ms = self._config.service.worker_heartbeat_timeout_ms
        return status(self._dataset, self._clock, timeout_ms, self._state_of(self._dataset))

    def read_ms(self) -> int | None:
        """Return when the displayed state was read, in milliseconds of this machine's clock, if a service
        has read it before; `None` if it is read when it is displayed."""
        state = self._state_of(self._dataset)
        return state.read_ms if isinstance(state, MirroredState) else None

    def show_status(self, found: Status | None = None) -> Shown:
        """Return the status for display; `found` is one returned earlier by `status`. The result's `document`
        is the output of `lithify status --json`."""
        return show_status(self.status() if found is None else found)

    def history(self, *, last: int | None = None, since: datetime | None = None) -> tuple[CommitRecord, ...]:
        """Return records of commits with their reasons and costs, oldest first: all that are kept, or those
        `since` a time, or the `last` ones of them. A `since` without a zone is in this machine's zone."""
        since_ms = arguments.optional(arguments.time_ms, "since", since)
        last = arguments.optional(arguments.natural, "last", last)
        self._state_of(self._dataset).snapshot()  # Raises an error if there is no dataset.
        return self._commits(last, since_ms or 0)

    def show_history(self, *, last: int | None = None, since: datetime | None = None) -> Shown:
        """Return `history` for display. The result's `document` is the output of `lithify history --json`."""
        return show_commits(self.url, self.history(last=last, since=since))

    def is_coordinated(self) -> bool | None:
        """Return whether a coordinator is alive; `None` if that cannot be determined."""
        return self._state_of(self._dataset).coordinator().is_alive

    def is_of_fleet(self) -> bool:
        """Return whether the last coordinator belonged to a fleet. If so, the fleet coordinates the dataset
        again when it has work."""
        from lithify.fleet.members import is_fleet_coordinator

        return is_fleet_coordinator(self._state_of(self._dataset).coordinator().holder)

    def collect_garbage(
        self, *, delete: bool = False, min_age_s: float | None = None, **options: Any
    ) -> Shown:
        """Find garbage: files that no valid state of the dataset names. With `delete`, delete it. Files
        younger than `min_age_s` seconds are kept; the default is in the settings. The result's `document` is
        the output of `lithify gc --json`."""
        min_age_ms = arguments.optional(arguments.milliseconds, "min_age_s", min_age_s)
        args = arguments.for_command(self.url, "gc", False, options)
        return self._kind.collect(
            self.url,
            self._config,
            args,
            self._clock,
            self._ids,
            dry_run=not delete,
            min_age_ms=min_age_ms,
        )

    def hold(
        self,
        *,
        snapshot: int | None = None,
        at: datetime | None = None,
        lease_s: float = 3600,
        name: str | None = None,
    ) -> Held:
        """Keep a table's snapshot, and all later ones, for `lease_s` seconds or until the hold is released.
        The default snapshot is the newest; alternatives are a `snapshot` id, or the snapshot that was current
        `at` a time.

        The returned hold is a context manager: in its block the lease is renewed, at its end the hold is
        released. Raise `Refused` if the snapshot may be gone already, and for datasets without a history.
        """
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
        """Create a hold as `hold` does, to be renewed and released by its name. The result's `document` is
        the output of `lithify hold --json`."""
        held = self.hold(snapshot=snapshot, at=at, lease_s=lease_s, name=name)
        return self._maintenance().show_hold(held.placed)

    def renew_hold(self, name: str, *, lease_s: float | None = None) -> Shown:
        """Restart the lease of a hold, with a new length if `lease_s` is given. Raise `HoldLapsed` if it has
        expired and the held data may be gone."""
        maintenance = self._maintenance()
        lease_ms = arguments.optional(arguments.milliseconds, "lease_s", lease_s)
        return maintenance.show_hold(maintenance.renew(arguments.text("name", name), lease_ms))

    def release_hold(self, name: str) -> None:
        """Release a hold. It is not an error if there is no hold of that name."""
        self._maintenance().release(arguments.text("name", name))

    def holds(self) -> tuple[str, ...]:
        """Return the names of all holds that have not expired."""
        return tuple(placed.name for placed in self._maintenance().holds())

    def show_holds(self) -> Shown:
        """Return all holds for display. The result's `document` is the output of
        `lithify hold --list --json`."""
        return self._maintenance().show_holds()

    def add_reader(self, checkpoint: str, *, name: str | None = None, **options: Any) -> Shown:
        """Register a reader of a table with Spark Structured Streaming, by its checkpoint folder. Snapshots
        that it still needs are not expired. The default name is derived from the folder. Raise `Refused` if
        snapshots that it needs may be gone already."""
        args = arguments.for_command(self.url, "readers add", False, options)
        name = arguments.optional(arguments.text, "name", name)
        return self._maintenance().add_reader(arguments.place("checkpoint", checkpoint), name, args.given)

    def drop_reader(self, name: str) -> Shown:
        """Remove a reader, by its name or checkpoint folder. Its needs do not delay expiry any more."""
        return self._maintenance().drop_reader(arguments.place("name", name))

    def show_readers(self) -> Shown:
        """Return all readers and their positions, for display."""
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
        """Expire the snapshots that the table's policy allows to expire and that no hold or reader needs, and
        delete files that earlier calls expired more than a grace period ago. The result's `outcome` is one
        word.

        `older_than` and `retain_last` (how many of the newest snapshots to keep) override the policy;
        `grace_s` is in seconds, by default one hour. With `dry_run`, only report. `accept_loss` continues
        although holds or readers recorded in the table are lost from the store.
        """
        args = ExpiryAsked(
            arguments.optional(arguments.time_ms, "older_than", older_than),
            arguments.optional(arguments.number, "retain_last", retain_last),
            arguments.optional(arguments.milliseconds, "grace_s", grace_s),
            dry_run,
            accept_loss,
        )
        return self._maintenance().expire(args)

    def rewrite_equality_deletes(self, *, dry_run: bool = False) -> MaintenanceResult:
        """Delete rows by position that are deleted by equal keys, and remove these equality delete files, so
        that readers do not compare keys any more. The table's rows do not change. With `dry_run`, only
        report. The result's `outcome` is one word."""
        return self._maintenance().rewrite_equality_deletes(dry_run=dry_run)

    def rewrite_position_delete_files(self, *, dry_run: bool = False) -> MaintenanceResult:
        """Remove the table's dangling delete files, and merge small position delete files. The table's rows
        do not change. With `dry_run`, only report. The result's `outcome` is one word."""
        return self._maintenance().rewrite_deletes(dry_run=dry_run)

    def rewrite_manifests(self, *, dry_run: bool = False) -> MaintenanceResult:
        """Merge the table's small manifests and sort their entries by partition and time, so that a query
        opens few manifests. Rows, files and their sequence numbers do not change. With `dry_run`, only
        report. The result's `outcome` is one word."""
        return self._maintenance().rewrite_manifests(dry_run=dry_run)

    def remove_orphans(
        self,
        *,
        delete: bool = False,
        older_than: datetime | None = None,
        max_percent: int | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> Shown:
        """Find orphan files: files under the table's location that no metadata names and that are older than
        `older_than`, by default three days. With `delete`, delete them, unless they are more than
        `max_percent` of all files there.

        `tell` is called with progress as text. The result's `document` is the output of
        `lithify remove-orphans --json`. Raise `Refused` if it is uncertain that the files belong to the
        table.
        """
        older_than_ms = arguments.optional(arguments.time_ms, "older_than", older_than)
        max_percent = arguments.optional(arguments.number, "max_percent", max_percent)
        return self._maintenance().remove_orphans(OrphansAsked(older_than_ms, delete, max_percent), tell)

    def maintain(
        self, *, skip: Collection[str] = (), take_over: bool = False, on_event: Observer | None = None
    ) -> Maintained:
        """Run one pass of all maintenance of a table, in the order of `PARTS`: compact its data; rewrite
        equality deletes, and remove and merge delete files; rewrite manifests; expire history that is not
        needed; delete garbage and files that expired a grace period ago. Parts in `skip`, and those that the
        table's policy skips, are left out.

        A part that fails does not stop the others; its error is in `Maintained.errors`. Only
        `StoreUnavailable` ends the pass. For datasets other than tables, raise `Refused`
        before anything is done.
        """
        skip = arguments.texts("skip", skip)
        unknown = sorted(set(skip) - set(PARTS))
        if unknown:
            raise Refused(
                f"{', '.join(unknown)}: not a part of maintenance; the parts are {', '.join(PARTS)}"
            )
        maintenance = self._maintenance()
        skip = {*skip, *maintenance.left_out()}

        def compact() -> tuple[Shown, bool]:
            compacted = self.compact(take_over=take_over, on_event=on_event)
            return compacted.shown, not (compacted.failed or compacted.stuck)

        def done(result: MaintenanceResult) -> tuple[Shown, bool]:
            return result.shown, result.is_done

        def deletes() -> tuple[Shown, bool]:
            by_key = maintenance.rewrite_equality_deletes(dry_run=False)
            by_position = maintenance.rewrite_deletes(dry_run=False)
            document = {**by_position.shown.document, "equality_deletes": by_key.shown.document}
            shown = Shown(document, (*by_key.shown.blocks, *by_position.shown.blocks))
            return shown, by_key.is_done and by_position.is_done

        # Rewritten data leave fewer deletes, these fewer manifests; expiry then covers all replaced files.
        pieces: dict[str, Callable[[], tuple[Shown, bool]]] = {
            "data": compact,
            "deletes": deletes,
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
                raise  # the other parts would wait as long for the store
            except LithifyError as error:
                errors[part] = error
                found[part] = show_error(error), False
        shown = {part: shown for part, (shown, _) in found.items()}
        return Maintained(self.url, shown, all(is_done for _, is_done in found.values()), errors)

    def _maintenance(self) -> Maintenance:
        found: Maintenance = self._kind.maintenance(self._dataset, self._clock, self._ids)
        return found

    @contextmanager
    def _listening(self, on_event: Observer | None) -> Iterator[None]:
        """Report waiting for the store to `on_event` too, during the block."""
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
    """Open the database, table or log at a URL or path. Raise `Refused` if no kind of dataset has such a URL,
    or a setting is invalid.

    `settings` are a TOML file's path, a mapping such as `{"spark.master": "local[4]"}`, or a `Config`.
    `spark` is your own `SparkSession`, classic or Connect; without one, Lithify starts Spark when needed
    (setting `spark.master`). `clock`, `ids` and `engine` are for tests (`lithify.testing`).
    """
    return Dataset(url, settled(settings), spark=spark, clock=clock, ids=ids, engine=engine)


def settled(settings: Settings | None) -> Config:
    """Return the effective settings: those given, on top of the defaults. Warn about outdated names."""
    if isinstance(settings, Config):
        return settings
    if isinstance(settings, Mapping):
        arguments.mapping("settings", settings)
        given = {name: (f"the setting {name}", value) for name, value in settings.items()}
        loaded = load(None, given, config_type())
    else:
        file = arguments.optional(arguments.place, "settings", settings)
        loaded = load(None if file is None else Path(file), None, config_type())
    for warning in loaded.warnings:
        warnings.warn(warning, FutureWarning, stacklevel=4)
    return loaded.config


def _with_verdict(shown: Shown, seconds: float | None) -> Shown:
    """Return the display of a plan with its verdict first."""
    if not shown.verdict:
        return shown
    took = (
        "" if seconds is None else f", about {text.duration(1000 * seconds)} at the pace of the last commits"
    )
    verdict = f"{shown.verdict}{took}."
    document = {**shown.document, "verdict": verdict}
    return replace(shown, document=document, blocks=(Line(verdict), *shown.blocks))


def _observer(*observers: Observer | None) -> Observer:
    given = [observer for observer in observers if observer is not None]
    return each(*given) if given else ignore


def _owner() -> str:
    """The owner of a hold, for display."""
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
