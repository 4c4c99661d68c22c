"""Open, use and close one connection to Spark: a classic session or a Connect session.

A classic session starts like this:

1. Find Java, make a private temporary folder, and decide all settings (`settings`, pure).
2. Start the JVM through Spark's own launcher, with its output in a file of the folder, in a process
   group of its own, so that Ctrl-C in a terminal reaches only this process. It ends by itself when
   this process does, because it reads its standard input to the end. Settings and the JVM's options
   are told in files that only this user can read, because a command line can be read by anybody. A JVM
   that cannot say where it listens would wait for ever, so it keeps the folder, and is killed when this
   process ends before it has said so.
3. Wait, for a limited time, for the port it listens on, and make the context. If the JVM ends
   before, try once more without the class archive; then fail with the last lines of its log. Either way
   those files are removed.

Closing stops the context, ends the JVM and removes the folder; each step has a time limit. A context that a
standalone cluster has forgotten is stopped under way (`executors`).

Invariants: nothing is written to standard output or standard error. Only one classic session is
open in a process, because PySpark allows no second one. `os.environ` is changed only while the
context is made. What travels to a task is never in a file, because there may be secrets in it.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from lithify.engine import archive, settings, versions
from lithify.engine.executors import ExecutorWatch
from lithify.engine.failure import essential_cause
from lithify.engine.java import Java, find_java
from lithify.engine.task import OUTCOME_SCHEMA, run_request, run_request_in_arrow
from lithify.errors import EngineDown, EngineError
from lithify.scratch import Scratch
from lithify.usercache import cache_folder

START_LIMIT_S = 120
STOP_LIMIT_S = 15
CONNECT_LIMIT_S = 10
LOG_TAIL_LINES = 15
_POLL_S = 0.02
_REAP_LIMIT_S = 2
_CHUNK_BYTES = 64 * 1024
_OUTPUT_FILE = "jvm.log"
_TOLD_FOLDER = "told"
"""What the JVM is told at its start."""

_process_lock = threading.Lock()
"""Held while a context is made or unmade: PySpark keeps it in class attributes."""


class Session(Protocol):
    """One connection to Spark. Methods may be called from several threads."""

    @property
    def max_attempts(self) -> int:
        """How often Spark runs a task before it gives up."""
        ...

    def slots(self) -> int:
        """How many tasks run at once, as far as Spark knows now."""
        ...

    def run(self, request: bytes, *, tag: str, pool: str, description: str) -> bytes:
        """Run a request as a Spark job of one task and wait for its outcome."""
        ...

    def interrupt(self, tag: str) -> None:
        """Stop the jobs that run with that tag now."""
        ...

    def is_over(self) -> bool:
        """Whether nothing can run on it any more. To be asked after something has failed."""
        ...

    def close(self) -> None: ...


def open_session(
    master: str = "local[*]",
    app_name: str = "lithify",
    conf: Mapping[str, str] | None = None,
    preload: str | None = None,
) -> Session:
    """Connect to Spark: `sc://host:port` is a Connect server, everything else a classic master.

    `conf` are the user's own Spark settings and win over ours. `preload` names a function
    (`package.module:function`) that Python workers of a classic session call before their first task.
    """
    if settings.is_connect(master):
        return open_connect(master, app_name, conf or {})
    return open_classic(master, app_name, conf, preload)


def open_classic(
    master: str = "local[*]",
    app_name: str = "lithify",
    conf: Mapping[str, str] | None = None,
    preload: str | None = None,
    *,
    jvm_options: Sequence[str] = (),
    use_archive: bool = True,
) -> ClassicSession:
    """Start a JVM of our own and a Spark context in it."""
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
    except _JvmEndedError:
        session = start(None, path)
        archive.discard(usable)  # without it the JVM starts, so it was to blame
        return session


class _JvmEndedError(EngineDown):
    """The JVM ended before it could be used."""


class ClassicSession:
    """A Spark context in a JVM of this process's own."""

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
        self._process: subprocess.Popen[bytes] | None = None
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
                archive.discard(used_archive)  # the JVM has left it out; the builder makes another
        except BaseException:
            self._end_process()
            self._scratch.close()
            raise
        if settings.has_lasting_executors(conf):
            self._watch = ExecutorWatch(self._executors, self._give_up)

    @property
    def process_id(self) -> int | None:
        """The JVM's process, where this process started it."""
        return self._process.pid if self._process else None

    def slots(self) -> int:
        return self._fixed_slots or max(1, int(self._context.defaultParallelism))

    def run(self, request: bytes, *, tag: str, pool: str, description: str) -> bytes:
        with self._jvm_errors_named():
            return run_in_context(self._context, request, tag, pool, description)

    def interrupt(self, tag: str) -> None:
        with contextlib.suppress(_JvmEndedError), self._jvm_errors_named():
            self._context.cancelJobsWithTag(tag)

    def is_over(self) -> bool:
        """The JVM has ended, or Spark has stopped its context, as it does when it has lost its master."""
        if self._process is not None and self._process.poll() is not None:
            return True
        try:
            return bool(self._context._jsc.sc().isStopped())
        except Exception:  # whatever PySpark says when there is nothing to ask any more
            return True

    def system_property(self, name: str) -> str:
        """A system property of the JVM."""
        return str(self._context._jvm.java.lang.System.getProperty(name))

    def _executors(self) -> int:
        """How many there are; the driver is in Spark's list too."""
        return int(self._context._jsc.sc().getExecutorMemoryStatus().size()) - 1

    def _give_up(self) -> None:
        """End all that runs, and let nothing run any more."""
        with contextlib.suppress(Exception):  # in a JVM that has died nothing runs any more
            self._context._jsc.sc().stop()

    def log_tail(self) -> str:
        """The last lines Spark logged."""
        return _log_tail(self._folder)

    def close(self) -> None:
        """Stop the context, end the JVM, remove the folder, and see to the class archive."""
        with self._close_lock:
            if not self._scratch.is_open:
                return
            if self._watch is not None:
                self._watch.close()
            with _process_lock:
                stopping = threading.Thread(target=self._stop, daemon=True)
                stopping.start()
                stopping.join(STOP_LIMIT_S)
                self._end_process()
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
        )

    @contextlib.contextmanager
    def _jvm_errors_named(self) -> Iterator[None]:
        """Say that the JVM has ended where PySpark says that it cannot connect."""
        from py4j.protocol import Py4JNetworkError

        try:
            yield
        except (OSError, Py4JNetworkError) as error:
            ending = "has ended"
            if self._process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    ending += f" with exit code {self._process.wait(_REAP_LIMIT_S)}"
            ended = _JvmEndedError(f"Spark's JVM {ending}")
            ended.add_note(self.log_tail())
            raise ended from error

    def _start(self, conf: Mapping[str, str], environment: Mapping[str, str]) -> Any:
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        logging.getLogger().addFilter(_is_not_py4j)
        if SparkContext._active_spark_context is not None:
            raise EngineError(
                "this process already has a Spark context: stop it first, or use sc://host:port"
            )
        if "PYSPARK_GATEWAY_PORT" not in os.environ:
            port, secret = self._launch(conf, os.environ | environment)
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
            ended = self._process is not None and self._process.poll() is not None
            raise (_JvmEndedError if ended else EngineError)(message) from error
        finally:
            shutil.rmtree(self._folder / _TOLD_FOLDER, ignore_errors=True)

    def _launch(self, conf: Mapping[str, str], environment: Mapping[str, str]) -> tuple[int, str]:
        """Start the JVM and wait until it says where it listens: its port and its secret."""
        from pyspark.find_spark_home import _find_spark_home

        told = self._folder / _TOLD_FOLDER
        answer = told / "gateway"
        command = [str(Path(_find_spark_home()) / "bin" / "spark-submit")]
        command += ["--properties-file", str(_tell(told, conf))]
        if versions.has_load_defaults(versions.installed_version()):
            command.append("--load-spark-defaults")
        command += shlex.split(environment.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        with (self._folder / _OUTPUT_FILE).open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**environment, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer)},
                process_group=0,
                pass_fds=(self._scratch.lock,),
            )
        atexit.register(self._process.kill)
        try:
            self._wait_for(answer)
        finally:
            atexit.unregister(self._process.kill)
        return _parse_gateway(answer.read_bytes())

    def _wait_for(self, answer: Path) -> None:
        assert self._process is not None
        deadline_s = time.monotonic() + START_LIMIT_S
        while not answer.exists():
            if self._process.poll() is not None:
                raise _JvmEndedError(f"Spark's JVM ended before it was ready:\n{self.log_tail()}".rstrip())
            if time.monotonic() > deadline_s:
                limit = f"{START_LIMIT_S} seconds"
                raise EngineError(f"Spark's JVM was not ready after {limit}:\n{self.log_tail()}".rstrip())
            time.sleep(_POLL_S)

    def _stop(self) -> None:
        with warnings.catch_warnings(), contextlib.suppress(Exception):
            warnings.simplefilter("ignore")  # a JVM that has died is reported where it is used
            self._context.stop()

    def _end_process(self) -> None:
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            process.wait(STOP_LIMIT_S if process.poll() is None else 0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run_in_context(context: Any, request: bytes, tag: str, pool: str, description: str) -> bytes:
    """Run a request as a job of one task in a Spark context, and wait for its outcome."""
    context.setLocalProperty("spark.scheduler.pool", pool)
    context.setLocalProperty("spark.job.description", description)
    context.addJobTag(tag)
    try:
        outcomes: list[bytes] = _one_row(context, request).map(run_request).collect()
    except BaseException:
        with contextlib.suppress(Exception):  # a context that is lost has no tags, and that is not the cause
            context.removeJobTag(tag)
        raise
    context.removeJobTag(tag)
    return outcomes[0]


class ConnectSession:
    """A session of a Spark Connect server. Java, Python and daemon settings are the server's."""

    def __init__(self, spark: Any, endpoint: str) -> None:
        """`endpoint` is the server's address, or empty where that is not known."""
        self._spark = spark
        self._endpoint = endpoint
        try:
            master = str(self._spark.conf.get("spark.master", "spark"))
            failures = str(self._spark.conf.get("spark.task.maxFailures", str(settings.DEFAULT_ATTEMPTS)))
        except Exception as error:
            self.close()
            cause = essential_cause(str(error))
            raise EngineError(f"the Spark Connect server cannot be used: {cause}") from error
        self.max_attempts = settings.max_attempts(master, {"spark.task.maxFailures": failures})

    def slots(self) -> int:
        # A range without a number of partitions gets as many as the server can run at once.
        partitions = self._spark.range(1 << 16).mapInArrow(_count_batches, "partition long")
        return max(1, int(partitions.count()))

    def run(self, request: bytes, *, tag: str, pool: str, description: str) -> bytes:
        spark = self._spark
        spark.addTag(tag)
        try:
            row = spark.range(0, 1, 1, 1)
            table = row.mapInArrow(partial(run_request_in_arrow, request), OUTCOME_SCHEMA).toArrow()
        finally:
            spark.removeTag(tag)
        outcome: bytes = table.column(0)[0].as_py()
        return outcome

    def interrupt(self, tag: str) -> None:
        self._spark.interruptTag(tag)

    def is_over(self) -> bool:
        """The server does not answer, or does not know the session any more."""
        if self._endpoint and _why_silent(self._endpoint) is not None:
            return True  # before the client retries for ten minutes
        try:
            self._spark.conf.get("spark.master", "")
        except Exception:  # whatever the client says of a session that is gone; who goes on opens another
            return True
        return False

    def close(self) -> None:
        self._spark.stop()


def open_connect(url: str, app_name: str, conf: Mapping[str, str]) -> ConnectSession:
    """A new session of the Spark Connect server at `url`."""
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.session import SparkSession

    try:
        endpoint = DefaultChannelBuilder(url).endpoint
    except Exception as error:
        raise EngineError(f"{url} is no Spark Connect URL (sc://host:port): {error}") from error
    # The client would retry for ten minutes; a server that is not there should be told at once.
    try:
        socket.create_connection(_address(endpoint), CONNECT_LIMIT_S).close()
    except OSError as error:
        raise EngineError(f"no Spark Connect server answers at {url}: {error}") from error
    builder = SparkSession.builder.remote(url).appName(app_name)
    for name, value in conf.items():
        builder = builder.config(name, value)
    try:
        return ConnectSession(builder.create(), endpoint)
    except EngineError as error:
        raise EngineError(f"{url}: {error}") from error
    except Exception as error:
        cause = essential_cause(str(error))
        raise EngineError(f"the Spark Connect server at {url} refused a session: {cause}") from error


def check_master(master: str) -> None:
    """`Refused` when it is none, `EngineDown` when nobody listens where it should; nothing is started."""
    settings.check_form(master)
    if settings.is_connect(master):
        from pyspark.sql.connect.client import DefaultChannelBuilder

        try:
            endpoints = [DefaultChannelBuilder(master).endpoint]
        except Exception:
            return  # whoever opens the session says what is wrong with it
        what = "Spark Connect server"
    elif master.startswith("spark://"):
        endpoints, what = master.removeprefix("spark://").split(","), "Spark master"
    else:
        return
    problems = [problem for problem in map(_why_silent, endpoints) if problem is not None]
    if len(problems) == len(endpoints):
        raise EngineDown(f"no {what} answers at {master}: {problems[0]}")


def _why_silent(endpoint: str) -> str | None:
    try:
        socket.create_connection(_address(endpoint), CONNECT_LIMIT_S).close()
    except (OSError, ValueError) as error:
        return str(error)
    return None


def _count_batches(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    for _ in batches:
        pass
    yield pa.RecordBatch.from_arrays([pa.array([1], pa.int64())], ["partition"])


def _address(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port)


def _archive_path(cache: Path, java: Java) -> Path:
    import pyspark
    from pyspark.find_spark_home import _find_spark_home

    return archive.archive_path(cache, java, Path(_find_spark_home()), pyspark.__version__)


def _tell(folder: Path, conf: Mapping[str, str]) -> Path:
    """Write the settings and the JVM's options to files in a new folder; the file of settings."""
    folder.mkdir(0o700)
    launching = dict(conf)
    for name in settings.JVM_OPTIONS & conf.keys():
        options = folder / name
        _write_privately(options, settings.quote_options(shlex.split(conf[name])))
        launching[name] = settings.quote_options([f"@{options}"])
    file = folder / "settings"
    _write_privately(file, settings.properties(launching))
    return file


def _write_privately(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def _one_row(context: Any, request: bytes) -> Any:
    """An RDD of one partition with the request as its only element. It reaches the JVM through a socket, as
    it does in PySpark's own `parallelize` where files have to be encrypted; else that would write a file."""
    from pyspark import RDD
    from pyspark.serializers import ChunkedStream, NoOpSerializer

    serializer = NoOpSerializer()
    server = context._jvm.PythonParallelizeServer(context._jsc.sc(), 1)
    chunks = ChunkedStream(versions.stream_to(server), _CHUNK_BYTES)
    serializer.dump_stream([request], chunks)
    chunks.close()
    return RDD(server.getResult(), context, serializer)


def _parse_gateway(answer: bytes) -> tuple[int, str]:
    """Port and secret of the gateway: two big-endian 32-bit numbers, the second the secret's length."""
    port, length = int.from_bytes(answer[:4], "big"), int.from_bytes(answer[4:8], "big")
    return port, answer[8 : 8 + length].decode()


def _silence(context: Any) -> None:
    """Keep PySpark from printing that the JVM is gone; whoever uses the JVM then gets an error."""
    context._accumulatorServer.handle_error = lambda request, address: None


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """Py4J writes to the root logger itself, which prints when nobody has configured it."""
    return Path(record.pathname).parent.name != "py4j"


def _forget_context() -> None:
    """Let PySpark start another JVM later; it keeps the last one for ever."""
    from pyspark import SparkContext

    with SparkContext._lock:
        if SparkContext._gateway is not None:
            with contextlib.suppress(Exception):  # nobody is there to be told when its JVM has died
                SparkContext._gateway.shutdown()
        SparkContext._gateway = None
        SparkContext._jvm = None
        SparkContext._active_spark_context = None


def _log_tail(folder: Path) -> str:
    lines: list[str] = []
    for name in (settings.LOG_FILE, _OUTPUT_FILE):
        with contextlib.suppress(OSError):
            lines += (folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
    telling = [line for line in lines if line.strip() and not line.lstrip().startswith("at ")]
    return "\n".join(telling[-LOG_TAIL_LINES:])


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for a while."""
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
