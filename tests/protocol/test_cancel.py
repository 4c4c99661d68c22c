"""What a cancellation does to the plans that follow, and what is left of one that was cut off."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lithify.base.errors import Refused, StoreError
from lithify.base.ids import RandomIds, Ulid
from lithify.protocol.attempts import FailedAttempt
from lithify.protocol.lease import Lease
from lithify.protocol.model import CompactionState
from lithify.service import control
from lithify.service.failures import CANCEL_PAUSE, FAILURE_PAUSE, given_up
from lithify.service.status import status
from lithify.store.objects import ObjectStore
from lithify.testing import Call, FaultyStore, StoreFault
from tests.protocol.rig import Rig, ledger_write

PAUSE_S = CANCEL_PAUSE.first_ms / 1000


def cancel(
    rig: Rig, compaction_id: Ulid, wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store
) -> None:
    """Cancel it, as somebody does who sees that Lithify coordinates."""
    dataset = rig.dataset()
    epoch = dataset.snapshot().compactor_epoch
    dataset.lease.write(Lease("lithify-1", is_ended=True, taken=epoch), dataset.lease.look())
    control.cancel(rig.dataset(wrap), rig.clock, [compaction_id])


def test_the_pause_does_not_grow_with_repetition(rig: Rig) -> None:
    coordinator = rig.coordinator()
    for _ in range(5):
        (compaction,) = coordinator.tick().ledger.active()
        cancel(rig, compaction.id)
        held = coordinator.tick()
        assert held.is_idle
        (note,) = [note for note in held.plan.notes if "backs off" in note]
        assert control.CANCELLED in note
        rig.clock.advance_s(PAUSE_S - 1)
        assert rig.coordinator().tick().is_idle, "a new coordinator knows it too"
        coordinator = rig.coordinator()
        rig.clock.advance_s(1)
    rig.finish(coordinator, rig.worker())
    rig.check()


def test_a_real_failure_counts_by_itself(rig: Rig) -> None:
    """Cancellations neither lengthen its pause nor shorten it."""
    coordinator = rig.coordinator()
    (compaction,) = coordinator.tick().ledger.active()
    cancel(rig, compaction.id)
    dataset = rig.dataset()
    spec = dataset.encode_spec(compaction.spec)
    for n in range(2):
        failed_id = RandomIds().ulid(n)
        dataset.journal.add_failure(FailedAttempt(failed_id, "disk on fire", 5, rig.clock.now_ms(), spec))
    rig.clock.advance_s(PAUSE_S + 1)
    (note,) = [note for note in rig.coordinator().tick().plan.notes if "backs off" in note]
    assert "disk on fire" in note
    rig.clock.advance_s(FAILURE_PAUSE.after_ms(2) / 1000 - PAUSE_S)
    assert not rig.coordinator().tick().is_idle


def test_what_was_cut_off_has_cancelled_nothing(rig: Rig) -> None:
    """The store goes away between the note and the ledger."""
    coordinator, worker = rig.coordinator(), rig.worker()
    coordinator.tick()
    compaction_id = rig.only.id

    def fail(_: int, call: Call) -> StoreFault | None:
        return StoreFault.FAIL_BEFORE if ledger_write(call) else None

    with pytest.raises(StoreError, match="injected"):
        cancel(rig, compaction_id, lambda store: FaultyStore(store, fail))
    dataset = rig.dataset()
    (noted,) = dataset.journal.failures()
    assert noted.is_cancelled
    assert status(dataset, rig.clock, 30_000).failures == ()
    found = control.outcome(dataset, compaction_id)
    assert found is not None
    assert found.state is CompactionState.SCHEDULED
    rig.finish(coordinator, worker)
    ended = control.outcome(rig.dataset(), compaction_id)
    assert ended is not None
    assert ended.state is CompactionState.COMPLETED
    rig.check()


def test_two_people_who_cancel_the_same(rig: Rig) -> None:
    """The second is told, and the note of the first stays."""
    rig.coordinator().tick()
    compaction_id = rig.only.id
    cancel(rig, compaction_id)
    with pytest.raises(Refused, match="already failed"):
        cancel(rig, compaction_id)
    assert [f.compaction for f in given_up(rig.dataset().journal.failures(), rig.ledger)] == [compaction_id]
