"""A SlateDB database as a dataset: reads and publishes its manifest and its ledger.

Commit, as one atomic step for any number of compactions (SlateDB format: manifest commit):

1. Read the latest manifest; stop if its compactor epoch is not ours.
2. Validate every compaction against it; refused ones are left out.
3. Publish the unmodified manifest plus a checkpoint that pins exactly this version, so that readers
   and iterators keep the inputs they are using until it expires.
4. Publish the transformed manifest.

On a conflict, step 3 or 4 starts again from the latest manifest, with the checks of 1 and 2. A version
that another party slips in between 3 and 4 needs no second checkpoint: the inputs are pinned already,
unless so much time has passed that the checkpoint has expired or soon will; then 3 is done again.

The new manifest is always a function of the latest one and the compactions, never of an older one we
remember, so whatever the writer, readers or garbage collectors published meanwhile stays.
"""

from __future__ import annotations

import binascii
import random
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from lithify.clock import Clock
from lithify.compaction.contract import Job, Plan, Pressure, RangeOutcome, RangeWork
from lithify.compaction.model import Compaction, Ledger, State
from lithify.compaction.presence import CoordinatorStatus
from lithify.datasets.coordinating import lease_key
from lithify.datasets.history import LedgerHistory
from lithify.datasets.journal import ObjectJournal
from lithify.datasets.slatedb.hooks import load_compaction_filter, load_merge_operator
from lithify.datasets.slatedb.ledger import SlateCompaction, SlateLedger, decode_ledger, encode_ledger
from lithify.datasets.slatedb.manifest import decode_manifest, encode_manifest
from lithify.datasets.slatedb.model import (
    Checkpoint,
    Codec,
    KeyRange,
    Manifest,
    Spec,
    Sst,
    TieredSpec,
    Tree,
    View,
    tree_label,
)
from lithify.datasets.slatedb.paths import COMPACTIONS_SUFFIX, MANIFEST_SUFFIX, DatabasePaths
from lithify.datasets.slatedb.plan import FullRequest, TieredPolicy, propose, propose_full
from lithify.datasets.slatedb.presence import judge as judge_coordinator
from lithify.datasets.slatedb.pressure import pressure
from lithify.datasets.slatedb.task import MergeTask, RowRules, SourceSst, SstOptions, TaskResult
from lithify.datasets.slatedb.timeline import SegmentTimes, propose_by_time
from lithify.datasets.slatedb.transform import (
    apply_compaction,
    apply_trivial_move,
    is_trivial_move,
    with_checkpoint,
)
from lithify.datasets.slatedb.validate import older_l0_left, validate
from lithify.errors import CorruptObject, Fenced, ObjectNotFound, Refused, StoreError
from lithify.ids import Ids, Ulid, ulid_from_int, ulid_ms
from lithify.store.leases import read_lease
from lithify.store.objects import ObjectStore
from lithify.store.versions import Version, VersionedFiles

MAX_PINS = 5
"""Times the inputs of a commit are pinned anew because it took too long."""
MAX_MANIFESTS = 64
"""How many of the newest manifests are searched for outputs."""

_NO_COMPACTION = ulid_from_int(0)


@dataclass(frozen=True, slots=True)
class SlateOptions:
    """How compactions of this database are planned and written."""

    policy: TieredPolicy = field(default_factory=TieredPolicy)
    segment_times: SegmentTimes | None = None
    """Where segments are buckets of time: merge each once, when it is over."""
    l0_max_ssts: int = 8
    """The writer's limit, at which it stalls."""
    checkpoint_lifetime_s: int = 900
    enable_trivial_move: bool = False
    """Make sources that cannot show the same key one run without reading them. What could go from them
    (deleted and expired rows) stays until they are merged."""
    max_sst_size: int = SstOptions().max_sst_size
    block_size: int | None = None
    """Bytes; `None` keeps the size the inputs were written with."""
    compression: Codec | None = None
    """`None` keeps the codec of the newest input."""
    min_filter_keys: int = SstOptions().min_filter_keys
    merge_operator: str | None = None
    compaction_filter: str | None = None

    def __post_init__(self) -> None:
        """`Refused` for what no task could carry out, before anything is written."""
        if self.block_size is not None:
            _check_block_size(self.block_size)
        if self.max_sst_size < 1:
            raise Refused(f"max_sst_size is {self.max_sst_size} bytes; it must be at least 1")
        if self.merge_operator is not None:
            load_merge_operator(self.merge_operator)
        if self.compaction_filter is not None:
            load_compaction_filter(self.compaction_filter)


