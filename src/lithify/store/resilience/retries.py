"""When a request that failed is made again: one policy for every store and every verb.

A function of values: how many tries there were, how long they have taken, what kind of failure the last one
was, and a source of chance. The answer is a pause, or that it is given up.

1. What the store has decided (no such object, no right to it, a bad request) is not asked again.
2. What may be a mistake in the settings is asked again for a few seconds only.
3. What passes is asked again until the bound in time is reached. Pauses double up to `max_pause_s`, and
   each is drawn evenly from zero to that (full jitter), so that many clients that lost the same store do not
   come back in step.

The bound counts from the first failure, not from the first try: a request that hung for long has not been
waited for by anybody who knew.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

from lithify.base.backoff import RandomPause

DEFAULT_WAIT_S = 300.0
MAX_DOUBTFUL_S = 10.0
FIRST_PAUSE_S = 0.001
MAX_PAUSE_S = 5.0


class RequestFailure(Enum):
    """What a failed request tells about the next one."""

    LASTING = "lasting"
    """The store has answered; it would answer the same again."""
    DOUBTFUL = "doubtful"
    """Nobody may ever answer: credentials that are looked up where there are none, an answer in a language
    that no store has."""
    PASSING = "passing"
    """The store is away, overloaded, or the connection broke."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """See the module. Times are seconds."""

    max_wait_s: float = DEFAULT_WAIT_S
    """From the first failure on; may be infinite."""
    max_retries: int | None = None
    """Besides; without a bound by default."""
    first_pause_s: float = FIRST_PAUSE_S
    """A single failure costs no more than another round trip: a store that refuses a share of all requests
    takes most of them at once, and after ten refusals the pauses are a second long."""
    max_pause_s: float = MAX_PAUSE_S
    """Also the longest that the end of an outage goes unnoticed."""

    def pause_s(
        self, tries: int, waited_s: float, failure: RequestFailure, rng: random.Random
    ) -> float | None:
        """How long to wait before the next try, after so many in so long; `None` to give up."""
        max_wait_s = (
            min(self.max_wait_s, MAX_DOUBTFUL_S) if failure is RequestFailure.DOUBTFUL else self.max_wait_s
        )
        if failure is RequestFailure.LASTING or waited_s >= max_wait_s:
            return None
        if self.max_retries is not None and tries > self.max_retries:
            return None
        pause = RandomPause(self.first_pause_s, self.max_pause_s)
        return min(pause.after_s(tries, rng), max_wait_s - waited_s)
