"""Pauses that grow with each failure, up to a bound: fixed ones to back off (`GrowingPause`), and random ones
to retry when many clients fail at once (`RandomPause`)."""

from __future__ import annotations

import random
from dataclasses import dataclass

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
