"""Logging a repeated error of a loop once, instead of every few seconds."""

from __future__ import annotations

import logging

from lithify.base.errors import LithifyError, StoreUnavailable

_log = logging.getLogger("lithify")


class OnceLogger:
    """The logger of one loop. `what` says what the loop cannot do."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._said = ""

    def say(self, error: LithifyError, what: str | None = None) -> None:
        """Log the error, unless it is the one logged last."""
        # The text contains how long a store has been away, which the store's events report.
        news = error.cause if isinstance(error, StoreUnavailable) else str(error)
        if news != self._said:
            _log.error("%s: %s", what or self._what, error)
        self._said = news

    def is_over(self) -> None:
        """Note that a round has succeeded."""
        self._said = ""
