"""Lithify's workers and SlateDB's take up each other's compactions, under either coordinator."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lithify.base import events
from lithify.base.clock import SystemClock
from lithify.base.errors import Fenced
from lithify.base.events import Event
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Term
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.format.ledger import SlateCompaction, SlateLedger, decode_ledger
from lithify.datasets.slatedb.kernel.warm_up import warm_up
from lithify.protocol.model import CompactionState
from lithify.service.coordinator import Coordinator
from lithify.service.worker import Worker, WorkerOptions
from lithify.store.wrapped import Call
from lithify.testing.engine import InlineEngine
from tests.compacting import check_state_files, dataset_at
from tests.judge.official import Admin, Database, Put, compactor_settings, copy_database, open_db
from tests.judge.rows import read_database, visible_rows
from tests.protocol.rig import Interposed, Template, ledger_write, make_template, manifest_write

LIMIT_S = 120.0
BLOCK_SIZE = 1024
HEARTBEAT_TIMEOUT = "1500ms"
NEVER = "600s"
"""The same where nobody is to be taken for dead, however slow this machine is."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    warm_up()  # else the first to run a range is silent for longer than the timeout, on a busy machine
    return make_template(tmp_path_factory.mktemp("official") / "db", keys=600)


@pytest.fixture
def path(template: Template, tmp_path: Path) -> Path:
    return copy_database(template.path, tmp_path / "db")


def opened(path: Path, *, worker: bool, timeout: str = HEARTBEAT_TIMEOUT, **worker_options: Any) -> Database:
    """The official client with its coordinator, and with its worker or without."""
    settings = compactor_settings(scheduler={"min_compaction_sources": "4"})
    own = {**settings["worker"], **worker_options} if worker else None  # type: ignore[dict-item]  # JSON
    settings |= {"worker": own, "worker_heartbeat_timeout": timeout}
    return open_db(path, settings={"compactor_options": settings}, block_size=BLOCK_SIZE)


