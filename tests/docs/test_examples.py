"""The code that the documents show runs as it stands there, but for where the data lies."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.utils.config import Config

import lithify
from lithify import wiring
from lithify.testing.engine import InlineEngine
from tests.cli.invoking import invoke
from tests.datasets.iceberg.spark_checkpoint import SparkCheckpoint
from tests.datasets.iceberg.tables import append, files_of, make_rows, new_catalog, new_table
from tests.judge.official import Put, open_db

DOCS = Path(__file__).parents[2] / "docs"
SOON = {"service.poll_interval": "100ms", "service.commit_compacted_interval": "100ms"}


def examples(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / document).read_text(), re.DOTALL)


@pytest.fixture(autouse=True)
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The database and the table of the documents; the catalog of the table. Without Spark."""
    with open_db(tmp_path / "my-db") as database:
        for n in range(5):
            database.write_batch([Put(b"k%02d" % k, b"%d" % n) for k in range(20)])
            database.flush()
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    monkeypatch.setattr(wiring, "spark_engine", lambda *_: nullcontext(InlineEngine()))
    catalog = new_catalog(tmp_path, name="lake")
    append(new_table(catalog), make_rows(5))
    return catalog


def run(code: str, folder: Path, **known: Any) -> None:
    for shown in ("s3://bucket/my-db", "/data/my-db"):
        code = code.replace(shown, str(folder / "my-db"))
    code = code.replace("iceberg://lake/ns.events", "iceberg://lake/db.events")
    exec(code.replace("iceberg://catalog/", "iceberg://lake/"), {"lithify": lithify, **known})


@contextmanager
def coordinated(url: str) -> Iterator[None]:
    stop = threading.Event()
    with lithify.Service([url], settings=SOON, engine=InlineEngine()) as service:
        thread = threading.Thread(target=service.run, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def test_the_library(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    once, submitted, served, settings = examples("api.md")
    run(once, tmp_path)
    assert "root" in capsys.readouterr().out
    with open_db(tmp_path / "my-db") as database:
        database.put(b"new", b"value")
        database.flush()
    with coordinated(str(tmp_path / "my-db")):
        run(submitted, tmp_path)
    assert "completed" in capsys.readouterr().out
    assert "threading.Event()" in served
    run(served.replace("threading.Event()", "stopped"), tmp_path, stopped=_stopped())
    run(settings, tmp_path)


def test_a_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = examples("fleet.md")
    code = code.replace("s3://bucket", str(tmp_path)).replace("threading.Event()", "stopped")
    run(code, tmp_path, stopped=_stopped())
    assert "default 0 0" in capsys.readouterr().out
    assert list(lithify.Fleet(str(tmp_path / "fleet")).catalog().catalog.rules)


def test_tables(lake: Any, tmp_path: Path) -> None:
    properties, hold = examples("iceberg.md")
    run(properties, tmp_path, catalog=lake)
    assert lake.load_table("db.events").properties["lithify.granularity"] == "hour"
    read: list[int] = []
    run(hold, tmp_path, read=read.append)
    assert read == [lake.load_table("db.events").metadata.current_snapshot_id]


def test_how_to_look_after_a_table(lake: Any, tmp_path: Path) -> None:
    """The commands run in their order, each to a good end."""
    (section,) = re.findall(r"## How to\n(.*?)\n## ", (DOCS / "iceberg.md").read_text(), re.DOTALL)
    table = lake.load_table("db.events")
    append(table, make_rows(5))
    checkpoint = SparkCheckpoint(tmp_path / "dashboard")
    checkpoint.begin(table.refresh().metadata.current_snapshot_id)
    lines = re.findall(r"^    lithify (.*)$", section.replace("\\\n", " "), re.MULTILINE)
    assert len(lines) > 15
    for line in lines:
        line = line.replace("iceberg://catalog/", "iceberg://lake/")
        words = shlex.split(line.replace("s3://bucket/checkpoints/dashboard", checkpoint.url))
        if words[0] in ("run", "doctor"):  # the one never ends, the other is about this machine
            continue
        result = invoke(*words)
        assert result.exit_code == 0, f"{line}: {result.output}"
    assert len(files_of(table)) == 1, "compacted"


def _stopped() -> threading.Event:
    stop = threading.Event()
    stop.set()
    return stop
