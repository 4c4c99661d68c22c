"""What goes wrong in one round of a loop after the other, told without repeating it every few seconds."""

from __future__ import annotations

import logging

from lithify.base.errors import LithifyError, StoreUnavailable

_log = logging.getLogger("lithify")


class OnceLogger:
    """Of one loop; `what` says what cannot be done."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._said = ""

    def say(self, error: LithifyError, what: str | None = None) -> None:
        """Log the error, unless it is what was said last."""
        # How long a store has been away is in the text, and told by its events.
        news = error.cause if isinstance(error, StoreUnavailable) else str(error)
        if news != self._said:
            _log.error("%s: %s", what or self._what, error)
        self._said = news

    def is_over(self) -> None:
        """A round was finished."""
        self._said = ""
