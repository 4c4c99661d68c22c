"""Transitions of a compaction, and the role that may make each: pure functions from ledger to ledger.

| from      | to        | by          | function            |
|-----------|-----------|-------------|---------------------|
| (absent)  | Submitted | anyone      | `submit`            |
| Submitted | Scheduled | coordinator | `schedule`          |
| Scheduled | Running   | worker      | `claim`             |
| Running   | Running   | its worker  | `heartbeat`         |
| Running   | Compacted | its worker  | `finish`            |
| Running   | Completed | coordinator, for its embedded worker | `finish`, then `complete` |
| Running   | Scheduled | its worker  | `release`           |
| Running   | Scheduled | coordinator | `reclaim`           |
| Scheduled | Submitted | coordinator | `recover` (start-up)|
| Compacted, Submitted | Completed | coordinator | `complete` |
| any active| Failed    | coordinator | `fail`              |

Invariants:

1. Terminal states absorb: a change of a Completed or Failed compaction is an error.
2. Only the worker named in a Running compaction may change it; all others get `LostOwnership`.
3. Once recorded, the ranges and the horizon of a compaction never change and each range's outputs
   only grow by appending, so that any worker can resume where another stopped.
4. A new compaction's id is not older than any id in the ledger (`next_id_ms`).
5. A coordinator writes only while the ledger carries its own epoch (`check_epoch`).

Each function takes the latest ledger and is applied again to the newer one when its publication
meets a conflict, so nothing here may remember an older ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from lithify.base.errors import Fenced, LithifyError, LostOwnership
from lithify.base.ids import MAX_ULID_MS, Ulid, ulid_ms
from lithify.protocol.model import AssignedWorker, Compaction, CompactionState, Ledger, Progress

AnyCompaction = Compaction[Any, Any, Any]
AnyLedger = Ledger[Any, Any, Any]
AnyProgress = Progress[Any, Any]


class IllegalTransition(LithifyError):
    """A change the table above does not allow: a bug of the caller; nothing was written."""


def check_epoch(ledger: AnyLedger, epoch: int) -> None:
    """Raise `Fenced` unless the ledger still carries the coordinator's own epoch."""
    if ledger.epoch != epoch:
        raise Fenced(
            f"another coordinator has taken over (epoch {ledger.epoch}, mine was {epoch}); "
            "this one stops. Nothing is lost: finished ranges are recorded and will be used."
        )


def next_id_ms(ledger: AnyLedger, now_ms: int) -> int:
    """Return the milliseconds for the id of a new compaction: now, but never before an existing id. If the
    clock may be wrong, `now_ms` should be at most the newest time in the snapshot: an id from the future
    keeps all other programs from adding compactions until that time has come."""
    return max([now_ms, *(ulid_ms(c.id) for c in ledger.compactions)])


def submit(ledger: AnyLedger, *new: AnyCompaction) -> AnyLedger:
    """Add compactions in state Submitted."""
    known = {c.id for c in ledger.compactions}
    for compaction in new:
        if compaction.state is not CompactionState.SUBMITTED or compaction.id in known:
            raise IllegalTransition(f"compaction {compaction.id} cannot be submitted again")
    return ledger.add(*new)


def schedule(ledger: AnyLedger, compaction_id: Ulid) -> AnyLedger:
    """Move from Submitted to Scheduled. Progress is kept: the sources of a compaction never change, and a
    horizon older than today's only keeps more."""
    _require(ledger, compaction_id, CompactionState.SUBMITTED)
    return ledger.update(
        compaction_id, lambda c: replace(c, state=CompactionState.SCHEDULED, worker=None, outputs=())
    )


def claimable(ledger: AnyLedger) -> tuple[AnyCompaction, ...]:
    """Return the Scheduled compactions without owner, oldest first."""
    return tuple(c for c in ledger.compactions if c.state is CompactionState.SCHEDULED and c.worker is None)


def claim(ledger: AnyLedger, compaction_id: Ulid, worker_id: str, now_ms: int) -> AnyLedger:
    """Move from Scheduled to Running under `worker_id`. Raise `LostOwnership` when another worker was
    faster."""
    compaction = ledger.get(compaction_id)
    if (
        compaction is None
        or compaction.state is not CompactionState.SCHEDULED
        or compaction.worker is not None
    ):
        raise LostOwnership(f"compaction {compaction_id} was taken by another worker")
    return ledger.update(
        compaction_id,
        lambda c: replace(c, state=CompactionState.RUNNING, worker=AssignedWorker(worker_id, now_ms)),
    )


def owns(ledger: AnyLedger, compaction_id: Ulid, worker_id: str) -> bool:
    """Return whether `worker_id` is running that compaction according to this ledger."""
    compaction = ledger.get(compaction_id)
    return (
        compaction is not None
        and compaction.state is CompactionState.RUNNING
        and compaction.worker is not None
        and compaction.worker.id == worker_id
    )


def heartbeat(
    ledger: AnyLedger, compaction_id: Ulid, worker_id: str, now_ms: int, progress: AnyProgress | None = None
) -> AnyLedger:
    """Record a heartbeat, with the progress if there is any. Its time differs from that of the last one, even
    if the worker's clock stands still: coordinators detect heartbeats by this difference."""
    compaction = _require_owner(ledger, compaction_id, worker_id)
    assert compaction.worker is not None
    last_ms = compaction.worker.last_heartbeat_ms
    # A time outside the range of ids comes from no real clock, and is not exceeded.
    beat = AssignedWorker(worker_id, max(now_ms, last_ms + 1) if last_ms < MAX_ULID_MS else now_ms)
    recorded = compaction.progress
    if progress is not None:
        if recorded is not None:
            _check_grows(compaction_id, recorded, progress)
        recorded = progress
    return ledger.update(compaction_id, lambda c: replace(c, worker=beat, progress=recorded))


