"""Starting and ending a classic session: in processes of their own, as a command would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from lithify.base.scratch import remove_abandoned
from tests.engine.waiting import (
    LIMIT_S,
    Pid,
    child_environment,
    descendants,
    is_alive,
    noted_pids,
    settled_cache,
    wait_until,
)

LONG_TASK = """
import sys
from lithify.engine.spark import SparkEngine
from tests.engine.tasks import sleep_noted
with SparkEngine("local[2]") as engine:
    futures = [engine.submit("job", sleep_noted, (sys.argv[1], 120.0)) for _ in range(5)]
    try:
        futures[0].result()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        raise SystemExit(3)
"""
BAD_START = """
from lithify.engine.session import open_session
from lithify.base.errors import EngineError
try:
    open_session("local[1]", conf={"spark.driver.memory": "1k"})
except EngineError as error:
    print(error)
try:
    open_session("no-such-master")
except EngineError as error:
    print(error)
"""
STARTING = """
import sys, threading
from lithify.engine.session import open_session
threading.Thread(target=open_session, args=("local[1]",), daemon=True).start()
sys.stdin.readline()
"""
KILLED = """
import os, signal, tempfile, time
from lithify.engine.spark import MAX_LOSSES, SparkEngine
from lithify.base.errors import EngineDown
from tests.engine.tasks import double, sleep_noted
def lose(engine):
    running = engine.submit("job", sleep_noted, (tempfile.mkdtemp(), 60.0))
    session = engine._start().result()
    time.sleep(2)
    os.kill(session.process_id, signal.SIGKILL)
    assert isinstance(running.exception(50), EngineDown), running.exception()
    engine.cancel("job")
with SparkEngine("local[1]") as engine:
    lose(engine)
    assert engine.submit("job", double, 4).result() == 8, "another session"
    for _ in range(MAX_LOSSES):
        assert engine.failure is None
        lose(engine)
    print(engine.failure)
    assert isinstance(engine.submit("job", double, 4).exception(), EngineDown)
"""
TWICE = """
import os, tempfile
from pathlib import Path
from lithify.engine.spark import SparkEngine
from tests.engine.tasks import double, environment
before = dict(os.environ)
conf = {"spark.executorEnv.MY_SETTING": "mine", "spark.driver.memory": "600m"}
for _ in range(2):
    with SparkEngine("local[1]", conf=conf) as engine:
        assert engine.submit("job", double, 4).result() == 8
        assert engine.submit("job", environment, "MY_SETTING").result() == "mine"
        session = engine._start().result()
        assert b"-Xmx600m" in Path(f"/proc/{session.process_id}/cmdline").read_bytes()
    assert not Path(f"/proc/{session.process_id}").exists()
changed = {name for name in before.keys() | os.environ.keys() if before.get(name) != os.environ.get(name)}
assert changed <= {"SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"}, changed  # set by PySpark itself
assert list(Path(tempfile.gettempdir()).iterdir()) == []
"""


@contextmanager
def long_task(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process whose Spark tasks have begun to sleep, having noted themselves in `folder`."""
    process = subprocess.Popen(
        [sys.executable, "-c", LONG_TASK, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(folder),
    )
    try:
        wait_until(lambda: len(noted_pids(folder)) == 2)
        yield process
    finally:
        process.kill()
        process.communicate()


def scratch(folder: Path) -> Path:
    """The temporary folder of a process."""
    return folder / "scratch"


def environment(folder: Path) -> dict[str, str]:
    """That of a process whose temporary folder holds nothing but what it puts there itself."""
    scratch(folder).mkdir()
    cache = settled_cache(folder / "cache")
    return child_environment() | {"TMPDIR": str(scratch(folder)), "LITHIFY_CACHE_DIR": str(cache)}


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=environment(folder),
    )


def test_interrupt_stops_the_tasks_and_closes_cleanly(tmp_path: Path) -> None:
    with long_task(tmp_path) as process:
        below = descendants(process.pid)
        assert len(below) >= 4  # the JVM, the daemon and two workers
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out, err) == (3, "interrupted\n", "")
    wait_until(lambda: not any(is_alive(pid) for pid in below))
    assert list(scratch(tmp_path).glob("lithify-*")) == []


@pytest.mark.parametrize("victim", ["driver", pytest.param("jvm", marks=pytest.mark.whole)])
def test_tasks_do_not_outlive_the_driver(tmp_path: Path, victim: str) -> None:
    with long_task(tmp_path) as process:
        below = descendants(process.pid)
        pid = process.pid if victim == "driver" else next(p for p in below if is_java(p))
        subprocess.run(["kill", "-KILL", str(pid)], check=True)
        wait_until(lambda: not any(is_alive(task) for task in noted_pids(tmp_path)))
        if victim == "jvm":
            _, err = process.communicate(timeout=LIMIT_S)
            assert "EngineDown: Spark was lost while it ran a task of job: " in err
            assert "Spark's JVM has ended with exit code -9" in err
            assert "Exception occurred during processing" not in err
            assert "ERROR:root" not in err
        wait_until(lambda: not any(is_alive(pid) for pid in below))


def is_java(pid: int) -> bool:
    return b"org.apache.spark.deploy.SparkSubmit" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_failed_start_says_why(tmp_path: Path) -> None:
    answer = run(BAD_START, tmp_path)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "Spark's JVM ended before it was ready" in answer.stdout
    assert "Too small maximum heap" in answer.stdout
    assert "Master must either be yarn or start with" in answer.stdout
    assert list(scratch(tmp_path).glob("lithify-*")) == []


def test_sessions_follow_each_other_silently_and_leave_nothing(tmp_path: Path) -> None:
    answer = run(TWICE, tmp_path)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


@pytest.mark.whole
def test_a_killed_jvm_is_followed_by_another_until_that_has_happened_too_often(tmp_path: Path) -> None:
    answer = run(KILLED, tmp_path)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith("Spark was lost 3 times in a row; last cause: Spark's JVM has ended")
    assert list(scratch(tmp_path).glob("lithify-*")) == []


@contextmanager
def starting(folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[Pid]]]:
    """A process that starts a session, and what it has started, which stands still."""
    process = subprocess.Popen(
        [sys.executable, "-c", STARTING],
        stdin=subprocess.PIPE,
        text=True,
        env=child_environment() | {"TMPDIR": str(folder)},
    )
    below: list[Pid] = []
    try:
        wait_until(lambda: any(map(has_gateway, descendants(process.pid))))
        below = descendants(process.pid)
        for pid in below:
            os.kill(pid, signal.SIGSTOP)
        yield process, below
    finally:
        process.kill()
        process.communicate()
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        wait_until(lambda: not any(map(is_alive, below)))


def test_a_jvm_that_still_starts_keeps_the_folder_of_its_killed_process(tmp_path: Path) -> None:
    """Without it the JVM could not say where it listens, and would not end."""
    with starting(tmp_path) as (process, _):
        process.kill()
        process.wait()
        remove_abandoned(tmp_path)  # as whoever starts next does
        assert list(tmp_path.glob("lithify-*/told/*"))
    remove_abandoned(tmp_path)
    assert not list(tmp_path.glob("lithify-*"))


def test_a_jvm_that_still_starts_ends_with_its_process(tmp_path: Path) -> None:
    with starting(tmp_path) as (process, below):
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(LIMIT_S) == 0
        wait_until(lambda: not any(map(is_alive, below)))
    assert not list(tmp_path.glob("lithify-*"))


def has_gateway(pid: int) -> bool:
    """Whether it is a JVM that has begun to open the gateway, and so has read all that it was told."""
    try:
        return any("/py4j" in str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return False