class Helper:
    """A Lithify worker whose ranges run when told to."""

    def __init__(self, path: Path, name: str, **options: Any) -> None:
        self.events: list[Event] = []
        self.engine = InlineEngine(stepped=True)
        self.dataset = dataset_at(path, **{"max_sst_size": 8000, **options})
        beats = WorkerOptions(heartbeat_min_interval_ms=100)
        self.worker = Worker(
            self.dataset, self.engine, SystemClock(), name, options=beats, observer=self.events.append
        )

    def until(self, condition: Callable[[], object], *, working: bool = True) -> None:
        deadline_s = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline_s, entry_of(self.dataset)
            if working:
                self.worker.tick()
            time.sleep(0.02)

    def finish(self) -> None:
        """Claim the compaction and carry it out."""
        self.until(lambda: self.worker.is_busy)

        def is_done() -> bool:  # a sign of life after each range, or a busy machine makes it look dead
            self.engine.step()
            return not self.worker.is_busy

        self.until(is_done)

    def seen(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


def entry_of(dataset: SlateDataset) -> SlateCompaction | None:
    """The compaction: there is never more than one here."""
    ledger = dataset.ledger()
    return ledger.compactions[-1] if ledger is not None and ledger.compactions else None


def state_of(dataset: SlateDataset) -> CompactionState | None:
    entry = entry_of(dataset)
    return entry.state if entry is not None else None


def history(path: Path) -> list[SlateLedger]:
    """Every version of the ledger that there has been."""
    files = sorted(f for f in (path / "compactions").iterdir() if "#" not in f.name)
    return [decode_ledger(file.read_bytes(), file.name) for file in files]


def check(path: Path, template: Template) -> None:
    with open_db(path) as database:
        assert dict(database.scan()) == template.model
    rows = read_database(path)
    assert visible_rows(rows) == template.model
    (tree,) = rows.values()
    assert not tree.l0
    ((_, run),) = tree.runs
    assert len({row.key for row in run}) == len(run) == len(template.model), "each row once"
    check_state_files(dataset_at(path), path)


def half_done(path: Path, ours: Helper) -> set[str]:
    """Ours has claimed the compaction and recorded two finished ranges; the ids of their outputs."""
    with opened(path, worker=False, timeout=NEVER):
        ours.until(lambda: ours.worker.is_busy)
        for _ in range(2):
            ours.engine.step()
        time.sleep(0.15)
        ours.worker.tick()
    entry = entry_of(ours.dataset)
    assert entry is not None
    assert entry.progress is not None
    kept = {str(sst.id) for r in entry.progress.ranges for sst in r.outputs}
    assert 0 < len(kept) < len(entry.progress.ranges)
    return kept


def wait_for(dataset: SlateDataset, state: CompactionState) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while state_of(dataset) is not state:
        assert time.monotonic() < deadline_s, entry_of(dataset)
        time.sleep(0.02)


def test_an_official_worker_takes_up_what_ours_began(path: Path, template: Template) -> None:
    """It asserts that ranges and horizon are as before, and goes on behind the last row of each."""
    ours = Helper(path, "ours")
    kept = half_done(path, ours)
    with opened(path, worker=True):
        wait_for(ours.dataset, CompactionState.COMPLETED)
    entry = entry_of(ours.dataset)
    assert entry is not None
    assert entry.worker is not None
    assert entry.worker.id != "ours"
    assert kept < {str(sst.id) for sst in entry.outputs}
    before = history(path)[-1]
    ours.worker.tick()
    assert history(path)[-1] == before, "ours woke up and changed nothing"
    assert len(ours.seen(events.Lost)) == 1
    check(path, template)


def test_ours_takes_up_what_an_official_worker_began(tmp_path: Path) -> None:
    """It is stopped in the middle of a range, and nobody coordinates while ours works."""
    for keys in (2_500, 10_000, 40_000):  # on a busy machine it may be done before we see that it has begun
        path = tmp_path / str(keys) / "db"
        template, dataset = make_template(path, keys=keys), dataset_at(path)
        with opened(path, worker=True, max_sst_size=1, heartbeat_interval="5ms", max_subcompactions=2):
            deadline_s = time.monotonic() + LIMIT_S
            while (entry := entry_of(dataset)) is None or entry.progress is None or not outputs_of(entry):
                assert time.monotonic() < deadline_s
                time.sleep(0.001)
        entry = entry_of(dataset)
        assert entry is not None
        if not entry.state.is_terminal:
            break
    assert entry is not None
    assert entry.state is CompactionState.SCHEDULED, "closing the client gives it back"
    kept = outputs_of(entry)
    ours = Helper(path, "ours")
    ours.finish()
    (resumed,) = ours.seen(events.Resumed)
    assert isinstance(resumed, events.Resumed)
    assert resumed.finished_ranges == 0, "whether its ranges are finished only running them shows"
    with opened(path, worker=False):
        wait_for(dataset, CompactionState.COMPLETED)
    entry = entry_of(dataset)
    assert entry is not None
    assert kept <= {str(sst.id) for sst in entry.outputs}
    check(path, template)


def outputs_of(entry: SlateCompaction) -> set[str]:
    assert entry.progress is not None
    return {str(sst.id) for r in entry.progress.ranges for sst in r.outputs}


def test_another_of_ours_replaces_a_silent_one_under_an_official_coordinator(
    path: Path, template: Template
) -> None:
    first, second = Helper(path, "first"), Helper(path, "second")
    half_done(path, first)
    with opened(path, worker=False):
        second.finish()
        wait_for(second.dataset, CompactionState.COMPLETED)
        (resumed,) = second.seen(events.Resumed)
        assert isinstance(resumed, events.Resumed)
        assert resumed.finished_ranges == 2
        first.engine.run_all()
        before = entry_of(first.dataset)
        first.worker.tick()
        assert entry_of(first.dataset) == before
    committed = [ledger for ledger in history(path) if ledger.compactions]
    completed = {
        c.id for ledger in committed for c in ledger.compactions if c.state is CompactionState.COMPLETED
    }
    assert len(completed) == 1
    check(path, template)


def test_epochs_never_go_back_while_coordinators_come_and_go(path: Path, template: Template) -> None:
    """A worker writes the epoch it finds, never one it remembers."""
    ours = Helper(path, "ours")
    for _ in range(3):
        with opened(path, worker=False, timeout=NEVER):
            ours.until(lambda: ours.worker.is_busy)
            ours.engine.step()
            time.sleep(0.3)
            ours.worker.tick()
    epochs = [ledger.epoch for ledger in history(path)]
    assert epochs == sorted(epochs)
    assert epochs[-1] == 3
    with opened(path, worker=False, timeout=NEVER):
        ours.engine.run_all()
        ours.until(lambda: state_of(ours.dataset) is CompactionState.COMPLETED)
    check(path, template)


def test_a_worker_whose_clock_is_behind_breaks_no_database(
    path: Path, template: Template, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An output older than its compaction would close the database, and keep it from opening again."""

    class Behind(SystemClock):
        def now_ms(self) -> int:
            return super().now_ms() - 5_000

    monkeypatch.setattr("lithify.datasets.slatedb.compaction.execute.SystemClock", Behind)
    dataset = dataset_at(path, clock=Behind(), max_sst_size=8000)
    worker = Worker(dataset, InlineEngine(), Behind(), "behind")
    # Under a coordinator that compares clocks, a worker further behind than the timeout is always silent.
    with opened(path, worker=False, timeout="30s") as database:
        deadline_s = time.monotonic() + LIMIT_S
        while state_of(dataset) is not CompactionState.COMPLETED:
            assert time.monotonic() < deadline_s
            worker.tick()
            time.sleep(0.02)
        database.put(b"k0000", template.model[b"k0000"])
        assert not database.is_closed()
    with opened(path, worker=False) as database:
        assert dict(database.scan()) == template.model


@pytest.mark.parametrize("meanwhile", [manifest_write, ledger_write], ids=["manifest", "ledger"])
def test_an_official_coordinator_that_takes_over_is_not_disturbed(
    path: Path, template: Template, meanwhile: Callable[[Call], bool]
) -> None:
    """It starts while one of ours publishes a commit: ours publishes nothing after that."""
    armed: list[bool] = []
    found: list[list[int]] = []
    clients: list[Database] = []
    with ExitStack() as stack:

        def take_over() -> None:
            database = stack.enter_context(opened(path, worker=False))
            # Where our manifest was there first, the sources are gone, and that makes it Failed.
            wait_for(
                dataset, CompactionState.COMPLETED if meanwhile is manifest_write else CompactionState.FAILED
            )
            clients.append(database)
            found.append(dataset.manifest_ids() + dataset.ledger_ids())

        dataset = dataset_at(
            path,
            wrap=lambda store: Interposed(store, lambda call: bool(armed) and meanwhile(call), take_over),
        )
        coordinator = Coordinator(dataset, SystemClock(), RandomIds())
        worker = Worker(dataset_at(path), InlineEngine(), SystemClock(), "ours")
        coordinator.start(Term(dataset.take_epoch()))
        coordinator.tick()
        worker.tick()
        worker.tick()
        armed.append(True)
        with pytest.raises(Fenced):
            coordinator.tick()
        assert found == [dataset.manifest_ids() + dataset.ledger_ids()]
        clients[0].put(b"k0000", template.model[b"k0000"])
        assert not clients[0].is_closed()
        assert dict(clients[0].scan()) == template.model
    epochs = [ledger.epoch for ledger in history(path)]
    assert epochs == sorted(epochs)
    assert len(Admin(path).trees()[0].runs) == 1


@pytest.mark.parametrize("ahead_s", [0, 3600])
def test_a_coordinator_whose_clock_is_ahead_keeps_nobody_from_compacting(
    path: Path, template: Template, ahead_s: int
) -> None:
    class Ahead(SystemClock):
        def now_ms(self) -> int:
            return super().now_ms() + ahead_s * 1000

    dataset = dataset_at(path, clock=Ahead())
    coordinator = Coordinator(dataset, Ahead(), RandomIds())
    worker = Worker(dataset, InlineEngine(), Ahead(), "ours")
    coordinator.start(Term(dataset.take_epoch()))
    for _ in range(20):
        worker.tick()
        if coordinator.tick().is_idle:
            break
    assert state_of(dataset) is CompactionState.COMPLETED
    with opened(path, worker=True) as database:
        before = entry_of(dataset)
        for n in range(4):
            database.write_batch([Put(b"k0000", b"%d" % n)])
            database.flush()
        deadline_s = time.monotonic() + LIMIT_S
        while (entry := entry_of(dataset)) is None or entry == before or not entry.state.is_terminal:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        assert not database.is_closed()
