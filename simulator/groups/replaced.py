"""What this world puts in place of the real thing, and nothing more.

1. Threads that work side by side: everything runs in the calling fiber, in some order.
2. Errors are not searched for secrets, and the log is silent; the trace has it all.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import lithify.base.errors
from lithify.base import concurrency
from simulator.core.waiting import AnyTime
from simulator.groups.world import World


@contextmanager
def replacements(world: World) -> Iterator[None]:
    """The replacements above, for as long as the simulation of `world` runs."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(logging.getLogger("lithify"), "disabled", True))
        stack.enter_context(mock.patch.object(lithify.base.errors, "redact", lambda text: text))
        stack.enter_context(mock.patch.object(concurrency, "background", AnyTime(world.rng)))
        yield
