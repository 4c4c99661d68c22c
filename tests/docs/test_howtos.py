"""What tutorials and how-tos show works, as far as it can be had here: commands, code and files."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lithify.config.loading import load
from lithify.datasets.registry import config_type
from tests.cli.invoking import invoke
from tests.datasets.iceberg.tables import append, files_of, make_rows
from tests.deploy.charts import Chart, merged, yaml
from tests.deploy.test_chart import FOLDER as CHART
from tests.deploy.test_chart import problems
from tests.docs.showing import CATALOG_VARIABLE, DOCS, catalog_uri, commands, examples, here, write_datasets
from tests.docs.test_examples import run
from tests.engine.waiting import child_environment
from tests.judge.official import open_db
from tests.judge.rows import read_database
from tests.judge.spark35 import SPARK35_HOME, spark35_environment
from tests.s3 import S3

TUTORIALS = ("tutorials/database.md", "tutorials/table.md")
MOST_COMMANDS = 7


def is_compacted(folder: Path) -> bool:
    """Whether the database of the documents is one sorted run."""
    (tree,) = read_database(folder / "my-db").values()
    return not tree.l0 and len(tree.runs) == 1


@pytest.mark.parametrize("document", TUTORIALS)
def test_tutorials(document: str, lake: Any, tmp_path: Path) -> None:
    """Seven commands at most, each to a good end; then it is compacted."""
    lines = commands(document)
    first = lines[: next(n for n, line in enumerate(lines) if line.startswith("lithify history")) + 1]
    assert first == lines, "what comes after the first compaction is no step of it"
    assert len(lines) <= MOST_COMMANDS
    assert lines[:3] == ["python3 -m venv .venv", ". .venv/bin/activate", "pip install ."]
    append(lake.load_table("db.events"), make_rows(5))
    for line in lines[3:]:
        if line.startswith("export "):
            assert line.removeprefix("export ").partition("=")[0] == CATALOG_VARIABLE
            continue
        assert line.startswith("lithify "), line
        result = invoke(*shlex.split(here(line, tmp_path))[1:])
        assert result.exit_code == 0, f"{line}: {result.output}"
    if "database" in document:
        assert is_compacted(tmp_path)
    else:
        assert len(files_of(lake.load_table("db.events"))) == 1


def spark_of(version: str, folder: Path) -> dict[str, str]:
    """The environment of a program that finds this Spark, and the catalog."""
    environment = child_environment() | {
        CATALOG_VARIABLE: catalog_uri(folder),
        "PYSPARK_PYTHON": sys.executable,
    }
    return spark35_environment(environment) if version == "3.5" else environment


def done(command: list[str], environment: dict[str, str]) -> str:
    answer = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr[-3000:]
    return answer.stdout


@pytest.mark.timeout(400)
@pytest.mark.whole
@pytest.mark.parametrize("version", ["3.5", "4."])
def test_a_notebook(version: str, tmp_path: Path) -> None:
    catalog = write_datasets(tmp_path)
    append(catalog.load_table("db.events"), make_rows(5))
    printed = done([sys.executable, "-m", "tests.docs.notebook", str(tmp_path)], spark_of(version, tmp_path))
    assert "1 compactions" in printed
    assert f"on Spark {version}" in printed
    assert is_compacted(tmp_path)
    assert len(files_of(catalog.load_table("db.events"))) == 1


@pytest.mark.timeout(400)
def test_spark_submit(tmp_path: Path) -> None:
    """Of a Spark that is not beside Lithify: PySpark comes as an archive."""
    write_datasets(tmp_path)
    (code,) = examples("howto/spark-submit.md")
    (tmp_path / "compact.py").write_text(code)
    environment = spark_of("3.5", tmp_path) | {"PYSPARK_DRIVER_PYTHON": sys.executable}
    submit = [str(SPARK35_HOME / "bin" / "spark-submit"), "--master", "local[2]"]
    submit += [str(tmp_path / "compact.py"), str(tmp_path / "my-db")]
    site, *others = environment["PYTHONPATH"].split(os.pathsep)
    assert Path(site) == SPARK35_HOME.parent
    environment |= {"PYTHONPATH": os.pathsep.join(others), "SPARK_HOME": str(SPARK35_HOME)}
    assert done(submit, environment).startswith("1 compactions,")
    assert is_compacted(tmp_path)


class Task:
    """What Airflow makes of a function, as far as the how-to uses it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def expand(self, **lists: list[Any]) -> None:
        ((name, values),) = lists.items()
        for value in values:
            print(self._function(**{name: value}))


