"""What the coordinator of a process has just read and published, for the worker beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lithify.compaction.transitions import AnyLedger
from lithify.ids import Ulid


@dataclass(frozen=True, slots=True)
class Seen:
    """A dataset at the end of a coordinator's tick. Need not be read again in the same round."""

    ledger: AnyLedger
    snapshot: Any
    """With all that `new` reads."""
    new: frozenset[Ulid] = frozenset()
    """Compactions that came into the ledger in that tick: nobody has claimed one, and the journal has nothing
    about them."""
