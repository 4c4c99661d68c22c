"""What the service asks of a dataset kind, and what a kind gives back.

Coordinator, worker and one-shot run are written once, against `DatasetPort`, commands against `Kind`.
Snapshots, specs, ranges and outputs are the kind's own values; nobody else looks inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from typing_extensions import TypeVar

from lithify.base.clock import Clock
from lithify.base.events import Observer
from lithify.base.ids import Ids, Ulid
from lithify.config.model import Config
from lithify.coordination.leadership import FencedResource
from lithify.datasets.collecting import PeriodicCollector
from lithify.datasets.maintenance import Maintenance
from lithify.datasets.options import Asked
from lithify.observe.progress import Totals
from lithify.planning.admission import Capacity
from lithify.protocol.attempts import Journal
from lithify.protocol.backlog import Backlog
from lithify.protocol.finding import Finding
from lithify.protocol.history import History
from lithify.protocol.model import Compaction, Ledger, OutputT, RangeT, SpecT
from lithify.protocol.presence import CoordinatorStatus
from lithify.protocol.proposal import NOTHING_HELD, Held, Plan, Planner
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
DatasetT = TypeVar("DatasetT")


class DatasetPort(FencedResource, Protocol[SnapshotT, SpecT, RangeT, OutputT]):
    """One dataset. Methods that read give the latest committed state; `snapshot` and `ledger`
    values are immutable."""

    def ledger(self) -> Ledger[SpecT, RangeT, OutputT] | None:
        """The latest ledger; `None` when no coordinator ever ran. To who has not looked for long it may give
        an older one a few times more, on which nothing can be published: what follows from a ledger is
        written into it."""
        ...

    def snapshot(self) -> SnapshotT:
        """The latest committed state. Whoever needs both reads the ledger first."""
        ...

    def glance(self) -> tuple[Ledger[SpecT, RangeT, OutputT] | None, SnapshotT]:
        """Ledger and snapshot, as cheaply as can be, for who looks again and again. Either may be older than
        it could be, as `ledger` says: good enough to find out what to publish, too little to refuse anything
        by it."""
        ledger = self.ledger()
        return ledger, self.snapshot()

    def known(self) -> tuple[Ledger[SpecT, RangeT, OutputT] | None, SnapshotT]:
        """Ledger and snapshot as they were last read or published here, without a request where that can
        be: for who has just done so."""
        return self.glance()

    def update_ledger(
        self,
        change: Callable[[Ledger[SpecT, RangeT, OutputT]], Ledger[SpecT, RangeT, OutputT]],
        first: Ledger[SpecT, RangeT, OutputT] | None = None,
    ) -> Ledger[SpecT, RangeT, OutputT]:
        """Apply `change` to the ledger seen last and publish the result as the next version; on each conflict
        do so with the latest. Publishes nothing when `change` returns its argument. Where there is no ledger,
        the coordinator that has just taken the epoch begins with `first`; whoever else changes one is
        `Refused`."""
        ...

    def write_ledger(
        self,
        change: Callable[[Ledger[SpecT, RangeT, OutputT]], Ledger[SpecT, RangeT, OutputT]],
        first: Ledger[SpecT, RangeT, OutputT] | None = None,
    ) -> tuple[Ledger[SpecT, RangeT, OutputT], PendingVersion]:
        """As `update_ledger`, but without waiting for the proof that what was written counts
        (`lithify.store.versions`): `PendingVersion` tells that. Until then it may only be used for what does
        no harm if it does not."""
        ...

    @property
    def journal(self) -> Journal:
        """What the service keeps beside the ledger (`lithify.coordination.sidecar.ObjectJournal`)."""
        ...

    def history(self) -> History:
        """What is still known of the ledger's past."""
        ...

    def store_ms(self) -> int | None:
        """Return what time it is by the clock that lease, ledger and `history` go by, the store's; `None`
        where the store does not tell. It tells by the time of an object that is written, so this writes an
        empty one of Lithify's own, at most once a minute."""
        ...

    def coordinator(self) -> CoordinatorStatus:
        """Which coordinator the dataset has, and whether it is alive, by `store_ms`."""
        ...

    def backlog(self, snapshot: SnapshotT, now_ms: int) -> tuple[Backlog, ...]:
        """The backlog of each unit whose writer stalls when too much piles up; nothing where none
        does (pure)."""
        ...

    def past(self, snapshot: SnapshotT) -> Past | None:
        """How much of its past the dataset keeps; `None` where it keeps none that Lithify could let go
        (pure)."""
        return None

    def retained(self, snapshot: SnapshotT, ledger: Ledger[SpecT, RangeT, OutputT]) -> Retained | None:
        """The same, and who needs it, in a few small requests however large the dataset is. What is damaged
        of that is told and is no error."""
        return None

    def beside(self) -> Any:
        """What a shown plan tells and planning does not need, in the kind's own words and a few small
        requests; `None` where there is no such thing."""
        return None

    def unit(self, spec: SpecT) -> str:
        """The name of the unit a spec compacts (pure)."""
        ...

    def name(self, spec: SpecT) -> str:
        """A name of what a spec does: of all that is planned or active at a time, no two have the same, and
        planned again it has the same (pure)."""
        ...

    def scope(self, spec: SpecT) -> frozenset[Any]:
        """What a spec is about. After a conflict the same is left alone for a while, but not what more has
        joined (pure)."""
        ...

    def capacity(self, snapshot: SnapshotT) -> Capacity:
        """How much of the dataset may be compacted at the same time (pure)."""
        ...

    def max_commits(self, snapshot: SnapshotT) -> int | None:
        """In how many publications at most all that is planned at a time is to be committed
        (`lithify.protocol.commit_batches`); `None`: each compaction as soon as it is finished (pure)."""
        return None

    def newest_ms(self, snapshot: SnapshotT) -> int:
        """The newest time in the snapshot, by the clock of who writes the dataset; wall-clock
        milliseconds, 0 when there is none. Ids of new compactions are not newer than that, so that a
        coordinator whose clock runs ahead does no harm (pure)."""
        ...

    def new_id_ms(self, snapshot: SnapshotT, now_ms: int) -> int:
        """The time in ids of new compactions, at `now_ms` by the clock of this machine."""
        return min(now_ms, self.newest_ms(snapshot))

    def sources(self, spec: SpecT) -> frozenset[str]:
        """Names of what a spec reads, as fine as is useful, each its own in the whole dataset (pure).
        What shares one with a compaction that has just failed for good is left alone for a while."""
        ...

    def encode_spec(self, spec: SpecT) -> str:
        """A spec as text, for the journal (pure)."""
        ...

    def decode_spec(self, text: str) -> SpecT:
        """The spec of such a text; `CorruptObject` when it is none, `Unsupported` when a later version of
        Lithify wrote it (pure)."""
        ...

    def cost_bytes(self, spec: SpecT, snapshot: SnapshotT) -> int:
        """Bytes of what a spec reads that is still in the snapshot (pure)."""
        ...

    def priority(self, spec: SpecT, snapshot: SnapshotT) -> float:
        """How urgent a compaction is as things are now, 0 (may wait) to 1 (urgent), whenever it was
        planned; 0 when the snapshot does not show what it reads any more (pure)."""
        ...

    def output_name(self, output: OutputT) -> str:
        """A name that no other output of any compaction has (pure)."""
        ...

    def output_bytes(self, output: OutputT) -> int:
        """The size of an output (pure)."""
        ...

    def propose(
        self, snapshot: SnapshotT, ledger: Ledger[SpecT, RangeT, OutputT], held: Held = NOTHING_HELD
    ) -> Plan[SpecT]:
        """What should be compacted, by the clock of this process; nothing is read or written, and what of it
        starts now is decided by the service. What is held takes no place of anything else: the plan is the
        one for the rest, and where it would be another without `held`, a note has that sentence."""
        ...

    def remember(self, plan: Plan[SpecT], shed: Sequence[SpecT], *, is_queue_empty: bool) -> None:
        """A coordinator has acted on the plan: keep what it found out, if anything; what was `shed`, since
        the queue was full, may be deferred until the queue is empty. A memory only: nothing is lost when this
        is never called."""
        ...

    def validate(
        self,
        compaction: Compaction[SpecT, RangeT, OutputT],
        snapshot: SnapshotT,
        ledger: Ledger[SpecT, RangeT, OutputT],
    ) -> str | None:
        """Why the compaction must not be scheduled (when it is Submitted), carried out (Scheduled) or
        committed (Compacted) as things are; `None` if it may (pure)."""
        ...

    def needs_worker(self, compaction: Compaction[SpecT, RangeT, OutputT], snapshot: SnapshotT) -> bool:
        """Whether rows must be read; otherwise the coordinator commits it by itself."""
        ...

    def foresee(self, spec: SpecT, snapshot: SnapshotT) -> None:
        """A compaction of this spec will probably be prepared next here: begin to read what that takes. What
        it raises is raised again when it is prepared."""
        return

    def prepare(
        self, compaction: Compaction[SpecT, RangeT, OutputT], snapshot: SnapshotT, slots: int = 0
    ) -> RangeJob[RangeT]:
        """Cut the compaction into ranges, or take up the ranges its progress records. `compaction` is
        as it was claimed: `compaction.worker` is the claim its tasks report their movements for. `slots` is
        how many ranges the engine runs at once, 0 when that is not known."""
        ...

    def outcome(self, result: Any) -> RangeOutcome[OutputT]:
        """Read what a range's function returned."""
        ...

    def commit(
        self,
        compactions: Sequence[Compaction[SpecT, RangeT, OutputT]],
        epoch: int,
        tell_dropped: Callable[[Ulid, str], None],
    ) -> Mapping[Ulid, str | None]:
        """Publish the outputs atomically. For each compaction: `None` when committed, else why it was
        refused. `tell_dropped` is told of those committed without a part that did not hold any more: what,
        and why. `Fenced` when `epoch` is no longer the newest."""
        ...

    def was_committed(self, compaction: Compaction[SpecT, RangeT, OutputT]) -> bool:
        """Whether the dataset, as far as its past is known, has or had the compaction's outputs."""
        ...