def _check_block_size(block_size: int) -> None:
    from lithify.datasets.slatedb.split import BLOCK_SIZES  # with the compiler, which few commands need

    if block_size not in BLOCK_SIZES:
        sizes = ", ".join(map(str, BLOCK_SIZES))
        raise Refused(f"a block size of {block_size} bytes does not exist in SlateDB; use one of {sizes}")


class SlateDataset:
    """One SlateDB database under the key `root` of `store`."""

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
        self._rng = rng if rng is not None else random.Random()
        self._store_options = dict(store_options or {})
        self._manifests = VersionedFiles(
            store, self.paths.manifest_folder, MANIFEST_SUFFIX, self.paths.manifest_boundary, ids
        )
        self._ledgers = VersionedFiles(
            store, self.paths.compactions_folder, COMPACTIONS_SUFFIX, self.paths.compactions_boundary, ids
        )
        self._decoded: dict[str, tuple[int, Any]] = {}
        self._journal = ObjectJournal(store, root, clock, ids)

    @property
    def url(self) -> str:
        root = self.store.url
        return f"{root}{'' if root.endswith('/') else '/'}{self.paths.root}"

    @property
    def journal(self) -> ObjectJournal:
        return self._journal

    # Reading

    def snapshot(self) -> Manifest:
        """The latest manifest; `Refused` when there is no database."""
        return self._manifest_of(self._manifests.latest())

    def manifest(self, manifest_id: int) -> Manifest:
        """One version of the manifest, as a checkpoint pins it."""
        return decode_manifest(self._manifests.read(manifest_id), self._manifests.key(manifest_id))

    def latest_manifest(self) -> tuple[int, Manifest]:
        """The latest manifest and its id."""
        version = self._manifests.latest()
        manifest = self._manifest_of(version)
        assert version is not None
        return version.id, manifest

    def manifest_ids(self) -> list[int]:
        """The numbers of all manifests that exist, ascending."""
        return self._manifests.ids()

    def ledger_ids(self) -> list[int]:
        """The numbers of all compactions files that exist, ascending."""
        return self._ledgers.ids()

    def ledger(self) -> SlateLedger | None:
        """The latest ledger; `None` when no coordinator ever ran."""
        version = self._ledgers.latest()
        if version is None:
            return None
        return cast(SlateLedger, self._decode(self._ledgers, version, decode_ledger))

    def _manifest_of(self, version: Version | None) -> Manifest:
        if version is None:
            raise Refused(f"there is no SlateDB database at {self.url}: no manifest was found; check the URL")
        return cast(Manifest, self._decode(self._manifests, version, decode_manifest))

    def _decode(self, files: VersionedFiles, version: Version, decode: Callable[[bytes, str], Any]) -> Any:
        key = files.key(version.id)
        cached = self._decoded.get(files.folder)
        if cached is None or cached[0] != version.id:
            cached = (version.id, decode(version.data, key))
            self._decoded[files.folder] = cached
        return cached[1]

    # Publishing

    def take_epoch(self) -> int:
        """Fence every older coordinator, and make sure there is a ledger."""
        ledger = self.ledger()
        taken = 0

        def raise_epoch(version: Version | None) -> bytes:
            nonlocal taken
            manifest = self._manifest_of(version)
            if not manifest.initialized:
                raise Refused(
                    f"{self.url} is a clone that is not initialized yet; "
                    "open it with SlateDB once, then try again"
                )
            taken = manifest.compactor_epoch + 1
            if ledger is not None and ledger.epoch >= taken:
                raise CorruptObject(
                    self.paths.compactions_folder,
                    f"its epoch {ledger.epoch} is ahead of the manifest's {taken - 1}; "
                    "was the manifest restored from a backup without it?",
                )
            return encode_manifest(replace(manifest, compactor_epoch=taken))

        self._manifests.update(raise_epoch, self._clock, self._rng)
        self._ledgers.update(
            lambda version: encode_ledger(Ledger()) if version is None else None, self._clock, self._rng
        )
        return taken

    def update_ledger(self, change: Callable[[SlateLedger], SlateLedger]) -> SlateLedger:
        """Apply `change` to the latest ledger and publish it; see the contract."""
        changed: SlateLedger = Ledger()

        def apply(version: Version | None) -> bytes | None:
            nonlocal changed
            if version is None:
                raise Refused(f"{self.url} has no compactions file; start a coordinator first")
            ledger = self._decode(self._ledgers, version, decode_ledger)
            changed = change(ledger)
            return encode_ledger(changed) if changed != ledger else None

        self._ledgers.update(apply, self._clock, self._rng)
        return changed

    def commit(self, compactions: Sequence[SlateCompaction], epoch: int) -> Mapping[Ulid, str | None]:
        """Publish the outputs of all `compactions` that are still valid."""
        verdicts: Mapping[Ulid, str | None] = {}
        pin: Checkpoint | None = None
        is_done = False

        def judge(version: Version | None) -> tuple[Manifest, Manifest | None]:
            nonlocal verdicts
            manifest = self._manifest_of(version)
            self._check_epoch(manifest, epoch)
            verdicts, result = _judge(compactions, manifest)
            return manifest, result

        def pin_inputs(version: Version | None) -> bytes | None:
            nonlocal pin
            manifest, result = judge(version)
            assert version is not None
            if result is None:
                return None
            pin = self._new_checkpoint(version.id + 1)
            return encode_manifest(with_checkpoint(manifest, pin))

        def publish_outputs(version: Version | None) -> bytes | None:
            nonlocal is_done
            manifest, result = judge(version)
            is_done = result is None or self._is_fresh(pin, manifest)
            return encode_manifest(result) if is_done and result is not None else None

        for _ in range(MAX_PINS):
            self._manifests.update(pin_inputs, self._clock, self._rng)
            self._manifests.update(publish_outputs, self._clock, self._rng)
            if is_done:
                return verdicts
        raise StoreError(
            f"{self.url}: {MAX_PINS} times a checkpoint of the inputs was too old before the outputs "
            f"could be published; is the store very slow, or a checkpoint_lifetime of "
            f"{self.options.checkpoint_lifetime_s} s too short?"
        )

    def _is_fresh(self, pin: Checkpoint | None, manifest: Manifest) -> bool:
        """Whether the checkpoint is still there, with at least half of its life before it."""
        if pin is None or pin not in manifest.checkpoints:
            return False
        age_s = self._clock.now_ms() // 1000 - pin.create_time_s
        return 2 * age_s <= self.options.checkpoint_lifetime_s

    def _new_checkpoint(self, manifest_id: int) -> Checkpoint:
        now_s = self._clock.now_ms() // 1000
        return Checkpoint(self._ids.uuid(), manifest_id, now_s + self.options.checkpoint_lifetime_s, now_s)

    def _check_epoch(self, manifest: Manifest, epoch: int) -> None:
        if manifest.compactor_epoch != epoch:
            raise Fenced(
                f"another coordinator (epoch {manifest.compactor_epoch}) has taken over {self.url}; "
                f"this one (epoch {epoch}) stops"
            )

    # Looking

    def history(self) -> LedgerHistory:
        return LedgerHistory(self.store, self.paths.compactions_folder, COMPACTIONS_SUFFIX, decode_ledger)

    def coordinator(self, now_ms: int) -> CoordinatorStatus:
        epoch = self.snapshot().compactor_epoch
        return judge_coordinator(epoch, read_lease(self.store, lease_key(self.paths.root)), now_ms)

    def pressure(self, snapshot: Manifest, now_ms: int) -> tuple[Pressure, ...]:
        return pressure(snapshot, now_ms, self.options.l0_max_ssts)

    def cost_bytes(self, spec: Spec, snapshot: Manifest) -> int:
        tree = snapshot.tree(spec.segment)
        if tree is None or not isinstance(spec, TieredSpec):
            return 0
        groups = source_views(tree, spec) or ()
        return sum(view.sst.size_bytes for group in groups for view in group)

    def was_committed(self, compaction: SlateCompaction) -> bool:
        """Whether one of the newest manifests has its outputs as a run."""
        for manifest_id in reversed(self.manifest_ids()[-MAX_MANIFESTS:]):
            try:
                if is_committed(compaction, self.manifest(manifest_id)):
                    return True
            except ObjectNotFound:  # collected since it was listed
                return False
        return False

    # Deciding

    def unit(self, spec: Spec) -> str:
        return tree_label(spec.segment)

    def newest_ms(self, snapshot: Manifest) -> int:
        """By the writer's own ids; those of outputs are minted by workers."""
        trees = snapshot.trees()
        l0 = [view.id for tree in trees for view in tree.l0]
        l0 += [tree.last_compacted_l0 for tree in trees if tree.last_compacted_l0 is not None]
        return max(map(ulid_ms, l0 or [view.sst.id for tree in trees for view in tree.views()]), default=0)

    def sources(self, spec: Spec) -> frozenset[str]:
        where = f" of {self.unit(spec)}" if spec.segment else ""
        names = (*spec.l0_view_ids, *(f"run {run_id}" for run_id in spec.sorted_runs))
        return frozenset(f"{name}{where}" for name in names)

    def encode_spec(self, spec: Spec) -> str:
        """A ledger with nothing but this spec, in base 64."""
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

    def propose(self, snapshot: Manifest, ledger: SlateLedger) -> Plan:
        policy, times = self.options.policy, self.options.segment_times
        if times is None:
            return propose(snapshot, ledger, policy)
        return propose_by_time(snapshot, ledger, policy, times, self._clock.now_ms())

    def planner(
        self, *, full: bool = False, segment: bytes | None = None
    ) -> Callable[[Manifest, SlateLedger], Plan]:
        """The planner of one run: all that exists at its first call as one run for each tree
        (`full`), or whatever the scheduler finds; everywhere, or in one segment."""
        request: FullRequest | None = None

        def plan(snapshot: Manifest, ledger: SlateLedger) -> Plan:
            nonlocal request
            if not full and segment is None:
                return self.propose(snapshot, ledger)
            if not full:
                return propose(snapshot, ledger, self.options.policy, segment)
            if request is None:
                request = FullRequest.of(snapshot, segment)
            return propose_full(snapshot, ledger, self.options.policy, request)

        return plan

    def validate(self, compaction: SlateCompaction, snapshot: Manifest, ledger: SlateLedger) -> str | None:
        return validate(compaction, snapshot, ledger)

    def needs_worker(self, compaction: SlateCompaction, snapshot: Manifest) -> bool:
        spec = compaction.spec
        if not isinstance(spec, TieredSpec):
            return False
        return not (self.options.enable_trivial_move and is_trivial_move(snapshot, spec))

    # Executing

    def prepare(self, compaction: SlateCompaction, snapshot: Manifest) -> Job:
        """Cut the compaction into ranges of about one output SST each."""
        from lithify.datasets.slatedb.execute import execute_merge  # with the compiler, which few need
        from lithify.datasets.slatedb.split import plan_ranges

        spec = compaction.spec
        assert isinstance(spec, TieredSpec)
        tree = snapshot.tree(spec.segment)
        if tree is None:
            raise Refused(f"compaction {compaction.id}: {self.unit(spec)} is gone from the manifest")
        groups = source_views(tree, spec)
        if groups is None:
            raise Refused(f"compaction {compaction.id}: its sources are gone from the manifest")
        if left := older_l0_left(spec, tree):
            raise Refused(f"compaction {compaction.id}: {left}; it is not carried out")
        locate = _Locator(self.store, self.paths, snapshot)
        sources = tuple(
            tuple(SourceSst(locate(v), v.sst, v.visible_range or KeyRange()) for v in group)
            for group in groups
            if group
        )
        if not sources:
            return Job(())
        progress = compaction.progress
        sst_options, cut = plan_ranges(
            self.store,
            sources if progress is None else _largest(sources),  # the ranges are known then
            self._sst_options(sources),
            self.options.block_size,
        )
        ranges = (
            [(r, ()) for r in cut] if progress is None else [(r.range, r.outputs) for r in progress.ranges]
        )
        horizon = (
            progress.retention_min_seq
            if progress is not None and progress.retention_min_seq is not None
            else snapshot.recent_snapshot_min_seq
        )
        rules = RowRules(
            is_last_run=not tree.runs or tree.runs[-1].id == spec.destination,
            clock_tick_ms=snapshot.last_l0_clock_tick,
            retention_min_seq=horizon,
            merge_operator=self.options.merge_operator,
            compaction_filter=self.options.compaction_filter,
        )
        cost_bytes = sum(s.sst.info.data_end for group in sources for s in group) // len(ranges)
        owner = compaction.worker
        works = tuple(
            RangeWork(
                key_range,
                execute_merge,
                MergeTask(
                    store_url=self.store.url,
                    store_options=self._store_options,
                    output_folder=self.paths.compacted_folder,
                    min_output_ms=ulid_ms(compaction.id),
                    sources=sources,
                    range=key_range,
                    rules=rules,
                    options=sst_options,
                    resume_outputs=outputs,
                    reporting=None
                    if owner is None
                    else self._journal.reporting(compaction.id, index, owner.id, owner.last_heartbeat_ms),
                ),
                cost_bytes,
            )
            for index, (key_range, outputs) in enumerate(ranges)
        )
        return Job(works, horizon)

    def _sst_options(self, sources: Sequence[Sequence[SourceSst]]) -> SstOptions:
        compression = self.options.compression
        return SstOptions(
            max_sst_size=self.options.max_sst_size,
            compression=sources[0][0].sst.info.compression if compression is None else compression,
            min_filter_keys=self.options.min_filter_keys,
        )

    def outcome(self, result: TaskResult) -> RangeOutcome:
        return RangeOutcome(
            outputs=result.outputs,
            bytes_read=result.bytes_read,
            bytes_written=result.bytes_written,
            rows=asdict(result.rows),
            cpu_s=result.cpu_s,
            peak_memory_bytes=result.peak_memory_bytes,
        )


