"""A Spark session of somebody else's: a notebook's, a job's, a platform's. It is used, and never stopped.

What our own sessions set up is up to its owner here: the Python workers must find Lithify, and their first
task loads or compiles what it needs. Jobs get even shares only where the owner has fair scheduling on. A
session that has been stopped cannot be opened again from here.
"""

from __future__ import annotations

from typing import Any

from lithify.base.errors import EngineDown, EngineError, Refused
from lithify.engine import settings, versions
from lithify.engine.classic import run_in_context
from lithify.engine.connect import ConnectSession
from lithify.engine.session import Session

_STOPPED = "the Spark session that was given has been stopped, or its server; give another one"


def given_session(spark: Any) -> Session:
    """The session of `spark`, a `pyspark.sql.SparkSession`, classic or Connect. `Refused` for anything else
    and for a Spark that is too old, `EngineDown` when it has been stopped."""
    from pyspark.sql import SparkSession

    session: Session
    if _is_connect(spark):
        try:
            session = _GivenConnect(spark)
        except EngineError as error:
            raise EngineDown(f"{_STOPPED}: {error}") from error
    elif isinstance(spark, SparkSession):
        session = _GivenClassic(spark)
    else:
        raise Refused(f"spark is of type {type(spark).__name__}; give a pyspark.sql.SparkSession")
    if session.is_over():
        raise EngineDown(_STOPPED)
    versions.checked_version(str(spark.version))
    return session


def _is_connect(spark: Any) -> bool:
    """Whether it is a client of a Connect server, whose class is another."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


class _GivenClassic:
    def __init__(self, spark: Any) -> None:
        self._context = spark.sparkContext
        conf = dict(self._context.getConf().getAll())
        self.max_attempts = settings.max_attempts(conf["spark.master"], conf)
        self._dynamic_slots = settings.dynamic_slots(conf)

    def slots(self) -> int:
        return self._dynamic_slots or max(1, int(self._context.defaultParallelism))

    def run(self, request: bytes, *, tag: str, pool: str, description: str) -> bytes:
        return run_in_context(self._context, request, tag, pool, description)

    def interrupt(self, tag: str) -> None:
        self._context.cancelJobsWithTag(tag)

    def is_over(self) -> bool:
        try:
            return bool(self._context._jsc.sc().isStopped())
        except Exception:  # whatever PySpark says when there is nothing to ask any more
            return True

    def close(self) -> None:
        """It is not ours."""


class _GivenConnect(ConnectSession):
    def __init__(self, spark: Any) -> None:
        super().__init__(spark, "")

    def close(self) -> None:
        """It is not ours."""