@dataclass(frozen=True, slots=True)
class ShownPlan:
    """How to show what would be compacted."""

    shown: Shown
    timeline: Timeline | None = None
    """`None` where times play no part."""


@dataclass(frozen=True, slots=True)
class DatasetRun:
    """A run over a dataset, from what it looked like before to what it looks like after."""

    url: str
    before: Any
    """Of the kind's `look`."""
    after: Any
    summary: RunSummary
    totals: Totals
    seconds: float


class Kind(Protocol[DatasetT]):
    """A kind of dataset, as commands see it: how one is opened, and what can be asked and shown of it."""

    def open(
        self,
        url: str,
        config: Config,
        clock: Clock,
        ids: Ids,
        wrap: Callable[[ObjectStore], ObjectStore],
        waiting: WaitPolicy,
    ) -> DatasetT:
        """The dataset at `url`. Objects beside it are read and written through `wrap` of their store. Stores
        are waited for as `waiting` says."""
        ...

    def check_settings(self, config: Config) -> None:
        """`Refused` when one of its settings has a value with which no dataset of the kind could be worked
        on, or that does nothing. What is the user's own, such as a merge operator, need not be installed
        here."""
        ...

    def own_place(self, dataset: DatasetT) -> tuple[ObjectStore, str]:
        """Where Lithify may write beside it: a store, and the key of a folder."""
        ...

    def planner(self, dataset: DatasetT, asked: Asked, clock: Clock) -> Planner:
        """What a run compacts."""
        ...

    def request(self, dataset: DatasetT, asked: Asked, clock: Clock) -> Planner:
        """What a person asks for. `Refused` unless the options say exactly one thing."""
        ...

    def show_plan(
        self, dataset: DatasetT, snapshot: Any, ledger: AnyLedger, plan: Plan, asked: Asked, clock: Clock
    ) -> ShownPlan:
        """What would start now, of what `planner` proposes."""
        ...

    def look(self, snapshot: Any) -> Any:
        """What is worth telling of a snapshot, before a run and after it."""
        ...

    def show_run(self, run: DatasetRun) -> Shown:
        """What a run did."""
        ...

    def show_status(self, found: Status) -> Shown:
        """What there is to say beside what every status says."""
        ...

    def show_spec(self, spec: Any) -> Mapping[str, Any]:
        """A spec as a JSON value."""
        ...

    def check(
        self,
        open_dataset: Callable[[], DatasetT],
        find: Callable[[DatasetT], Status],
        config: Config,
        now_ms: int,
    ) -> Iterator[Finding]:
        """What is wrong with a dataset, and with the settings for it. The first finding says whether there is
        a sound one at all. Writes nothing but what tells the store's time (`DatasetPort.store_ms`)."""
        ...

    def collector(
        self, dataset: DatasetT, config: Config, clock: Clock, ids: Ids, observer: Observer
    ) -> PeriodicCollector[Any]:
        """What collects its garbage again and again, as the settings say."""
        ...

    def collect(
        self,
        url: str,
        config: Config,
        asked: Asked,
        clock: Clock,
        ids: Ids,
        *,
        dry_run: bool,
        min_age_ms: int | None,
    ) -> Shown:
        """Collect the garbage of the dataset at `url` once, as the settings say: a minimum age that is
        given wins over theirs, and what they only report is not deleted."""
        ...

    def maintenance(self, dataset: DatasetT, clock: Clock, ids: Ids) -> Maintenance:
        """Its history: what it is kept for. `Refused` where datasets of the kind have none that Lithify
        could let go."""
        ...

    def inspect(self, url: str, config: Config, part: str, asked: Asked) -> Shown:
        """One part of what a dataset consists of (`Registered.inspections`)."""
        ...
