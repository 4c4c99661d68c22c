"""The engine on a Spark Connect server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lithify.base.errors import Cancelled, CorruptObject, EngineError, StoreError
from lithify.engine.spark import SparkEngine
from tests.cluster import connect_server
from tests.engine import tasks
from tests.engine.waiting import LIMIT_S, child_environment, is_alive, noted_pids, wait_until

LOST_CLIENT = """
import sys
from lithify.engine.spark import SparkEngine
from tests.engine.tasks import sleep_noted
engine = SparkEngine(sys.argv[1])
engine.submit("job", sleep_noted, (sys.argv[2], 300.0)).result()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    conf = {
        "spark.connect.execute.reattachable.senderMaxStreamDuration": "2s",
        "spark.connect.execute.manager.detachedTimeout": "2s",
        "spark.connect.execute.manager.maintenanceInterval": "1s",
    }
    with connect_server(tmp_path_factory.mktemp("connect"), conf) as url:
        yield url


@pytest.fixture(scope="module")
def engine(server: str) -> Iterator[SparkEngine]:
    with SparkEngine(server) as engine:
        yield engine


def test_results(engine: SparkEngine) -> None:
    futures = [engine.submit(f"job-{i % 3}", tasks.double, i) for i in range(8)]
    assert [future.result(LIMIT_S) for future in futures] == [2 * i for i in range(8)]
    assert engine.slots == 2


def test_final_error_comes_back_as_itself_after_one_attempt(engine: SparkEngine, tmp_path: Path) -> None:
    with pytest.raises(CorruptObject, match="bad checksum"):
        engine.submit("corrupt", tasks.fail_corrupt, str(tmp_path)).result(LIMIT_S)
    assert tasks.attempts(tmp_path) == 1


def test_store_error_is_retried(engine: SparkEngine, tmp_path: Path) -> None:
    assert engine.submit("blink", tasks.fail_store_once, str(tmp_path)).result(LIMIT_S) == "second attempt"


def test_store_error_of_the_last_attempt_comes_back_as_itself(engine: SparkEngine, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="the bucket is gone"):
        engine.submit("gone", tasks.fail_store_always, str(tmp_path)).result(LIMIT_S)
    assert tasks.attempts(tmp_path) == 4


def test_task_whose_process_always_dies_is_given_up(engine: SparkEngine, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="crashed") as caught:
        engine.submit("poison", tasks.kill_worker_always, str(tmp_path)).result(LIMIT_S)
    assert "\n" not in str(caught.value)


def test_cancel(engine: SparkEngine, tmp_path: Path) -> None:
    doomed = [engine.submit("doomed", tasks.sleep_noted, (str(tmp_path), 120.0)) for _ in range(6)]
    wait_until(lambda: len(noted_pids(tmp_path)) == engine.slots)
    engine.cancel("doomed")
    for future in doomed:
        with pytest.raises(Cancelled):
            future.result(0)
    wait_until(lambda: not any(is_alive(pid) for pid in noted_pids(tmp_path)))
    assert engine.submit("doomed", tasks.double, 3).result(LIMIT_S) == 6


def test_time_limit_ends_compiled_code(server: str, tmp_path: Path) -> None:
    with SparkEngine(server, task_time_limit_s=0.5) as engine:
        with pytest.raises(EngineError, match="crashed"):
            engine.submit("hung", tasks.spin_in_kernel, str(tmp_path)).result(LIMIT_S)
        assert engine.submit("fine", tasks.double, 3).result(LIMIT_S) == 6
    assert not any(is_alive(pid) for pid in noted_pids(tmp_path))


def test_tasks_of_a_lost_client_end_with_the_servers_timeout(server: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOST_CLIENT, server, str(tmp_path)]
    client = subprocess.Popen(command, env=child_environment())
    try:
        wait_until(lambda: noted_pids(tmp_path))
    finally:
        client.kill()
        client.wait()
    wait_until(lambda: not any(is_alive(pid) for pid in noted_pids(tmp_path)))


@pytest.mark.parametrize(
    ("url", "message"),
    [("sc://127.0.0.1:1", "no Spark Connect server answers"), ("sc://:1", "is not a Spark Connect URL")],
)
def test_server_that_is_not_there(url: str, message: str) -> None:
    with SparkEngine(url) as engine, pytest.raises(EngineError, match=message):
        engine.submit("job", tasks.double, 1).result(LIMIT_S)
