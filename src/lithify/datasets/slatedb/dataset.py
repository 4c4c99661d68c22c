"""A SlateDB database as a dataset: `DatasetPort`, assembled from its parts.

The parts are the numbered files (`files`), the planners (`plan`, `timeline`), validation (`validate`),
splitting into ranges (`prepare`) and the commit (`commit`).
"""

from __future__ import annotations

import binascii
import random
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING
from urllib.parse import quote

from lithify.base.backlog import Backlog
from lithify.base.clock import Clock
from lithify.base.concurrency import both
from lithify.base.errors import CorruptObject, ObjectNotFound, Refused
from lithify.base.ids import Ids, Ulid, ulid_from_int, ulid_ms
from lithify.coordination.leases import ObjectLease
from lithify.coordination.ledger_history import LedgerHistory
from lithify.coordination.observers import DatasetObservers
from lithify.coordination.sidecar import ObjectJournal, Reporting
from lithify.datasets.kind import DatasetPort
from lithify.datasets.slatedb.compaction.commit import Commit, is_committed
from lithify.datasets.slatedb.compaction.sources import source_views
from lithify.datasets.slatedb.compaction.task import TaskResult, read_output
from lithify.datasets.slatedb.compaction.transform import (
    is_trivial_move,
)
from lithify.datasets.slatedb.compaction.validate import parallel_l0, validate, why_unclaimable
from lithify.datasets.slatedb.files import DatabaseFiles
from lithify.datasets.slatedb.format.clients import why_too_old
from lithify.datasets.slatedb.format.ledger import SlateCompaction, SlateLedger, decode_ledger, encode_ledger
from lithify.datasets.slatedb.format.paths import COMPACTIONS_SUFFIX, DatabasePaths
from lithify.datasets.slatedb.format.transformed import check_not_transformed
from lithify.datasets.slatedb.model import (
    KeyRange,
    Manifest,
    Spec,
    Sst,
    TieredSpec,
    tree_label,
)
from lithify.datasets.slatedb.options import SlateOptions
from lithify.datasets.slatedb.planning.backlog import backlog
from lithify.datasets.slatedb.planning.plan import FullRequest, priority, propose, propose_full, source_names
from lithify.datasets.slatedb.planning.timeline import SegmentTimeline, propose_by_time, show_segments
from lithify.planning.admission import UNBOUNDED_BYTES, Capacity
from lithify.protocol.lease import EpochClaim, EpochHeld, Lease, Permit, Tries, judge_lease, next_epoch
from lithify.protocol.model import Compaction, Ledger
from lithify.protocol.presence import CoordinatorStatus, Presence
from lithify.protocol.proposal import NOTHING_HELD, Held, Plan, Planner, TaskIdentity
from lithify.protocol.work import RangeJob, RangeOutcome
from lithify.store.keys import url_of
from lithify.store.objects import ObjectStore
from lithify.store.times import StoreTime, store_now_ms
from lithify.store.versions import PendingVersion

if TYPE_CHECKING:
    from lithify.datasets.slatedb.compaction.prepare import CompactionPreparer

MOMENT_S = 1.0
"""How long files once read need not be read again before an epoch is taken: anything published meanwhile
makes taking it a conflict."""
MAX_MANIFESTS = 64
"""How many of the newest manifests are searched for outputs."""

__all__ = ["SlateDataset", "SlateOptions"]

_NO_COMPACTION = ulid_from_int(0)


