"""A SlateDB database as a dataset: reads and publishes its manifest and its ledger.

Commit, as one atomic step for any number of compactions (SlateDB format: manifest commit):

1. Read the latest manifest; stop if its compactor epoch is not ours.
2. Validate every compaction against it; refused ones are left out.
3. Publish the unmodified manifest plus a checkpoint that pins exactly this version, so that readers
   and iterators keep the inputs they are using until it expires.
4. Publish the transformed manifest. On a conflict go back to 1; the checkpoint is kept if it is still
   there, since the version it pins lists the inputs.

The new manifest is always a function of the latest one and the compactions, never of an older one we
remember, so whatever the writer, readers or garbage collectors published meanwhile stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lithify.clock import Clock
from lithify.compaction.contract import Job, Plan, RangeOutcome, RangeWork
from lithify.compaction.model import Ledger
from lithify.datasets.slatedb.execute import execute_merge
from lithify.datasets.slatedb.ledger import SlateCompaction, SlateLedger, decode_ledger, encode_ledger
from lithify.datasets.slatedb.manifest import decode_manifest, encode_manifest
from lithify.datasets.slatedb.model import Checkpoint, Codec, KeyRange, Manifest, Spec, TieredSpec, Tree, View
from lithify.datasets.slatedb.paths import COMPACTIONS_SUFFIX, MANIFEST_SUFFIX, DatabasePaths
from lithify.datasets.slatedb.plan import TieredPolicy, propose
from lithify.datasets.slatedb.split import plan_ranges
from lithify.datasets.slatedb.task import MergeTask, RowRules, SourceSst, SstOptions, TaskResult
from lithify.datasets.slatedb.transform import apply_compaction, with_checkpoint
from lithify.datasets.slatedb.validate import validate
from lithify.errors import CorruptObject, Fenced, ObjectNotFound, Refused, StoreError
from lithify.ids import Ids, Ulid, ulid_ms
from lithify.store.objects import ObjectStore
from lithify.store.versions import Version, VersionConflict, VersionedFiles

MAX_CONFLICTS = 100
"""Publications in a row that another party was faster with, before giving up."""

CONFLICT_PAUSE_S = 0.02
MAX_CONFLICT_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class SlateOptions:
    """How compactions of this database are planned and written."""

    policy: TieredPolicy = field(default_factory=TieredPolicy)
    checkpoint_lifetime_s: int = 900
    max_sst_size: int = SstOptions().max_sst_size
    block_size: int | None = None
    """Bytes; `None` keeps the size the inputs were written with."""
    compression: Codec | None = None
    """`None` keeps the codec of the newest input."""
    min_filter_keys: int = SstOptions().min_filter_keys
    merge_operator: str | None = None
    compaction_filter: str | None = None


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
    ) -> None:
        self.store = store
        self.paths = DatabasePaths(root)
        self.options = options if options is not None else SlateOptions()
        self._clock = clock
        self._ids = ids
        self._store_options = dict(store_options or {})
        self._manifests = VersionedFiles(
            store, self.paths.manifest_folder, MANIFEST_SUFFIX, self.paths.manifest_boundary
        )
        self._ledgers = VersionedFiles(
            store, self.paths.compactions_folder, COMPACTIONS_SUFFIX, self.paths.compactions_boundary
        )
        self._decoded: dict[str, tuple[int, Any]] = {}

    @property
    def url(self) -> str:
        return f"{self.store.url.rstrip('/')}/{self.paths.root}"

    # Reading

    def snapshot(self) -> Manifest:
        """The latest manifest; `Refused` when there is no database."""
        return self._latest_manifest()[1]

    def manifest(self, manifest_id: int) -> Manifest:
        """One version of the manifest, as a checkpoint pins it."""
        return decode_manifest(self._manifests.read(manifest_id), self._manifests.key(manifest_id))

    def latest_manifest(self) -> tuple[int, Manifest]:
        """The latest manifest and its id."""
        version, manifest = self._latest_manifest()
        return version.id, manifest

    def ledger(self) -> SlateLedger | None:
        """The latest ledger; `None` when no coordinator ever ran."""
        return self._latest_ledger()[1]

    def _latest_manifest(self) -> tuple[Version, Manifest]:
        version = self._manifests.latest()
        if version is None:
            raise Refused(f"there is no SlateDB database at {self.url}: no manifest was found; check the URL")
        return version, self._decode(self._manifests, version, decode_manifest)

    def _latest_ledger(self) -> tuple[Version | None, SlateLedger | None]:
        version = self._ledgers.latest()
        if version is None:
            return None, None
        return version, self._decode(self._ledgers, version, decode_ledger)

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
        for pause_s in self._pauses("take over the database"):
            ledger_version, ledger = self._latest_ledger()
            version, manifest = self._latest_manifest()
            if not manifest.initialized:
                raise Refused(
                    f"{self.url} is a clone that is not initialized yet; open it once, then try again"
                )
            epoch = manifest.compactor_epoch + 1
            if ledger is not None and ledger.epoch >= epoch:
                raise CorruptObject(
                    self._ledgers.key(ledger_version.id if ledger_version is not None else 0),
                    f"its epoch {ledger.epoch} is ahead of the manifest's {epoch - 1}",
                )
            try:
                self._manifests.publish(version, encode_manifest(replace(manifest, compactor_epoch=epoch)))
                break
            except VersionConflict:
                self._clock.sleep_s(pause_s)
        for pause_s in self._pauses("create the ledger"):
            if self._ledgers.latest() is not None:
                break
            try:
                self._ledgers.publish(None, encode_ledger(Ledger()))
            except VersionConflict:
                self._clock.sleep_s(pause_s)
        return epoch

    def update_ledger(self, change: Callable[[SlateLedger], SlateLedger]) -> SlateLedger:
        """Apply `change` to the latest ledger and publish it; see the contract."""
        for pause_s in self._pauses("update the ledger"):
            version, ledger = self._latest_ledger()
            if ledger is None:
                raise Refused(f"{self.url} has no compactions file; start a coordinator first")
            changed = change(ledger)
            if changed == ledger:
                return ledger
            try:
                self._ledgers.publish(version, encode_ledger(changed))
                return changed
            except VersionConflict:
                self._clock.sleep_s(pause_s)
        raise AssertionError("unreachable")

    def commit(self, compactions: Sequence[SlateCompaction], epoch: int) -> Mapping[Ulid, str | None]:
        """Publish the outputs of all `compactions` that are still valid."""
        checkpoint: Checkpoint | None = None
        for pause_s in self._pauses("commit to the manifest"):
            version, manifest = self._latest_manifest()
            self._check_epoch(manifest, epoch)
            verdicts, valid = _judge(compactions, manifest)
            if not valid:
                return verdicts
            try:
                if checkpoint is None or checkpoint not in manifest.checkpoints:
                    checkpoint = self._new_checkpoint(version.id + 1)
                    manifest = with_checkpoint(manifest, checkpoint)
                    version = self._manifests.publish(version, encode_manifest(manifest))
                for compaction in valid:
                    manifest = apply_compaction(manifest, compaction.spec, compaction.outputs)
                self._manifests.publish(version, encode_manifest(manifest))
                return verdicts
            except VersionConflict:
                self._clock.sleep_s(pause_s)
        raise AssertionError("unreachable")

    def _new_checkpoint(self, manifest_id: int) -> Checkpoint:
        now_s = self._clock.now_ms() // 1000
        return Checkpoint(self._ids.uuid(), manifest_id, now_s + self.options.checkpoint_lifetime_s, now_s)

    def _check_epoch(self, manifest: Manifest, epoch: int) -> None:
        if manifest.compactor_epoch != epoch:
            raise Fenced(
                f"another coordinator (epoch {manifest.compactor_epoch}) has taken over {self.url}; "
                f"this one (epoch {epoch}) stops"
            )

    def _pauses(self, purpose: str) -> Any:
        """Pauses in seconds before each further try; `StoreError` when they are used up."""
        pause_s = CONFLICT_PAUSE_S
        for _ in range(MAX_CONFLICTS):
            # Spread by the id's random part, so that two parties do not keep colliding.
            yield pause_s * (0.5 + (self._ids.uuid().int & 0xFFFF) / 0xFFFF)
            pause_s = min(2 * pause_s, MAX_CONFLICT_PAUSE_S)
        raise StoreError(
            f"could not {purpose} of {self.url}: another party was faster {MAX_CONFLICTS} times in a row"
        )

    # Deciding

    def unit(self, spec: Spec) -> str:
        return f"segment {spec.segment.hex()}" if spec.segment else "root"

    def propose(self, snapshot: Manifest, ledger: SlateLedger) -> Plan:
        return propose(snapshot, ledger, self.options.policy)

    def validate(self, compaction: SlateCompaction, snapshot: Manifest, ledger: SlateLedger) -> str | None:
        return validate(compaction, snapshot, ledger)

    def needs_worker(self, compaction: SlateCompaction, snapshot: Manifest) -> bool:
        return isinstance(compaction.spec, TieredSpec)

    # Executing

    def prepare(self, compaction: SlateCompaction, snapshot: Manifest) -> Job:
        """Cut the compaction into ranges of about one output SST each."""
        spec = compaction.spec
        assert isinstance(spec, TieredSpec)
        tree = snapshot.tree(spec.segment)
        if tree is None:
            raise Refused(f"compaction {compaction.id}: {self.unit(spec)} is gone from the manifest")
        groups = source_views(tree, spec)
        if groups is None:
            raise Refused(f"compaction {compaction.id}: its sources are gone from the manifest")
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
            self.store, sources, self._sst_options(groups), self.options.block_size
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
                ),
                cost_bytes,
            )
            for key_range, outputs in ranges
        )
        return Job(works, horizon)

    def outcome(self, result: TaskResult) -> RangeOutcome:
        return RangeOutcome(
            outputs=result.outputs,
            bytes_read=result.bytes_read,
            bytes_written=result.bytes_written,
            rows=asdict(result.rows),
            cpu_s=result.cpu_s,
            peak_memory_bytes=result.peak_memory_bytes,
        )


def source_views(tree: Tree, spec: TieredSpec) -> tuple[tuple[View, ...], ...] | None:
    """The views of a spec's sources, newest source first; `None` when one is missing."""
    l0 = {view.id: view for view in tree.l0}
    runs = {run.id: run for run in tree.runs}
    if any(i not in l0 for i in spec.l0_view_ids) or any(i not in runs for i in spec.sorted_runs):
        return None
    return (
        *((l0[view_id],) for view_id in spec.l0_view_ids),
        *(runs[run_id].views for run_id in spec.sorted_runs),
    )


def _judge(
    compactions: Sequence[SlateCompaction], manifest: Manifest
) -> tuple[dict[Ulid, str | None], list[SlateCompaction]]:
    """Validate each compaction against the manifest as the earlier ones of the batch leave it."""
    verdicts: dict[Ulid, str | None] = {}
    valid: list[SlateCompaction] = []
    for compaction in compactions:
        refusal = validate(compaction, manifest, Ledger(0, (compaction,)))
        verdicts[compaction.id] = refusal
        if refusal is None:
            valid.append(compaction)
            manifest = apply_compaction(manifest, compaction.spec, compaction.outputs)
    return verdicts, valid


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
