"""What may happen to the ledger, and who may do it.

Each version is compared with the one before it:

1. The epoch only grows, never beyond the manifest's, and only a coordinator sets it. A coordinator
   changes nothing under another epoch than its own.
2. Each compaction makes one step of `_STEPS`, by somebody who may make it. Its spec never changes; its
   recorded progress only grows, unless the compaction is validated anew; a worker touches only what it
   owns or what is free.
3. What was Completed or Failed once never comes back in another state. Nothing active vanishes, and the
   newest finished one stays.
4. Ids ascend, and no output is older than its compaction.
5. Compactions under way share no source and no destination.
"""

from __future__ import annotations

from itertools import combinations
from typing import NoReturn

from lithify.base.ids import Ulid, ulid_ms
from lithify.datasets.slatedb.format.ledger import SlateCompaction, SlateLedger, SlateProgress
from lithify.datasets.slatedb.model import Sst, TieredSpec
from lithify.protocol.model import CompactionState
from simulator import rules
from simulator.scenario import HEARTBEAT_TIMEOUT_MS, MAX_SKEW_MS
from simulator.world import COORDINATORS, Process, World

_UNDER_WAY = (CompactionState.SCHEDULED, CompactionState.RUNNING, CompactionState.COMPACTED)
_COORDINATOR, _OWNER, _FREE = "coordinator", "its worker", "any worker"
_PERSON, _ANYONE = "a person", "anyone"
_BESIDE = "a coordinator for the worker beside it"
_STEPS: dict[tuple[CompactionState | None, CompactionState], tuple[str, ...]] = {
    (None, CompactionState.SUBMITTED): (_ANYONE,),
    (None, CompactionState.SCHEDULED): (_COORDINATOR,),
    (None, CompactionState.RUNNING): (_BESIDE,),
    (CompactionState.SUBMITTED, CompactionState.RUNNING): (_BESIDE,),
    (None, CompactionState.FAILED): (_COORDINATOR,),
    (CompactionState.SUBMITTED, CompactionState.SCHEDULED): (_COORDINATOR,),
    (CompactionState.SUBMITTED, CompactionState.COMPLETED): (_COORDINATOR,),
    (CompactionState.SUBMITTED, CompactionState.FAILED): (_COORDINATOR, _PERSON),
    (CompactionState.SCHEDULED, CompactionState.RUNNING): (_FREE,),
    (CompactionState.SCHEDULED, CompactionState.SUBMITTED): (_COORDINATOR,),
    (CompactionState.SCHEDULED, CompactionState.FAILED): (_COORDINATOR, _PERSON),
    (CompactionState.RUNNING, CompactionState.RUNNING): (_OWNER,),
    (CompactionState.RUNNING, CompactionState.COMPACTED): (_OWNER,),
    (CompactionState.RUNNING, CompactionState.SCHEDULED): (_OWNER, _COORDINATOR),
    (CompactionState.RUNNING, CompactionState.COMPLETED): (_BESIDE,),
    (CompactionState.RUNNING, CompactionState.FAILED): (_COORDINATOR, _PERSON, _BESIDE),
    (CompactionState.COMPACTED, CompactionState.COMPLETED): (_COORDINATOR,),
    (CompactionState.COMPACTED, CompactionState.FAILED): (_COORDINATOR,),
}


