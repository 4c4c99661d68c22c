"""What people do to a database's compactions: submit, cancel, try again, and ask how one ended.

All of it is a change of the ledger by somebody who is neither coordinator nor worker:

1. *Submit* validates first, as the coordinator will again, so that a mistake is told at once and nothing is
   written. What is being compacted already is refused.
2. *Cancel* marks Failed what is not Compacted yet. Its worker sees at its next look that it is no longer the
   owner, and stops. The failure is noted, so that the coordinator leaves the same sources alone for a
   while and does not propose them again at once. SlateDB's coordinator would write its own idea of the
   compaction back, so there cancelling is refused.
3. *Retry* submits what a failure notes, under a new id, and forgets the failure.
4. A finished compaction leaves the ledger when a newer one is finished. How it ended is then read from the
   failures noted and from older versions of the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lithify.clock import Clock
from lithify.compaction import protocol
from lithify.compaction.journal import Failure
from lithify.compaction.model import Compaction, State
from lithify.compaction.protocol import AnyCompaction, AnyLedger
from lithify.datasets.slatedb.dataset import SlateDataset, is_committed
from lithify.datasets.slatedb.history import LedgerHistory
from lithify.datasets.slatedb.model import Manifest, Spec, TieredSpec
from lithify.datasets.slatedb.presence import Presence, coordinator_status
from lithify.errors import ObjectNotFound, Refused
from lithify.ids import Ids, Ulid
from lithify.planning.tiered import MAX_RUN_ID

CANCELLED = "cancelled by hand"
MAX_MANIFESTS = 64
"""How many of the newest manifests are searched for outputs."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a compaction stands or ended."""

    compaction: Ulid
    state: State
    reason: str | None = None
    """Why it failed, where that is known."""


def submit(dataset: SlateDataset, clock: Clock, ids: Ids, specs: Sequence[Spec]) -> tuple[Ulid, ...]:
    """Add `specs` to the ledger as Submitted, all or none; their ids. `Refused` says what is wrong."""
    snapshot = dataset.snapshot()
    now_ms = min(clock.now_ms(), dataset.newest_ms(snapshot))
    new: list[AnyCompaction] = []

    def change(latest: AnyLedger) -> AnyLedger:
        new.clear()
        for spec in specs:
            compaction: AnyCompaction = Compaction(ids.ulid(protocol.next_id_ms(latest, now_ms)), spec)
            _check_free(dataset, compaction, latest)
            latest = protocol.submit(latest, compaction)
            refusal = dataset.validate(compaction, snapshot, latest)
            if refusal is not None:
                raise Refused(f"this cannot be compacted: {refusal}")
            new.append(compaction)
        return latest

    dataset.update_ledger(change)
    return tuple(compaction.id for compaction in new)


def _check_free(dataset: SlateDataset, compaction: AnyCompaction, ledger: AnyLedger) -> None:
    wanted = dataset.sources(compaction.spec)
    for other in ledger.active():
        if other.id == compaction.id or dataset.unit(other.spec) != dataset.unit(compaction.spec):
            continue
        shared = wanted & dataset.sources(other.spec)
        if shared:
            raise Refused(
                f"{', '.join(sorted(shared))} is a source of compaction {other.id} already, which is "
                f"{other.state.value}; wait for it (`lithify wait`) or cancel it (`lithify cancel`)"
            )


def spec_of(
    snapshot: Manifest,
    ledger: AnyLedger,
    segment: bytes,
    l0_view_ids: Sequence[Ulid],
    runs: Sequence[int],
    *,
    all_l0: bool = False,
) -> TieredSpec:
    """The merge of these sources of one tree, in the order the format wants them. The result takes the place
    of the oldest run among them, or becomes a new run."""
    tree = snapshot.tree(segment)
    if tree is None:
        raise Refused(
            f"there is no segment {segment.hex()}; `lithify inspect manifest` shows those there are"
        )
    missing: list[str] = [v for v in l0_view_ids if v not in {view.id for view in tree.l0}]
    missing += [str(run) for run in runs if run not in {run.id for run in tree.runs}]
    if missing:
        raise Refused(
            f"{', '.join(missing)} is no source there; `lithify inspect manifest` shows the views and runs"
        )
    chosen_l0 = tuple(view.id for view in tree.l0 if all_l0 or view.id in l0_view_ids)
    chosen_runs = tuple(run.id for run in tree.runs if run.id in runs)
    destination = chosen_runs[-1] if chosen_runs else _free_run_id(snapshot, ledger)
    return TieredSpec(segment, chosen_l0, chosen_runs, destination)


