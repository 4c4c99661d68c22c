"""What programs call, on databases and tables, without Spark."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.table import Table

import lithify
from lithify.base import events
from lithify.testing import ManualClock
from lithify.testing.engine import InlineEngine, TaskFault
from tests.datasets.iceberg.tables import append, make_rows, new_catalog, new_table
from tests.judge.official import Put, open_db
from tests.judge.rows import read_database, visible_rows

PUBLIC = {
    *(
        "CoordinatorAlive",
        "CorruptObject",
        "DatasetNotFound",
        "DeadlineExceeded",
        "EngineDown",
        "EngineError",
    ),
    *("Fenced", "Fleet", "Group", "HoldLapsed", "LithifyError", "Refused", "StoreError", "Unsupported"),
    *("Dataset", "Job", "Mirror", "Proposals", "Proposed", "Result", "Service", "Status", "open", "restore"),
}


def test_the_public_names() -> None:
    assert set(lithify.__all__) == PUBLIC
    assert all(getattr(lithify, name) is not None for name in PUBLIC)
    assert len(PUBLIC) <= 30
    with pytest.raises(AttributeError, match="nothing"):
        lithify.nothing  # noqa: B018


def test_importing_it_imports_nothing_else() -> None:
    code = "import lithify, sys; print(*sorted(m for m in sys.modules if m.startswith('lithify')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["lithify"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database of five flushes."""
    path = tmp_path / "db"
    with open_db(path) as database:
        for n in range(5):
            database.write_batch([Put(b"k%02d" % k, b"%d" % n) for k in range(20)])
            database.flush()
    return path


@pytest.fixture
def db(path: Path) -> Iterator[lithify.Dataset]:
    with lithify.open(str(path), engine=InlineEngine()) as opened:
        yield opened


def test_plan_and_compact_a_database(db: lithify.Dataset, path: Path) -> None:
    before = visible_rows(read_database(path))
    (proposal,) = db.plan(full=True)
    assert proposal.unit == "root"
    assert proposal.bytes > 0
    assert "5 L0 SSTs" in proposal.reason
    seen: list[events.Event] = []
    result = db.compact(full=True, on_event=seen.append)
    assert (len(result.committed), result.failed) == (1, ())
    assert result.rows["rows_in"] == 100
    assert result.bytes_read >= proposal.bytes // 2
    assert any(isinstance(event, events.Committed) for event in seen)
    assert len(db.plan(full=True)) == 0
    assert visible_rows(read_database(path)) == before
    assert db.compact().rows["expired"] == 0


def test_a_table(tmp_path: Path) -> None:
    table: Table = new_table(new_catalog(tmp_path, name="lake"), properties={"lithify.min-saved-files": "1"})
    for _ in range(3):
        append(table, make_rows(5))
    settings = {"store_options.uri": f"sqlite:///{tmp_path}/catalog.db"}
    with lithify.open("iceberg://lake/db.events", settings=settings, engine=InlineEngine()) as opened:
        assert len(opened.plan()) == 1
        assert opened.compact().document["after"]["files"] == 1
        with pytest.raises(lithify.Refused, match="not an option of a table here; its options: chunk"):
            opened.submit(segment=b"a")


def test_submit_wait_cancel_and_retry(db: lithify.Dataset, path: Path) -> None:
    with pytest.raises(lithify.Refused):
        db.submit(full=True)  # there is no ledger yet
    stop, seen = threading.Event(), threading.Event()

    def look(event: events.Event) -> None:
        if isinstance(event, events.Committed):
            seen.set()

    service = lithify.Service([str(path)], engine=InlineEngine(), on_event=look, settings=QUICK)
    running = threading.Thread(target=service.run, args=(stop,))
    running.start()
    try:
        assert seen.wait(30)
    finally:
        stop.set()
        running.join()
    with open_db(path) as database:
        for n in range(3):
            database.put(b"late", b"%d" % n)
            database.flush()
    job = db.submit(full=True)
    assert [c.id for c in db.status().compactions] == list(job.ids)
    with pytest.raises(lithify.DeadlineExceeded):
        job.wait(timeout_s=0.1)
    job.cancel()
    assert [outcome.reason for outcome in job.wait()] == ["was cancelled"]
    again = db.retry(*job.ids)
    assert again.ids != job.ids
    assert db.compact().failed == ()
    assert [outcome.state.value for outcome in again.wait()] == ["completed"]
    assert db.collect_garbage(min_age_s=0).document["dry_run"]


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_run_tries_as_often_as_it_is_told(path: Path, attempts: int) -> None:
    engine = InlineEngine(faults=lambda call: TaskFault.FAIL_BEFORE)
    told = {"service.max_attempts": attempts}
    seen: list[events.Event] = []
    with lithify.open(str(path), settings=told, engine=engine, clock=ManualClock()) as opened:
        (failed,) = opened.compact(full=True, on_event=seen.append).failed
    assert "never started" in failed.reason
    assert sum(isinstance(event, events.AttemptFailed) for event in seen) == attempts


QUICK = {
    "service.poll_interval": "100ms",
    "service.commit_compacted_interval": "100ms",
    "service.worker.compactions_poll_interval": "100ms",
}


def test_errors_are_of_one_tree(tmp_path: Path) -> None:
    with pytest.raises(lithify.LithifyError, match="no SlateDB database"):
        lithify.open(str(tmp_path / "nothing")).plan()
    with pytest.raises(lithify.Refused, match="there is no setting"):
        lithify.open(str(tmp_path), settings={"nonsense": 1})


def test_python_dash_m() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lithify", "--help"], capture_output=True, text=True, check=True
    )
    assert "Usage: lithify" in done.stdout
