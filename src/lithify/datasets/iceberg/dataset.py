"""An Iceberg table as a dataset.

The table belongs to its catalog. Lithify's own state is in a folder under the table's location that is named
by the table's UUID, so tables that use the same location, at once or in turn, share no state. A setting moves
that folder elsewhere (`state_location`).

| object, under `<location>/_lithify/<uuid>/` | value |
|---|---|
| `state.json` | the identity of the folder, written once, before all other objects (`own_state`) |
| `ledger/<number>.json` | the ledger, numbered files |
| `chunks/<number>.json` | cached states of chunks, numbered files |
| `coordinator.json`, `progress/`, `attempts/`, `failures/` | as for every dataset |

Commit (`commit`): the catalog's compare-and-swap publishes the rewrite of a compaction's inputs. The epoch in
the ledger and the record of the table's lineage are checked just before. If a coordinator that is replaced at
that moment still commits, nothing is lost, because its successor finds the compaction in the table's history.

Cache: a plan's states of chunks and its queue are saved once a coordinator has acted on the plan
(`save_planner_state`); a commit's outputs are saved at once. The cache may be lost or overwritten.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.types import NestedField

from lithify.base.backlog import Backlog
from lithify.base.clock import Clock
from lithify.base.concurrency import all_of, both
from lithify.base.errors import CorruptObject, Refused, Replaced, StoreError, StoreUnavailable
from lithify.base.ids import Ids, Ulid
from lithify.coordination.thresholds import ThresholdFiles
from lithify.datasets.iceberg.compaction import validate
from lithify.datasets.iceberg.compaction.commit import Committer, committed_ids
from lithify.datasets.iceberg.compaction.execute import execute_rewrites
from lithify.datasets.iceberg.compaction.moved_deletes import may_come
from lithify.datasets.iceberg.compaction.row_map import path_of
from lithify.datasets.iceberg.compaction.split import RANGE_BYTES
from lithify.datasets.iceberg.compaction.state import draw_files, draw_refused, draw_state, written_file
from lithify.datasets.iceberg.compaction.support_checks import branches_of, check_data, refused_parts
from lithify.datasets.iceberg.compaction.task import DEFAULT_BUFFER_BYTES, TaskResult
from lithify.datasets.iceberg.compaction.work import Terms, Work
from lithify.datasets.iceberg.documents import LEDGERS
from lithify.datasets.iceberg.format.footers import Footers
from lithify.datasets.iceberg.format.lineage import Lineage, former_roots
from lithify.datasets.iceberg.format.listing import Listing, ManifestCache, list_snapshot, read_listing
from lithify.datasets.iceberg.format.manifest_scan import id_of
from lithify.datasets.iceberg.format.ownership import OWN_FOLDER
from lithify.datasets.iceberg.format.publish import discard
from lithify.datasets.iceberg.format.table_properties import locations_of, properties_of
from lithify.datasets.iceberg.format.time_column import find_axis
from lithify.datasets.iceberg.io.catalogs import TableUrl, load_table, store_of
from lithify.datasets.iceberg.io.places import canonical, place_of
from lithify.datasets.iceberg.io.state_location import StateLocation
from lithify.datasets.iceberg.io.stores import lend, open_place, task_options
from lithify.datasets.iceberg.maintenance.history_report import retained_of
from lithify.datasets.iceberg.maintenance.history_size import past_of
from lithify.datasets.iceberg.maintenance.own_state import (
    PREFIX,
    FolderIdentity,
    StateFolder,
    TableRecord,
    recorded_in,
)
from lithify.datasets.iceberg.maintenance.readers import ReaderNeed, Readers
from lithify.datasets.iceberg.maintenance.shared_locations import (
    Neighbour,
    check_one_name,
    known_in,
    others_in,
)
from lithify.datasets.iceberg.model import (
    ChunkSpec,
    IcebergCompaction,
    IcebergLedger,
    Lane,
    LeftAlone,
    NewFile,
    Output,
    TableState,
    WorkRange,
    files_written,
)
from lithify.datasets.iceberg.plan import capacity_of, plan_table, priority, proposals_of, timeline_policy
from lithify.datasets.iceberg.policy import TablePolicy, branch_of, left_out_of, parse_policy
from lithify.datasets.own_ledger import OwnLedgerDataset
from lithify.planning.admission import Capacity
from lithify.planning.timeline import state_codec
from lithify.planning.timeline.model import TimelinePlan
from lithify.planning.timeline.plan import Replanning, remember
from lithify.planning.timeline.state import ChunkStates, committed, deferred
from lithify.protocol.lease import Permit
from lithify.protocol.proposal import NOTHING_HELD, Held, Plan, TaskIdentity
from lithify.protocol.retained import Past, Retained
from lithify.protocol.work import RangeJob, RangeOutcome, RangeWork
from lithify.store.keys import join, url_of
from lithify.store.objects import ObjectStore
from lithify.store.versions import Version, VersionedFiles

if TYPE_CHECKING:
    from lithify.datasets.iceberg.maintenance.plan_details import PlanDetails

MAX_COMMITS = 8
"""The maximum number of commits for all compactions that are planned together."""
MAX_DELETERS = 8
"""The number of row maps that are deleted concurrently."""
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class _Memory:
    """The results of a plan that are cached."""

    states: ChunkStates
    known: ChunkStates
    """The states at the start of the plan."""


@dataclass(frozen=True, slots=True)
class _Terms:
    """The parameters of compacting a table's data."""

    policy: TablePolicy
    branch: str
    column: NestedField | None
    """The column with the time of a row; `None` if the files have no order."""
    notes: tuple[str, ...] = ()


