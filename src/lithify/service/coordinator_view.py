"""What the coordinator of a process has just read and published, for the worker beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lithify.base.ids import Ulid
from lithify.protocol.transitions import AnyCompaction, AnyLedger


@dataclass(frozen=True, slots=True)
class CoordinatorView:
    """A dataset at the end of a coordinator's tick. Need not be read again in the same round."""

    ledger: AnyLedger
    snapshot: Any
    """With all that `new` reads."""
    new: frozenset[Ulid] = frozenset()
    """Compactions that came into the ledger in that tick: nobody has claimed one but the worker beside the
    coordinator, and the journal has nothing about them."""


class EmbeddedWorker(Protocol):
    """The worker in the process of a coordinator, as that one sees it. What the coordinator schedules it
    can claim for this worker in the same version of the ledger, which then takes it up in its next look.
    What this worker has finished soon after, it can commit without a version that calls it Compacted."""

    @property
    def id(self) -> str:
        """Its name in the ledger."""
        ...

    def chooses(self, new: Sequence[AnyCompaction], snapshot: Any) -> tuple[Ulid, ...]:
        """Which of these it has idle slots for, the most urgent first."""
        ...

    def finished(self, ledger: AnyLedger) -> tuple[AnyCompaction, ...]:
        """What it has finished, still owns in `ledger` and has not published, as Compacted would be; only
        what is so short that nothing of it is on record. The rest it publishes itself."""
        ...

    def settled(self, compaction_ids: Iterable[Ulid]) -> None:
        """Of these, which it had finished, the ledger now says what became of them."""
        ...
