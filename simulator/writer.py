"""A SlateDB writer: puts rows, flushes L0 SSTs, holds snapshots, and lives beside a coordinator.

1. Opening takes the next writer epoch in the manifest, then fences older writers in the log, then
   replays what no manifest holds yet.
2. A batch of rows is acknowledged once it is in the log (`Model`).
3. A flush writes one L0 SST for each tree it touches and then publishes the manifest. Against whatever
   others have published meanwhile the writer keeps its own L0 lists, cut off at the coordinator's
   marker, and its own counters; runs, markers and checkpoints are the others'. So an L0 SST whose
   compaction did not move the marker comes back, and one that the marker passed by mistake is lost, as
   in a real database.
4. It stops flushing while a tree has `L0_MAX_SSTS`.
5. A newer writer epoch ends it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile
from typing import TypeVar

from lithify.base.errors import Fenced, StoreError
from lithify.datasets.slatedb.format.paths import MANIFEST_SUFFIX, DatabasePaths
from lithify.datasets.slatedb.model import Manifest, Tree, View
from lithify.store.versions import VersionedFiles
from simulator.rows import Row, describe, encode_rows, in_order, newest_l0_ms
from simulator.scenario import L0_MAX_SSTS
from simulator.world import ROOT, Process

ResultT = TypeVar("ResultT")

_PATHS = DatabasePaths(ROOT)
_MAX_SNAPSHOTS = 2
_RETRY_MS = 200
_MAX_LATE_MS = 20_000
_TTL_MS = 10_000
_MAX_BATCH = 4


class Writer:
    """The one writer of the database, or a zombie that was."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._manifests = VersionedFiles(
            process.store,
            _PATHS.manifest_folder,
            MANIFEST_SUFFIX,
            _PATHS.manifest_boundary,
            process.ids,
            clock=process.clock,
        )
        self._epoch = 0
        self._mine: Manifest
        """The last published manifest, or what will be published next."""
        self._memtable: list[Row] = []

    def run(self) -> None:
        """Until fenced."""
        self._open()
        rng, scenario = self._process.rng, self._world.scenario
        while True:
            self._process.sleep_ms(rng.randint(1, 2 * scenario.put_pause_ms))
            self._world.model.check_writer(self._epoch)
            if not self._world.is_quiet:
                self._put()
                self._hold_snapshots()
            if rng.random() < 0.3 or len(self._memtable) > 8:
                self._flush()

    def _open(self) -> None:
        self._mine = self._publish(lambda latest: replace(latest, writer_epoch=latest.writer_epoch + 1))
        self._epoch = self._process.writer_epoch = self._mine.writer_epoch
        self._process.log(f"took writer epoch {self._epoch}")
        self._world.model.fence(self._epoch)
        self._memtable = list(self._world.model.after(self._mine.last_l0_seq))

    def _put(self) -> None:
        rng, model = self._process.rng, self._world.model
        seq = model.last_seq + 1
        for key in rng.sample(model.keys, rng.randint(1, min(_MAX_BATCH, len(model.keys)))):
            kind = rng.random()
            value = None if kind < 0.3 else seq
            expire_ms = self._process.clock.now_ms() + rng.randint(1, _TTL_MS) if kind > 0.9 else 0
            row = Row(key, seq, value, expire_ms)
            model.acknowledge(row)
            self._memtable.append(row)

    def _hold_snapshots(self) -> None:
        rng, snapshots = self._process.rng, self._world.model.snapshots
        if len(snapshots) < _MAX_SNAPSHOTS and rng.random() < 0.1:
            snapshots.add(self._world.model.last_seq)
        elif snapshots and rng.random() < 0.1:
            snapshots.remove(rng.choice(sorted(snapshots)))

    def _flush(self) -> None:
        rows = self._memtable
        self._retried(self._refresh)
        is_full = any(len(tree.l0) >= L0_MAX_SSTS for tree in self._mine.trees())
        if is_full:
            self._world.count("event: writer stalled at l0_max_ssts")
        if not rows or is_full:
            return
        trees = {tree.prefix: tree for tree in self._mine.trees()}
        for prefix in sorted({self._prefix(row.key) for row in rows}):
            chunk = in_order(row for row in rows if self._prefix(row.key) == prefix)
            view = self._upload(chunk)
            tree = trees.get(prefix, Tree(prefix))
            trees[prefix] = replace(tree, l0=(view, *tree.l0))
        if self._process.rng.random() < self._world.faults.late_flush_per_flush:
            self._world.count("fault: late flush")
            self._process.sleep_ms(self._process.rng.randint(1, _MAX_LATE_MS))
        last_seq = max(row.seq for row in rows)
        self._memtable = []
        self._mine = replace(
            self._mine,
            root=trees.pop(b""),
            segments=tuple(trees[prefix] for prefix in sorted(trees)),
            last_l0_seq=last_seq,
            replay_after_wal_id=last_seq,
            last_l0_clock_tick=max(self._mine.last_l0_clock_tick, self._process.clock.now_ms()),
            recent_snapshot_min_seq=min(self._world.model.snapshots, default=last_seq),
        )
        self._mine = self._publish(self._merged)

    def _upload(self, rows: list[Row]) -> View:
        now_ms = max([self._process.clock.now_ms(), *map(newest_l0_ms, self._mine.trees())])
        sst = describe(self._process.ids.ulid(now_ms), rows)
        self._world.uploads[sst.id] = self._process
        data = encode_rows(rows)
        self._retried(lambda: self._process.store.put(_PATHS.sst(sst.id), data))
        return View(sst.id, sst)

    def _refresh(self) -> None:
        """Take in what others have published."""
        latest = self._manifests.latest()
        assert latest is not None
        self._mine = self._merged(self._world.codecs.decode_manifest(latest.data))

    def _publish(self, change: Callable[[Manifest], Manifest]) -> Manifest:
        """Publish `change` of the latest manifest, again until it is certain."""
        while True:
            base = self._retried(self._manifests.latest)
            assert base is not None
            changed = change(self._world.codecs.decode_manifest(base.data))
            try:
                self._manifests.publish(base, self._world.codecs.encode_manifest(changed))
            except StoreError as error:
                self._world.count(f"event: writer met {type(error).__name__}")
                self._process.sleep_ms(self._process.rng.randint(1, _RETRY_MS))
                continue
            return changed

    def _merged(self, latest: Manifest) -> Manifest:
        """The writer's next manifest: what it owns, and the rest from `latest`."""
        if latest.writer_epoch > self._epoch:
            raise Fenced(f"writer {self._epoch} is fenced by writer {latest.writer_epoch}")
        mine = self._mine
        return replace(
            latest,
            root=_merged_tree(mine.root, latest.tree(b"")),
            segments=tuple(
                tree
                for tree in (_merged_tree(t, latest.tree(t.prefix)) for t in mine.segments)
                if tree.l0 or tree.runs
            ),
            last_l0_seq=mine.last_l0_seq,
            replay_after_wal_id=mine.replay_after_wal_id,
            last_l0_clock_tick=mine.last_l0_clock_tick,
            recent_snapshot_min_seq=mine.recent_snapshot_min_seq,
        )

    def _retried(self, action: Callable[[], ResultT]) -> ResultT:
        """SlateDB's clients repeat what failed until it works."""
        while True:
            try:
                return action()
            except StoreError:
                self._process.sleep_ms(_RETRY_MS)

    def _prefix(self, key: bytes) -> bytes:
        return key[:1] if self._world.scenario.segments else b""


def _merged_tree(mine: Tree, latest: Tree | None) -> Tree:
    """The writer's L0 list down to the coordinator's marker, over the coordinator's runs."""
    if latest is None:
        return mine
    newer = takewhile(lambda view: view.id != latest.last_compacted_l0, mine.l0)
    return replace(latest, l0=tuple(newer))
