"""The code that the documents show runs as it stands there, but for where the data lies."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import lithify
from lithify.datasets.slatedb.hooks import Drop, FilterContext, Keep, Row, RowKind
from lithify.testing.engine import InlineEngine
from tests.cli.invoking import invoke
from tests.datasets.iceberg.spark_checkpoint import SparkCheckpoint
from tests.datasets.iceberg.tables import append, files_of, make_rows
from tests.docs.showing import DOCS, examples, here
from tests.judge.official import open_db

SOON = {"service.poll_interval": "100ms", "service.commit_compacted_interval": "100ms"}


pytestmark = pytest.mark.usefixtures("lake")


def run(code: str, folder: Path, **known: Any) -> dict[str, Any]:
    """Run the code of a document; the names it has made."""
    names: dict[str, Any] = {"lithify": lithify, **known}
    exec(here(code, folder), names)
    return names


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


def test_a_compaction_filter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = examples("slatedb.md")
    row = Row(b"session/1", 7, RowKind.VALUE, b"")
    for is_last_run, decision in ((True, Drop()), (False, Keep())):
        decide = run(code, tmp_path)["DropSessions"](FilterContext(b"", 0, is_last_run, 0, 10))
        assert decide(row) == decision
        decide.end()
    assert capsys.readouterr().out == "dropped 1 rows\ndropped 0 rows\n"


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
