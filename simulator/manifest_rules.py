"""What may happen to the manifest, and what every version of it must show.

Each version is compared with the one before it:

1. Epochs, sequence numbers, the clock and the horizon only grow; the writer's part is changed by a
   writer of the newest epoch, the compactor's by the coordinator of the newest epoch. Whoever takes that
   epoch and was not told to take over closes no process of SlateDB's that is alive.
2. L0 SSTs are added in front by the writer, with ids not older than any before. Everything else that
   changes in a tree is explained by Compacted compactions of the ledger, taken whole: their sources go,
   their outputs come at their destination, the marker moves to their newest L0 SST. Each of them is
   committed once. Instead of being Compacted, one may be Running on the worker beside the coordinator that
   commits it, or have been cancelled since it was found to be.
3. Checkpoints go when they have expired, or by who made them. A reader's pins the version that has it, a
   coordinator's the version before it, which lists the inputs of the commit. A coordinator may let one end
   later.

Each version is read, key by key, as a point read and as a scan, at its newest sequence number, at its
horizon and at every open snapshot, and compared with the model.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NoReturn

from lithify.base.errors import ObjectNotFound
from lithify.base.ids import Ulid, ulid_ms
from lithify.datasets.slatedb.format.ledger import SlateCompaction, SlateLedger
from lithify.datasets.slatedb.format.paths import DatabasePaths
from lithify.datasets.slatedb.model import Checkpoint, Manifest, SortedRun, TieredSpec, Tree, View
from lithify.protocol.model import CompactionState
from simulator import rules
from simulator.rows import (
    Versions,
    newest_by_seq,
    newest_l0_ms,
    read_key,
    tree_of,
    versions_of,
    visible_value,
)
from simulator.scenario import MAX_SKEW_MS
from simulator.world import COORDINATORS, ROOT, Process, World

_PATHS = DatabasePaths(ROOT)
_WRITERS_FIELDS = (
    "replay_after_wal_id",
    "wal_id_last_seen",
    "last_l0_seq",
    "last_l0_clock_tick",
    "recent_snapshot_min_seq",
)


class ManifestRules:
    """Compares each version of the manifest with the one before, and reads it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._contents: dict[Ulid, Versions] = {}
        self.commits: Counter[Ulid] = Counter()
        """How often each compaction was committed."""
        self._holder: Process | None = None
        """Who took the newest compactor epoch."""

    def check(
        self, process: Process, number: int, old: Manifest, new: Manifest, ledger: SlateLedger | None
    ) -> None:
        self._owners(process, old, new)
        self._checkpoints(process, number, old, new)
        for prefix in {tree.prefix: None for tree in (*old.trees(), *new.trees())}:
            self._tree(process, prefix, old, new, ledger)
        self._read(process, new)

    def _owners(self, process: Process, old: Manifest, new: Manifest) -> None:
        for name in (*_WRITERS_FIELDS, "writer_epoch", "compactor_epoch"):
            before, after = getattr(old, name), getattr(new, name)
            if after < before:
                self._fail(rules.EPOCHS, process, f"sets {name} from {before} back to {after}")
            owners = COORDINATORS if name == "compactor_epoch" else ("writer",)
            if after != before and process.kind not in owners:
                self._fail(rules.OWNERS, process, f"changes {name} and is no {owners[0]}")
        if new.writer_epoch == old.writer_epoch and process.kind == "writer":
            if process.writer_epoch != new.writer_epoch:
                self._fail(rules.EPOCHS, process, "writes a manifest and is fenced")
        elif process.kind == "writer" and new.writer_epoch != old.writer_epoch + 1:
            self._fail(rules.EPOCHS, process, f"takes writer epoch {new.writer_epoch}")
        if new.compactor_epoch not in (old.compactor_epoch, old.compactor_epoch + 1):
            self._fail(rules.EPOCHS, process, f"takes compactor epoch {new.compactor_epoch}")
        if new.compactor_epoch != old.compactor_epoch:
            self._check_closed(process)

    def _check_closed(self, process: Process) -> None:
        """Who takes an epoch closes who took the one before."""
        holder, self._holder = self._holder, process
        is_alive = holder is not None and holder.kind == "slatedb" and not holder.is_dead
        if is_alive and process.kind == "coordinator" and not process.takes_over:
            self._fail(rules.UNASKED, process, f"closes {holder.name if holder is not None else ''}")

    def _checkpoints(self, process: Process, number: int, old: Manifest, new: Manifest) -> None:
        after = {c.id: c for c in new.checkpoints}
        for checkpoint in old.checkpoints:
            if checkpoint.id in after:
                if after[checkpoint.id] != checkpoint and not _is_lengthened(
                    process, checkpoint, after[checkpoint.id]
                ):
                    self._fail(rules.OWNERS, process, f"changes the checkpoint {checkpoint}")
                continue
            expires_ms = checkpoint.expire_time_s * 1000
            is_expired = 0 < expires_ms <= self._world.now_ms + MAX_SKEW_MS
            if not is_expired and checkpoint.name != process.name and process.kind != "coordinator":
                self._fail(rules.KEPT, process, f"removes the checkpoint {checkpoint}")
        before = {c.id for c in old.checkpoints}
        pinned = number - 1 if process.kind == "coordinator" else number
        for checkpoint in new.checkpoints:
            if checkpoint.id not in before and checkpoint.manifest_id != pinned:
                self._fail(
                    rules.KEPT, process, f"manifest {number} has a checkpoint of another: {checkpoint}"
                )

    def _tree(
        self, process: Process, prefix: bytes, old: Manifest, new: Manifest, ledger: SlateLedger | None
    ) -> None:
        before, after = old.tree(prefix) or Tree(prefix), new.tree(prefix) or Tree(prefix)
        if before == after:
            return
        known = {view.id for view in before.l0}
        added = tuple(view for view in after.l0 if view.id not in known)
        if added:
            if process.kind != "writer":
                self._fail(rules.OWNERS, process, f"adds L0 SSTs {[v.id for v in added]} and is no writer")
            if after.l0[: len(added)] != added:
                self._fail(rules.OWNERS, process, "adds an L0 SST behind others")
            newest_ms = max(map(newest_l0_ms, old.trees()))
            if any(ulid_ms(view.sst.id) < newest_ms for view in added):
                self._fail(rules.EPOCHS, process, "adds an L0 SST that is older than one before it")
        if replace(after, l0=after.l0[len(added) :]) == before:
            return
        if process.kind == "writer" and not after.l0 and not after.runs and not before.l0 and not before.runs:
            return  # the writer removes an empty segment
        if process.kind != "coordinator":
            lost = [view.id for view in before.l0 if view not in after.l0]
            self._fail(rules.OWNERS, process, f"changes what is compacted; L0 SSTs gone: {lost}")
        self._explained(process, before, after, new, ledger)

    def _explained(
        self,
        process: Process,
        before: Tree,
        after: Tree,
        new: Manifest,
        ledger: SlateLedger | None,
    ) -> None:
        """The change is the commit of compactions that are ready."""
        coordinator = process.coordinator
        assert coordinator is not None
        if coordinator.epoch != new.compactor_epoch:
            self._fail(rules.EPOCHS, process, f"commits under epoch {new.compactor_epoch} and is fenced")
        ready = [
            ready
            for c in (ledger.compactions if ledger is not None else ())
            if c.spec.segment == before.prefix and (ready := _ready(process, c)) is not None
        ]
        committed = [c for c in ready if _is_shown(c, after) and not _is_shown(c, before)]
        tree = before
        for compaction in sorted(committed, key=lambda c: not c.spec.l0_view_ids):
            tree = _expected(tree, compaction)
            self.commits[compaction.id] += 1
            self._world.count("event: compaction committed")
            if compaction.id in process.handed_over:
                self._world.count("event: compaction committed at once")
            if self.commits[compaction.id] > 1:
                self._fail(rules.ONCE, process, f"commits {compaction.id} again")
        if tree != after:
            ids = [c.id for c in committed]
            self._fail(rules.ONCE, process, f"publishes a tree that the commit of {ids} does not explain")

    def _read(self, process: Process, manifest: Manifest) -> None:
        for tree in manifest.trees():
            for view in tree.views():
                if view.sst.id not in self._contents:
                    self._contents[view.sst.id] = self._content(process, view.sst.id)
        model, tick = self._world.model, manifest.last_l0_clock_tick
        newest = manifest.last_l0_seq
        seqs = {newest, min(newest, manifest.recent_snapshot_min_seq)}
        seqs |= {seq for seq in model.snapshots if seq < newest}
        for key in model.keys:
            home = tree_of(manifest, key)
            for seq in seqs:
                expected = model.value(key, seq, tick)
                for how in (read_key, newest_by_seq):
                    row = how(home, self._contents, key, seq) if home is not None else None
                    found = visible_value(row, tick)
                    if found != expected:
                        self._fail(
                            rules.ROWS,
                            process,
                            f"{key!r} at {seq} ({how.__name__}) is {found} instead of {expected}",
                        )

    def _content(self, process: Process, sst_id: Ulid) -> Versions:
        try:
            return versions_of(self._world.objects.get(_PATHS.sst(sst_id)))
        except ObjectNotFound:
            self._fail(rules.KEPT, process, f"publishes SST {sst_id}, which does not exist")

    def _fail(self, rule: str, process: Process, text: str) -> NoReturn:
        raise self._world.fail(rule, f"{process.name}: {text}")


