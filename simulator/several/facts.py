"""What is known of a dataset: taken from what is written to its store, for a judge for whom nothing goes
wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lithify.base.backoff import GrowingPause
from lithify.protocol.transitions import AnyCompaction, AnyLedger

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


@dataclass(frozen=True, slots=True)
class Try:
    """An attempt that ended, as it was noted."""

    at_ms: int
    recorded: int
    """How many ranges were on record then."""
    by: str
    """Who noted it."""
    noted_ms: int


@dataclass(slots=True)
class Facts:
    """What is known of a dataset."""

    ledger: AnyLedger | None = None
    free_since_ms: dict[str, int] = field(default_factory=dict)
    hindered_ms: int = 0
    """When a write of its ledger failed last."""
    claims: dict[str, Claim] = field(default_factory=dict)
    attempts: dict[str, dict[tuple[Any, ...], Try]] = field(default_factory=dict)
    """Each once."""
    failures: dict[str, Failure] = field(default_factory=dict)
    plannable_since_ms: dict[str, int] = field(default_factory=dict)
    waited_ms: dict[str, int] = field(default_factory=dict)
    """Of units with work, the time that counts."""
    last_sources: Mapping[str, frozenset[str]] = field(default_factory=dict)
    sources: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def tries(self, compaction: str) -> tuple[int, int]:
        """How many attempts count, and when the last was. Those before one that has brought it on do not."""
        return _count(self.attempts.get(compaction, {}).values())

    def tries_seen(self, compaction: str, who: str, looked_ms: int) -> tuple[int, int]:
        """The same, of what somebody must have seen whose look began then: a coordinator takes back what a
        silent worker holds before it notes the attempt, and it may be claimed between the two."""
        noted = self.attempts.get(compaction, {}).values()
        return _count(t for t in noted if t.by == who or t.noted_ms < looked_ms)

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


def _count(tries: Iterable[Try]) -> tuple[int, int]:
    most = count = last_ms = 0
    for one in sorted(tries, key=lambda t: (t.at_ms, t.recorded)):
        is_on = one.recorded > most
        most, count, last_ms = (one.recorded, 0, one.at_ms) if is_on else (most, count + 1, one.at_ms)
    return count, last_ms
