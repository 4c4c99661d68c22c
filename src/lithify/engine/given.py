"""A Spark session opened by another program: a notebook, a job, a platform. Lithify uses it and never stops
it.

Its owner is responsible for the setup that Lithify's own sessions do: the Python workers must find Lithify,
and their first task loads or compiles its needs. Jobs get even shares only with fair scheduling. A session
that has been stopped cannot be reopened from here.
"""

from __future__ import annotations

from typing import Any

from lithify.base.errors import EngineDown, EngineError, Refused
from lithify.engine import settings, versions
from lithify.engine.classic import run_in_context
from lithify.engine.connect import ConnectSession
from lithify.engine.session import Session

_STOPPED = "the given Spark session, or its server, has been stopped; give another one"


def given_session(spark: Any) -> Session:
    """Wrap `spark`, a `pyspark.sql.SparkSession`, classic or Connect. Raise `Refused` for any other type and
    for an unsupported version of Spark, `EngineDown` if it has been stopped."""
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
    """Return whether `spark` is a client of a Connect server, which has a different class."""
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
        except Exception:  # PySpark's error without a JVM varies
            return True

    def close(self) -> None:
        """Do nothing: the session belongs to another program."""


class _GivenConnect(ConnectSession):
    def __init__(self, spark: Any) -> None:
        super().__init__(spark, "")

    def close(self) -> None:
        """Do nothing: the session belongs to another program."""
