"""A Spark context in the driver's JVM, which this process starts unless `spark-submit` has started it.

1. Find Java, make a private temporary folder, and decide all settings (`settings`, pure).
2. Launch the JVM (`jvm`), and create the context. If the JVM ends before, try once more without the class
   archive; then fail with the last lines of its log.

Closing stops the context, ends the JVM and removes the folder; each step has a time limit. A context that a
standalone cluster has forgotten is stopped earlier (`executors`).

Invariants: nothing is written to standard output or standard error. A process has at most one such session,
because PySpark allows no second one. `os.environ` is changed only while the context is created. Task
arguments are never in a file, because they may contain secrets.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lithify.base.errors import EngineError
from lithify.base.scratch import Scratch
from lithify.base.usercache import cache_folder
from lithify.engine import archive, settings, versions
from lithify.engine.executors import ExecutorWatch
from lithify.engine.failure import essential_cause
from lithify.engine.java import Java, find_java
from lithify.engine.jvm import STOP_LIMIT_S, DriverJvm, JvmEndedError
from lithify.engine.task import run_request

SECRET_BYTES = 32
_CHUNK_BYTES = 64 * 1024

_process_lock = threading.Lock()
"""Held while a context is created or closed: PySpark keeps it in class attributes."""


def open_classic(
    master: str = "local[*]",
    app_name: str = "lithify",
    conf: Mapping[str, str] | None = None,
    preload: str | None = None,
    *,
    jvm_options: Sequence[str] = (),
    use_archive: bool = True,
) -> ClassicSession:
    user = dict(conf or {})
    cache = cache_folder(os.environ)
    java, java_home = find_java(os.environ, cache, versions.newest_java(versions.installed_version()))
    path = _archive_path(cache, java) if use_archive else None
    usable = archive.existing(path) if path is not None else None
    start = partial(ClassicSession, master, app_name, user, preload, java_home, jvm_options)
    if usable is None:
        return start(None, path)
    try:
        return start(usable, path)
    except JvmEndedError:
        session = start(None, path)
        archive.discard(usable)  # the JVM starts without it, so it was to blame
        return session


class ClassicSession:
    """A Spark context in the driver's JVM, which this process starts unless `spark-submit` has started it."""

    def __init__(
        self,
        master: str,
        app_name: str,
        user: Mapping[str, str],
        preload: str | None,
        java_home: Path,
        jvm_options: Sequence[str] = (),
        used_archive: Path | None = None,
        wanted_archive: Path | None = None,
    ) -> None:
        self.java_home = java_home
        self._wanted_archive = wanted_archive
        self._scratch = Scratch()
        self._folder = self._scratch.path
        self._jvm = DriverJvm(self._scratch)
        self._close_lock = threading.Lock()
        self._watch: ExecutorWatch | None = None
        local = settings.parse_local(master, settings.usable_cpus())
        conf = self._settings(master, app_name, user, preload, used_archive, jvm_options)
        self._conf = conf
        self.max_attempts = settings.max_attempts(conf["spark.master"], conf)
        self._fixed_slots = local.cores if local else None
        environment = settings.launch_environment(master, java_home, sys.executable, conf, os.environ)
        try:
            with _process_lock:
                self._context = self._start(conf, environment)
            if used_archive is not None and "sharing" not in self.system_property("java.vm.info"):
                archive.discard(used_archive)  # the JVM ignored it; the builder makes another
        except BaseException:
            self._jvm.end()
            self._scratch.close()
            raise
        if settings.has_lasting_executors(conf):
            self._watch = ExecutorWatch(self._executors, self._give_up)

    @property
    def process_id(self) -> int | None:
        """The JVM's process, if this process started it."""
        return self._jvm.process_id

    def slots(self) -> int:
        return self._fixed_slots or max(1, int(self._context.defaultParallelism))

    def run(self, request: bytes, *, tag: str, pool: str, description: str) -> bytes:
        with self._jvm_errors_named():
            return run_in_context(self._context, request, tag, pool, description)

    def interrupt(self, tag: str) -> None:
        with contextlib.suppress(JvmEndedError), self._jvm_errors_named():
            self._context.cancelJobsWithTag(tag)

    def is_over(self) -> bool:
        """Return whether the JVM has ended, or Spark has stopped its context, for example after it lost its
        master."""
        if self._jvm.has_ended:
            return True
        try:
            return bool(self._context._jsc.sc().isStopped())
        except Exception:  # PySpark's error without a JVM varies
            return True

    def system_property(self, name: str) -> str:
        return str(self._context._jvm.java.lang.System.getProperty(name))

    def _executors(self) -> int:
        """Return the number of executors, without the driver, which Spark's list includes."""
        return int(self._context._jsc.sc().getExecutorMemoryStatus().size()) - 1

    def _give_up(self) -> None:
        with contextlib.suppress(Exception):  # nothing runs in a JVM that has died
            self._context._jsc.sc().stop()

    def log_tail(self) -> str:
        return self._jvm.log_tail()

    def close(self) -> None:
        """Stop the context, end the JVM, remove the folder, and build the class archive if it is missing."""
        with self._close_lock:
            if not self._scratch.is_open:
                return
            if self._watch is not None:
                self._watch.close()
            with _process_lock:
                stopping = threading.Thread(target=self._stop, daemon=True)
                stopping.start()
                stopping.join(STOP_LIMIT_S)
                self._jvm.end()
                _forget_context()
            self._scratch.close()
        if self._wanted_archive is not None:
            archive.build_in_background(self._wanted_archive)

    def _settings(
        self,
        master: str,
        app_name: str,
        user: Mapping[str, str],
        preload: str | None,
        used_archive: Path | None,
        jvm_options: Sequence[str],
    ) -> dict[str, str]:
        log_config = self._folder / "log4j2.properties"
        log_config.write_text(settings.log_config(self._folder), encoding="utf-8")
        options = settings.java_options(log_config, self._folder / "jvm-error.log", used_archive)
        return settings.driver_settings(
            master,
            app_name,
            cpus=settings.usable_cpus(),
            folder=self._folder,
            java=[*options, *jvm_options],
            python_path=[str(entry) for entry in map(Path, sys.path) if entry.exists()],
            preload=preload,
            user=user,
            secret=secrets.token_hex(SECRET_BYTES),
        )

    @contextlib.contextmanager
    def _jvm_errors_named(self) -> Iterator[None]:
        """Raise an error that the JVM has ended where PySpark reports that it cannot connect."""
        from py4j.protocol import Py4JNetworkError

        try:
            yield
        except (OSError, Py4JNetworkError) as error:
            raise self._jvm.ended() from error

    def _start(self, conf: Mapping[str, str], environment: Mapping[str, str]) -> Any:
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        logging.getLogger().addFilter(_is_not_py4j)
        if SparkContext._active_spark_context is not None:
            raise EngineError(
                "this process already has a Spark context: stop it first, or use sc://host:port"
            )
        if "PYSPARK_GATEWAY_PORT" not in os.environ:
            port, secret = self._jvm.launch(conf, os.environ | environment)
            environment = {**environment, "PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
        try:
            with _environment(environment):
                spark_conf = SparkConf(loadDefaults=False).setAll(conf.items())
                context = SparkContext(conf=spark_conf, gateway=launch_gateway())
                _silence(context)
                return context
        except Exception as error:
            _forget_context()
            cause = essential_cause(str(error))
            message = f"Spark did not start on {conf['spark.master']}: {cause}\n{self.log_tail()}".rstrip()
            raise (JvmEndedError if self._jvm.has_ended else EngineError)(message) from error
        finally:
            self._jvm.forget_what_was_told()

    def _stop(self) -> None:
        with warnings.catch_warnings(), contextlib.suppress(Exception):
            warnings.simplefilter("ignore")  # a JVM that has died is reported where it is used
            self._context.stop()


def run_in_context(context: Any, request: bytes, tag: str, pool: str, description: str) -> bytes:
    """Run a request as a job of one task in a Spark context, and wait for its outcome."""
    context.setLocalProperty("spark.scheduler.pool", pool)
    context.setLocalProperty("spark.job.description", description)
    context.addJobTag(tag)
    try:
        outcomes: list[bytes] = _one_row(context, request).map(run_request).collect()
    except BaseException:
        with contextlib.suppress(Exception):  # a lost context has no tags; raise the original error
            context.removeJobTag(tag)
        raise
    context.removeJobTag(tag)
    return outcomes[0]


def _archive_path(cache: Path, java: Java) -> Path:
    import pyspark
    from pyspark.find_spark_home import _find_spark_home

    return archive.archive_path(cache, java, Path(_find_spark_home()), pyspark.__version__)


def _one_row(context: Any, request: bytes) -> Any:
    """Return an RDD of one partition with the request as its only element. The request reaches the JVM
    through a socket, as PySpark's `parallelize` does if files must be encrypted; otherwise that would write a
    file."""
    from pyspark import RDD
    from pyspark.serializers import ChunkedStream, NoOpSerializer

    serializer = NoOpSerializer()
    server = context._jvm.PythonParallelizeServer(context._jsc.sc(), 1)
    chunks = ChunkedStream(versions.stream_to(server), _CHUNK_BYTES)
    serializer.dump_stream([request], chunks)
    chunks.close()
    return RDD(server.getResult(), context, serializer)


def _silence(context: Any) -> None:
    """Keep PySpark from printing that the JVM has ended; callers that use the JVM then get an error."""
    context._accumulatorServer.handle_error = lambda request, address: None


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """Filter out records of Py4J: it logs to the root logger, which prints if no handler is configured."""
    return Path(record.pathname).parent.name != "py4j"


def _forget_context() -> None:
    """Let PySpark start another JVM later; it keeps the last one otherwise."""
    from pyspark import SparkContext

    with SparkContext._lock:
        if SparkContext._gateway is not None:
            with contextlib.suppress(Exception):  # fails if the JVM has died
                SparkContext._gateway.shutdown()
        SparkContext._gateway = None
        SparkContext._jvm = None
        SparkContext._active_spark_context = None


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
