"""SlateDB databases with segments, of which there is nothing but manifests and ledgers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from lithify.base.ids import Ulid
from lithify.datasets.slatedb.dataset import SlateDataset, SlateOptions
from lithify.datasets.slatedb.format.ledger import SlateCompaction
from lithify.datasets.slatedb.format.paths import COMPACTIONS_SUFFIX, MANIFEST_SUFFIX, DatabasePaths
from lithify.datasets.slatedb.model import (
    KeyRange,
    Manifest,
    Sst,
    SstInfo,
    TieredSpec,
    Tree,
    View,
    tree_label,
)
from lithify.datasets.slatedb.planning.plan import TieredPolicy, source_names
from lithify.protocol.model import CompactionState
from lithify.protocol.transitions import AnyCompaction, AnyLedger
from lithify.protocol.work import RangeJob, RangeOutcome, RangeWork
from lithify.store.versions import VersionedFiles
from simulator.several.places import Place, ToyTask, toy
from simulator.several.scenario import L0_MAX_SSTS

MIN_SOURCES, MAX_SOURCES = 2, 8
_SST_BYTES = 1_000
_MIDDLE = b"5"


class DatabasePlace(Place):
    """One database."""

    def open(self, who: str) -> ToyDatabase:
        return ToyDatabase(self, who)

    @cached_property
    def _paths(self) -> DatabasePaths:
        return DatabasePaths(self.name)

    @cached_property
    def _manifests(self) -> VersionedFiles:
        paths = self._paths
        return VersionedFiles(
            self.objects,
            paths.manifest_folder,
            MANIFEST_SUFFIX,
            paths.manifest_boundary,
            self.world.ids,
            clock=self.world.clock,
        )

    @cached_property
    def ledgers(self) -> VersionedFiles:
        paths = self._paths
        return VersionedFiles(
            self.objects,
            paths.compactions_folder,
            COMPACTIONS_SUFFIX,
            paths.compactions_boundary,
            self.world.ids,
            clock=self.world.clock,
        )

    def create(self) -> None:
        """An empty database with segments."""
        empty = Manifest(
            initialized=True,
            writer_epoch=1,
            compactor_epoch=0,
            root=Tree(),
            segment_extractor_name="first-byte",
        )
        self._manifests.publish(None, self.world.codecs.encode_manifest(empty))
        self._looked_at: tuple[Manifest, Mapping[str, frozenset[str]]] | None = None

    @property
    def manifest(self) -> Manifest:
        """As it is now."""
        latest = self._manifests.latest()
        assert latest is not None
        return self.world.codecs.decode_manifest(latest.data)

    def is_ledger(self, key: str) -> bool:
        return key.startswith(f"{self._paths.compactions_folder}/")

    def is_manifest(self, key: str) -> bool:
        return key.startswith(f"{self._paths.manifest_folder}/")

    def decode_ledger(self, data: bytes, key: str) -> AnyLedger:
        return self.world.codecs.decode_ledger(data, key)

    def unit_name(self, unit: int) -> str:
        return tree_label(_prefix(unit))

    def add(self, unit: int, count: int) -> None:
        manifest, prefix, world = self.manifest, _prefix(unit), self.world
        trees = {tree.prefix: tree for tree in manifest.segments}
        tree = trees.get(prefix, Tree(prefix))
        views = []
        for _ in range(min(count, L0_MAX_SSTS - len(tree.l0))):
            sst = made_up_sst(world.ids.ulid(world.now_ms), prefix + b"0", prefix + b"9")
            views.append(View(sst.id, sst))
        if not views:
            return
        newest_first = tuple(sorted(views, key=lambda view: view.id, reverse=True))
        trees[prefix] = replace(tree, l0=(*newest_first, *tree.l0))
        changed = replace(
            manifest,
            segments=tuple(trees[p] for p in sorted(trees)),
            last_l0_seq=manifest.last_l0_seq + len(views),
            last_l0_clock_tick=world.now_ms,
        )
        self._manifests.publish(self._manifests.latest(), world.codecs.encode_manifest(changed))
        if world.watcher is not None:
            world.watcher.changed(self.name)

    def sources(self) -> Mapping[str, frozenset[str]]:
        manifest = self.manifest
        if self._looked_at is None or self._looked_at[0] is not manifest:
            many = [tree for tree in manifest.segments if len(tree.l0) >= MIN_SOURCES]
            names = [frozenset(source_names(tree.prefix, (v.id for v in tree.l0), ())) for tree in many]
            self._looked_at = manifest, dict(zip((tree_label(t.prefix) for t in many), names, strict=True))
        return self._looked_at[1]

    def may_plan(self, unit: str, ledger: AnyLedger) -> bool:
        """Unless L0 SSTs of the segment are being compacted, or a full group of runs waits there."""
        if any(self.truth.identify(c.spec).unit == unit and c.spec.l0_view_ids for c in ledger.active()):
            return False
        tree = next(tree for tree in self.manifest.segments if tree_label(tree.prefix) == unit)
        return len(tree.runs) < MAX_SOURCES

    def has_planner_slot(self, ledger: AnyLedger) -> bool:
        under_way = [c for c in ledger.active() if c.state is not CompactionState.COMPACTED]
        return len(under_way) < self.plan.planner_slots

    def priority(self, compaction: AnyCompaction) -> float:
        """L0 SSTs before runs, and the more of them the sooner."""
        tree = self.manifest.tree(compaction.spec.segment)
        if tree is None:
            return 0.0
        if any(view.id in compaction.spec.l0_view_ids for view in tree.l0):
            return 0.5 + 0.5 * min(1.0, len(tree.l0) / MAX_SOURCES)
        return 0.5 * min(1.0, len(tree.runs) / (2 * MAX_SOURCES))


class ToyDatabase(SlateDataset):
    """A database whose SSTs nobody reads."""

    def __init__(self, place: DatabasePlace, who: str) -> None:
        world = place.world
        policy = TieredPolicy(
            min_compaction_sources=MIN_SOURCES,
            max_compaction_sources=MAX_SOURCES,
            max_concurrent_compactions=place.plan.planner_slots,
        )
        store = place.objects if who == "the judge" else place.store(who)
        super().__init__(
            store, place.name, world.clock, world.ids, options=SlateOptions(policy), rng=world.rng
        )
        self._place = place
        self._who = who

    def _read_snapshot(self) -> Manifest:
        self._place.check_snapshot(self._who)
        return super()._read_snapshot()

    def prepare(self, compaction: SlateCompaction, snapshot: Manifest, slots: int = 0) -> RangeJob:
        spec, world = compaction.spec, self._place.world
        assert isinstance(spec, TieredSpec)
        first, middle, last = spec.segment + b"0", spec.segment + _MIDDLE, spec.segment + b"9"
        whole = (KeyRange(first, last, end_inclusive=True),)
        halves = (KeyRange(first, middle), KeyRange(middle, last, end_inclusive=True))
        ranges = whole if world.scenario.max_ranges == 1 else halves
        is_poisoned = self.identify(spec).unit in self._place.poisoned
        works = []
        for index, part in enumerate(ranges):
            assert part.start is not None
            sst_id = world.ids.ulid(world.now_ms)
            end = last if part.end_inclusive else part.start + b"~"
            task = ToyTask(compaction.id, is_poisoned and index == 0, (made_up_sst(sst_id, part.start, end),))
            works.append(RangeWork(part, toy, task, _SST_BYTES))
        return RangeJob(tuple(works), snapshot.recent_snapshot_min_seq)

    def outcome(self, result: Any) -> RangeOutcome:
        assert isinstance(result, RangeOutcome)
        return result


def made_up_sst(sst_id: Ulid, first: bytes, last: bytes) -> Sst:
    """An SST that is not there."""
    index_bytes = 100
    return Sst(sst_id, SstInfo(first, last, _SST_BYTES - index_bytes, index_bytes, 0, 0, 0, 0))


def _prefix(unit: int) -> bytes:
    return b"a%d" % unit
