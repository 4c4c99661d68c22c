"""The contract of a kind of dataset.

The coordinator, the worker and the one-shot run are written once, against `DatasetPort`; commands are written
against `Kind`. Snapshots, specs, ranges and outputs are values of the kind, opaque to all other modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from typing_extensions import TypeVar

from lithify.base.backlog import Backlog
from lithify.base.clock import Clock
from lithify.base.events import Observer
from lithify.base.ids import Ids, Ulid
from lithify.config.model import Config
from lithify.coordination.leadership import FencedResource
from lithify.coordination.observers import DatasetObservers
from lithify.datasets.collecting import PeriodicCollector
from lithify.datasets.maintenance import Maintenance
from lithify.datasets.options import CommandArgs
from lithify.observe.progress import Totals
from lithify.planning.admission import Capacity
from lithify.protocol.attempts import Journal, JournalEntries
from lithify.protocol.finding import Finding
from lithify.protocol.history import History
from lithify.protocol.model import Compaction, Ledger, OutputT, RangeT, SpecT
from lithify.protocol.presence import CoordinatorStatus
from lithify.protocol.proposal import NOTHING_HELD, Held, Plan, Planner, TaskIdentity
from lithify.protocol.retained import Past, Retained
from lithify.protocol.run_summary import RunSummary
from lithify.protocol.status import Status
from lithify.protocol.transitions import AnyLedger
from lithify.protocol.work import RangeJob, RangeOutcome
from lithify.store.objects import ObjectStore
from lithify.store.resilience.waiting import WaitPolicy
from lithify.store.versions import PendingVersion
from lithify.views.blocks import Shown, Timeline

SnapshotT = TypeVar("SnapshotT", default=Any)
GivenT = TypeVar("GivenT", default=Any, contravariant=True)
"""A snapshot that is given."""
DatasetT = TypeVar("DatasetT")


class DatasetState(Protocol[SnapshotT, SpecT, RangeT, OutputT]):
    """The state of a dataset, as status and plans show it: what a handle reads, or what an observer has seen.
    Snapshots and ledgers are immutable."""

    def ledger(self) -> Ledger[SpecT, RangeT, OutputT] | None:
        """Return the latest ledger, or `None` when no coordinator ever ran. May return a stale ledger if this
        process has not read it for a while. That is safe: publishing on top of a stale version fails with
        `VersionConflict`."""
        ...

    def snapshot(self) -> SnapshotT:
        """Return the latest committed state. If you need both, read the ledger first."""
        ...

    def glance(self) -> tuple[Ledger[SpecT, RangeT, OutputT] | None, SnapshotT]:
        """Read ledger and snapshot with as few requests as possible. Intended for polling; either may be
        stale (see `ledger`), so it may decide what to publish but must not be the reason to refuse
        anything."""
        ledger = self.ledger()
        return ledger, self.snapshot()

    @property
    def journal(self) -> JournalEntries:
        """The service's own records about compactions."""
        ...

    def history(self) -> History:
        """Return what older versions of the ledger show."""
        ...

    def store_ms(self) -> int | None:
        """Return the time by the store's clock, which dates lease, ledger and `history`, in wall-clock
        milliseconds; `None` if the store cannot be asked. The clock is read off the timestamp of an object,
        so this writes an empty object of Lithify's own, at most once a minute."""
        ...

    def coordinator(self) -> CoordinatorStatus:
        """Return which coordinator the dataset has, and whether it is alive (by `store_ms`)."""
        ...

    def retained(self, snapshot: SnapshotT, ledger: Ledger[SpecT, RangeT, OutputT]) -> Retained | None:
        """Return how much history the dataset keeps and which readers and holds need it. Costs a few small
        requests, regardless of the dataset's size. Damaged records are reported in the result; they raise no
        error."""
        return None

    def plan_details(self) -> Any:
        """Return extra details for displaying a plan, as a value of the kind, or `None`. The planner does not
        use them. Costs a few small requests."""
        return None


