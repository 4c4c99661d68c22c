"""A compaction of the newest L0 SST alone, which SlateDB's coordinator schedules and whose commit loses
the older ones: a worker of Lithify's does not carry it out."""

from __future__ import annotations

import time
from pathlib import Path

from lithify.clock import SystemClock
from lithify.compaction.model import State
from lithify.testing.engine import InlineEngine
from lithify.worker import Worker
from tests.compacting import dataset_at
from tests.datasets.slatedb.coordinated import IDLE
from tests.judge.official import Admin, compactor_settings, open_db

TIMEOUT_S = 30


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
        deadline_s = time.monotonic() + TIMEOUT_S
        while [c.state for c in getattr(dataset.ledger(), "compactions", ())] != [State.SCHEDULED]:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        worker = Worker(dataset, engine, SystemClock(), "lithify")
        worker.tick()
        ((_, failure),) = worker.take_failures()
        worker.release()
        assert "would be lost" in str(failure)
        assert engine.submitted == []
        assert dict(database.scan()) == model
    with open_db(path) as database:
        assert dict(database.scan()) == model
