"""The judge: sees every write and every deletion, and knows what must hold (`rules`).

1. A numbered file that appears at or below its boundary counts for nobody. Every other one must be the
   successor of the latest; it is decoded and compared with that one (`manifest_rules`, `ledger_rules`).
2. SSTs are written once. Boundaries only rise, and never to the latest version.
3. The lease is compared with the one before (`lease_rules`).
4. A deletion is judged by what is needed at that moment (`_needed_ssts`).
"""

from __future__ import annotations

from typing import NoReturn

from lithify.base.errors import ObjectNotFound
from lithify.base.ids import Ulid
from lithify.datasets.slatedb.format.ledger import SlateLedger
from lithify.datasets.slatedb.format.paths import (
    COMPACTIONS_SUFFIX,
    MANIFEST_SUFFIX,
    DatabasePaths,
    parse_sst_key,
)
from lithify.datasets.slatedb.model import Manifest
from lithify.protocol.model import CompactionState
from lithify.store.keys import parse_boundary, parse_key
from simulator import rules
from simulator.lease_rules import LeaseRules
from simulator.ledger_rules import LedgerRules
from simulator.manifest_rules import ManifestRules, changes_nothing
from simulator.scenario import CHECKPOINT_LIFETIME_S, MAX_SKEW_MS
from simulator.world import ROOT, Process, World

_PATHS = DatabasePaths(ROOT)
_LEASE = f"{_PATHS.own_folder}/coordinator.json"
_READERS_MS = CHECKPOINT_LIFETIME_S * 1000 // 2 - 2 * MAX_SKEW_MS - 1_000
"""So long a reader may go on with a version that a commit has replaced, if nobody ever falls asleep."""


