"""The retry policy for all stores and requests.

The policy is a function of the number of tries, the time they took, the kind of the last failure, and a
random source. It returns a pause, or gives up.

1. Decisions of the store (no such object, access denied, a bad request) are not retried.
2. Possible mistakes in the settings are retried for a few seconds only.
3. Passing failures are retried until the time limit. Pauses double up to `max_pause_s`, and each is drawn
   evenly from zero to that (full jitter), so that many clients do not retry in step.

The limit counts from the first failure, not from the first try, since a hanging request is not known to have
failed.
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
    """Whether a failed request may succeed later."""

    LASTING = "lasting"
    """A decision of the store, which would not change."""
    DOUBTFUL = "doubtful"
    """Possibly permanent: credentials looked up where there are none, an answer that is not from a store."""
    PASSING = "passing"
    """The store is unavailable or overloaded, or the connection broke."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The limits of retrying. Times are seconds."""

    max_wait_s: float = DEFAULT_WAIT_S
    """From the first failure on; may be infinite."""
    max_retries: int | None = None
    """An additional limit; none by default."""
    first_pause_s: float = FIRST_PAUSE_S
    """So short that a single failure costs only another round trip: a store that refuses a share of all
    requests accepts most retries at once, and after ten refusals the pauses are a second long."""
    max_pause_s: float = MAX_PAUSE_S
    """Also the longest delay until the end of an outage is noticed."""

    def pause_s(
        self, tries: int, waited_s: float, failure: RequestFailure, rng: random.Random
    ) -> float | None:
        """Return the pause before the next try, after `tries` in `waited_s`; `None` to give up."""
        max_wait_s = (
            min(self.max_wait_s, MAX_DOUBTFUL_S) if failure is RequestFailure.DOUBTFUL else self.max_wait_s
        )
        if failure is RequestFailure.LASTING or waited_s >= max_wait_s:
            return None
        if self.max_retries is not None and tries > self.max_retries:
            return None
        pause = RandomPause(self.first_pause_s, self.max_pause_s)
        return min(pause.after_s(tries, rng), max_wait_s - waited_s)
