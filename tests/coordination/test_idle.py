"""What the lease of a coordinator costs while nothing happens."""

from __future__ import annotations

import random
import threading
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from lithify.base.ids import RandomIds
from lithify.config.model import ServiceSettings
from lithify.coordination.leadership import Leadership
from lithify.protocol.lease import VALID_MS
from lithify.protocol.presence import Presence
from lithify.service.coordinator import Coordinator
from lithify.service.loops import run_coordinator
from lithify.store.metered import VERBS, Verb
from lithify.store.objects import ObjectStore
from lithify.testing import Call, FaultyStore
from tests.coordination.worlds import LEASE_KEY, Database, TableWorld

MINUTES = 12


class AfterMinutes(threading.Event):
    """A stop that comes after a while of the world's time, in which others look who is alive."""

    def __init__(self, world: Database | TableWorld) -> None:
        super().__init__()
        self._world = world
        self._ends_s = world.clock.monotonic_s() + MINUTES * 60
        self.presences: set[Presence] = set()

    def is_set(self) -> bool:
        return self._world.clock.monotonic_s() >= self._ends_s

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._world.clock.advance_s(timeout)
        self.presences.add(self._world.dataset().coordinator().presence)
        return self.is_set()


@pytest.mark.parametrize("poll_interval_s", [pytest.param(1, marks=pytest.mark.whole), 5, 300])
@pytest.mark.parametrize("kind", ["database", "table"])
def test_an_idle_coordinator_writes_its_lease_once_a_minute(
    kind: str, poll_interval_s: float, tmp_path: Path
) -> None:
    world: Database | TableWorld = Database() if kind == "database" else TableWorld(tmp_path)
    key = LEASE_KEY if isinstance(world, Database) else world.lease_key
    requests: Counter[tuple[int, Verb]] = Counter()

    def count(_number: int, call: Call) -> None:
        minute = int(world.clock.monotonic_s() // 60)
        if call.key == key and call.method in VERBS:
            requests[minute, VERBS[call.method]] += 1

    def counted(store: ObjectStore) -> ObjectStore:
        return FaultyStore(store, count)

    dataset, clock, ids = world.dataset(counted), world.clock, RandomIds(random.Random(1))
    stop = AfterMinutes(world)
    run_coordinator(
        Coordinator(dataset, clock, ids),
        Leadership(dataset, clock, ids),
        stop,
        random.Random(1),
        ServiceSettings(poll_interval=timedelta(seconds=poll_interval_s)),
    )
    for minute in range(1, MINUTES):
        assert requests[minute, Verb.PUT] <= 1
        assert requests[minute, Verb.HEAD] + requests[minute, Verb.GET] <= 6
        assert sum(requests[m, Verb.PUT] for m in range(minute, minute + VALID_MS // 60_000 + 1)) >= 1
    assert stop.presences == {Presence.ALIVE}
