"""A session on a Spark Connect server, whose operator decides about Java, Python and the daemon."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from lithify.base.errors import EngineError
from lithify.engine import settings
from lithify.engine.failure import essential_cause
from lithify.engine.masters import why_silent
from lithify.engine.task import OUTCOME_SCHEMA, run_request_in_arrow


class ConnectSession:
    """A session on a Spark Connect server."""

    def __init__(self, spark: Any, endpoint: str) -> None:
        """`endpoint` is the server's address, or empty if unknown."""
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
        """Return whether the server does not answer, or has forgotten the session."""
        if self._endpoint and why_silent(self._endpoint) is not None:
            return True  # the client would retry for ten minutes
        try:
            self._spark.conf.get("spark.master", "")
        except Exception:  # the client's errors vary; the caller opens another session
            return True
        return False

    def close(self) -> None:
        self._spark.stop()


def open_connect(url: str, app_name: str, conf: Mapping[str, str]) -> ConnectSession:
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.session import SparkSession

    try:
        endpoint = DefaultChannelBuilder(url).endpoint
    except Exception as error:
        raise EngineError(f"{url} is not a Spark Connect URL (sc://host:port): {error}") from error
    # The client would retry for ten minutes; report a missing server at once.
    if (problem := why_silent(endpoint)) is not None:
        raise EngineError(f"no Spark Connect server answers at {url}: {problem}")
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


def _count_batches(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    for _ in batches:
        pass
    yield pa.RecordBatch.from_arrays([pa.array([1], pa.int64())], ["partition"])
