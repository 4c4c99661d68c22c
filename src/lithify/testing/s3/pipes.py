"""Bandwidth: when bytes have passed through a shared pipe."""

from __future__ import annotations


class Pipe:
    """A pipe that bytes pass one after the other."""

    def __init__(self) -> None:
        self._free_s = 0.0

    def take(self, size: int, rate: float | None, earliest_s: float) -> float:
        """Return when the last of `size` bytes has passed at `rate` bytes per second. The first cannot begin
        before `earliest_s`; an `earliest_s` in the past catches up on lost time."""
        if rate is None:
            return earliest_s
        self._free_s = max(self._free_s, earliest_s) + size / rate
        return self._free_s