class LedgerRules:
    """Compares each version of the ledger with the one before."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._finished: dict[Ulid, CompactionState] = {}
        self._newest_id_ms = 0

    def check(self, process: Process, old: SlateLedger | None, new: SlateLedger, manifest_epoch: int) -> None:
        self._epochs(process, old, new, manifest_epoch)
        before = {c.id: c for c in old.compactions} if old is not None else {}
        after = {c.id: c for c in new.compactions}
        self._vanished(process, before, after, new)
        for compaction in new.compactions:
            earlier = before.get(compaction.id)
            if earlier != compaction:
                self._step(process, earlier, compaction, new)
        self._disjoint(new)
        for compaction in new.compactions:
            if compaction.state.is_terminal:
                self._finished[compaction.id] = compaction.state
        self._newest_id_ms = max([self._newest_id_ms, *(ulid_ms(i) for i in after)])

    def _epochs(
        self, process: Process, old: SlateLedger | None, new: SlateLedger, manifest_epoch: int
    ) -> None:
        was = old.epoch if old is not None else 0
        if new.epoch < was:
            self._fail(rules.EPOCHS, process, f"sets the ledger's epoch from {was} back to {new.epoch}")
        if new.epoch > manifest_epoch:
            self._fail(rules.EPOCHS, process, f"sets the ledger's epoch {new.epoch} beyond the manifest's")
        if new.epoch != was and process.kind not in COORDINATORS:
            self._fail(rules.OWNERS, process, "sets the ledger's epoch and is no coordinator")

    def _vanished(
        self,
        process: Process,
        before: dict[Ulid, SlateCompaction],
        after: dict[Ulid, SlateCompaction],
        new: SlateLedger,
    ) -> None:
        """Of several that are finished only the newest stays. So an active one may vanish when it was
        finished in the same version as a newer one, by the coordinator."""
        newest = max((c.id for c in after.values() if c.state.is_terminal), default=None)
        for compaction in before.values():
            if compaction.id in after:
                continue
            name = f"{compaction.id} {compaction.state.value} -> vanished"
            if newest is None or newest < compaction.id:
                self._fail(rules.STATES, process, f"{name}, and no newer finished one is there")
            if compaction.state.is_terminal:
                continue
            if process.kind not in COORDINATORS:
                self._fail(rules.OWNERS, process, f"{name}: only a coordinator may finish it")
            self._check_coordinator(process, compaction, None, new, name)
            self._finished[compaction.id] = CompactionState.FAILED

    def _step(
        self, process: Process, old: SlateCompaction | None, new: SlateCompaction, ledger: SlateLedger
    ) -> None:
        state = old.state if old is not None else None
        name = f"{new.id} {state.value if state else 'absent'} -> {new.state.value}"
        if new.id in self._finished and new.state is not self._finished[new.id]:
            self._fail(rules.STATES, process, f"{name}, but it was {self._finished[new.id].value} already")
        if old is not None and old.state.is_terminal:
            self._fail(rules.STATES, process, f"{name}: changes a finished compaction")
        if (state, new.state) not in _STEPS:
            self._fail(rules.STATES, process, f"{name}: there is no such step")
        who = _STEPS[state, new.state]
        by = self._author(process, old, new, who)
        if by is None:
            self._fail(rules.OWNERS, process, f"{name}: only {' or '.join(who)} may do that")
        if by in (_COORDINATOR, _BESIDE):
            self._check_coordinator(process, old, new, ledger, name)
        if old is None:
            if ulid_ms(new.id) < self._newest_id_ms:
                self._fail(rules.EPOCHS, process, f"{name}: its id is older than one in the ledger")
        elif new.spec != old.spec:
            self._fail(rules.STATES, process, f"{name}: its spec changes")
        self._check_progress(process, old, new, name)
        self._world.count(f"step: {state.value if state else 'absent'} -> {new.state.value} by {by}")
        if self._world.is_traced:
            process.log(f"ledger: {name}")

    def _author(
        self, process: Process, old: SlateCompaction | None, new: SlateCompaction, who: tuple[str, ...]
    ) -> str | None:
        """As what the process may make the step."""
        for role in who:
            if role == _ANYONE or (role == _PERSON and process.kind == "person"):
                return role
            if role == _COORDINATOR and process.kind in COORDINATORS and not _is_release(process, old):
                return role
            if role == _BESIDE and process.kind in COORDINATORS and _is_worker(process, new):
                return role
            if role == _FREE and _is_worker(process, new) and old is not None and old.worker is None:
                return role
            if role == _OWNER and old is not None and _is_worker(process, old):
                return role
        return None

    def _check_coordinator(
        self,
        process: Process,
        old: SlateCompaction | None,
        new: SlateCompaction | None,
        ledger: SlateLedger,
        name: str,
    ) -> None:
        coordinator = process.coordinator
        assert coordinator is not None
        if coordinator.epoch != ledger.epoch:
            self._fail(rules.EPOCHS, process, f"{name}: its epoch is {coordinator.epoch}, not {ledger.epoch}")
        reclaimed = new is not None and new.state is CompactionState.SCHEDULED
        if old is not None and old.state is CompactionState.RUNNING and reclaimed:
            self._check_reclaim(process, old, name)

    def _check_reclaim(self, process: Process, old: SlateCompaction, name: str) -> None:
        """Only what was silent for long is taken away, or what a former coordinator's worker held."""
        if old.worker is None or not old.worker.id.startswith("worker-"):
            return
        silent_ms = self._world.now_ms + MAX_SKEW_MS - old.worker.last_heartbeat_ms
        if silent_ms <= HEARTBEAT_TIMEOUT_MS:
            self._fail(rules.STATES, process, f"{name}: its worker was silent for {silent_ms} ms only")

    def _check_progress(
        self, process: Process, old: SlateCompaction | None, new: SlateCompaction, name: str
    ) -> None:
        recorded = old.progress if old is not None else None
        outputs = [*new.outputs, *(_outputs(new.progress) if new.progress is not None else ())]
        if any(ulid_ms(sst.id) < ulid_ms(new.id) for sst in outputs):
            self._fail(rules.EPOCHS, process, f"{name}: an output is older than the compaction")
        if recorded is None or new.state in (
            CompactionState.SUBMITTED,
            CompactionState.FAILED,
            CompactionState.COMPLETED,
        ):
            return
        if old is not None and old.state is CompactionState.SUBMITTED:
            return  # validated anew: earlier progress is forgotten
        if new.state is CompactionState.COMPACTED:
            lost = [str(sst.id) for sst in _outputs(recorded) if sst not in new.outputs]
        elif new.progress is None:
            lost = [str(sst.id) for sst in _outputs(recorded)]
        else:
            lost = _not_kept(recorded, new.progress)
        if lost:
            self._fail(rules.STATES, process, f"{name}: recorded work is lost: {lost}")

    def _disjoint(self, ledger: SlateLedger) -> None:
        under_way = [c for c in ledger.compactions if c.state in _UNDER_WAY]
        for one, other in combinations(under_way, 2):
            shared = _sources(one) & _sources(other)
            if shared:
                raise self._world.fail(
                    rules.DISJOINT, f"{one.id} and {other.id} are both under way with the sources {shared}"
                )
            if (
                isinstance(one.spec, TieredSpec)
                and isinstance(other.spec, TieredSpec)
                and one.spec.destination == other.spec.destination
            ):
                raise self._world.fail(
                    rules.DISJOINT, f"{one.id} and {other.id} have the destination {one.spec.destination}"
                )

    def _fail(self, rule: str, process: Process, text: str) -> NoReturn:
        raise self._world.fail(rule, f"{process.name}: {text}")


def _is_worker(process: Process, compaction: SlateCompaction) -> bool:
    return compaction.worker is not None and compaction.worker.id in process.worker_ids


def _is_release(process: Process, old: SlateCompaction | None) -> bool:
    """An embedded worker gives back its own."""
    return old is not None and old.state is CompactionState.RUNNING and _is_worker(process, old)


def _outputs(progress: SlateProgress) -> list[Sst]:
    return [sst for part in progress.ranges for sst in part.outputs]


def _not_kept(old: SlateProgress, new: SlateProgress) -> list[str]:
    if old.horizon != new.horizon:
        return ["the horizon"]
    if [part.range for part in old.ranges] != [part.range for part in new.ranges]:
        return ["the ranges"]
    return [
        str(before.range)
        for before, after in zip(old.ranges, new.ranges, strict=True)
        if after.outputs[: len(before.outputs)] != before.outputs
    ]


def _sources(compaction: SlateCompaction) -> set[str | int]:
    return {*compaction.spec.l0_view_ids, *compaction.spec.sorted_runs}