class IcebergDataset(OwnLedgerDataset[TableState, ChunkSpec, WorkRange, Output]):
    """A table of a catalog. Raise `Refused` when it does not exist."""

    def __init__(
        self,
        catalog: Catalog,
        url: TableUrl,
        clock: Clock,
        ids: Ids,
        *,
        rng: random.Random | None = None,
        options: Mapping[str, str] | None = None,
        unrelated: Sequence[str] = (),
        open_place: Callable[[Table], tuple[ObjectStore, str]] = store_of,
        state_location: StateLocation | None = None,
    ) -> None:
        """`options` are properties of `policy`, without their prefix, that override the table's own;
        `unrelated` names tables of the catalog, or patterns of names, that share no location with this one;
        `open_place` returns the store that contains the table and the key of its root there; `state_location`
        is the location of Lithify's own folder if it is not under the table's location."""
        table = load_table(catalog, url.identifier)
        self.table_store, self.root = open_place(table)
        lend(self.table_store, table.io.properties)
        self._state_location = state_location
        store, folder = self.table_store, join(self.root, OWN_FOLDER, str(table.metadata.table_uuid))
        if state_location is not None:
            store = state_location.store
            folder = state_location.folder_of(table.metadata.table_uuid, table.location())
        rng = rng if rng is not None else random.Random()
        super().__init__(str(url), store, folder, LEDGERS, clock, ids, rng)
        self._catalog = catalog
        self._identifier = url.identifier
        self._options = dict(options or {})
        parse_policy({}, self.url, self._options)  # a mistake in the operator's options is fatal
        self._apart = tuple(unrelated)
        self._location, self._uuid = table.location(), table.metadata.table_uuid
        self._chunks = VersionedFiles(
            self.store,
            join(folder, "chunks"),
            _SUFFIX,
            join(folder, "chunks.boundary"),
            ids,
            clock=clock,
            bond=self._bond,
        )
        self.state = StateFolder(self.store, folder, ids)
        self.record = TableRecord(self.url, self.load, clock, self._rng)
        self.lineage = Lineage(self.url, self.store, join(folder, "lineage.json"))
        self._cache = ManifestCache()
        self._footers = Footers()
        self._is_memory_damaged = False
        self._committer = Committer(catalog, url.identifier, self._cache, clock, self._rng, self.dated_ms)
        self.buffer_bytes = DEFAULT_BUFFER_BYTES
        """The size of the rows that a task holds in memory."""
        self.range_bytes = RANGE_BYTES
        """Estimated input of one task."""
        self._may_revive = True
        """Whether deferred chunks may be planned, because the queue is empty."""
        self._remembered: tuple[int, ChunkStates] | None = None
        self._drawn: tuple[str, int, TableState] | None = None
        self._replanning = Replanning()
        self.alone: frozenset[str] = frozenset()
        """Groups of the timeline that are compacted separately, not together with others."""
        self._continues: str | None = None
        """The metadata file that was verified to continue the recorded lineage."""
        self._state_id: str | None = None
        """The identity of the state folder, if the table records that it is elsewhere."""
        self._check_place(table)

    @property
    def numbered_files(self) -> tuple[VersionedFiles, ...]:
        """Return the versions of the ledger and the chunks, for garbage collection."""
        return self._ledger.files, self._chunks

    # Reading

    def confirm(self) -> None:
        both(self.load, self._ledger.files.confirmed)

    def load(self) -> Table:
        """Load the table in its current state. Raise `Replaced` when it is not the table that this dataset
        was opened on."""
        table = load_table(self._catalog, self._identifier)
        if table.location() != self._location:
            raise Replaced(f"{self.url}: the table was moved to {table.location()}; open it again")
        if table.metadata.table_uuid != self._uuid:
            raise Replaced(
                f"{self.url}: the table was dropped, and another table has its name now; open it again"
            )
        lend(self.table_store, table.io.properties)  # the credentials may have changed
        self._check_place(table)
        return table

    def _check_place(self, table: Table) -> None:
        """Raise `Refused` when the table records that its state is in another folder."""
        place = recorded_in(table.metadata).place
        if place is None or place == self._state_id:
            return
        state = self.state.read() if self.is_state_elsewhere else None
        if state is None or state.id != place:
            here = url_of(self.store.url, self.own_folder)
            raise Refused(
                f"{self.url}: the table records that Lithify's state of it is not in {here}; set "
                "iceberg.state_location to the same value as in other processes, or, if that folder is "
                f"lost, remove the table's property {PREFIX}place"
            )
        self._state_id = place

    @property
    def location(self) -> str:
        """Return the table's location."""
        return self._location

    @property
    def is_state_elsewhere(self) -> bool:
        """Return whether Lithify's own folder is outside the table's location."""
        return self._state_location is not None

    def others(self) -> list[Neighbour]:
        """Read all other tables of the catalog. Raise `Refused` when one cannot be read."""
        return others_in(self._catalog, self._identifier, self._apart)

    def known_others(self) -> list[Neighbour]:
        """Return all other tables of the catalog, from a cache of at most one hour."""
        return known_in(self._catalog).others(self._catalog, self._identifier, self._clock, self._apart)

    def check_one_name(self) -> None:
        """Raise `Refused` when the catalog has the table under a second name too."""
        check_one_name(place_of(self._location), str(self._uuid), self.known_others(), self.url)

    def begin_state(self, table: Table) -> FolderIdentity:
        """Write, if needed, and return the identity of Lithify's own folder, before any state is written
        there. Raise `Refused` when the table has its state at another location."""
        if not self.is_state_elsewhere:
            return self.state.begin()
        if recorded_in(table.metadata).place is None:
            self._check_nothing_beside(table)
        state = self.state.begin()
        self.record.place(table, state)
        return state

    def _check_nothing_beside(self, table: Table) -> None:
        """Raise `Refused` when the table's state is under its location. If that location may not be read,
        this process cannot have written state there."""
        folder = join(self.root, OWN_FOLDER, str(self._uuid))
        try:
            beside = StateFolder(self.table_store, folder, self._ids).read()
        except StoreUnavailable:
            raise
        except StoreError:
            return
        if beside is not None:
            raise Refused(
                f"{self.url}: its state lies in {url_of(self.table_store.url, folder)}, and "
                "iceberg.state_location is set: stop all Lithify processes that use the table and move that "
                f"folder to {url_of(self.store.url, self.own_folder)}, or delete it if it is not needed"
            )

    def check_not_moved(self, table: Table) -> None:
        """Raise `Refused` when Lithify's own folder is at a former location of the table: holds, readers and
        pending deletions are there."""
        here = canonical(url_of(self.store.url, self.own_folder))
        for root in former_roots(table):
            store, folder = self._former_folder(root, table)
            there = url_of(store.url, folder)
            if canonical(there) != here and next(iter(store.list(folder)), None) is not None:
                raise Refused(
                    f"{self.url}: the table was moved without its holds and readers: move the objects in "
                    f"{there} to {url_of(self.store.url, self.own_folder)}, or delete them if they are not "
                    "needed"
                )

    def _former_folder(self, root: str, table: Table) -> tuple[ObjectStore, str]:
        """Return Lithify's own folder for a table with the location `root`."""
        if self._state_location is not None:
            return self._state_location.store, self._state_location.folder_of(self._uuid, root)
        store, key = open_place(root, table.io.properties)
        return store, join(key, OWN_FOLDER, str(self._uuid))

    def glance(self) -> tuple[IcebergLedger | None, TableState]:
        """Read ledger and table together. A ledger newer than the table lists work as done whose inputs the
        stale table still has: that work would be planned again and then fail to commit, since the files are
        gone."""
        snapshot, ledger = both(self._read_snapshot, self._ledger.read)
        return self._observers.both(ledger, snapshot)

    def known(self) -> tuple[IcebergLedger | None, TableState]:
        if self._drawn is None:
            return self.glance()
        return self._observers.both(self._ledger.known(), self._drawn[2])

    def _read_snapshot(self) -> TableState:
        """Return the head of the branch. If the table's data cannot be compacted, the state records why
        (`TableState.refused`), and other parts of maintenance continue."""
        table, chunks = both(self.load, self._chunks.latest)
        known = (table.metadata_location, chunks.id if chunks is not None else 0)
        if self._drawn is None or self._drawn[:2] != known:
            states, notes = self._states(chunks)
            state = self._draw(table, states)
            self._drawn = (*known, replace(state, notes=(*state.notes, *notes)))
        return self._drawn[2]

    def _draw(self, table: Table, states: ChunkStates) -> TableState:
        wanted = self._branch_wanted(table)
        terms: _Terms | None = None

        def check() -> None:
            nonlocal terms
            terms = self._terms(table)

        refused = refused_parts(table.metadata, wanted, self.url, check)
        branch = wanted or MAIN_BRANCH if terms is None else terms.branch
        column_id = id_of(None if terms is None else terms.column)
        _, listing = both(
            partial(self._check_lineage, table),
            lambda: read_listing(table, branch, self._cache, column_id),
        )
        if terms is None:
            policy = replace(TablePolicy(), skip_parts=",".join(sorted(self.left_out(table))))
            return draw_refused(table, listing, policy, refused, states)
        return draw_state(
            table, listing, terms.policy, terms.column, self._footers, states, refused, terms.notes
        )

    def _terms(self, table: Table) -> _Terms:
        """Return the parameters of compacting the table's data. Raise `Refused` when they cannot be
        compacted."""
        policy = self.policy(table)
        branch = check_data(table.metadata, policy.branch, self.url)
        locations_of(table.metadata, table.io.properties)
        return _Terms(policy, branch, *self._axis(table, policy))

    def _axis(self, table: Table, policy: TablePolicy) -> tuple[NestedField | None, tuple[str, ...]]:
        """Return the time column, if files are on a time axis, and notes about that."""
        return find_axis(table.metadata, policy.axis, policy.time_column, self.url)

    def _branch_wanted(self, table: Table) -> str | None:
        return branch_of(properties_of(table.metadata), self._options)

    def _check_lineage(self, table: Table) -> None:
        """Raise `Refused` when the table does not continue the recorded lineage, unless its present state was
        verified before. Every commit verifies it again."""
        if self._continues != table.metadata_location:
            self.lineage.check(table, self.load)
            self._continues = table.metadata_location

    def _states(self, version: Version | None) -> tuple[ChunkStates, tuple[str, ...]]:
        """Return the cached states. If they are damaged, return none and a note; the next analysis replaces
        them."""
        self._is_memory_damaged = False
        if version is None:
            return ChunkStates(), ()
        if self._remembered is None or self._remembered[0] != version.id:
            key = self._chunks.key(version.id)
            try:
                self._remembered = version.id, state_codec.decode(version.data, key)
            except CorruptObject as error:
                self._is_memory_damaged = True
                return ChunkStates(), (f"the stored states of chunks are damaged and not used: {error}",)
        return self._remembered[1], ()

    # Publishing

    def save_planner_state(self, plan: Plan, shed: Sequence[ChunkSpec], *, is_queue_empty: bool) -> None:
        if isinstance(plan.memory, _Memory):
            self._may_revive = is_queue_empty
            chunks = (chunk for spec in shed for chunk in spec.chunks)
            self._keep(deferred(plan.memory.states, chunks), plan.memory.known)

    def _keep(self, states: ChunkStates, known: ChunkStates) -> None:
        if states == known:
            return
        data = state_codec.encode(states)
        version = self._chunks.update(
            lambda version: None if version is not None and version.data == data else data,
            self._clock,
            self._rng,
        )
        if version is not None and self._drawn is not None and not self._is_memory_damaged:
            # This process's own writes are no changes that have to be reported.
            self._remembered = version.id, states
            location, _, state = self._drawn
            self._drawn = location, version.id, replace(state, states=states)

    def commit(
        self,
        compactions: Sequence[IcebergCompaction],
        epoch: int,
        tell_dropped: Callable[[Ulid, str], None] = lambda compaction_id, reason: None,
    ) -> Mapping[Ulid, str | None]:
        """Publish the parts of `compactions` that are still valid; see the contract."""

        def check(table: Table) -> None:
            both(lambda: self.lineage.check(table, self.load), partial(self.check_epoch, epoch))

        verdicts = self._committer.commit(compactions, self._branch, check)
        for compaction in compactions:
            verdict = verdicts[compaction.id]
            self._note_alone(compaction, verdict.published)
            if verdict.dropped is not None:
                tell_dropped(compaction.id, verdict.dropped)
        published = [(c.spec, verdicts[c.id].published) for c in compactions]
        self._remember_committed([(spec, files) for spec, files in published if files])
        self._delete_maps([c for c in compactions if verdicts[c.id].refusal is None])
        return {compaction_id: verdict.refusal for compaction_id, verdict in verdicts.items()}

    def _delete_maps(self, committed: Sequence[IcebergCompaction]) -> None:
        """Delete the row maps of committed compactions."""
        files = (file for compaction in committed for file in files_written(compaction))
        paths = [path_of(file.path) for file in files if file.row_map is not None]
        if paths:
            io = self.load().io
            # The rest is collected as garbage.
            with suppress(StoreError):
                all_of((partial(discard, io, [path]) for path in paths), MAX_DELETERS)

    def _note_alone(self, compaction: IcebergCompaction, published: Sequence[NewFile]) -> None:
        """From now on, plan parts that could not be rewritten together with others separately, so that each
        succeeds or fails on its own."""
        spec = compaction.spec
        left = {spec.part_of(o.sources[0]) for o in compaction.outputs if isinstance(o, LeftAlone)}
        self.alone |= {part.lane.group for part in left}
        if published and not left:
            self.alone -= {part.lane.group for part in spec.parts}

    def _remember_committed(self, published: Iterable[tuple[ChunkSpec, Iterable[NewFile]]]) -> None:
        """Cache the outputs of this process's own commit, which need no analysis. If a part of it was
        dropped, the chunk's files differ from these, and that is detected."""
        table = self.load()
        self._continues = table.metadata_location  # verified before the commit; `advance` verifies it again
        state, _ = both(self._read_snapshot, lambda: self.lineage.advance(table))
        if state.refusal:
            return  # the table was changed since the commit
        column, _ = self._axis(table, state.policy)
        states = state.states
        for spec, files in published:
            planned = table.metadata.snapshot_by_id(spec.snapshot_id)
            if planned is not None:
                number = planned.sequence_number or 0
                added = [written_file(new, _lane_of(new, spec), number, column) for new in files]
                states = committed(states, spec.chunks, added, timeline_policy(state.policy))
        self._keep(states, state.states)

    def policy(self, table: Table, *, of_data: bool = True) -> TablePolicy:
        """Return the table's policy; without `of_data`, all of it except the compaction of data. Raise
        `Refused` when it cannot be determined."""
        return parse_policy(properties_of(table.metadata), self.url, self._options, of_data=of_data)

    def left_out(self, table: Table) -> frozenset[str]:
        """Return the parts of maintenance that the policy skips, even if the rest of the policy is
        invalid."""
        return left_out_of(properties_of(table.metadata), self._options)

    def _branch(self, table: Table) -> str:
        return self._terms(table).branch

    # Leadership

    def take_epoch(self, permit: Permit = lambda taking: None) -> int:
        """Take the epoch as for every dataset, and record the table."""
        if self.is_state_elsewhere:  # before a second ledger is created
            self.begin_state(self.load())
        epoch = super().take_epoch(permit)
        table = self.load()
        self.lineage.advance(table)
        self.begin_state(table)
        return epoch

    # Reading state

    def backlog(self, snapshot: TableState, now_ms: int) -> tuple[Backlog, ...]:
        """Return nothing: no writer stalls on a table's backlog."""
        return ()

    def past(self, snapshot: TableState) -> Past:
        return past_of(_metadata_of(snapshot))

    def retained(self, snapshot: TableState, ledger: IcebergLedger) -> Retained:
        metadata = _metadata_of(snapshot)
        return retained_of(
            metadata, ledger, self.store, self.own_folder, self._clock, self._ids, self.store_ms
        )

    def plan_details(self) -> PlanDetails:
        from lithify.datasets.iceberg.maintenance.plan_details import (
            read_beside,  # with the operations that are given a dataset
        )

        return read_beside(self, self._clock, self._ids)

    def stored_ledger(self) -> IcebergLedger | None:
        """Read the newest ledger in the store, without this process's cache."""
        return self._ledger.stored()

    def readers(self) -> Readers:
        """Return the registered readers."""
        thresholds = ThresholdFiles(self.store, self.own_folder, self._clock, self._ids)
        return Readers(self.store, self.own_folder, thresholds)

    def add_reader(self, checkpoint: str, name: str | None, *, continuous: bool) -> ReaderNeed:
        """Register a reader and return what it needs. Raise `Refused` when data that it needs may be deleted
        already."""
        state = self.begin_state(self.load())

        def record(table: Table, name: str) -> None:
            self.record.reader(table, name)
            self.state.check(state)

        return self.readers().add(self.load, checkpoint, name, continuous, self._clock.now_ms(), record)

    def drop_reader(self, name: str) -> str:
        """Remove a reader and return its name. Raise `Refused` when there is none."""
        return self.readers().drop(self.load(), name, self.record.no_reader)

    def standings(self, table: Table) -> tuple[ReaderNeed, ...]:
        """Return what each registered reader needs."""
        readers = self.readers()
        return tuple(readers.standing(reader, table) for reader in readers.list())

    def cost_bytes(self, spec: ChunkSpec, snapshot: TableState) -> int:
        found = (snapshot.by_id.get(path) for path in spec.inputs)
        return sum(file.size_bytes for file in found if file is not None)

    def was_committed(self, compaction: IcebergCompaction) -> bool:
        """Return whether a snapshot that the table still has names this compaction."""
        table = self.load()
        heads = map(table.metadata.snapshot_by_name, branches_of(table.metadata))
        return any(head is not None and compaction.id in committed_ids(table, head) for head in heads)

    # Planning

    def identify(self, spec: ChunkSpec) -> TaskIdentity:
        return TaskIdentity(spec.task, spec.task, frozenset(spec.inputs), frozenset(spec.chunks))

    def capacity(self, snapshot: TableState) -> Capacity:
        return capacity_of(snapshot.policy)

    def max_commits(self, snapshot: TableState) -> int | None:
        """Return the maximum number of commits. Each commit is a snapshot, which slows down readers' planning
        and stays in the history."""
        return MAX_COMMITS

    def newest_ms(self, snapshot: TableState) -> int:
        return max(snapshot.timestamp_ms, 0)  # ids start at 0

    def priority(self, spec: ChunkSpec, snapshot: TableState) -> float:
        return priority(spec, snapshot)

    def output_name(self, output: Output) -> str:
        return output.name if isinstance(output, LeftAlone) else output.path

    def output_bytes(self, output: Output) -> int:
        return 0 if isinstance(output, LeftAlone) else output.size_bytes

    def timeline(
        self, snapshot: TableState, ledger: IcebergLedger, held: Held = NOTHING_HELD
    ) -> TimelinePlan:
        """Return every chunk of the table with its verdict, and the tasks."""
        now_us = self._clock.now_ms() * 1000
        return plan_table(
            snapshot,
            ledger,
            now_us,
            revive_deferred=self._may_revive,
            held=held,
            replanning=self._replanning,
            alone=self.alone,
        )

    def propose(self, snapshot: TableState, ledger: IcebergLedger, held: Held = NOTHING_HELD) -> Plan:
        timeline = self.timeline(snapshot, ledger, held)
        states = remember(timeline, timeline_policy(snapshot.policy))

        def proposed() -> Plan:
            plan = proposals_of(snapshot, timeline, held)
            if "data" not in snapshot.policy.left_out or plan.refusal:
                return plan
            why = "nothing is compacted automatically: lithify.skip-parts names data"
            return replace(plan, proposals=(), notes=(why, *plan.notes), is_left_out=True)

        # Held files are shown in the timeline.
        plan = self._replanning.made_of(proposed, timeline, snapshot)
        return replace(plan, memory=_Memory(states, snapshot.states))

    def validate(
        self, compaction: IcebergCompaction, snapshot: TableState, ledger: IcebergLedger
    ) -> str | None:
        return validate.validate(compaction, snapshot, ledger)

    def needs_worker(self, compaction: IcebergCompaction, snapshot: TableState) -> bool:
        return True

    # Executing

    def prepare(self, compaction: IcebergCompaction, snapshot: TableState, slots: int = 0) -> RangeJob:
        """Cut the compaction into the work of tasks, using only the planned snapshot."""
        if snapshot.refusal:
            raise Refused(snapshot.refusal)
        spec, progress = compaction.spec, compaction.progress
        table = self.load()
        listing = self._planned(table, spec)
        missing = [path for path in spec.inputs if path not in listing.data]
        if missing:
            raise Refused(f"compaction {compaction.id}: {missing[0]} is not a file of the planned snapshot")
        column, _ = self._axis(table, snapshot.policy)
        terms = Terms(
            compaction_id=compaction.id,
            spec=spec,
            metadata=table.metadata,
            io=table.io,
            column=column,
            target_bytes=snapshot.policy.target_file_size_bytes,
            buffer_bytes=self.buffer_bytes,
            range_bytes=self.range_bytes,
            store_url=self.table_store.url,
            store_options=task_options(self._location, table.io.properties),
            state_url="" if self._state_location is None else self.store.url,
            state_options={} if self._state_location is None else self._state_location.task_options,
            has_row_maps=may_come(table.metadata, listing),
        )
        files = draw_files(table, listing, spec.inputs, snapshot.policy, column, self._footers)
        work, owner = Work(terms, listing, files), compaction.worker
        recorded = () if progress is None else progress.ranges
        ranges = [(one.range, work.tasks_of(one.range)) for one in recorded] or list(work.ranges())
        works = []
        for index, (part, tasks) in enumerate(ranges):
            reporting = (
                None
                if owner is None
                else self._journal.reporting(compaction.id, index, owner.id, owner.last_heartbeat_ms)
            )
            done = recorded[index].outputs if recorded else ()
            batch = replace(work.batch(index, tasks, reporting), done=done)
            works.append(RangeWork(part, execute_rewrites, batch, work.cost_bytes(tasks)))
        return RangeJob(tuple(works))

    def _planned(self, table: Table, spec: ChunkSpec) -> Listing:
        planned = table.metadata.snapshot_by_id(spec.snapshot_id)
        if planned is None:
            raise Refused(f"{self.url}: the planned snapshot {spec.snapshot_id} has expired; plan again")
        return list_snapshot(table, planned, self._cache).only(set(spec.inputs))

    def outcome(self, result: TaskResult) -> RangeOutcome:
        return RangeOutcome(
            outputs=result.outputs,
            bytes_read=result.bytes_read,
            bytes_written=result.bytes_written,
            rows={"rows_out": result.rows},
            cpu_s=result.cpu_s,
            peak_memory_bytes=result.peak_memory_bytes,
        )


def _lane_of(new: NewFile, spec: ChunkSpec) -> Lane:
    return spec.part_of(new.sources[0] if new.sources else 0).lane


def _metadata_of(state: TableState) -> TableMetadata | None:
    return None if state.source is None else state.source.metadata
