"""Real processes are killed, frozen and stopped in the middle of a compaction: nothing is lost, and only
what was not finished runs again. The official client writes meanwhile, and judges. What `make chaos` does to
a larger database as well is left to `make whole` here."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.judge.official import open_db
from tests.processes import accidents
from tests.processes.accidents import Outcome, Stage
from tests.processes.databases import Model, check_rows, make_database
from tests.processes.history import check_protocol, history
from tests.processes.nodes import Nodes, nodes_in
from tests.processes.writer import Writer

KEYS = 6_000
VALUE_BYTES = 1000
ENOUGH = 5
"""Of about 45 ranges."""
TIMEOUT_MS = 6_000
Database = tuple[Path, Model]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Database:
    path = tmp_path_factory.mktemp("template") / "db"
    return path, make_database(path, keys=KEYS, value_bytes=VALUE_BYTES)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with nodes_in(tmp_path / "logs") as nodes:
        yield nodes


def play(accident: Callable[[Stage], Outcome], template: Database, tmp_path: Path, nodes: Nodes) -> Outcome:
    """Let it happen to a copy of the database, beside a writer; then all rows must be there."""
    source, model = template
    path = Path(shutil.copytree(source, tmp_path / "db"))
    stage = Stage(path, nodes, ENOUGH, TIMEOUT_MS, max_sst_size=256 * 1024)
    with open_db(path) as database:
        writer = Writer(database, dict(model), keys=KEYS, batch=50, value_bytes=100, pause_s=2)
        with writer:
            outcome = accident(stage)
    for process in nodes.all:
        process.end()
    check_protocol(history(path))
    check_rows(path, writer.model)
    assert outcome.finished_before >= ENOUGH
    print(outcome)
    return outcome


def test_of_a_killed_worker_only_the_unfinished_ranges_run_again(
    template: Database, tmp_path: Path, nodes: Nodes
) -> None:
    outcome = play(accidents.kill_worker, template, tmp_path, nodes)
    assert outcome.reclaimed_after_s is not None
    assert outcome.reclaimed_after_s > TIMEOUT_MS / 1000


@pytest.mark.whole
def test_a_frozen_worker_that_wakes_up_changes_nothing(
    template: Database, tmp_path: Path, nodes: Nodes
) -> None:
    outcome = play(accidents.freeze_worker, template, tmp_path, nodes)
    assert outcome.reclaimed_after_s is not None
    assert outcome.reclaimed_after_s > TIMEOUT_MS / 1000


@pytest.mark.whole
def test_a_worker_that_is_told_to_stop_gives_back_at_once(
    template: Database, tmp_path: Path, nodes: Nodes
) -> None:
    play(accidents.stop_worker, template, tmp_path, nodes)


@pytest.mark.whole
def test_a_frozen_coordinator_that_wakes_up_is_fenced(
    template: Database, tmp_path: Path, nodes: Nodes
) -> None:
    play(accidents.freeze_coordinator, template, tmp_path, nodes)


@pytest.mark.whole
def test_of_a_killed_jvm_the_process_starts_another_and_runs_the_unfinished_ranges(
    template: Database, tmp_path: Path, nodes: Nodes
) -> None:
    play(accidents.kill_jvm, template, tmp_path, nodes)


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_a_worker_whose_every_jvm_is_killed_ends_for_its_supervisor_and_its_successor_goes_on(
    template: Database, tmp_path: Path, nodes: Nodes
) -> None:
    play(accidents.kill_every_jvm, template, tmp_path, nodes)
