"""What all tests share: one Spark session, one Java Iceberg, and a cache folder that `make clean` removes."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lithify.engine.spark import SparkEngine
from tests.judge.iceberg_java import IcebergJava, iceberg_java
from tests.s3 import S3, serve_s3

os.environ.setdefault("LITHIFY_CACHE_DIR", str(Path(__file__).parents[1] / "build" / "cache"))


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """An S3 server. There is one only: servers in one process would share their buckets."""
    with serve_s3() as server:
        yield server


@pytest.fixture(scope="session")
def spark_engine() -> Iterator[SparkEngine]:
    """The engine on `local[2]`, shared by the whole suite. Starts with the first call."""
    with SparkEngine("local[2]", app_name="lithify-tests") as engine:
        yield engine


@pytest.fixture(autouse=True)
def defects(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What `lithify.defects` made errors of ours of in this process: nothing may be left at the end of a
    test. One that provokes a defect takes it out."""
    found: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(self.format(record))

    logger, handler = logging.getLogger("lithify.defects"), Collect(logging.DEBUG)
    monkeypatch.setattr(logger, "propagate", False)
    before = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(before)
    assert not found, "\n".join(found)


@pytest.fixture(scope="session")
def java() -> Iterator[IcebergJava]:
    """Java Iceberg, in a process of its own that starts with the first request."""
    judge = iceberg_java()
    yield judge
    judge.close()
