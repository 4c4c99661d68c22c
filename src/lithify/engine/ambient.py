"""Spark settings from outside Lithify, made by the submitter of the program or the operator of the machine.

In order of increasing precedence, as in Spark itself:

1. `spark-defaults.conf` in `SPARK_CONF_DIR`, else in the `conf` folder of Spark;
2. the variable `MASTER`;
3. `--master` and `--conf` in `PYSPARK_SUBMIT_ARGS`;
4. inside `spark-submit`, only the settings of its JVM, which is then the driver's.

Lithify's explicit settings override these, and these override Lithify's defaults.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lithify.base.errors import Refused

MASTER = "spark.master"
GATEWAY_VARIABLE = "PYSPARK_GATEWAY_PORT"
"""Set by `spark-submit` for the Python program it runs."""
_OURS = ("spark.submit.", "spark.app.", "spark.repl.")
"""Settings of the submission itself, not of the execution."""


def ambient_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the ambient settings. Raise `Refused` if a file cannot be read."""
    if GATEWAY_VARIABLE in environ:
        return _of_this_jvm()
    found = _defaults(_conf_folder(environ) / "spark-defaults.conf")
    if environ.get("MASTER"):
        found[MASTER] = environ["MASTER"]
    return found | submit_arguments(environ.get("PYSPARK_SUBMIT_ARGS", ""))


def _of_this_jvm() -> dict[str, str]:
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    conf: Any = SparkConf(loadDefaults=True, _jvm=launch_gateway().jvm)
    return {name: value for name, value in conf.getAll() if not name.startswith(_OURS)}


def _conf_folder(environ: Mapping[str, str]) -> Path:
    if environ.get("SPARK_CONF_DIR"):
        return Path(environ["SPARK_CONF_DIR"])
    if environ.get("SPARK_HOME"):
        return Path(environ["SPARK_HOME"]) / "conf"
    package = find_spec("pyspark")  # importing it would take half a second
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "conf"


def _defaults(file: Path) -> dict[str, str]:
    try:
        return parse_defaults(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"Spark's settings in {file} cannot be read: {error}") from error


def parse_defaults(text: str) -> dict[str, str]:
    """Parse a file of Java properties as Spark does: only keys that begin with `spark.` count."""
    found: dict[str, str] = {}
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        match = re.fullmatch(r"\s*(spark\.[^\s:=#!]+)(?:\s*[:=]\s*|\s+)(.*?)\s*", line)
        if match is not None:
            found[match[1]] = re.sub(r"\\(.)", r"\1", match[2])
    return found


def submit_arguments(text: str) -> dict[str, str]:
    """Return the settings in arguments for `spark-submit`."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--master")
    parser.add_argument("--conf", "-c", action="append", default=[])
    try:
        known, _ = parser.parse_known_args(shlex.split(text))
    except (argparse.ArgumentError, ValueError) as error:
        raise Refused(f"PYSPARK_SUBMIT_ARGS: {error}") from error
    pairs = (pair.partition("=") for pair in known.conf)
    found = {name: value for name, equals, value in pairs if equals}
    return found | ({MASTER: known.master} if known.master else {})
