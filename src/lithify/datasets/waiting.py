"""The policies for waiting for an unavailable store, for commands and for services.

A command waits in the request itself, as long as the setting `service.store_wait` says. So does a task. If
that is not set, a command gives up a store that has never answered after `UNANSWERED_S`: its name or endpoint
is probably wrong.

A service's loop handles many datasets in turn and must keep sending heartbeats. Its requests wait at most
`SERVICE_CALL_S`. Then the store counts as unavailable, and its requests fail immediately
(`lithify.store.resilience.waiting`), without delaying the other datasets, until another request has found the
store available. An unlimited wait is the loop's, not the request's.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from lithify.base.events import Observer
from lithify.config.model import Config
from lithify.store.resilience.waiting import WaitPolicy, log_waiting

UNANSWERED_S = 30.0
SERVICE_CALL_S = 5.0
"""Well below the heartbeat timeout of everything else in the process."""


def command_waiting(url: str, config: Config, tell: Observer = log_waiting) -> WaitPolicy:
    """Return the policy of a command on one dataset."""
    wait_s = config.service.store_wait_s
    is_set = "store_wait" in config.service.model_fields_set
    unanswered_s = math.inf if is_set else UNANSWERED_S
    return WaitPolicy(wait_s, url, tell, tasks_max_s=wait_s, unanswered_max_s=unanswered_s)


def service_waiting(url: str, config: Config, tell: Observer, is_ending: Callable[[], bool]) -> WaitPolicy:
    """Return the policy of a loop over many datasets; `is_ending` returns whether to stop waiting."""
    wait_s = config.service.store_wait_s
    return WaitPolicy(min(wait_s, SERVICE_CALL_S), url, tell, is_ending, comes_back=True, tasks_max_s=wait_s)
