"""What people type without care, and where they read the answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lithify.__main__ as entry
from lithify.api import client
from tests.cli.invoking import invoke, invoke_json
from tests.cli.test_main import files
from tests.judge.official import Put, compact_officially, open_db


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database whose keys have colons, as keys have."""
    path = tmp_path / "db"
    with open_db(path) as database:
        for n in range(3):
            database.write_batch([Put(b"user:100:%d" % k, b"%d" % n) for k in range(20)])
            database.flush()
    return path


# Shown


def test_texts_are_shown_as_they_are(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "user:100:0" in invoke("inspect", "manifest", path).stdout
    fire = path.rename(path.with_name(":fire:"))
    assert f"{fire}\n" in invoke("status", fire).stdout
    assert f"{fire}/nothing" in invoke("plan", fire / "nothing").stderr


def test_what_people_copy_is_whole_on_a_narrow_terminal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    compact_officially(path)
    (run,) = invoke_json("inspect", "manifest", path)["root"]["runs"]
    assert run["views"][0]["sst"]["id"] in invoke("inspect", "manifest", path).stdout
    (compaction,) = invoke_json("inspect", "compactions", path)["compactions"]
    lines = invoke("inspect", "compactions", path).stdout.splitlines()
    (line,) = (line for line in lines if compaction["id"][-6:] in line)
    assert compaction["id"] not in line
    waited = invoke("wait", path, compaction["id"][-6:].lower())
    assert (waited.exit_code, waited.stdout) == (0, f"{compaction['id']} completed\n")


def test_nothing_is_cut_off(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for command in (["plan", "--full"], ["status"], ["gc"], ["inspect", "manifest"]):
        assert "…" not in invoke(*command, path).stdout


def test_what_is_piped_is_in_whole_lines(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless somebody says how wide it is to be, as `watch` does."""
    monkeypatch.delenv("COLUMNS", raising=False)
    ids = [view["id"] for view in invoke_json("inspect", "manifest", path)["root"]["l0"]]
    lines = invoke("inspect", "manifest", path).stdout.splitlines()
    assert len(ids) == 3
    for sst in ids:
        (line,) = (line for line in lines if sst in line)
        assert "user:100:0" in line
        assert len(line) > 80
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, invoke("inspect", "manifest", path).stdout.splitlines())) <= 60


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_what_cannot_be_shown_is_no_error(path: Path, encoding: str) -> None:
    path = path.rename(path.with_name(os.fsdecode(b"db-\xff")))
    done = subprocess.run(
        [sys.executable, "-m", "lithify", "status", path],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": encoding},
        check=False,
    )
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
    assert rb"db-\udcff" in done.stdout, "half a character"


# Refused


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plan", "icberg://lake/db.events"], "one of file, memory, s3"),
        (["plan", "icberg://lake/db.events"], "iceberg"),
        (["plan", "iceberg:lake/db.events"], "does not have the form iceberg://CATALOG/NAMESPACE.TABLE"),
        (["plan", "ICEBERG://no-such-lake/db.events"], "catalog no-such-lake is not configured"),
        (["readers", "add", "--continuous", "{db}", "checkpoint"], "--continuous is for Iceberg tables only"),
        (["inspect", "manifest", "--id", "-1", "{db}"], "--id -1 is not a version of the manifest"),
        (["hold", "--list", "--lease", "6h", "{db}"], "--list and --lease cannot be given together"),
        (["hold", "--release", "x", "--lease", "6h", "{db}"], "--release and --lease cannot be given"),
        (
            ["plan", "--set", "slatedb.segments.pattern={{u64:ms}}", "--png", "{db}/no/such/a.png", "{db}"],
            "a.png cannot be written",
        ),
    ],
)
def test_refusals(path: Path, arguments: list[str], says: str) -> None:
    before = files(path)
    result = invoke(*(argument.format(db=path) for argument in arguments))
    assert (result.exit_code, says in result.stderr) == (2, True), result.output
    assert files(path) == before


@pytest.mark.parametrize("name", ["a#b", "100%", "übrig", "db~1"])
def test_a_path_of_which_slatedb_makes_two_is_refused(tmp_path: Path, name: str) -> None:
    with open_db(tmp_path / name) as database:
        database.put(b"key", b"value")
        database.flush()
    (manifests,) = (found.parent for found in tmp_path.rglob("manifest"))
    before = files(tmp_path)
    for path in (tmp_path / name, manifests):
        for command in (["plan"], ["compact", "--full"], ["gc", "--delete", "--min-age", "0"]):
            result = invoke(*command, path)
            assert (result.exit_code, "in two different places" in result.stderr) == (2, True), result.output
    assert files(tmp_path) == before


def test_a_path_is_the_same_in_its_url(path: Path) -> None:
    path = path.rename(path.with_name("a #1? b;c"))
    for command in (["plan"], ["gc"], ["doctor", "--read-only"], ["compact", "--dry-run"]):
        assert invoke(*command, path).exit_code == 0
    url = invoke_json("plan", path)["url"]
    assert invoke_json("gc", url)["url"] == url


def test_a_folder_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    result = invoke("plan", "db")
    assert (result.exit_code, "the current folder does not exist" in result.stderr) == (2, True), (
        result.output
    )


# Stopped


@pytest.mark.parametrize(("command", "goes_on"), [("plan", False), ("compact", True)])
def test_an_interrupt_says_what_has_stopped(
    path: Path, monkeypatch: pytest.MonkeyPatch, command: str, goes_on: bool
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "open", interrupted)
    result = invoke(command, path)
    assert (result.exit_code, result.stdout) == (130, "")
    assert ("the next run continues" in result.stderr) == goes_on
    told = json.loads(invoke(command, "--json", path).stdout)
    assert told["error"] == "Interrupted"


def test_an_interrupt_before_the_command_has_begun_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str, *_: object) -> None:
        if name == "lithify.cli.main":
            raise KeyboardInterrupt

    finder = type("Interrupted", (), {"find_spec": staticmethod(interrupted)})
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    monkeypatch.delitem(sys.modules, "lithify.cli.main")
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 130
