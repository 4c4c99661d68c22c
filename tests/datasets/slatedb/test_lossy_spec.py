"""A compaction of the newest L0 SST alone, which SlateDB's coordinator schedules and whose commit loses
the older ones: a worker of Lithify's does not carry it out."""

from __future__ import annotations

from pathlib import Path

from lithify.base.clock import SystemClock
from lithify.base.ids import Ulid
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.format.ledger import SlateLedger
from lithify.protocol.model import CompactionState
from lithify.service.worker import Worker
from lithify.testing.engine import InlineEngine
from tests.compacting import dataset_at
from tests.datasets.slatedb.coordinated import IDLE
from tests.engine.waiting import wait_until
from tests.judge.official import Admin, compactor_settings, open_db


def ledger_of(dataset: SlateDataset) -> SlateLedger:
    ledger = dataset.ledger()
    assert ledger is not None
    return ledger


def test_the_newest_l0_alone_is_not_compacted_for_a_foreign_coordinator(tmp_path: Path) -> None:
    path = tmp_path / "db"
    compactor = {**compactor_settings(poll_ms=20, scheduler=IDLE), "worker": None}
    model = {b"k%d" % n: b"v%d" % n for n in range(3)}
    engine = InlineEngine()
    with open_db(path, settings={"compactor_options": compactor}) as database:
        for key, value in model.items():
            database.put(key, value)
            database.flush()
        admin = Admin(path)
        (root,) = admin.trees()
        admin.submit_compaction([root.l0[0].id], [], 0)
        dataset = dataset_at(path)
        wait_until(lambda: [c.state for c in ledger_of(dataset).compactions] == [CompactionState.SCHEDULED])
        worker = Worker(dataset, engine, SystemClock(), "lithify")
        failures: list[tuple[Ulid, Exception]] = []

        def has_given_up() -> bool:
            worker.tick()
            failures.extend(worker.take_failures())
            return bool(failures)

        wait_until(has_given_up)
        ((_, failure),) = failures
        worker.release()
        assert "would be lost" in str(failure)
        assert engine.submitted == []
        assert dict(database.scan()) == model
    with open_db(path) as database:
        assert dict(database.scan()) == model
