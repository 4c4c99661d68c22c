"""How the stores of a dataset are waited for, by what somebody does with it.

A command waits in the request itself, as long as the setting `service.store_wait` says. So does a task.

A service does not: its loop sees to many datasets in turn, with heartbeats that must not stop, and comes back
to each. A request of its loop is waited for `SERVICE_CALL_S` at most, and then the store counts as away:
what is asked of it fails at once (`lithify.store.resilience.waiting`), so that looking at the dataset costs
the others nothing, until something else has seen the store back. "For ever" is the loop's, not the request's.
"""

from __future__ import annotations

from collections.abc import Callable

from lithify.base.events import Observer
from lithify.config.model import Config
from lithify.store.resilience.waiting import WaitPolicy, log_waiting

SERVICE_CALL_S = 5.0
"""Well below the heartbeat timeout of what else runs in the process."""


def command_waiting(url: str, config: Config, tell: Observer = log_waiting) -> WaitPolicy:
    """For somebody who waits for one thing."""
    wait_s = config.service.store_wait_s
    return WaitPolicy(wait_s, url, tell, tasks_max_s=wait_s)


def service_waiting(url: str, config: Config, tell: Observer, is_ending: Callable[[], bool]) -> WaitPolicy:
    """For a loop over many datasets; `is_ending` says when nobody wants to wait any more."""
    wait_s = config.service.store_wait_s
    return WaitPolicy(min(wait_s, SERVICE_CALL_S), url, tell, is_ending, comes_back=True, tasks_max_s=wait_s)
