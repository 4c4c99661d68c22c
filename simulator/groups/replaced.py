"""What this world puts in place of the real thing, and nothing more.

1. Threads that work side by side: everything runs in the calling fiber, in some order.
2. Errors are not searched for secrets, and the log is silent; the trace has it all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from simulator.core.replacing import replacing
from simulator.core.waiting import AnyTime
from simulator.groups.world import World


@contextmanager
def replacements(world: World) -> Iterator[None]:
    """The replacements above, for as long as the simulation of `world` runs."""
    with replacing(AnyTime(world.rng)):
        yield