class LedgerPort(
    DatasetState[SnapshotT, SpecT, RangeT, OutputT], Protocol[SnapshotT, SpecT, RangeT, OutputT]
):
    """The stored state of a dataset, as coordinators, workers and commands read and publish it. Methods that
    read return the latest committed state."""

    @property
    def observers(self) -> DatasetObservers:
        """The observers of this handle. It tells them what `ledger`, `snapshot`, `glance` and `known` return,
        which ledgers it has published, and what is read and written through `journal` and `lease`."""
        ...

    def known(self) -> tuple[Ledger[SpecT, RangeT, OutputT] | None, SnapshotT]:
        """Return ledger and snapshot as this process last read or published them, if possible without a
        request."""
        return self.glance()

    def update_ledger(
        self,
        change: Callable[[Ledger[SpecT, RangeT, OutputT]], Ledger[SpecT, RangeT, OutputT]],
        first: Ledger[SpecT, RangeT, OutputT] | None = None,
    ) -> Ledger[SpecT, RangeT, OutputT]:
        """Apply `change` to the cached ledger and publish the result as the next version; after each
        conflict, apply it to the latest ledger. Publish nothing when `change` returns its argument. If there
        is no ledger, the coordinator that has just taken the epoch starts with `first`; all other callers get
        `Refused`."""
        ...

    def write_ledger(
        self,
        change: Callable[[Ledger[SpecT, RangeT, OutputT]], Ledger[SpecT, RangeT, OutputT]],
        first: Ledger[SpecT, RangeT, OutputT] | None = None,
    ) -> tuple[Ledger[SpecT, RangeT, OutputT], PendingVersion]:
        """Do the same as `update_ledger`, but return before the new version is known to be valid
        (`lithify.store.versions`). Until `PendingVersion` confirms it, do nothing that would be harmful on
        top of an invalid version."""
        ...

    @property
    def journal(self) -> Journal:
        """The service's own records about compactions (`lithify.coordination.sidecar.ObjectJournal`)."""
        ...


class PlanningPort(Protocol[GivenT, SpecT, RangeT, OutputT]):
    """The planner of a dataset, as coordinators use it to decide what to compact."""

    def identify(self, spec: SpecT) -> TaskIdentity:
        """Return what identifies a spec (pure)."""
        ...

    def capacity(self, snapshot: GivenT) -> Capacity:
        """Return how much of the dataset may be compacted at the same time (pure)."""
        ...

    def max_commits(self, snapshot: GivenT) -> int | None:
        """Return the maximum number of commits for all compactions that are planned together
        (`lithify.protocol.commit_batches`); `None` commits each compaction as soon as it is finished
        (pure)."""
        return None

    def newest_ms(self, snapshot: GivenT) -> int:
        """Return the newest time in the snapshot by the clock of the dataset's writer, in wall-clock
        milliseconds; 0 if there is none. Ids of new compactions are never newer, so a coordinator whose clock
        runs ahead does no harm (pure)."""
        ...

    def new_id_ms(self, snapshot: GivenT, now_ms: int) -> int:
        """Return the time to put into ids of new compactions, given the time `now_ms` of this machine's
        clock."""
        return min(now_ms, self.newest_ms(snapshot))

    def encode_spec(self, spec: SpecT) -> str:
        """Encode a spec as text for the journal (pure)."""
        ...

    def decode_spec(self, text: str) -> SpecT:
        """Decode the text of `encode_spec` (pure). Raise `CorruptObject` if it is not a spec, and
        `Unsupported` if a later version of Lithify wrote it."""
        ...

    def cost_bytes(self, spec: SpecT, snapshot: GivenT) -> int:
        """Return the bytes of a spec's inputs that are still in the snapshot (pure)."""
        ...

    def priority(self, spec: SpecT, snapshot: GivenT) -> float:
        """Return how urgent a compaction is given this snapshot, from 0 (may wait) to 1 (urgent); 0 if its
        inputs are not in the snapshot any more (pure)."""
        ...

    def propose(
        self, snapshot: GivenT, ledger: Ledger[SpecT, RangeT, OutputT], held: Held = NOTHING_HELD
    ) -> Plan[SpecT]:
        """Plan what to compact, by the clock of this process, without reading or writing anything. The
        service decides which proposals start. Held inputs are planned around: they use up no limit of the
        plan, and a note explains what would be planned without `held`."""
        ...

    def save_planner_state(self, plan: Plan[SpecT], shed: Sequence[SpecT], *, is_queue_empty: bool) -> None:
        """Save the planner's state after a coordinator has acted on the plan. Specs in `shed` did not fit
        into the queue and may be deferred until it is empty. This is a cache: nothing is lost if it is never
        called."""
        ...

    def validate(
        self,
        compaction: Compaction[SpecT, RangeT, OutputT],
        snapshot: GivenT,
        ledger: Ledger[SpecT, RangeT, OutputT],
    ) -> str | None:
        """Return why the compaction must not be scheduled (if it is Submitted), executed (Scheduled) or
        committed (Compacted) given snapshot and ledger; `None` if it may (pure)."""
        ...


