"""Pauses that grow with each failure, up to a bound: how long what failed is left alone (`GrowingPause`), and
how long one of many waits until it tries again (`RandomPause`)."""

from __future__ import annotations

import random
from dataclasses import dataclass

FACTOR = 4
_MAX_STEPS = 32
"""So often a pause grows, at most: far beyond every bound."""


@dataclass(frozen=True, slots=True)
class GrowingPause:
    """`first_ms` after the first failure, `factor` times as long after each further one, at most
    `max_ms`."""

    first_ms: int
    max_ms: int
    factor: int = FACTOR

    def after_ms(self, failures: int) -> int:
        """How long to wait after so many failures; 0 after none."""
        if failures < 1:
            return 0
        return min(self.first_ms * int(self.factor ** min(failures - 1, _MAX_STEPS)), self.max_ms)

    def lasts(self, failures: int, last_at_ms: int, now_ms: int) -> bool:
        """Whether the pause after the last failure goes on. A failure in the future, by a clock that is
        wrong, gives none."""
        return 0 <= now_ms - last_at_ms < self.after_ms(failures)


@dataclass(frozen=True, slots=True)
class RandomPause:
    """At random up to `first_s` after the first failure, up to twice as long after each further one, at most
    `max_s`: so many that failed at once do not come back in step."""

    first_s: float
    max_s: float

    def after_s(self, failures: int, rng: random.Random) -> float:
        """How long to wait after so many failures, one or more."""
        longest_s = min(self.first_s * (1 << min(failures - 1, _MAX_STEPS)), self.max_s)
        return rng.uniform(0, longest_s)
