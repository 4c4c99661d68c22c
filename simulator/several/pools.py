"""What a pool has seen: its looks at datasets, what was free then, and its attempts that came to nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from lithify.base.backoff import GrowingPause
from lithify.base.errors import LithifyError


class Engine(Protocol):
    @property
    def failure(self) -> LithifyError | None: ...

    @property
    def running(self) -> frozenset[str]: ...

    @property
    def ended_ms(self) -> int | None: ...


@dataclass(slots=True)
class Candidate:
    """A free compaction as a pool has seen it."""

    first_seen_ms: int
    passed_over: int = 0
    """Claims of others while it could have been claimed, for certain."""
    rivals: int = 1
    """The most that were free beside it, itself included."""
    lowest: float = 1.0
    highest: float = 0.0
    """Its priority since the last look."""
    tries: int = 0
    """Attempts that count, at the last look."""


@dataclass(slots=True)
class Looks:
    """What a pool knows of a dataset."""

    at_ms: int = 0
    is_well: bool = False
    """The last look has not failed, nor what came after it."""
    well_at_ms: int = 0
    well_since_ms: int = 0
    """The first of the good looks that followed each other until now."""
    failed: int = 0
    """Looks in a row."""
    failed_at_ms: int = 0
    passed_over: int = 0
    """Claims of other datasets while this one could have claimed, for certain."""
    claims: int = 0
    """Claims of this dataset."""
    claims_at_look: int = 0
    """How many there were at the last look."""
    last_claim: int = 0
    """The number of the pool's claim that was the last of this dataset."""
    candidates: dict[str, Candidate] = field(default_factory=dict)
    gone: float = 0.0
    """How urgent that was which others have taken since the last look. The pool may not know."""
    ages: dict[str, int] = field(default_factory=dict)
    """Of what it may have seen free since it claimed that last: how many claims there were before."""
    failures: int = 0
    """Attempts in a row that came to nothing."""
    last_failure_ms: tuple[int, int] = (0, 0)
    """When the last one was: not before, and not after."""
    rest_over_ms: int = 0
    """When its last rest was over, as of the last success; a success ends it."""


@dataclass(slots=True, eq=False)
class Pool:
    """A process with a pool, as it is judged."""

    name: str
    slots: int
    started_ms: int
    engine: Engine | None = None
    claims: int = 0
    full_at_ms: int = 0
    """When all slots were last in use."""
    places: dict[str, Looks] = field(default_factory=dict)
    failures: int = 0
    """Attempts in a row that came to nothing, of whatever dataset."""
    last_failure_ms: tuple[int, int] = (0, 0)
    failing: set[str] = field(default_factory=set)
    """Datasets of these attempts."""

    def of(self, place: str) -> Looks:
        return self.places.setdefault(place, Looks())

    def rests(self, place: str, pause: GrowingPause) -> tuple[int, int]:
        """Until when it rests where this dataset is concerned: not longer than, and as long as."""
        looks = self.of(place)
        own = pause.after_ms(looks.failures)
        first, last = looks.last_failure_ms[0] + own, looks.last_failure_ms[1] + own
        if len(self.failing) > 1:
            together = pause.after_ms(self.failures)
            first = max(first, self.last_failure_ms[0] + together)
            last = max(last, self.last_failure_ms[1] + together)
        return first, last