def _free_run_id(snapshot: Manifest, ledger: AnyLedger) -> int:
    taken = [run.id for tree in snapshot.trees() for run in tree.runs]
    taken += [c.spec.destination for c in ledger.active() if isinstance(c.spec, TieredSpec)]
    free = max(taken, default=-1) + 1
    if free > MAX_RUN_ID:
        raise Refused("all run ids are used up; name a sorted run as a source, whose id is taken over")
    return free


def cancel(dataset: SlateDataset, clock: Clock, compaction_ids: Sequence[Ulid]) -> None:
    """Mark compactions Failed that are not Compacted yet, all or none. `Refused` says why it cannot be."""
    epoch = dataset.snapshot().compactor_epoch
    if coordinator_status(dataset, epoch, clock.now_ms()).presence is Presence.SLATEDB:
        raise Refused(
            f"{dataset.url} is coordinated by SlateDB, which has no way to cancel: its coordinator would put "
            "the compaction back. Stop the worker that runs it instead"
        )
    ledger = dataset.ledger()
    if ledger is None:
        raise Refused(f"{dataset.url} has no compactions file: no coordinator has ever run on it")
    attempts = dataset.journal.attempts()
    for compaction in [_cancellable(dataset, ledger, i) for i in compaction_ids]:
        # At least one attempt: else the coordinator would propose the same sources again at once.
        count = max(len(attempts.get(compaction.id, ())), 1)
        spec = dataset.encode_spec(compaction.spec)
        # Before the ledger, so that whoever sees it Failed sees why.
        dataset.journal.add_failure(Failure(compaction.id, CANCELLED, count, clock.now_ms(), spec))

    def change(latest: AnyLedger) -> AnyLedger:
        for compaction_id in compaction_ids:
            _cancellable(dataset, latest, compaction_id)
            latest = protocol.fail(latest, compaction_id)
        return latest

    try:
        dataset.update_ledger(change)
    except Refused:
        for compaction_id in compaction_ids:
            dataset.journal.forgive(compaction_id)
        raise
    for compaction_id in compaction_ids:
        dataset.journal.clear(compaction_id)


def _cancellable(dataset: SlateDataset, ledger: AnyLedger, compaction_id: Ulid) -> AnyCompaction:
    compaction = ledger.get(compaction_id)
    if compaction is None:
        raise Refused(
            f"{dataset.url} has no compaction {compaction_id} under way; `lithify status` shows those it has"
        )
    if compaction.state.is_terminal:
        raise Refused(f"compaction {compaction_id} is {compaction.state.value} already")
    if compaction.state is State.COMPACTED:
        raise Refused(f"compaction {compaction_id} is done and about to be committed; it is too late")
    return compaction


def retry(dataset: SlateDataset, clock: Clock, ids: Ids, compaction_id: Ulid) -> Ulid:
    """Submit a failed compaction again; its new id."""
    failure = next((f for f in dataset.journal.failures() if f.compaction == compaction_id), None)
    if failure is not None:
        spec = dataset.decode_spec(failure.spec)
    else:
        entry = LedgerHistory(dataset.store, dataset.paths).last_entry(compaction_id)
        if entry is None:
            raise Refused(f"nothing is known of a compaction {compaction_id} any more")
        if entry.state is not State.FAILED:
            raise Refused(f"compaction {compaction_id} has not failed: it is {entry.state.value}")
        spec = entry.spec
    (new_id,) = submit(dataset, clock, ids, [spec])
    dataset.journal.forgive(compaction_id)
    return new_id


def outcome(dataset: SlateDataset, compaction_id: Ulid) -> Outcome | None:
    """How a compaction stands or ended; `None` when nothing is known of it any more."""
    ledger = dataset.ledger()
    entry = ledger.get(compaction_id) if ledger is not None else None
    if entry is not None and not entry.state.is_terminal:
        return Outcome(compaction_id, entry.state)
    failure = next((f for f in dataset.journal.failures() if f.compaction == compaction_id), None)
    if failure is not None:
        return Outcome(compaction_id, State.FAILED, failure.reason)
    if entry is not None:
        return Outcome(compaction_id, entry.state)
    entry = LedgerHistory(dataset.store, dataset.paths).last_entry(compaction_id)
    if entry is None or entry.state.is_terminal:
        return Outcome(compaction_id, entry.state) if entry is not None else None
    # It was settled and dropped in one step, as happens beside a newer one that is finished too.
    return Outcome(compaction_id, State.COMPLETED) if _was_committed(dataset, entry) else None


def _was_committed(dataset: SlateDataset, compaction: AnyCompaction) -> bool:
    """Whether one of the newest manifests has its outputs as a run."""
    for manifest_id in reversed(dataset.manifest_ids()[-MAX_MANIFESTS:]):
        try:
            if is_committed(compaction, dataset.manifest(manifest_id)):
                return True
        except ObjectNotFound:  # collected since it was listed
            return False
    return False