class ExecutionPort(Protocol[GivenT, SpecT, RangeT, OutputT]):
    """Execution and commit of compactions, as workers and coordinators use them."""

    def why_unclaimable(
        self,
        compaction: Compaction[SpecT, RangeT, OutputT],
        ledger: Ledger[SpecT, RangeT, OutputT],
    ) -> str | None:
        """Return why a worker must not claim this Scheduled compaction as long as the ledger is like this;
        `None` if it may. May read the snapshot. Workers check again at their next poll."""
        return None

    def needs_worker(self, compaction: Compaction[SpecT, RangeT, OutputT], snapshot: GivenT) -> bool:
        """Return whether a worker has to rewrite data; otherwise the coordinator commits it directly."""
        ...

    def prefetch(self, spec: SpecT, snapshot: GivenT) -> None:
        """Start reading what `prepare` will need, because a compaction of this spec will probably be prepared
        next. `prepare` raises any error again."""
        return

    def prepare(
        self, compaction: Compaction[SpecT, RangeT, OutputT], snapshot: GivenT, slots: int = 0
    ) -> RangeJob[RangeT]:
        """Cut the compaction into ranges, or resume the ranges that its progress records. `compaction.worker`
        is the claim for which tasks report progress. `slots` is the number of ranges that the engine runs at
        once; 0 if unknown."""
        ...

    def outcome(self, result: Any) -> RangeOutcome[OutputT]:
        """Decode the result of a range's function."""
        ...

    def output_name(self, output: OutputT) -> str:
        """Return the name of an output, unique among the outputs of all compactions (pure)."""
        ...

    def output_bytes(self, output: OutputT) -> int:
        """Return the size of an output (pure)."""
        ...

    def commit(
        self,
        compactions: Sequence[Compaction[SpecT, RangeT, OutputT]],
        epoch: int,
        tell_dropped: Callable[[Ulid, str], None],
    ) -> Mapping[Ulid, str | None]:
        """Publish the outputs of all compactions in one atomic commit. Return, for each compaction, `None` if
        it was committed, else the reason for the refusal. `tell_dropped(compaction_id, reason)` is called for
        each one that was committed without a part that had become invalid. Raise `Fenced` if `epoch` is not
        the newest any more."""
        ...

    def was_committed(self, compaction: Compaction[SpecT, RangeT, OutputT]) -> bool:
        """Return whether the dataset's known history contains the compaction's outputs."""
        ...


class DescriptionPort(Protocol[GivenT]):
    """Facts about a dataset for status, metrics and pages."""

    def backlog(self, snapshot: GivenT, now_ms: int) -> tuple[Backlog, ...]:
        """Return the backlog of each unit whose writer stalls when too much piles up; empty for kinds whose
        writers never stall (pure)."""
        ...

    def past(self, snapshot: GivenT) -> Past | None:
        """Return how much history the dataset keeps, or `None` if it has none that Lithify could expire
        (pure)."""
        return None


