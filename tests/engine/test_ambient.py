"""What was decided for a program before Lithify decides anything: spark-defaults.conf, spark-submit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.base.errors import Refused
from lithify.engine.ambient import ambient_settings, parse_defaults, submit_arguments
from lithify.engine.spark import SparkEngine

DEFAULTS = """\
# a comment
spark.master            spark://host:7077
spark.executor.memory=2g
spark.driver.extraJavaOptions: -Da=b -Dc="d e"
  spark.hadoop.x   \\
      y
notspark.a b
spark.empty
! another comment
"""


def test_settings_of_the_machine() -> None:
    assert parse_defaults(DEFAULTS) == {
        "spark.master": "spark://host:7077",
        "spark.executor.memory": "2g",
        "spark.driver.extraJavaOptions": '-Da=b -Dc="d e"',
        "spark.hadoop.x": "y",
    }


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert all(name.startswith("spark.") for name in parse_defaults(text))


def test_arguments_for_spark_submit() -> None:
    text = "--master local[3] --conf spark.a=b=c -c spark.d=e --jars x.jar pyspark-shell"
    assert submit_arguments(text) == {"spark.a": "b=c", "spark.d": "e", "spark.master": "local[3]"}
    assert submit_arguments("") == {}
    with pytest.raises(Refused, match="PYSPARK_SUBMIT_ARGS"):
        submit_arguments('--master "local')


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a machine where somebody has decided."""
    (tmp_path / "spark-defaults.conf").write_text("spark.master local[3]\nspark.hadoop.here yes\n")
    return tmp_path


def test_the_more_particular_wins(folder: Path) -> None:
    environ = {"SPARK_CONF_DIR": str(folder)}
    assert ambient_settings(environ) == {"spark.master": "local[3]", "spark.hadoop.here": "yes"}
    environ["MASTER"] = "local[4]"
    assert ambient_settings(environ)["spark.master"] == "local[4]"
    environ["PYSPARK_SUBMIT_ARGS"] = "--master local[5] pyspark-shell"
    assert ambient_settings(environ)["spark.master"] == "local[5]"
    assert ambient_settings({"SPARK_CONF_DIR": str(folder / "missing")}) == {}
    assert "spark.master" not in ambient_settings({})


def test_lithifys_settings_win(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(folder))
    assert SparkEngine().master == "local[3]"
    assert SparkEngine("local[6]").master == "local[6]"
    assert SparkEngine(spark=object()).master == "local[*]"


SCRIPT = """
from lithify.engine.spark import SparkEngine
from pyspark import SparkContext

with SparkEngine() as engine:
    print("slots", engine.slots)
    engine.submit("job", len, [1, 2]).result()
    conf = SparkContext._active_spark_context.getConf()
    print("conf", conf.get("spark.master"), conf.get("spark.hadoop.here"), conf.get("spark.executor.memory"))
"""


@pytest.mark.parametrize("way", ["defaults", pytest.param("submit", marks=pytest.mark.whole)])
def test_a_session_as_it_was_decided(folder: Path, way: str) -> None:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    environ = {name: value for name, value in os.environ.items() if name != "MASTER"}
    if way == "defaults":
        command, master = [sys.executable, str(script)], "local[3,4]"
        environ["SPARK_CONF_DIR"] = str(folder)
    else:
        submit = Path(sys.executable).with_name("spark-submit")
        told = ["--master", "local[2]", "--conf", "spark.hadoop.here=yes"]
        told += ["--conf", "spark.executor.memory=700m"]
        command, master = [str(submit), *told, str(script)], "local[2,4]"
        environ["PYSPARK_PYTHON"] = environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    memory = "None" if way == "defaults" else "700m"
    assert f"conf {master} yes {memory}" in done.stdout
    assert f"slots {master[6]}" in done.stdout
