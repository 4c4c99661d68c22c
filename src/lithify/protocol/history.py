"""What is still known of a ledger's past: a port, and its values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lithify.base.ids import Ulid
from lithify.protocol.transitions import AnyCompaction


@dataclass(frozen=True, slots=True)
class Arrival:
    """The version of the ledger in which a compaction came into its present state."""

    at_ms: int
    compaction: AnyCompaction
    """As it was then."""


class History(Protocol):
    """The past of one ledger, as it was found once. Old versions are collected after a while, so every
    answer may be "not known"."""

    def arrival(self, compaction: AnyCompaction) -> Arrival | None:
        """When `compaction` came into its state, under its worker."""
        ...

    def first_progress(self, compaction: AnyCompaction) -> Arrival | None:
        """When its present worker first had progress on record. One that goes on from another's has it
        from the start."""
        ...

    def heard(self, compaction: AnyCompaction) -> Arrival | None:
        """When its present worker was last heard, or that it was not later than then: the first known version
        with the sign of life that it has now."""
        ...

    def last_entry(self, compaction_id: Ulid) -> AnyCompaction | None:
        """The compaction as the newest version that names it has it."""
        ...
