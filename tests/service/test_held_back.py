"""What has failed is left alone, and what has nothing to do with it goes on: four of six units fail whenever
they are tried, and only four may be under way at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from pyiceberg.catalog import Catalog

from lithify.base import events
from lithify.base.events import Event
from lithify.base.ids import RandomIds, Ulid
from lithify.coordination.leadership import Leadership, Term
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.protocol.proposal import NOTHING_HELD, Held, Plan, Planner
from lithify.service import one_shot
from lithify.service.coordinator import Coordinator
from lithify.service.worker import Worker
from lithify.testing import ManualClock
from lithify.testing.engine import InlineEngine, SubmittedCall, TaskFault
from tests.datasets.iceberg.conftest import catalog
from tests.datasets.iceberg.running import dataset_of
from tests.datasets.iceberg.tables import DAY, START, append, make_rows, new_table
from tests.protocol.conftest import segmented, segmented_template
from tests.protocol.rig import Rig

__all__ = ["catalog", "segmented", "segmented_template"]

UNITS, POISONED = 6, 4
LIMIT_S = 4 * 3600


class World:
    """A dataset on which the first units always fail, whoever tries them."""

    def __init__(self, dataset: Any, clock: ManualClock, full: Callable[[], Planner]) -> None:
        self.dataset: IcebergDataset | SlateDataset = dataset
        self.clock = clock
        self.full = full
        """Makes a planner of a run that compacts everything."""
        self.events: list[Event] = []
        self.engine = InlineEngine(slots=10, faults=self._fault)
        self.poisoned: set[str] = set()
        self._units: dict[str, str] = {}

    def observe(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, events.Claimed):
            unit = self._units[event.compaction] = self.unit(event.compaction)
            if len(self.poisoned) < POISONED:
                self.poisoned.add(unit)

    def unit(self, compaction_id: str) -> str:
        ledger = self.dataset.ledger()
        assert ledger is not None
        compaction = ledger.get(Ulid(compaction_id))
        assert compaction is not None
        spec: Any = compaction.spec
        return self.dataset.identify(spec).unit

    def _fault(self, call: SubmittedCall) -> TaskFault:
        return TaskFault.FAIL_BEFORE if self._units[call.job] in self.poisoned else TaskFault.NONE

    def committed(self) -> set[str]:
        return {self._units[e.compaction] for e in self.events if isinstance(e, events.Committed)}


def database(rig: Rig) -> World:
    return World(rig.dataset(), rig.clock, lambda: rig.dataset().planner(full=True))


def table(made_in: Catalog) -> World:
    from lithify.datasets.iceberg.compaction.request import request

    days = new_table(made_in, properties={"lithify.small-task-bytes": "1", "lithify.max-tasks": "4"})
    for day in range(UNITS):
        files = 4 if day < POISONED else 2  # those that fail are the more urgent ones
        for part in range(files):
            append(days, make_rows(5, START + (day + part / files) * DAY, DAY / 8))
    dataset = dataset_of(days)
    clock = cast("ManualClock", dataset._clock)

    def planner(state: Any, ledger: Any, held: Held = NOTHING_HELD, /) -> Plan:
        return request(state, ledger, clock.now_ms() * 1000, held=held)

    return World(dataset, clock, lambda: planner)


@pytest.fixture(params=["database", "table"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    if request.param == "table":
        return table(request.getfixturevalue("catalog"))
    return database(request.getfixturevalue("segmented"))


def test_a_service_commits_what_is_healthy(world: World) -> None:
    coordinator = Coordinator(world.dataset, world.clock, RandomIds(), observer=world.observe)
    worker = Worker(world.dataset, world.engine, world.clock, "w", observer=world.observe)
    coordinator.start(Term(world.dataset.take_epoch()))
    started_s = world.clock.monotonic_s()
    while len(world.committed()) < UNITS - POISONED:
        assert world.clock.monotonic_s() - started_s < LIMIT_S, "no healthy commit in four hours"
        coordinator.tick()
        worker.tick()
        world.clock.advance_s(5)
    assert not world.committed() & world.poisoned
    assert world.clock.monotonic_s() - started_s < 300, "as soon as the first have been given up"


@pytest.mark.parametrize("full", [False, True], ids=["planned", "full"])
def test_a_single_run_commits_what_is_healthy(world: World, full: bool) -> None:
    result = one_shot.run(
        world.dataset,
        world.engine,
        world.clock,
        RandomIds(),
        Leadership(world.dataset, world.clock, RandomIds()),
        planner=world.full() if full else None,
        observer=world.observe,
    )
    assert len(result.failures) == POISONED
    assert len(result.committed) == UNITS - POISONED