class Judge:
    """Watches the store; raises `Violation`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ledgers = LedgerRules(world)
        self._manifests = ManifestRules(world)
        self._leases = LeaseRules(world)
        self.manifest: tuple[int, Manifest] | None = None
        self.ledger: tuple[int, SlateLedger] | None = None
        self._boundaries = {_PATHS.manifest_boundary: 0, _PATHS.compactions_boundary: 0}
        self._pinned: dict[int, Manifest] = {}
        """Manifests that a checkpoint of the latest one names."""
        self._replaced: list[tuple[int, Manifest]] = []
        """Manifests that were the latest until a while ago, and until when."""
        self._ssts: dict[str, bytes] = {}

    # What was written

    def wrote(self, process: Process, key: str, data: bytes) -> None:
        if key in self._boundaries:
            self._wrote_boundary(process, key, data)
        elif key == _LEASE:
            self._leases.wrote(process, data)
        elif key.startswith(f"{_PATHS.manifest_folder}/"):
            number = parse_key(key, _PATHS.manifest_folder, MANIFEST_SUFFIX)
            if number is not None and self._counts(process, key, number, _PATHS.manifest_boundary):
                self._wrote_manifest(process, number, self._world.codecs.decode_manifest(data))
        elif key.startswith(f"{_PATHS.compactions_folder}/"):
            number = parse_key(key, _PATHS.compactions_folder, COMPACTIONS_SUFFIX)
            if number is not None and self._counts(process, key, number, _PATHS.compactions_boundary):
                self._wrote_ledger(process, number, self._world.codecs.decode_ledger(data))
        elif key.startswith(f"{_PATHS.compacted_folder}/") and self._ssts.setdefault(key, data) != data:
            self._fail(rules.KEPT, process, f"overwrites {key}")

    def _counts(self, process: Process, key: str, number: int, boundary: str) -> bool:
        if number <= self._boundaries[boundary]:
            self._world.count("event: collected number created again")
            process.log(f"creates {key}, which counts for nobody")
            return False
        latest = self.manifest if boundary == _PATHS.manifest_boundary else self.ledger
        expected = latest[0] + 1 if latest is not None else 1
        if number != expected:
            self._fail(rules.NUMBERS, process, f"creates {key}, but the next number is {expected}")
        return True

    def _wrote_manifest(self, process: Process, number: int, new: Manifest) -> None:
        if self.manifest is not None:
            _, old = self.manifest
            ledger = self.ledger[1] if self.ledger is not None else None
            self._manifests.check(process, number, old, new, ledger)
            if new.compactor_epoch != old.compactor_epoch:
                self._leases.took(process, new.compactor_epoch)
            self._check_pinned(process, old, new)
            self._replaced.append((self._world.now_ms, old))
        self.manifest = number, new
        for sst_id in _shown(new):
            # From here on manifests need it, also while its writer does not know yet that this was published.
            self._world.uploads.pop(sst_id, None)
        self._world.count("event: manifest published")
        named = {checkpoint.manifest_id for checkpoint in new.checkpoints}
        self._pinned[number] = new
        self._pinned = {i: m for i, m in self._pinned.items() if i in named or i == number}

    def _check_pinned(self, process: Process, old: Manifest, new: Manifest) -> None:
        """What a commit takes away stays readable: some checkpoint names a version that has all of it."""
        gone = _shown(old) - _shown(new)
        named = {checkpoint.manifest_id for checkpoint in new.checkpoints}
        if gone and not any(gone <= _shown(m) for number, m in self._pinned.items() if number in named):
            self._fail(rules.KEPT, process, f"commits, and no checkpoint pins {sorted(gone)}")

    def _wrote_ledger(self, process: Process, number: int, new: SlateLedger) -> None:
        assert self.manifest is not None
        old = self.ledger[1] if self.ledger is not None else None
        self._ledgers.check(process, old, new, self.manifest[1].compactor_epoch)
        before = {c.id: c.state for c in old.compactions} if old is not None else {}
        for compaction in new.compactions:
            is_new = before.get(compaction.id) is not CompactionState.COMPLETED
            is_committed = self._manifests.commits[compaction.id] or changes_nothing(compaction)
            if compaction.state is CompactionState.COMPLETED and is_new and not is_committed:
                self._fail(rules.ONCE, process, f"{compaction.id} is Completed and was never committed")
        self.ledger = number, new
        self._world.count("event: ledger published")

    def _wrote_boundary(self, process: Process, key: str, data: bytes) -> None:
        value = parse_boundary(data, key)
        latest = self.manifest if key == _PATHS.manifest_boundary else self.ledger
        if value < self._boundaries[key]:
            self._fail(rules.NUMBERS, process, f"lowers {key} from {self._boundaries[key]} to {value}")
        if latest is None or value >= latest[0]:
            self._fail(rules.NUMBERS, process, f"raises {key} to {value}, the latest version or beyond")
        self._boundaries[key] = value
        self._world.count("event: boundary raised")

    # What is deleted

    def deletes(self, process: Process, key: str) -> None:
        try:
            self._world.objects.head(key)
        except ObjectNotFound:
            return
        if key.startswith(f"{_PATHS.manifest_folder}/"):
            self._deletes_numbered(process, key, MANIFEST_SUFFIX, _PATHS.manifest_folder)
        elif key.startswith(f"{_PATHS.compactions_folder}/"):
            self._deletes_numbered(process, key, COMPACTIONS_SUFFIX, _PATHS.compactions_folder)
        elif key.startswith(f"{_PATHS.compacted_folder}/"):
            sst_id = parse_sst_key(key)
            if sst_id is not None and (why := self._needed_ssts().get(sst_id)):
                self._fail(rules.KEPT, process, f"deletes {key}, which {why} needs")
            self._world.count("event: SST collected")
        elif not key.startswith(f"{ROOT}/lithify/"):
            self._fail(rules.KEPT, process, f"deletes {key}")

    def _deletes_numbered(self, process: Process, key: str, suffix: str, folder: str) -> None:
        number = parse_key(key, folder, suffix)
        is_manifest = suffix == MANIFEST_SUFFIX
        boundary = _PATHS.manifest_boundary if is_manifest else _PATHS.compactions_boundary
        latest = self.manifest if is_manifest else self.ledger
        if number is None or latest is None or number >= latest[0]:
            self._fail(rules.KEPT, process, f"deletes {key}, the latest version")
        if number > self._boundaries[boundary]:
            self._fail(rules.NUMBERS, process, f"deletes {key} above the boundary")
        if is_manifest and number in self._live_pins():
            self._fail(rules.KEPT, process, f"deletes {key}, which a checkpoint pins")
        self._world.count("event: numbered file collected")

    def _live_pins(self) -> dict[int, Manifest]:
        """The manifests that checkpoints which are not expired for everybody pin."""
        assert self.manifest is not None
        latest = self.manifest[1]
        alive = {
            c.manifest_id
            for c in latest.checkpoints
            if not c.expire_time_s or c.expire_time_s * 1000 > self._world.now_ms + MAX_SKEW_MS
        }
        return {number: self._pinned[number] for number in alive}

    def _needed_ssts(self) -> dict[Ulid, str]:
        """Every SST that somebody needs, and who."""
        assert self.manifest is not None
        needed: dict[Ulid, str] = {}
        for task in self._world.tasks:
            if not task.is_over and self._is_running(task.compaction, task.worker_id):
                needed |= dict.fromkeys(task.written, f"a task of {task.worker_id}")
        for sst_id, writer in self._world.uploads.items():
            if not writer.is_dead and writer.writer_epoch == self._world.model.writer_epoch:
                needed[sst_id] = f"the flush of {writer.name}"
        for compaction in self.ledger[1].active() if self.ledger is not None else ():
            recorded = compaction.progress.ranges if compaction.progress is not None else ()
            for sst in (*compaction.outputs, *(sst for part in recorded for sst in part.outputs)):
                needed[sst.id] = f"compaction {compaction.id}"
        now_ms, sleepers = self._world.now_ms, self._world.scenario.faults.pause_per_call
        self._replaced = [(t, m) for t, m in self._replaced if now_ms - t < _READERS_MS and not sleepers]
        versions = [(m, "a reader of a moment ago") for _, m in self._replaced]
        versions += [(m, f"the checkpoint of manifest {i}") for i, m in self._live_pins().items()]
        versions.append((self.manifest[1], "the latest manifest"))
        for manifest, who in versions:
            for tree in manifest.trees():
                needed |= dict.fromkeys((view.sst.id for view in tree.views()), who)
        return needed

    def _is_running(self, compaction_id: Ulid, worker_id: str) -> bool:
        entry = self.ledger[1].get(compaction_id) if self.ledger is not None else None
        return (
            entry is not None
            and entry.state is CompactionState.RUNNING
            and entry.worker is not None
            and entry.worker.id == worker_id
        )

    # In the end

    def live_keys(self) -> set[str]:
        """The SSTs that the latest manifest and the checkpoints name."""
        assert self.manifest is not None
        versions = [self.manifest[1], *self._live_pins().values()]
        return {_PATHS.sst(v.sst.id) for m in versions for tree in m.trees() for v in tree.views()}

    def _fail(self, rule: str, process: Process, text: str) -> NoReturn:
        raise self._world.fail(rule, f"{process.name}: {text}")


def _shown(manifest: Manifest) -> frozenset[Ulid]:
    return frozenset(view.sst.id for tree in manifest.trees() for view in tree.views())
