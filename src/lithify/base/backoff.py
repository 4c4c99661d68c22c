"""Pauses that grow with each failure, up to a bound: fixed ones (`GrowingPause`), random ones to retry when
many clients fail at once (`RandomPause`), and the back-off from one thing that fails (`Backoff`)."""

from __future__ import annotations

import random
from dataclasses import dataclass

from lithify.base.errors import Fenced, LithifyError, StoreUnavailable

FACTOR = 4
_MAX_STEPS = 32
"""Maximum number of times that a pause grows: far beyond every bound."""


@dataclass(frozen=True, slots=True)
class GrowingPause:
    """A pause of `first_ms` after the first failure, `factor` times as long after each further one, at most
    `max_ms`."""

    first_ms: int
    max_ms: int
    factor: int = FACTOR

    def after_ms(self, failures: int) -> int:
        """Return the pause after this number of failures; 0 after none."""
        if failures < 1:
            return 0
        return min(self.first_ms * int(self.factor ** min(failures - 1, _MAX_STEPS)), self.max_ms)

    def lasts(self, failures: int, last_at_ms: int, now_ms: int) -> bool:
        """Return whether the pause after the last failure is not over yet. A failure in the future (of a
        wrong clock) causes no pause."""
        return 0 <= now_ms - last_at_ms < self.after_ms(failures)


@dataclass(frozen=True, slots=True)
class RandomPause:
    """A random pause up to `first_s` after the first failure, up to twice as long after each further one, at
    most `max_s`, so that clients that failed at once do not retry in step."""

    first_s: float
    max_s: float

    def after_s(self, failures: int, rng: random.Random) -> float:
        """Return the pause after this number of failures, one or more."""
        longest_s = min(self.first_s * (1 << min(failures - 1, _MAX_STEPS)), self.max_s)
        return rng.uniform(0, longest_s)


AWAY_PAUSE = GrowingPause(first_ms=1_000, max_ms=5_000)


@dataclass(slots=True)
class Backoff:
    """The back-off of one process from one dataset.

    1. A failed round puts the dataset into quarantine: it is left alone for `pause`, which grows with each
       failure in a row. The reason is news at first, and again when it changes.
    2. A store that is away, or a leadership that was lost, is no failure of the dataset: the pause is short,
       there is no news, and a quarantine goes on.
    3. A round that succeeds ends everything.
    """

    pause: GrowingPause
    error: LithifyError | None = None
    """The error of the last round."""
    why: str = ""
    """The reason of the quarantine; empty if there is none."""
    rounds: int = 0
    """Number of failed rounds in a row."""
    failures: int = 0
    """Number of these that were failures of the dataset itself."""
    failed_ms: int = 0

    def failed(self, error: LithifyError, now_ms: int) -> bool:
        """Record a failed round. Return whether it is news."""
        self.error, self.failed_ms = error, now_ms
        self.rounds += 1
        if self._is_brief:
            return False
        self.failures += 1
        before, self.why = self.why, str(error) or type(error).__name__
        return self.why != before

    def succeeded(self) -> int:
        """Record a good round. Return the number of failed rounds that a quarantine had, which is over now; 0
        if there was none."""
        rounds = self.rounds if self.failures else 0
        self.error, self.why, self.rounds, self.failures = None, "", 0, 0
        return rounds

    @property
    def is_quarantined(self) -> bool:
        return self.failures > 0

    @property
    def is_away(self) -> bool:
        """Whether the last round failed merely because a store is away."""
        return isinstance(self.error, StoreUnavailable)

    @property
    def pause_ms(self) -> int:
        """The pause after the last round; 0 after a good one."""
        return AWAY_PAUSE.after_ms(self.rounds) if self._is_brief else self.pause.after_ms(self.failures)

    @property
    def _is_brief(self) -> bool:
        return isinstance(self.error, StoreUnavailable | Fenced)
