"""The view that a coordinator has just read and published, for the embedded worker."""

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
    """Contains all inputs of `new`."""
    new: frozenset[Ulid] = frozenset()
    """Compactions added to the ledger in that tick: only the embedded worker can have claimed one, and the
    journal has no entries about them."""


class EmbeddedWorker(Protocol):
    """The worker in a coordinator's process, as the coordinator sees it. The coordinator can claim a
    compaction for this worker in the version that schedules it; the worker starts it at its next poll. If the
    worker finishes it soon, the coordinator can commit it without a version in which it is Compacted."""

    @property
    def id(self) -> str:
        """The worker's name in the ledger."""
        ...

    def chooses(self, new: Sequence[AnyCompaction], snapshot: Any) -> tuple[Ulid, ...]:
        """Return those for which the worker has idle slots, the most urgent first."""
        ...

    def finished(self, ledger: AnyLedger) -> tuple[AnyCompaction, ...]:
        """Return, as Compacted, the compactions that are finished, still owned in `ledger` and not yet
        published; only those so short that none of their progress is recorded. The worker publishes the
        others itself."""
        ...

    def settled(self, compaction_ids: Iterable[Ulid]) -> None:
        """Note that the ledger now shows the result of these finished compactions."""
        ...
