"""Bandwidth: when bytes would have passed through a pipe that others use too."""

from __future__ import annotations


class Pipe:
    """Bytes pass one after the other."""

    def __init__(self) -> None:
        self._free_s = 0.0

    def take(self, size: int, rate: float | None, earliest_s: float) -> float:
        """When the last of `size` bytes has passed at `rate` bytes per second, the first of which cannot
        begin before `earliest_s`. Whoever asks with an `earliest_s` that has passed catches up on lost
        time."""
        if rate is None:
            return earliest_s
        self._free_s = max(self._free_s, earliest_s) + size / rate
        return self._free_s