def _largest(sources: Sequence[Sequence[SourceSst]]) -> tuple[tuple[SourceSst, ...], ...]:
    """The largest SST alone, which tells the block size."""
    return ((max((part for source in sources for part in source), key=lambda p: p.sst.info.data_end),),)


def source_views(tree: Tree, spec: TieredSpec) -> tuple[tuple[View, ...], ...] | None:
    """The views of a spec's sources, newest source first; `None` when one is missing."""
    # By position, not by id: in a clone of several databases one view id may stand for two views.
    l0 = [view for view in tree.l0 if view.id in spec.l0_view_ids]
    runs = [run for run in tree.runs if run.id in spec.sorted_runs]
    if {v.id for v in l0} != set(spec.l0_view_ids) or {r.id for r in runs} != set(spec.sorted_runs):
        return None
    return (*((view,) for view in l0), *(run.views for run in runs))


def _judge(
    compactions: Sequence[SlateCompaction], manifest: Manifest
) -> tuple[dict[Ulid, str | None], Manifest | None]:
    """Validate each compaction against the manifest as the earlier ones of the batch leave it.

    Gives why each was refused (`None`: it is in) and the new manifest (`None`: nothing to publish).
    A compaction whose outputs already are the destination run was committed before a crash or
    behind a lost answer: SST ids are random, so nothing else can have put them there.
    """
    verdicts: dict[Ulid, str | None] = {}
    result: Manifest | None = None
    for compaction in compactions:
        if is_committed(compaction, manifest):
            verdicts[compaction.id] = None
            continue
        refusal = validate(compaction, manifest, Ledger(0, (compaction,)))
        verdicts[compaction.id] = refusal
        if refusal is None:
            manifest = result = _apply(manifest, compaction)
    return verdicts, result


