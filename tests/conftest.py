"""What all tests share: one Spark session, one Java Iceberg, and a cache folder that `make clean` removes."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from lithify.engine.settings import usable_cpus
from lithify.engine.spark import SparkEngine
from tests.engine.waiting import spark_archive
from tests.judge.iceberg_java import IcebergJava, iceberg_java
from tests.making import class_archive, kernel, make
from tests.s3 import S3, serve_s3

os.environ.setdefault("LITHIFY_CACHE_DIR", str(Path(__file__).parents[1] / "build" / "cache"))
# A shell that runs the suite in the background has it ignore Ctrl-C, and children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

KERNELS = {
    "lithify.datasets.slatedb.dataset": kernel("slatedb", "lithify.datasets.slatedb.kernel.warm_up"),
    "lithify.datasets.kafka.format.record_batches": kernel(
        "kafka", "lithify.datasets.kafka.cleaning.warm_up"
    ),
    "lithify.datasets.iceberg.kernel.avro": kernel("iceberg", "lithify.datasets.iceberg.kernel.warm_up"),
}
"""What a module needs."""

LONG = (
    "tests/fleet/test_processes.py",
    "tests/processes/test_kills.py",
    "tests/datasets/iceberg/test_java.py",
    "tests/processes/test_shapes.py",
    "tests/client/test_sessions.py",
    "tests/engine/test_archive.py",
    "tests/engine/test_session.py",
    "tests/docs/test_howtos.py",
    "tests/simulator/test_fleet.py",
    "tests/service/test_away.py",
    "tests/benchmarks/test_service.py",
    "tests/fleet/test_official.py",
)
"""Files that take most of a minute or more, the longest first: they are begun first, so that at the end no
process is left alone with one (`make test` gives whole files to processes, in this order)."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays until the end: no search for garbage goes through it, then or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only `make whole` plays, or else all that it does not; bring the long files to the
    front."""
    parts: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        parts[item.get_closest_marker("whole") is not None].append(item)
    items[:] = parts[config.option.whole]
    config.hook.pytest_deselected(items=parts[not config.option.whole])
    places = {file: place for place, file in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(LONG)))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Three more processes than there are processors: many tests wait, for clocks, servers and processes."""
    return usable_cpus() + 3


def pytest_collection_finish(session: pytest.Session) -> None:
    """Make what takes long, before the first test that may need it: half a minute of two cores' time, longer
    on a busy machine, and no test's time limit is meant for that. Few tests are not worth an archive."""
    if not session.items or session.config.option.collectonly:
        return
    archives = [class_archive(spark_archive())] if hasattr(session.config, "workerinput") else []
    make([*(made for used, made in KERNELS.items() if used in sys.modules), *archives])


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """An S3 server, shared by the whole suite: each test makes buckets of its own."""
    with serve_s3() as server:
        yield server


@pytest.fixture(scope="session")
def shared_engines() -> Iterator[list[SparkEngine]]:
    """The engine that the suite shares, if it is open."""
    engines: list[SparkEngine] = []
    yield engines
    for engine in engines:
        engine.close()


@pytest.fixture
def spark_engine(shared_engines: list[SparkEngine]) -> SparkEngine:
    """The engine on `local[2]`, shared by the whole suite. Starts with the first call."""
    if not shared_engines:
        shared_engines.append(SparkEngine("local[2]", app_name="lithify-tests"))
    return shared_engines[0]


@pytest.fixture(scope="module")
def no_shared_engine(shared_engines: list[SparkEngine]) -> None:
    """Close the shared engine, for a module that opens Spark sessions of its own: a process has one at a
    time."""
    while shared_engines:
        shared_engines.pop().close()


@pytest.fixture(autouse=True)
def defects(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What `lithify.base.defects` made errors of ours of in this process: nothing may be left at the end of a
    test. One that provokes a defect takes it out."""
    found: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(self.format(record))

    logger, handler = logging.getLogger("lithify.base.defects"), Collect(logging.DEBUG)
    monkeypatch.setattr(logger, "propagate", False)
    before = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(before)
    assert not found, "\n".join(found)


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """A test leaves the handlers of signals as they were: a later one in this process may need Ctrl-C."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        now = signal.getsignal(number)
        # PySpark's own raises KeyboardInterrupt too, and stays.
        if getattr(now, "__module__", "").startswith("pyspark."):
            continue
        # The timer of a test that fails ends before this.
        if now is signal.SIG_DFL and getattr(handler, "__module__", "") == "pytest_timeout":
            continue
        signal.signal(number, handler)
        assert now == handler, f"{signal.Signals(number).name} is left to {now}"


@pytest.fixture(scope="session")
def java() -> Iterator[IcebergJava]:
    """Java Iceberg, in a process of its own that starts with the first request."""
    judge = iceberg_java()
    yield judge
    judge.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-golden", action="store_true", help="Write the golden files anew; then read the diff."
    )
    parser.addoption("--whole", action="store_true", help="Play what is marked as `whole`, and nothing else.")