def test_airflow(lake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow itself is not here: its decorators do what they say."""
    sdk = ModuleType("airflow.sdk")
    sdk.__dict__.update(dag=lambda **_: lambda function: function, task=Task)
    monkeypatch.setitem(sys.modules, "airflow", ModuleType("airflow"))
    monkeypatch.setitem(sys.modules, "airflow.sdk", sdk)
    append(lake.load_table("db.events"), make_rows(5))
    (code,) = examples("howto/airflow.md")
    run(code, tmp_path)
    assert is_compacted(tmp_path)
    assert len(files_of(lake.load_table("db.events"))) == 1


def test_dagster(lake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster itself is not here either."""
    dagster = ModuleType("dagster")
    made = ("RetryPolicy", "MaterializeResult", "Definitions", "ScheduleDefinition", "AssetExecutionContext")
    dagster.__dict__.update({name: type(name, (), {"__init__": _keep}) for name in made})
    dagster.__dict__["asset"] = lambda **_: lambda function: function
    monkeypatch.setitem(sys.modules, "dagster", dagster)
    append(lake.load_table("db.events"), make_rows(5))
    (code,) = examples("howto/dagster.md")
    names = run(code, tmp_path)
    logged: list[str] = []
    log = type("Log", (), {"info": staticmethod(logged.append)})
    result = names["events_compacted"](type("Context", (), {"log": log}))
    assert result.given["metadata"]["compactions"] == 1
    assert any("Committed" in line for line in logged)


def _keep(self: Any, **given: Any) -> None:
    """What Dagster's classes do here: they keep what they are made of."""
    self.given = given


def test_minio(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = s3.bucket()
    url = f"s3://{bucket}/my-db"
    with open_db(url, store_options=s3.options) as database:
        for n in range(5):
            database.put(b"key", b"%d" % n)
            database.flush()
    lines = commands("howto/minio.md")
    exported = [name for line in lines if line.startswith("export ") for name in shlex.split(line)[1:]]
    known = s3.environment
    for name, _, _ in (pair.partition("=") for pair in exported):
        monkeypatch.setenv(name, known[name])
    for line in lines:
        if line.startswith("lithify "):
            # In a process of its own: one that has had a session may have it still, and Spark allows one.
            done([sys.executable, "-m", *shlex.split(line.replace("s3://bucket/my-db", url))], {**os.environ})
    (settings,) = examples("howto/minio.md", "toml")
    (tmp_path / "lithify.toml").write_text(settings)
    shown = load(tmp_path / "lithify.toml", model=config_type()).config.store_options
    assert {f"{name.upper()}={value}" for name, value in shown.items()} <= set(exported)


def test_kubernetes() -> None:
    (values,) = examples("howto/kubernetes.md", "yaml")
    chart = Chart(CHART)
    shown = yaml.safe_load(values)
    assert problems(merged(chart.values, shown)) == []
    assert chart.documents(shown)
    assert (DOCS / "howto" / "kubernetes.md").parent.joinpath("../../deploy/helm/lithify").is_dir()


def test_mirrors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = examples("howto/mirrors.md")
    with open_db(tmp_path / "my-db") as database:
        database.put(b"k", b"v")
    run(code.replace("s3://backup/my-db", str(tmp_path / "backup")), tmp_path)
    assert "T" in capsys.readouterr().out
    with open_db(tmp_path / "my-db-restored") as database:
        assert dict(database.scan()) == {b"k": b"v"}
