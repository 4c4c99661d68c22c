"""How long parts of uploads take on the way to a store, and so for how long one may be silent.

A part tells nothing until it is over, it shares the way with others, and the client that sends it cuts it off
by a bound that was fixed before. What is seen is the end of an upload: it takes as long as the parts that are
still under way, and no more are then than may be at any time.

1. An upload that has ended says how long its end took. Of these the longest counts, and fades: an end with
   little left to send tells nothing of the next one.
2. A part is cut off, and sent again, after `_TIMES` as long, rounded up to one of `LIMITS_S`, so that a few
   clients are enough. The first uploads, and all on a slow way, may take the longest.
3. An upload that failed may have been cut off too soon: then nothing is known any more.

A part that is sent again takes the place of the one before, whichever arrives last: both are the same bytes.
"""

from __future__ import annotations

LIMITS_S = (15.0, 30.0, 60.0, 120.0)
_TIMES = 16.0
_PATIENCE_TIMES = 4.0
_LEAST_PATIENCE_S = 3.0
_FADED = 0.9


class UploadPace:
    """Of uploads to one store. Safe to share between threads, but for a lost update now and then."""

    def __init__(self) -> None:
        self._end_s: float | None = None

    def note(self, end_s: float) -> None:
        """An upload has ended well; its end took that long."""
        self._end_s = max(end_s, _FADED * (self._end_s or 0.0))

    def forget(self) -> None:
        """An upload has failed."""
        self._end_s = None

    @property
    def limit_s(self) -> float:
        """After how long a part is lost."""
        end_s = self._end_s
        if end_s is None:
            return LIMITS_S[-1]
        return next((limit_s for limit_s in LIMITS_S if limit_s >= _TIMES * end_s), LIMITS_S[-1])

    @property
    def patience_s(self) -> float | None:
        """After how long without anything sent it is told that the store is waited for; `None`: not known."""
        end_s = self._end_s
        return None if end_s is None else max(_LEAST_PATIENCE_S, _PATIENCE_TIMES * end_s)
