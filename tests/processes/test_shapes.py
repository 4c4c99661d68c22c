"""The ways to deploy Lithify, as real processes, while the official client writes throughout: beside
SlateDB's own coordinator, as one process, as a library in the process that holds the database, and as a
coordinator and workers apart on a Spark cluster."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Unpack

import pytest

from lithify.base.errors import CoordinatorAlive
from lithify.engine.spark import SparkEngine
from lithify.protocol.model import CompactionState
from tests.cluster import cluster_conf, standalone_cluster
from tests.engine.waiting import wait_until
from tests.judge.official import Admin, Database, OpenOptions, compactor_settings, open_db
from tests.pools import every
from tests.processes.accidents import Stage, kill_executor
from tests.processes.databases import Model, check_rows, key_of, make_database, write_some
from tests.processes.history import check_protocol, history, lives
from tests.processes.nodes import Nodes, nodes_in

KEYS = 2_000
VALUE_BYTES = 100
LIMIT_S = 200.0
DEPLOYMENT = Path(__file__).parents[2] / "docs" / "deployment.md"
COORDINATORS = ("coordinator", "run", "compact --full")
KEEPS_UP = 4
"""Fewer L0s than the scheduler wants for a compaction."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as master:
        yield master


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with nodes_in(tmp_path / "logs") as nodes:
        yield nodes


def finishers(path: Path) -> dict[str, str]:
    """By compaction the worker that carried it out, for all that are committed."""
    return {
        compaction_id: worker
        for compaction_id, steps in lives(history(path)).items()
        for state, worker in steps[-1:]
        if state is CompactionState.COMPLETED and worker is not None
    }


def write_throughout(database: Database, path: Path, is_enough: Callable[[set[str]], bool]) -> Model:
    """Overwrite and delete until the workers that have finished a compaction are enough, then until
    no compaction is left to do. Reads what it wrote on the way."""
    rng, model = random.Random(1), Model()
    deadline_s = time.monotonic() + LIMIT_S
    while not is_enough(set(finishers(path).values())):
        assert time.monotonic() < deadline_s, finishers(path)
        write_some(database, model, rng, rng.sample(range(KEYS), KEYS // 5), VALUE_BYTES)
        database.flush()
        asked = [key_of(n) for n in rng.sample(range(KEYS), 20)]
        assert database.get_many(asked) == {key: model.get(key) for key in asked}
        time.sleep(0.1)
    wait_until(lambda: all(len(tree.l0) < KEEPS_UP for tree in Admin(path).trees()), LIMIT_S)
    assert not database.is_closed()
    return model


def check(path: Path, model: Model, **options: Unpack[OpenOptions]) -> None:
    check_protocol(history(path))
    assert any(tree.runs for tree in Admin(path).trees())
    check_rows(path, model, **options)


def is_lithify(worker: str) -> bool:
    return worker.startswith("lithify-")


@pytest.mark.parametrize(
    "embedded",
    [
        pytest.param(True, id="with its embedded worker"),
        pytest.param(False, id="alone", marks=pytest.mark.whole),
    ],
)
def test_workers_of_an_official_coordinator(embedded: bool, tmp_path: Path, nodes: Nodes) -> None:
    path = tmp_path / "db"
    compactor = compactor_settings(scheduler={})
    # The coordinator tells its embedded worker at once; there is something left for others when it is
    # busy, and that takes several trees.
    compactor["worker"] = {"max_concurrent_compactions": 1} if embedded else None
    options: OpenOptions = {"settings": {"compactor_options": compactor}, "segment_prefix_len": 1}

    def is_enough(workers: set[str]) -> bool:
        ours = {worker for worker in workers if is_lithify(worker)}
        return bool(ours) and (not embedded or bool(workers - ours))

    with open_db(path, **options) as database:
        worker = nodes.command("worker", str(path), "--master", "local[1]")
        model = write_throughout(database, path, is_enough)
        assert worker.terminate() == 0
    check(path, model, segment_prefix_len=1)


def test_no_coordinator_starts_beside_one_of_slatedbs(tmp_path: Path, nodes: Nodes) -> None:
    """It would close the database. With the default options that has a coordinator inside, which at rest
    writes nothing."""
    path = tmp_path / "db"
    with open_db(path, settings={"compactor_options": compactor_settings()}) as database:
        database.put(b"before", b"row")
        database.flush()
        wait_until(lambda: Admin(path).read_compactions() is not None)
        before = files_of(path)
        for process in [nodes.command(*command.split(), str(path)) for command in COORDINATORS]:
            assert process.wait() == CoordinatorAlive.exit_code
            assert "lithify worker" in process.errors
        assert files_of(path) == before
        database.put(b"after", b"row")
        database.flush()
        assert not database.is_closed()
    check_rows(path, {b"before": b"row", b"after": b"row"})


def files_of(path: Path) -> set[Path]:
    return {file for file in path.rglob("*") if file.is_file()}


@pytest.mark.whole
def test_coordinator_and_worker_in_one_process(tmp_path: Path, nodes: Nodes) -> None:
    path = tmp_path / "db"
    with open_db(path) as database:
        process = nodes.command("run", str(path), "--master", "local[1]")
        model = write_throughout(database, path, bool)
        assert process.terminate() == 0
    check(path, model)


def test_embedded_in_the_process_that_holds_the_database(
    tmp_path: Path, spark_engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the lines that the documents show, but for the URL, the Spark session and the intervals."""
    path = tmp_path / "db"
    (code,) = re.findall(r"```python\n(.*?)```", DEPLOYMENT.read_text(), re.DOTALL)
    assert code.count("s3://bucket/my-db") == 1
    monkeypatch.setattr("lithify.engine.spark.SparkEngine", lambda _: nullcontext(spark_engine))
    monkeypatch.setattr("lithify.config.model.ServiceSettings", lambda: every(0.1))
    lines = compile(code.replace("s3://bucket/my-db", str(path)), DEPLOYMENT.name, "exec")
    names: dict[str, Any] = {}
    with open_db(path) as database, ThreadPoolExecutor(1) as thread:
        running = thread.submit(exec, lines, names)
        try:
            wait_until(lambda: "leadership" in names or running.done(), LIMIT_S)
            model = write_throughout(database, path, bool)
        finally:
            names["stop"].set()
        running.result(LIMIT_S)
    assert set(finishers(path).values()) == {names["leadership"].holder}
    check(path, model)


def test_coordinator_and_workers_apart_on_a_cluster(tmp_path: Path, nodes: Nodes, cluster: str) -> None:
    path = tmp_path / "db"
    conf = [option for key, value in cluster_conf().items() for option in ("--spark-conf", f"{key}={value}")]
    with open_db(path) as database:
        processes = [
            nodes.command("coordinator", str(path)),
            nodes.command("worker", str(path), "--master", cluster, *conf),
        ]
        model = write_throughout(database, path, bool)
        assert [process.terminate() for process in processes] == [0, 0]
    check(path, model)


@pytest.mark.whole
def test_a_killed_executor_costs_its_range_only(tmp_path: Path, nodes: Nodes, cluster: str) -> None:
    path = tmp_path / "db"
    model = make_database(path, keys=5000, value_bytes=1000)
    kill_executor(Stage(path, nodes, 5, 3_000, 256 * 1024, cluster, cluster_conf()))
    check(path, model)