def _ready(process: Process, compaction: SlateCompaction) -> SlateCompaction | None:
    """The compaction with its outputs, if `process` may commit it."""
    if compaction.state is CompactionState.COMPACTED:
        return compaction
    seen, finished = process.handed_over.get(compaction.id, (None, None))
    is_own = compaction.worker is not None and compaction.worker.id in process.worker_ids
    was_running = (
        seen is not None and seen.state is CompactionState.RUNNING and seen.worker == compaction.worker
    )
    is_cancelled = compaction.state is CompactionState.FAILED
    is_ready = is_own and was_running and (compaction.state is CompactionState.RUNNING or is_cancelled)
    return finished if is_ready else None


def _is_lengthened(process: Process, before: Checkpoint, after: Checkpoint) -> bool:
    """Whether a coordinator lets a checkpoint end later."""
    is_longer = before.expire_time_s < after.expire_time_s
    lengthened = replace(before, create_time_s=after.create_time_s, expire_time_s=after.expire_time_s)
    return process.kind == "coordinator" and is_longer and after == lengthened


def changes_nothing(compaction: SlateCompaction) -> bool:
    """Whether it merges one run that may be empty already into an empty one."""
    spec = compaction.spec
    return (
        isinstance(spec, TieredSpec)
        and not (compaction.outputs or spec.l0_view_ids)
        and spec.sorted_runs == (spec.destination,)
    )


