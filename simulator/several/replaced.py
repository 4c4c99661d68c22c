"""What this world puts in place of the real thing, and nothing more.

1. What a range does (`places`, `engine`), and waiting for it.
2. Catalog, manifests and data files of tables (`lake`).
3. Threads that read side by side: everything runs in the calling fiber.
4. Random names, which are drawn from the seed.
5. The codecs of databases, in most seeds (`simulator.codecs`).
6. The timeline of a table is not planned again while nothing that it depends on has changed.
7. Errors are not searched for secrets.
8. The log is silent; the trace has it all.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lithify.base.errors
import lithify.service.worker_pool
from lithify.datasets.iceberg import dataset as table_module
from lithify.datasets.iceberg.model import IcebergLedger, TableState
from lithify.datasets.iceberg.plan import active_tasks, plan_table
from lithify.planning.timeline.model import TimelinePlan
from lithify.protocol.proposal import NOTHING_HELD, Held
from simulator.core.replacing import replacing
from simulator.core.waiting import AnyTime, wait_for_futures
from simulator.replaced import users_of_codecs
from simulator.several.lake import manifests_in_memory
from simulator.several.scenario import MAX_LATENCY_MS
from simulator.several.world import World


@contextmanager
def replacements(world: World) -> Iterator[None]:
    """The replacements above, for as long as the simulation of `world` runs."""

    def new_uuid() -> uuid.UUID:
        return uuid.UUID(int=world.rng.getrandbits(128), version=4)

    with replacing(AnyTime(world.rng)) as put:
        put(lithify.service.worker_pool, "wait", wait_for_futures(world.scheduler, MAX_LATENCY_MS))
        put(uuid, "uuid4", new_uuid)
        put(table_module, "plan_table", _Timelines(plan_table))
        for module, name in users_of_codecs():
            put(module, name, getattr(world.codecs, name))
        with manifests_in_memory():
            yield


class _Timelines:
    """The last timeline of each state of a table."""

    def __init__(self, plan_table: Any) -> None:
        self._plan_table = plan_table
        self._known: dict[str, tuple[TableState, tuple[Any, ...], TimelinePlan]] = {}

    def __call__(
        self,
        state: TableState,
        ledger: IcebergLedger,
        now_us: int,
        *,
        revive_deferred: bool = False,
        held: Held = NOTHING_HELD,
        replanning: object = None,
        alone: frozenset[str] = frozenset(),
    ) -> TimelinePlan:
        """All days of these tables are long over, so what time it is does not matter."""
        asked = (active_tasks(ledger), revive_deferred, tuple(sorted(held.items())), alone)
        known = self._known.get(state.uuid)
        if known is not None and known[0] is state and known[1] == asked:
            return known[2]
        found: TimelinePlan = self._plan_table(
            state, ledger, now_us, revive_deferred=revive_deferred, held=held, alone=alone
        )
        self._known[state.uuid] = state, asked, found
        return found