def _apply(manifest: Manifest, compaction: SlateCompaction) -> Manifest:
    spec = compaction.spec
    if isinstance(spec, TieredSpec) and compaction.state is State.SUBMITTED:
        return apply_trivial_move(manifest, spec)  # no worker was needed
    return apply_compaction(manifest, spec, compaction.outputs)


def is_committed(compaction: SlateCompaction, manifest: Manifest) -> bool:
    """Whether the destination run consists of this compaction's outputs, or of the L0 views it moved."""
    spec = compaction.spec
    tree = manifest.tree(spec.segment)
    if tree is None or not isinstance(spec, TieredSpec):
        return False
    run = next((run for run in tree.runs if run.id == spec.destination), None)
    if run is None:
        return False
    if compaction.state is State.SUBMITTED:
        return bool(spec.l0_view_ids) and {view.id for view in run.views}.issuperset(spec.l0_view_ids)
    outputs = [sst.id for sst in compaction.outputs]
    return bool(outputs) and [view.sst.id for view in run.views] == outputs


class _Locator:
    """Finds the object of an SST: in the database's own folder, or in another database's that a
    clone still reads. That other path is relative to the root of the store its client used, which
    may be any folder above the clone, so the folders are tried from the top."""

    def __init__(self, store: ObjectStore, paths: DatabasePaths, manifest: Manifest) -> None:
        self._store = store
        self._paths = paths
        self._external = {sst_id: db.path for db in manifest.external_dbs for sst_id in db.sst_ids}
        self._bases: dict[str, str] = {}

    def __call__(self, view: View) -> str:
        path = self._external.get(view.sst.id)
        if path is None:
            return self._paths.sst(view.sst.id)
        base = self._bases.get(path)
        if base is not None:
            return DatabasePaths(base).sst(view.sst.id)
        parts = self._paths.root.split("/")
        for depth in range(len(parts)):
            base = "/".join([*parts[:depth], path.strip("/")])
            key = DatabasePaths(base).sst(view.sst.id)
            try:
                self._store.head(key)
            except ObjectNotFound:
                continue
            self._bases[path] = base
            return key
        raise Refused(
            f"SST {view.sst.id} of the database at {path!r} was not found from the store {self._store.url}; "
            "a clone must be compacted through the same store as its parent"
        )
