"""How long what failed is left alone: pauses that grow with each failure, up to a bound."""

from __future__ import annotations

from dataclasses import dataclass

FACTOR = 4


@dataclass(frozen=True, slots=True)
class GrowingPause:
    """`first_ms` after the first failure, `FACTOR` times as long after each further one, at most
    `max_ms`."""

    first_ms: int
    max_ms: int

    def after_ms(self, failures: int) -> int:
        """How long to wait after so many failures; 0 after none."""
        if failures < 1:
            return 0
        return min(self.first_ms * int(FACTOR ** min(failures - 1, 32)), self.max_ms)

    def lasts(self, failures: int, last_at_ms: int, now_ms: int) -> bool:
        """Whether the pause after the last failure goes on. A failure in the future, by a clock that is
        wrong, gives none."""
        return 0 <= now_ms - last_at_ms < self.after_ms(failures)