class DatasetPort(
    FencedResource,
    LedgerPort[SnapshotT, SpecT, RangeT, OutputT],
    PlanningPort[SnapshotT, SpecT, RangeT, OutputT],
    ExecutionPort[SnapshotT, SpecT, RangeT, OutputT],
    DescriptionPort[SnapshotT],
    Protocol[SnapshotT, SpecT, RangeT, OutputT],
):
    """One dataset."""


@dataclass(frozen=True, slots=True)
class ShownPlan:
    """A plan, ready to be displayed."""

    shown: Shown
    timeline: Timeline | None = None
    """`None` for kinds without time chunks."""


@dataclass(frozen=True, slots=True)
class DatasetRun:
    """A finished run over a dataset."""

    url: str
    before: Any
    """The result of `Kind.look`, before the run; `after` likewise."""
    after: Any
    summary: RunSummary
    totals: Totals
    seconds: float


class Kind(Protocol[DatasetT]):
    """A kind of dataset, as commands use it: opening, planning, displaying, checking, collecting."""

    def open(
        self,
        url: str,
        config: Config,
        clock: Clock,
        ids: Ids,
        wrap: Callable[[ObjectStore], ObjectStore],
        waiting: WaitPolicy,
    ) -> DatasetT:
        """Open the dataset at `url`. Lithify's own objects are read and written through `wrap(store)`.
        `waiting` says how long to wait for a store that does not answer."""
        ...

    def check_settings(self, config: Config) -> None:
        """Raise `Refused` if a setting of the kind has a value that no dataset of the kind could use, or that
        has no effect. User code, such as a merge operator, need not be installed here."""
        ...

    def own_place(self, dataset: DatasetT) -> tuple[ObjectStore, str]:
        """Return the folder where Lithify may write: its store and key."""
        ...

    def planner(self, dataset: DatasetT, args: CommandArgs, clock: Clock) -> Planner:
        """Return the planner for a run with these options."""
        ...

    def request(self, dataset: DatasetT, args: CommandArgs, clock: Clock) -> Planner:
        """Return a planner that proposes exactly what the options request. Raise `Refused` unless they
        request exactly one thing."""
        ...

    def show_plan(
        self,
        dataset: DatasetT,
        snapshot: Any,
        ledger: AnyLedger,
        plan: Plan,
        args: CommandArgs,
        clock: Clock,
        details: Any,
    ) -> ShownPlan:
        """Return how to display a plan, and which of its proposals would start now. `details` is the result
        of `DatasetState.plan_details`."""
        ...

    def look(self, snapshot: Any) -> Any:
        """Return the figures of a snapshot that a run's summary compares, before and after the run."""
        ...

    def show_run(self, run: DatasetRun) -> Shown:
        """Return the summary of a run."""
        ...

    def show_status(self, found: Status) -> Shown:
        """Return the part of a status that only this kind has."""
        ...

    def show_spec(self, spec: Any) -> Mapping[str, Any]:
        """Return a spec as a JSON value."""
        ...

    def check(
        self,
        open_dataset: Callable[[], DatasetT],
        find: Callable[[DatasetT], Status],
        config: Config,
        now_ms: int,
    ) -> Iterator[Finding]:
        """Check a dataset and its settings. The first finding says whether a readable dataset exists at all.
        Writes nothing except the object that shows the store's time (`DatasetPort.store_ms`)."""
        ...

    def collector(
        self, dataset: DatasetT, config: Config, clock: Clock, ids: Ids, observer: Observer
    ) -> PeriodicCollector[Any]:
        """Return the collector that deletes the dataset's garbage periodically, according to the settings."""
        ...

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
        """Collect the garbage of the dataset at `url` once, according to the settings. `min_age_ms` overrides
        their minimum age. Kinds of garbage that the settings only report are not deleted."""
        ...

    def maintenance(self, dataset: DatasetT, clock: Clock, ids: Ids) -> Maintenance:
        """Return the operations on the dataset's history. Raise `Refused` if datasets of the kind have no
        history that Lithify could expire."""
        ...

    def inspect(self, url: str, config: Config, part: str, args: CommandArgs) -> Shown:
        """Return one part of a dataset for display (`Registered.inspections` lists the parts)."""
        ...
