"""The known past of a ledger: a port, and its values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lithify.base.ids import Ulid
from lithify.protocol.transitions import AnyCompaction


@dataclass(frozen=True, slots=True)
class Arrival:
    """The version of the ledger in which a compaction entered its present state."""

    at_ms: int
    compaction: AnyCompaction
    """The compaction in that version."""


class History(Protocol):
    """The past of one ledger, as read once. Old versions are collected after a while, so every result may be
    `None` for unknown."""

    def arrival(self, compaction: AnyCompaction) -> Arrival | None:
        """Return when `compaction` entered its state, under its worker."""
        ...

    def first_progress(self, compaction: AnyCompaction) -> Arrival | None:
        """Return when its present worker first had recorded progress. A worker that resumes another's
        progress has it from the start."""
        ...

    def heard(self, compaction: AnyCompaction) -> Arrival | None:
        """Return an upper bound of the time of its present worker's last heartbeat: the first known version
        with that heartbeat."""
        ...

    def last_entry(self, compaction_id: Ulid) -> AnyCompaction | None:
        """Return the compaction as recorded by the newest version that contains it."""
        ...
