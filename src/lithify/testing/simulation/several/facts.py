"""What is known of a dataset: taken from what is written to its store, for a judge for whom nothing goes
wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lithify.backoff import GrowingPause
from lithify.compaction.transitions import AnyCompaction, AnyLedger

_FAILURE_PAUSE = GrowingPause(60_000, 3_600_000)
_CANCEL_MS = 60_000


@dataclass(slots=True)
class Claim:
    """Who has claimed a compaction last."""

    worker: str
    waited_ms: int = 0
    """How long it had been free, since the last write of its ledger that failed."""
    noted: set[tuple[Any, ...]] = field(default_factory=set)
    is_down: bool = False
    """Its tasks ended with their engine."""


@dataclass(frozen=True, slots=True)
class Failure:
    compaction: str
    sources: frozenset[str]
    at_ms: int
    is_cancelled: bool


@dataclass(slots=True)
class Facts:
    """What is known of a dataset."""

    ledger: AnyLedger | None = None
    free_since_ms: dict[str, int] = field(default_factory=dict)
    hindered_ms: int = 0
    """When a write of its ledger failed last."""
    claims: dict[str, Claim] = field(default_factory=dict)
    attempts: dict[str, dict[tuple[Any, ...], tuple[int, int]]] = field(default_factory=dict)
    """Each once: when it was, and how many ranges were on record then."""
    failures: dict[str, Failure] = field(default_factory=dict)
    plannable_since_ms: dict[str, int] = field(default_factory=dict)
    waited_ms: dict[str, int] = field(default_factory=dict)
    """Of units with work, the time that counts."""
    last_sources: Mapping[str, frozenset[str]] = field(default_factory=dict)
    sources: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def tries(self, compaction: str) -> tuple[int, int]:
        """How many attempts count, and when the last was. Those before one that has brought it on do not."""
        most = count = last_ms = 0
        for at_ms, recorded in sorted(self.attempts.get(compaction, {}).values()):
            most, count, last_ms = (recorded, 0, at_ms) if recorded > most else (most, count + 1, at_ms)
        return count, last_ms

    def held_ms(self, sources: frozenset[str], now_ms: int) -> int:
        """How much longer these are left alone, at most, because of what failed."""
        active = {c.id for c in self.ledger.active()} if self.ledger is not None else set()
        alike = [f for f in self.failures.values() if f.compaction not in active and f.sources & sources]
        ends = [f.at_ms + _CANCEL_MS for f in alike if f.is_cancelled]
        failed = [f.at_ms for f in alike if not f.is_cancelled]
        ends += [at_ms + _FAILURE_PAUSE.after_ms(len(failed)) for at_ms in failed]
        return max(0, max(ends, default=0) - now_ms)

    def entry(self, compaction: str) -> AnyCompaction | None:
        if self.ledger is None:
            return None
        return next((c for c in self.ledger.compactions if c.id == compaction), None)