def finish(
    ledger: AnyLedger, compaction_id: Ulid, worker_id: str, now_ms: int, outputs: tuple[Any, ...]
) -> AnyLedger:
    """Move from Running to Compacted with all outputs in order."""
    _require_owner(ledger, compaction_id, worker_id)
    return ledger.update(compaction_id, lambda c: compacted(c, worker_id, now_ms, outputs))


def compacted(
    compaction: AnyCompaction, worker_id: str, now_ms: int, outputs: tuple[Any, ...]
) -> AnyCompaction:
    """Return a Running compaction as changed by `finish`."""
    owner = AssignedWorker(worker_id, now_ms)
    return replace(compaction, state=CompactionState.COMPACTED, outputs=outputs, worker=owner, progress=None)


def release(ledger: AnyLedger, compaction_id: Ulid, worker_id: str) -> AnyLedger:
    """Move from Running back to Scheduled; finished work stays recorded for the next worker."""
    _require_owner(ledger, compaction_id, worker_id)
    return ledger.update(compaction_id, lambda c: replace(c, state=CompactionState.SCHEDULED, worker=None))


def reclaim(ledger: AnyLedger, compaction_ids: Iterable[Ulid]) -> AnyLedger:
    """Move from Running back to Scheduled, by the coordinator; progress stays recorded."""
    for compaction_id in compaction_ids:
        _require(ledger, compaction_id, CompactionState.RUNNING)
        ledger = ledger.update(
            compaction_id, lambda c: replace(c, state=CompactionState.SCHEDULED, worker=None)
        )
    return ledger


def complete(ledger: AnyLedger, compaction_id: Ulid) -> AnyLedger:
    """Move to Completed after the commit: from Compacted, or from Submitted if no worker was needed."""
    _require(ledger, compaction_id, CompactionState.COMPACTED, CompactionState.SUBMITTED)
    return ledger.update(compaction_id, lambda c: replace(c, state=CompactionState.COMPLETED, progress=None))


def fail(ledger: AnyLedger, compaction_id: Ulid) -> AnyLedger:
    """Move any active compaction to Failed. The reason is logged, not stored in the ledger; the outputs are
    garbage from now on."""
    _require(ledger, compaction_id, *(s for s in CompactionState if not s.is_terminal))
    return ledger.update(
        compaction_id, lambda c: replace(c, state=CompactionState.FAILED, outputs=(), progress=None)
    )


def trim(ledger: AnyLedger, ended: Collection[Ulid] = ()) -> AnyLedger:
    """Keep active compactions, and of finished ones the newest and those that have just `ended`: some version
    has to record how. The newest must be kept: the garbage collectors of SlateDB delete nothing while a
    ledger has no entry at all."""
    finished = [c.id for c in ledger.compactions if c.state.is_terminal]
    stays = {max(finished, default=None), *ended}
    kept = tuple(c for c in ledger.compactions if not c.state.is_terminal or c.id in stays)
    return replace(ledger, compactions=kept)


def recover(ledger: AnyLedger, epoch: int) -> AnyLedger:
    """Return the ledger that a starting coordinator takes over: its epoch is set, Scheduled compactions
    go back to Submitted to be validated again and keep their progress, Running and Compacted ones are
    unchanged."""
    if ledger.epoch > epoch:
        raise Fenced(f"a newer coordinator (epoch {ledger.epoch}) runs already; mine would be {epoch}")
    compactions = tuple(
        replace(c, state=CompactionState.SUBMITTED, worker=None)
        if c.state is CompactionState.SCHEDULED
        else c
        for c in ledger.compactions
    )
    return trim(replace(ledger, epoch=epoch, compactions=compactions))


def _require(ledger: AnyLedger, compaction_id: Ulid, *states: CompactionState) -> AnyCompaction:
    compaction = ledger.get(compaction_id)
    if compaction is None:
        raise IllegalTransition(f"compaction {compaction_id} is not in the ledger")
    if compaction.state not in states:
        raise IllegalTransition(f"compaction {compaction_id} is {compaction.state.value}")
    return compaction


def _require_owner(ledger: AnyLedger, compaction_id: Ulid, worker_id: str) -> AnyCompaction:
    compaction = ledger.get(compaction_id)
    if compaction is None or not owns(ledger, compaction_id, worker_id):
        raise LostOwnership(
            f"compaction {compaction_id} is no longer owned by worker {worker_id}; its work is dropped"
        )
    return compaction


def _check_grows(compaction_id: Ulid, old: AnyProgress, new: AnyProgress) -> None:
    planned = [r.range for r in old.ranges]
    same_plan = old.horizon == new.horizon and planned in (
        [],  # only the horizon was set
        [r.range for r in new.ranges],
    )
    grows = same_plan and all(
        after.outputs[: len(before.outputs)] == before.outputs
        for before, after in zip(old.ranges, new.ranges, strict=bool(planned))
    )
    if not grows:
        raise IllegalTransition(f"progress of compaction {compaction_id} would lose recorded work")
