"""What this world puts in place of the real thing, and nothing more.

1. Threads: what goes on beside the caller is a fiber of its own; waiting for tasks lets virtual time pass.
2. Times that would make runs long: rest before a leadership is given back, how long old catalogs are kept and
   dead members remembered, how often that is looked at, and how often datasets are cared for (`scenario`).
3. Errors are not searched for secrets, and the log is silent; the trace has it all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import lithify.base.errors
import lithify.service.worker_pool
from lithify.fleet import coordinator, garbage_times, watched_dataset
from lithify.fleet.catalog import history
from simulator.core.replacing import replacing
from simulator.core.waiting import InFibers, wait_for_futures
from simulator.fleet import scenario
from simulator.fleet.world import World

_LEAST_WAIT_MS = 20


@contextmanager
def replacements(world: World) -> Iterator[None]:
    """The replacements above, for as long as the simulation of `world` runs."""
    with replacing(InFibers(world.scheduler)) as put:
        put(lithify.service.worker_pool, "wait", wait_for_futures(world.scheduler, _LEAST_WAIT_MS))
        put(watched_dataset, "REST_S", scenario.REST_S)
        put(garbage_times, "_AFTER_MS", scenario.COLLECT_AFTER_MS)
        put(garbage_times, "_AT_LEAST_MS", scenario.COLLECT_EVERY_MS)
        put(garbage_times, "_FIRST_MS", scenario.COLLECT_FIRST_MS)
        put(garbage_times, "_EVERY_MS", scenario.COLLECT_EVERY_MS)
        put(history, "KEEP_MS", scenario.KEEP_MS)
        put(coordinator, "RUN_EVERY_S", scenario.TRUNCATE_EVERY_S)
        put(coordinator, "FORGOTTEN_AFTER_MS", scenario.FORGOTTEN_AFTER_MS)
        yield
