"""Timeouts for parts of uploads, from the measured pace of earlier uploads.

A part reports nothing until it is finished, it shares the connection with others, and its client's timeout is
fixed in advance. Only the end of an upload can be measured: it takes as long as the parts still in flight,
whose number is bounded.

1. Each finished upload records how long its end took. The longest one counts, and decays: an end with little
   left to send shows nothing about the next one.
2. A part is aborted and sent again after `_TIMES` that duration, rounded up to one of `LIMITS_S`, so that a
   few clients are enough. The first uploads, and all over a slow connection, get the longest limit.
3. A failed upload may have been aborted too soon: it resets the measurement.

A part that is sent again replaces the earlier one; the order does not matter, as both have the same bytes.
"""

from __future__ import annotations

LIMITS_S = (15.0, 30.0, 60.0, 120.0)
_TIMES = 16.0
_PATIENCE_TIMES = 4.0
_LEAST_PATIENCE_S = 3.0
_FADED = 0.9


class UploadPace:
    """The pace of uploads to one store. Safe to share between threads, except for an occasional lost
    update."""

    def __init__(self) -> None:
        self._end_s: float | None = None

    def note(self, end_s: float) -> None:
        """Record how long the end of a successful upload took."""
        self._end_s = max(end_s, _FADED * (self._end_s or 0.0))

    def forget(self) -> None:
        """Reset the measurement after a failed upload."""
        self._end_s = None

    @property
    def limit_s(self) -> float:
        """Return the timeout of a part."""
        end_s = self._end_s
        if end_s is None:
            return LIMITS_S[-1]
        return next((limit_s for limit_s in LIMITS_S if limit_s >= _TIMES * end_s), LIMITS_S[-1])

    @property
    def patience_s(self) -> float | None:
        """Return after how long without progress the wait is reported; `None` if unknown."""
        end_s = self._end_s
        return None if end_s is None else max(_LEAST_PATIENCE_S, _PATIENCE_TIMES * end_s)