def _is_shown(compaction: SlateCompaction, tree: Tree) -> bool:
    """Whether the tree has none of its sources any more and its outputs at its destination."""
    spec = compaction.spec
    if not isinstance(spec, TieredSpec) or any(view.id in spec.l0_view_ids for view in tree.l0):
        return False
    found = {run.id: [view.sst.id for view in run.views] for run in tree.runs}
    if any(run_id in found for run_id in spec.sorted_runs if run_id != spec.destination):
        return False
    return found.get(spec.destination) == [sst.id for sst in compaction.outputs]


def _expected(tree: Tree, compaction: SlateCompaction) -> Tree:
    """The tree after the commit; told apart from the real one by being written for the simulation."""
    spec = compaction.spec
    assert isinstance(spec, TieredSpec)
    kept = [run for run in tree.runs if run.id not in (*spec.sorted_runs, spec.destination)]
    views = tuple(View(sst.id, sst) for sst in compaction.outputs)
    runs = sorted([*kept, SortedRun(spec.destination, views)], key=lambda run: run.id, reverse=True)
    return Tree(
        prefix=tree.prefix,
        last_compacted_l0=spec.l0_view_ids[0] if spec.l0_view_ids else tree.last_compacted_l0,
        l0=tuple(view for view in tree.l0 if view.id not in spec.l0_view_ids),
        runs=tuple(runs),
    )
