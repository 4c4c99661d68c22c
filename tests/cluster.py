"""Spark servers on the loopback address, from the pip package: a standalone cluster and Connect."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import pyspark

from lithify.base.usercache import cache_folder
from lithify.engine.java import find_java
from tests.engine.waiting import python_path, spark_archive

HOME = Path(pyspark.__file__).parent
START_LIMIT_S = 150.0
STOP_LIMIT_S = 60.0
CORES = os.cpu_count() or 1
_ADDRESS = ("--host", "127.0.0.1", "--webui-port", "0")
NO_CONF: Mapping[str, str] = MappingProxyType({})
Server = tuple[Path, subprocess.Popen[bytes]]
_LOG_CONFIG = """\
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n%ex
"""


class Cluster:
    """A master and workers of one core each, for the time of a block. The master can be killed and started
    again under its URL. A worker that is `pinned` has a core of the machine for itself and all its
    executors."""

    def __init__(
        self, folder: Path, workers: int = 2, *, pinned: bool = False, conf: Mapping[str, str] = NO_CONF
    ) -> None:
        """`conf` are settings of master and workers."""
        self.url = ""
        self._folder = folder
        self._conf = folder / "cluster.conf"
        self._conf.write_text("".join(f"{name} {value}\n" for name, value in conf.items()))
        self._workers = workers
        self._pinned = pinned
        self._stack = ExitStack()
        self._masters: list[Server] = []

    def __enter__(self) -> Self:
        with self._stack as stack:
            self._start_master("0")
            worker = "org.apache.spark.deploy.worker.Worker"
            options = [worker, *_ADDRESS, "--port", "0", "--cores", "1", "--memory", "1g"]
            options += ["--properties-file", str(self._conf)]
            servers = [
                stack.enter_context(
                    _server(
                        self._folder,
                        f"worker-{i}",
                        [*options, "--work-dir", str(self._folder / f"work-{i}"), self.url],
                        cores=[i % CORES] if self._pinned else (),
                    )
                )
                for i in range(self._workers)
            ]
            for server in servers:
                _wait_for(server, "(Successfully registered with master)")
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def kill_master(self) -> None:
        """SIGKILL. Workers and executors live on; it knew nothing that is kept anywhere."""
        _, process = self._masters[-1]
        process.kill()
        process.wait()

    def restart_master(self) -> None:
        """Another master under the same URL, which all workers have found."""
        url = self.url
        self._start_master(url.rpartition(":")[2])
        assert self.url == url, f"somebody else listens at {url}"
        _wait_for(self._masters[-1], rf"(?s)((?:Registering worker .*?){{{self._workers}}})")

    def _start_master(self, port: str) -> None:
        arguments = ["org.apache.spark.deploy.master.Master", *_ADDRESS, "--port", port]
        arguments += ["--properties-file", str(self._conf)]
        name = f"master-{len(self._masters)}"
        self._masters.append(self._stack.enter_context(_server(self._folder, name, arguments)))
        self.url = _wait_for(self._masters[-1], r"Starting Spark master at (spark://[\d.:]+)")


@contextmanager
def standalone_cluster(
    folder: Path, workers: int = 2, *, pinned: bool = False, conf: Mapping[str, str] = NO_CONF
) -> Iterator[str]:
    """The URL of a `Cluster` that nothing happens to."""
    with Cluster(folder, workers, pinned=pinned, conf=conf) as cluster:
        yield cluster.url


def cluster_conf() -> dict[str, str]:
    """Settings with which executors of this machine can import the tests."""
    return {
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": _short_lived(),
        "spark.executorEnv.PYTHONPATH": python_path(),
    }


@contextmanager
def connect_server(folder: Path, conf: Mapping[str, str]) -> Iterator[str]:
    """A Spark Connect server on `local[2,4]`; gives its URL."""
    settings = {
        "spark.master": "local[2,4]",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.python.daemon.module": "lithify.engine.daemon",
        "spark.python.task.killTimeout": "100ms",
        "spark.driver.extraJavaOptions": f"{_short_lived()} {_log_option(folder)}",
        **conf,
    }
    command = ["org.apache.spark.deploy.SparkSubmit"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    with _server(folder, "connect", [*command, "spark-internal"]) as server:
        port = _wait_for(server, r"Spark Connect server started at: .*:(\d+)")
        yield f"sc://127.0.0.1:{port}"


@contextmanager
def _server(folder: Path, name: str, arguments: list[str], *, cores: Sequence[int] = ()) -> Iterator[Server]:
    """A JVM of Spark's, ended with the block; gives its log and its process."""
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(HOME / "bin" / "spark-class"), *arguments],
            env=_environment(folder),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=partial(os.sched_setaffinity, 0, cores) if cores else None,
        )
    try:
        yield log, process
    finally:
        process.terminate()
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _short_lived() -> str:
    """Options of JVMs that had better start soon than run fast."""
    archive = spark_archive()
    shared = f" -XX:SharedArchiveFile={archive}" if archive.exists() else ""
    return f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC{shared}"


def _environment(folder: Path) -> dict[str, str]:
    _, java_home = find_java(os.environ, cache_folder(os.environ))
    return {
        **os.environ,
        "JAVA_HOME": str(java_home),
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_DAEMON_MEMORY": "640m",
        "SPARK_DAEMON_JAVA_OPTS": f"{_short_lived()} {_log_option(folder)}",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": python_path(),
    }


def _log_option(folder: Path) -> str:
    path = folder / "log4j2.properties"
    path.write_text(_LOG_CONFIG)
    return f"-Dlog4j2.configurationFile={path.as_uri()}"


def _wait_for(server: Server, pattern: str) -> str:
    """The group of `pattern` as soon as the server's log has it."""
    log, process = server
    deadline_s = time.monotonic() + START_LIMIT_S
    while (match := re.search(pattern, log.read_text(errors="replace"))) is None:
        is_waiting = process.poll() is None and time.monotonic() < deadline_s
        assert is_waiting, f"{log.name}: no {pattern!r}\n{log.read_text()[-3000:]}"
        time.sleep(0.05)
    return match.group(1)
