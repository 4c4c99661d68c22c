"""Submitting, cancelling and trying again on an Iceberg table: the same as on a database."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyiceberg.table import Table

from lithify.base.errors import Refused
from lithify.base.ids import RandomIds, Ulid
from lithify.coordination.leadership import Leadership
from lithify.datasets.iceberg.compaction.request import request
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.kind import KIND
from lithify.datasets.options import CommandArgs
from lithify.mirror.metered_reads import metered
from lithify.observe.metrics import Metrics
from lithify.protocol.model import CompactionState
from lithify.protocol.presence import Presence
from lithify.protocol.proposal import NOTHING_HELD, Plan
from lithify.protocol.status import Status
from lithify.service import control, one_shot
from lithify.service.admission import starting
from lithify.service.coordinator import Coordinator
from lithify.service.status import status
from lithify.service.worker import Worker
from lithify.testing import ManualClock
from lithify.testing.engine import InlineEngine
from tests.datasets.iceberg.running import a_clock, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    Row,
    append,
    check,
    files_of,
    make_rows,
    new_catalog,
    new_table,
)

IDS = RandomIds()
HELD = {"lithify.skip-from-now-seconds": str(100 * 365 * 86_400)}
"""Nothing is old enough for the planner."""


class Set:
    """A table with two files in each of three days, a coordinator that finds nothing to do, and a worker."""

    def __init__(self, folder: Path, properties: dict[str, str]) -> None:
        self.table: Table = new_table(new_catalog(folder), properties=properties)
        self.rows: list[Row] = []
        for n in range(6):
            self.rows += append(self.table, make_rows(10, START + n * DAY / 2, DAY / 4))
        self.clock: ManualClock = a_clock()
        self.metrics = Metrics(self.clock, coordinates=True)
        dataset = metered(self.dataset(), self.metrics, self.clock)
        self.leading = ExitStack()
        self.coordinator = Coordinator(dataset, self.clock, IDS, observer=self.metrics)
        self.coordinator.start(self.leading.enter_context(Leadership(dataset, self.clock, IDS).acquire()))
        self.engine = InlineEngine(stepped=True)
        self.worker = Worker(self.dataset(), self.engine, self.clock, "w")

    def dataset(self) -> IcebergDataset:
        return dataset_of(self.table, clock=self.clock)

    def request(self, names: Collection[str] | None = None) -> Plan:
        args = CommandArgs(names is None, {} if names is None else {"chunk": names})
        planner = KIND.request(self.dataset(), args, self.clock)
        return starting(self.dataset(), self.clock, planner)[2].plan

    def submit(self, names: Collection[str] | None = None) -> tuple[Ulid, ...]:
        specs = [proposal.spec for proposal in self.request(names).proposals]
        return control.submit(self.dataset(), self.clock, IDS, specs)

    def outcome(self, compaction_id: Ulid) -> CompactionState | None:
        found = control.outcome(self.dataset(), compaction_id)
        return found.state if found is not None else None

    def status(self) -> Status:
        return status(self.dataset(), self.clock, 30_000)

    def finish(self) -> None:
        for _ in range(4):
            self.coordinator.tick()
            self.worker.tick()
            self.engine.run_all()

    def gauge(self, name: str, **labels: str) -> float | None:
        labels["dataset"] = self.dataset().url
        return self.metrics.registry.get_sample_value(name, labels)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Set]:
    made = Set(tmp_path, HELD)
    assert made.coordinator.tick().is_idle
    yield made
    check(made.table, made.rows)


def test_everything_although_it_is_held(held: Set) -> None:
    (compaction_id,) = held.submit()
    assert held.outcome(compaction_id) is CompactionState.SUBMITTED
    held.finish()
    assert held.outcome(compaction_id) is CompactionState.COMPLETED
    assert len(files_of(held.table)) == 3
    assert held.request().proposals == ()
    # How it ended is known although the ledger has forgotten it.
    (later,) = held.submit(["2025-01-02"])
    held.finish()
    assert held.outcome(later) is CompactionState.COMPLETED
    ledger = held.dataset().ledger()
    assert ledger is not None
    assert [c.id for c in ledger.compactions] == [later]
    assert held.outcome(compaction_id) is CompactionState.COMPLETED
    assert held.gauge("lithify_jobs_claimed_total") == 2
    assert held.gauge("lithify_planned_files", status="skipped") == 0
    assert held.gauge("lithify_planned_files", status="compacted") == 3


def test_one_run_compacts_what_is_held_and_ends(held: Set) -> None:
    held.table.transaction().set_properties({"lithify.max-tasks": "1"}).commit_transaction()
    dataset, now_us = held.dataset(), held.clock.now_ms() * 1000
    result = one_shot.run(
        dataset,
        InlineEngine(),
        held.clock,
        IDS,
        Leadership(dataset, held.clock, IDS),
        planner=lambda state, ledger, held=NOTHING_HELD, /: request(state, ledger, now_us, held=held),
        take_over=True,
    )
    assert (len(result.committed), result.failures) == (1, ())
    assert len(files_of(held.table)) == 3


def test_given_chunks(held: Set) -> None:
    (compaction_id,) = held.submit(["2025-01-03"])
    ledger = held.dataset().ledger()
    assert ledger is not None
    compaction = ledger.get(compaction_id)
    assert compaction is not None
    assert len(compaction.spec.inputs) == 2
    held.coordinator.tick()
    held.worker.tick()
    assert held.request(["2025-01-03"]) == Plan(notes=("1 chunk(s) are already being compacted",))
    assert len(held.submit()) == 1, "the other two days"
    held.engine.run_all()
    held.finish()
    assert len(files_of(held.table)) == 3


def test_no_more_than_the_table_allows(tmp_path: Path) -> None:
    limits = {"lithify.max-tasks": "1", "lithify.small-task-bytes": "1"}
    held = Set(tmp_path, HELD | limits)
    plan = held.request()
    assert len(plan.proposals) == 1
    (note,) = plan.notes
    assert note.startswith("2 more cannot start now")
    held.submit()
    assert held.request().proposals == ()


def test_mistakes_are_told(held: Set) -> None:
    with pytest.raises(Refused, match=r"no chunk 2024-01-01: a chunk is one day here, such as 2025-01-01"):
        held.request(["2024-01-01", "2025-01-01"])
    specs = [proposal.spec for proposal in held.request().proposals]
    control.submit(held.dataset(), held.clock, IDS, specs)
    with pytest.raises(Refused, match="is already a source of compaction"):
        control.submit(held.dataset(), held.clock, IDS, specs)
    with pytest.raises(Refused, match="no compaction"):
        control.cancel(held.dataset(), held.clock, [IDS.ulid(5)])
    with pytest.raises(Refused, match="is unknown"):
        control.retry(held.dataset(), held.clock, IDS, [IDS.ulid(5)])
    assert held.outcome(IDS.ulid(5)) is None


def test_cancelled_and_tried_again(tmp_path: Path) -> None:
    made = Set(tmp_path, {})
    made.coordinator.tick()
    made.worker.tick()
    (found,) = made.status().compactions
    assert (found.state, found.worker, found.ranges) == (CompactionState.RUNNING, "w", 0)
    assert found.cost_bytes == sum(file.file_size_in_bytes for file in files_of(made.table))
    assert made.status().coordinator.presence is Presence.ALIVE
    assert made.gauge("lithify_compactions", state="scheduled") == 1

    control.cancel(made.dataset(), made.clock, [found.id])
    assert made.outcome(found.id) is CompactionState.FAILED
    made.worker.tick()
    assert not made.worker.is_busy
    assert made.coordinator.tick().is_idle, "it is left alone for a while"
    (failure,) = made.status().failures
    assert failure.is_cancelled

    (new_id,) = control.retry(made.dataset(), made.clock, IDS, [found.id])
    assert made.status().failures == ()
    made.finish()
    assert made.outcome(new_id) is CompactionState.COMPLETED
    assert made.outcome(found.id) is CompactionState.FAILED
    check(made.table, made.rows)


def test_how_far_it_is(tmp_path: Path) -> None:
    made = Set(tmp_path, {"lithify.small-task-bytes": "1"})
    made.coordinator.tick()
    made.worker.tick()
    assert len(made.status().compactions) == 3
    while made.worker.is_busy:
        made.engine.run_all()
        made.worker.tick()
    totals = made.status().plan.totals
    assert sum(total.files for total in totals.values()) == 6
    assert sum(total.rows for total in totals.values()) == len(made.rows)
    assert {c.state for c in made.status().compactions} == {CompactionState.COMPACTED}
    assert {c.share_done for c in made.status().compactions} == {1.0}
