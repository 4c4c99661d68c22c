"""A service on a table that cannot be compacted for a while: it reports that once, keeps its leadership, and
goes on when the table can be compacted again. It starts on such a table, too. A single run is refused."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.types import TimestamptzType

from lithify.base import events
from lithify.base.errors import Refused
from lithify.base.ids import RandomIds
from lithify.config.model import ServiceSettings
from lithify.coordination.leadership import Leadership
from lithify.datasets.iceberg.checks import check_table
from lithify.protocol.finding import Severity
from lithify.service.coordinator import Coordinator
from lithify.service.loops import run_coordinator
from lithify.service.status import status
from lithify.service.worker import Worker
from lithify.testing import ManualClock
from lithify.testing.engine import InlineEngine
from tests.datasets.iceberg.running import a_clock, compact, dataset_of
from tests.datasets.iceberg.tables import append, files_of, fresh, make_rows, new_table

Change = Callable[[Table], None]


class Rounds(threading.Event):
    """Does one thing after each few rounds, and stops after the last."""

    def __init__(self, actions: Sequence[Callable[[], None]], every: int = 4) -> None:
        super().__init__()
        self._actions = list(actions)
        self._every = every
        self._round = 0

    def wait(self, timeout: float | None = None) -> bool:
        self._round += 1
        if self._round % self._every == 0:
            if self._actions:
                self._actions.pop(0)()
            else:
                self.set()
        return self.is_set()


def another_branch(table: Table) -> None:
    snapshot = fresh(table).current_snapshot()
    assert snapshot is not None
    fresh(table).manage_snapshots().create_branch(snapshot.snapshot_id, "audit").commit()


def no_other_branch(table: Table) -> None:
    fresh(table).manage_snapshots().remove_branch("audit").commit()


def time_is_dropped(table: Table) -> None:
    with fresh(table).transaction() as transaction:
        transaction.set_properties({"lithify.axis": "time"})
    with fresh(table).update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("event_time")


def time_is_back(table: Table) -> None:
    with fresh(table).update_schema() as update:
        update.add_column("event_time", TimestamptzType())


def a_property_without_meaning(table: Table) -> None:
    with fresh(table).transaction() as transaction:
        transaction.set_properties({"lithify.granularity": "fortnight"})


def no_such_property(table: Table) -> None:
    with fresh(table).transaction() as transaction:
        transaction.remove_properties("lithify.granularity")


CHANGES: list[tuple[Change, Change, str]] = [
    (another_branch, no_other_branch, "has several branches"),
    (time_is_dropped, time_is_back, "the time column is ambiguous"),
    (a_property_without_meaning, no_such_property, "lithify.granularity is 'fortnight'"),
]
NAMED = pytest.mark.parametrize(("spoil", "mend", "reason"), CHANGES, ids=[s.__name__ for s, _, _ in CHANGES])


def serve(table: Table, rounds: Rounds) -> None:
    clock, ids = a_clock(), RandomIds()
    dataset = dataset_of(table, clock=clock)
    run_coordinator(
        Coordinator(dataset, clock, ids, observer=events.log_event),
        Leadership(dataset, clock, ids),
        rounds,
        random.Random(1),
        ServiceSettings(),
        worker=Worker(dataset, InlineEngine(), clock, "worker"),
    )


def add_files(table: Table) -> None:
    for _ in range(2):
        append(table, make_rows(4))


@NAMED
def test_a_service_waits_until_the_table_can_be_compacted_again(
    catalog: Catalog, caplog: pytest.LogCaptureFixture, spoil: Change, mend: Change, reason: str
) -> None:
    table = new_table(catalog, properties={"lithify.min-saved-files": "1", "lithify.min-new-percent": "0"})
    add_files(table)
    counts: list[int] = []

    def make_trouble() -> None:
        counts.append(len(files_of(table)))
        spoil(table)
        rows = fresh(table).scan().to_arrow()
        for _ in range(2):
            fresh(table).append(rows)

    def end_trouble() -> None:
        counts.append(len(files_of(table)))
        mend(table)

    with caplog.at_level(logging.INFO, logger="lithify"):
        serve(table, Rounds([make_trouble, end_trouble]))
    assert [*counts, len(files_of(table))] == [1, 3, 1]
    said = [record.getMessage() for record in caplog.records if reason in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("CannotCompact ")


@NAMED
def test_a_single_run_is_refused(catalog: Catalog, spoil: Change, mend: Change, reason: str) -> None:
    table = new_table(catalog)
    add_files(table)
    dataset = dataset_of(table)
    spoil(table)
    with pytest.raises(Refused, match=reason):
        compact(dataset_of(table))
    serve(table, Rounds([]))
    now_ms = a_clock().now_ms()
    findings = list(
        check_table(
            lambda: dataset, partial(status, heartbeat_timeout_ms=30_000, clock=ManualClock(now_ms)), now_ms
        )
    )
    assert findings[0].severity is Severity.PROBLEM
    assert reason in findings[0].says
    mend(table)