class SlateDataset(DatasetPort[Manifest, Spec, KeyRange, Sst]):
    """The SlateDB database under the key `root` of `store`."""

    def __init__(
        self,
        store: ObjectStore,
        root: str,
        clock: Clock,
        ids: Ids,
        *,
        store_options: Mapping[str, str] | None = None,
        options: SlateOptions | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.store = store
        self.paths = DatabasePaths(root)
        self.options = options if options is not None else SlateOptions()
        self._clock = clock
        self._ids = ids
        self._store_options = dict(store_options or {})
        self._files = DatabaseFiles(
            store, self.paths, self.url, clock, ids, rng if rng is not None else random.Random()
        )
        self._observers = DatasetObservers()
        self._journal = ObjectJournal(store, self.paths.own_folder, clock, ids, self._observers)
        self._lease = ObjectLease(store, self.paths.own_folder, clock, self._observers)
        self._store_time = StoreTime(store, self.paths.time_key, clock)
        self._glanced_s = -inf
        self._tries = Tries()

    @property
    def url(self) -> str:
        # The URL names the same place when parsed again, whatever characters the path has.
        return url_of(self.store.url, re.sub(r"[%?#\t\n\r]", lambda odd: quote(odd[0]), self.paths.root))

    @property
    def observers(self) -> DatasetObservers:
        return self._observers

    @property
    def journal(self) -> ObjectJournal:
        return self._journal

    @property
    def lease(self) -> ObjectLease:
        return self._lease

    # Reading

    def snapshot(self) -> Manifest:
        """Return the latest manifest. Raise `Refused` if there is no database."""
        return self._observers.snapshot(self._read_snapshot())

    def _read_snapshot(self) -> Manifest:
        return self._files.latest_manifest()[1]

    def manifest(self, manifest_id: int) -> Manifest:
        """Return one version of the manifest, as a checkpoint pins it."""
        return self._files.manifest(manifest_id)

    def latest_manifest(self) -> tuple[int, Manifest]:
        """Return the latest manifest and its id."""
        return self._files.latest_manifest()

    def manifest_ids(self) -> list[int]:
        """Return the numbers of all existing manifests, ascending."""
        return self._files.manifest_ids()

    def ledger_ids(self) -> list[int]:
        """Return the numbers of all existing compactions files, ascending."""
        return self._files.ledger_ids()

    def ledger(self) -> SlateLedger | None:
        """Return the latest ledger, or `None` if no coordinator ever ran."""
        return self._observers.ledger(self._files.ledger())

    def glance(self) -> tuple[SlateLedger | None, Manifest]:
        self._glanced_s = self._clock.monotonic_s()
        return self._observers.both(*self._files.glance())

    def known(self) -> tuple[SlateLedger | None, Manifest]:
        return self._observers.both(*self._files.known())

    # Publishing

    def update_ledger(
        self, change: Callable[[SlateLedger], SlateLedger], first: SlateLedger | None = None
    ) -> SlateLedger:
        """Apply `change` to the latest ledger and publish it; see the contract."""
        return self._observers.ledger(self._files.update_ledger(change, first))

    def write_ledger(
        self, change: Callable[[SlateLedger], SlateLedger], first: SlateLedger | None = None
    ) -> tuple[SlateLedger, PendingVersion]:
        """Do the same without waiting for the proof that the version is valid; see the contract."""
        ledger, counts = self._files.write_ledger(change, first)
        return self._observers.ledger(ledger), counts

    def commit(
        self,
        compactions: Sequence[SlateCompaction],
        epoch: int,
        tell_dropped: Callable[[Ulid, str], None] = lambda compaction_id, reason: None,
    ) -> Mapping[Ulid, str | None]:
        """Publish the outputs of all `compactions` that are still valid, each whole or not at all."""
        lifetime_s = self.options.checkpoint_lifetime_s
        return Commit(self._files, self._latest_ms, self._ids, epoch, lifetime_s).publish(compactions)

    def _latest_ms(self) -> int:
        """Return the time by this machine's clock or the store's, whichever is ahead."""
        times = self._lease.times
        if not times.is_known:  # no coordinator leads here, or an answer was lost
            sent = times.sent()
            times.saw(store_now_ms(self.store, self.paths.time_key), sent)
        return times.latest_ms()

    # Leadership

    def epoch(self) -> int:
        """Return the compactor epoch of the manifest."""
        return self._next_epoch(*self._looked_at()) - 1

    def _looked_at(self) -> tuple[SlateLedger | None, Manifest]:
        """Return ledger and manifest, up to `MOMENT_S` old if this process has read them. The ledger is not
        ahead of the manifest unless that was lost."""
        if self._clock.monotonic_s() - self._glanced_s < MOMENT_S:
            ledger, manifest = self._files.known()
        else:
            self._glanced_s = self._clock.monotonic_s()
            ledger, manifest = both(self._files.ledger, self._read_snapshot)
        if ledger is not None and ledger.epoch > manifest.compactor_epoch:
            manifest = self._read_snapshot()
        return ledger, manifest

    def _next_epoch(self, ledger: SlateLedger | None, manifest: Manifest) -> int:
        """Return the epoch after the manifest's. Raise `Refused` for a database on which no coordinator may
        start."""
        if not manifest.initialized:
            raise Refused(
                f"{self.url} is not initialized yet: open it with SlateDB once if it is a clone; if it is "
                "a restore that was stopped, repeat that"
            )
        if too_old := why_too_old(manifest):
            raise Refused(f"{self.url}: {too_old}")
        epoch = manifest.compactor_epoch
        if ledger is not None and ledger.epoch > epoch:
            raise CorruptObject(
                self.paths.compactions_folder,
                f"its epoch {ledger.epoch} is ahead of the manifest's {epoch}; check whether the manifest "
                "was restored from a backup without it",
            )
        return next_epoch(epoch, self.paths.manifest_folder)

    def why_held(self, epoch: int, lease: Lease | None) -> EpochHeld | None:
        """Return why the epoch must not be taken, or `None`.

        Raising the epoch closes a SlateDB process that embeds a coordinator. An idle one writes nothing, so
        reading the database cannot show that there is none. No SlateDB process holds

        1. epoch 0: no coordinator has ever run;
        2. an epoch that Lithify took, as its lease proves: older ones are already fenced;
        3. the epoch of a clone without a compactions file, which is its parent's. A coordinator that takes
           the next epoch creates that file first; the oldest manifest shows that none was stopped just in
           between.
        """
        if epoch == 0 or (lease is not None and self._proves(lease, epoch)):
            return None
        if self._has_its_parents(epoch):
            return None
        return EpochHeld(
            f"a SlateDB coordinator has run on {self.url} (epoch {epoch}) and may still be running",
            "If the process that holds the database was opened with compactor_options null, or is closed, "
            "run again with --take-over; if that coordinator may be alive, run only a worker: lithify worker "
            f"{self.url}",
        )

    def _has_its_parents(self, epoch: int) -> bool:
        """Return whether this is a clone whose epoch no coordinator has raised yet."""
        if not self._read_snapshot().external_dbs or self._files.ledger() is not None:
            return False
        try:
            return self.manifest(self.manifest_ids()[0]).compactor_epoch == epoch
        except ObjectNotFound:  # collected since it was listed, together with its evidence
            return False

    def take_epoch(self, permit: Permit = lambda taking: None) -> int:
        """Fence every older coordinator."""
        ledger, manifest = self._looked_at()  # fresh if the lease was watched since
        found = self._lease.found
        if found is None or found.lease is None or found.lease.taken != manifest.compactor_epoch:
            check_not_transformed(self.store, self.paths, manifest, self.url)  # Lithify has not been here yet
        mark = self._tries.begin(self._ids.uuid().hex)

        def raise_epoch(manifest_id: int, manifest: Manifest) -> Manifest | None:
            if self._tries.has_landed(manifest.compactor_epoch, self.has_taken):
                return None  # only the answer was lost
            taking = EpochClaim(self._next_epoch(ledger, manifest), manifest_id + 1, mark)
            permit(taking)
            self._tries.made(taking)
            return replace(manifest, compactor_epoch=taking.epoch)

        self._files.update_manifest(raise_epoch, bytes.fromhex(mark))
        return self._tries.taken()

    def has_taken(self, taking: EpochClaim) -> bool:
        """Return whether the announced manifest exists and carries its mark."""
        return self._files.has_mark(taking.version, bytes.fromhex(taking.mark))

    def may_have_taken(self, taking: EpochClaim) -> bool:
        """Return whether the manifests have reached the announced one."""
        return taking.version <= self._files.known_manifest_id()

    def confirm(self) -> None:
        self._files.latest_manifest()

    def _proves(self, lease: Lease, epoch: int) -> bool:
        return lease.proves(epoch, self.has_taken, self.may_have_taken)

    # Searching

    def history(self) -> LedgerHistory:
        return LedgerHistory(self.store, self.paths.compactions_folder, COMPACTIONS_SUFFIX, decode_ledger)

    def store_ms(self) -> int | None:
        return self._store_time.now_ms()

    def coordinator(self) -> CoordinatorStatus:
        found = self._lease.peek()
        epoch = self._read_snapshot().compactor_epoch
        lease = None if found is None else found.lease
        if found is None or lease is None or not self._proves(lease, epoch):
            if epoch == 0:
                return CoordinatorStatus(Presence.NEVER, epoch)
            return CoordinatorStatus(Presence.FOREIGN, epoch, system="SlateDB")
        return judge_lease(epoch, lease, found.written_ms, self.store_ms)

    def backlog(self, snapshot: Manifest, now_ms: int) -> tuple[Backlog, ...]:
        return backlog(snapshot, now_ms, self.options.l0_max_ssts)

    def cost_bytes(self, spec: Spec, snapshot: Manifest) -> int:
        tree = snapshot.tree(spec.segment)
        if tree is None or not isinstance(spec, TieredSpec):
            return 0
        groups = source_views(tree, spec) or ()
        return sum(view.sst.size_bytes for group in groups for view in group)

    def was_committed(self, compaction: SlateCompaction) -> bool:
        """Return whether one of the newest manifests has the compaction's outputs as a run."""
        for manifest_id in reversed(self.manifest_ids()[-MAX_MANIFESTS:]):
            try:
                if is_committed(compaction, self.manifest(manifest_id)):
                    return True
            except ObjectNotFound:  # collected since it was listed
                return False
        return False

    # Planning

    def identify(self, spec: Spec) -> TaskIdentity:
        tree = tree_label(spec.segment)
        target = f"run {spec.destination}" if isinstance(spec, TieredSpec) else "drained"
        inputs = frozenset(source_names(spec.segment, spec.l0_view_ids, spec.sorted_runs))
        return TaskIdentity(f"{tree}, {target}", tree, inputs, inputs)

    def capacity(self, snapshot: Manifest) -> Capacity:
        """Return the capacity. The planner respects it as well: its later choices depend on its earlier
        ones."""
        return Capacity(self.options.policy.max_concurrent_compactions, max_running_bytes=UNBOUNDED_BYTES)

    def newest_ms(self, snapshot: Manifest) -> int:
        """Return the time of the newest data, from the writer's own ids; workers mint the ids of outputs."""
        trees = snapshot.trees()
        l0 = [view.id for tree in trees for view in tree.l0]
        l0 += [tree.last_compacted_l0 for tree in trees if tree.last_compacted_l0 is not None]
        return max(map(ulid_ms, l0 or [view.sst.id for tree in trees for view in tree.views()]), default=0)

    def priority(self, spec: Spec, snapshot: Manifest) -> float:
        return priority(spec, snapshot, self.options.policy)

    def encode_spec(self, spec: Spec) -> str:
        """Encode a ledger with only this spec, in base 64."""
        return b64encode(encode_ledger(Ledger(0, (Compaction(_NO_COMPACTION, spec),)))).decode()

    def decode_spec(self, text: str) -> Spec:
        try:
            (compaction,) = decode_ledger(b64decode(text, validate=True), "spec").compactions
        except (binascii.Error, ValueError) as error:
            raise CorruptObject("spec", "this text is not the spec of a compaction") from error
        return compaction.spec

    def output_name(self, output: Sst) -> str:
        return output.id

    def output_bytes(self, output: Sst) -> int:
        return output.size_bytes

    def propose(self, snapshot: Manifest, ledger: SlateLedger, held: Held = NOTHING_HELD) -> Plan:
        policy, times = self.options.policy, self.options.segment_times
        if times is None:
            plan = propose(snapshot, ledger, policy, held=held)
        else:
            plan = propose_by_time(snapshot, ledger, policy, times, self._clock.now_ms(), held)
        too_old = why_too_old(snapshot)
        return plan if too_old is None else replace(plan, notes=(*plan.notes, f"{self.url}: {too_old}"))

    def segments(self, snapshot: Manifest, ledger: SlateLedger) -> SegmentTimeline | None:
        """Return the segments as a timeline, or `None` if no setting gives their times (pure)."""
        policy, times = self.options.policy, self.options.segment_times
        if times is None:
            return None
        return show_segments(snapshot, ledger, policy, times, self._clock.now_ms())

    def save_planner_state(self, plan: Plan, shed: Sequence[Spec], *, is_queue_empty: bool) -> None:
        """Do nothing: the planner of databases has no memory."""

    def planner(self, *, full: bool = False, segment: bytes | None = None) -> Planner:
        """Return the planner of one run. With `full`, it merges everything that exists at its first call into
        one run for each tree; otherwise it proposes what the scheduler finds. `segment` restricts it to one
        segment."""
        request: FullRequest | None = None

        def plan(snapshot: Manifest, ledger: SlateLedger, held: Held = NOTHING_HELD, /) -> Plan:
            nonlocal request
            if not full and segment is None:
                return self.propose(snapshot, ledger, held)
            if not full:
                return propose(snapshot, ledger, self.options.policy, segment, held)
            if request is None:
                request = FullRequest.of(snapshot, segment)
            return propose_full(snapshot, ledger, self.options.policy, request, held)

        return plan

    def validate(self, compaction: SlateCompaction, snapshot: Manifest, ledger: SlateLedger) -> str | None:
        # A compaction that is already committed, but not yet so in the ledger, has lost its sources.
        return None if is_committed(compaction, snapshot) else validate(compaction, snapshot, ledger)

    def needs_worker(self, compaction: SlateCompaction, snapshot: Manifest) -> bool:
        spec = compaction.spec
        if not isinstance(spec, TieredSpec) or is_committed(compaction, snapshot):
            return False
        return not (self.options.enable_trivial_move and is_trivial_move(snapshot, spec))

    # Executing

    def why_unclaimable(self, compaction: SlateCompaction, ledger: SlateLedger) -> str | None:
        """Return why a compaction must wait for another one of L0 SSTs of the same tree."""
        parallel = parallel_l0(compaction, ledger)
        return why_unclaimable(compaction, parallel, self._read_snapshot()) if parallel else None

    def prefetch(self, spec: Spec, snapshot: Manifest) -> None:
        compaction: SlateCompaction = Compaction(_NO_COMPACTION, spec)
        if self.needs_worker(compaction, snapshot):
            self._preparation.prefetch(compaction, snapshot)

    @cached_property
    def _preparation(self) -> CompactionPreparer:
        from lithify.datasets.slatedb.compaction.prepare import (
            CompactionPreparer,  # imports the compiler, which few commands need
        )

        return CompactionPreparer(self.store, self.paths, self._store_options, self.options)

    def prepare(self, compaction: SlateCompaction, snapshot: Manifest, slots: int = 0) -> RangeJob:
        """Split the compaction into ranges of about one output SST each, or smaller ones if slots are
        free."""
        owner = compaction.worker
        if too_old := why_too_old(snapshot):
            raise Refused(f"compaction {compaction.id}: {too_old}")

        def reporting(index: int) -> Reporting | None:
            if owner is None:
                return None
            return self._journal.reporting(compaction.id, index, owner.id, owner.last_heartbeat_ms)

        ledger = self._files.known()[0]
        parallel = () if ledger is None else parallel_l0(compaction, ledger)
        return self._preparation.prepare(compaction, snapshot, reporting, slots, parallel)

    def outcome(self, result: TaskResult) -> RangeOutcome:
        return RangeOutcome(
            outputs=tuple(
                read_output(self.store, self.paths.compacted_folder, sst) for sst in result.outputs
            ),
            bytes_read=result.bytes_read,
            bytes_written=result.bytes_written,
            rows=asdict(result.rows),
            cpu_s=result.cpu_s,
            peak_memory_bytes=result.peak_memory_bytes,
        )
