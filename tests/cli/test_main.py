"""The command as a person or a script uses it; in a process of its own where Spark runs, or something may
have to be loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.invoking import invoke, invoke_json
from tests.judge.official import Put, compact_officially, open_db


def lithify(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lithify.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "db"
    with open_db(path) as database:
        for batch in range(6):
            database.write_batch([Put(b"k%03d" % n, b"%d" % batch) for n in range(100)])
            database.flush()
    return path


def files(path: Path) -> list[str]:
    return sorted(str(p) for p in path.rglob("*"))


def test_plan_compact_and_inspect(path: Path) -> None:
    before = files(path)
    plan = invoke_json("plan", path)
    assert [p["reason"] for p in plan["proposals"]]
    assert len(plan["proposals"][0]["spec"]["l0_view_ids"]) == 6
    assert "6 L0 SSTs" in invoke("compact", path, "--dry-run").stdout
    assert files(path) == before

    shown = lithify("compact", path, "--master", "local[1]")
    assert shown.returncode == 0, shown.stderr
    assert "600 rows in, 100 out; dropped: 500 superseded." in " ".join(shown.stdout.split())
    with open_db(path) as database:
        assert database.scan() == [(b"k%03d" % n, b"5") for n in range(100)]

    manifest = invoke_json("inspect", "manifest", path)
    assert [run["id"] for run in manifest["root"]["runs"]] == [0]
    ledger = invoke_json("inspect", "compactions", path)
    assert [c["state"] for c in ledger["compactions"]] == ["completed"]
    sst_id = manifest["root"]["runs"][0]["views"][0]["sst"]["id"]
    sst = invoke_json("inspect", "sst", path / "compacted" / f"{sst_id}.sst")
    assert sst["puts"] == 100
    for what in ("manifest", "compactions"):
        assert invoke("inspect", what, path).exit_code == 0


def test_nothing_to_do_starts_no_spark(path: Path) -> None:
    compact_officially(path)
    result = invoke_json("compact", path, "--master", "spark://127.0.0.1:1")
    assert result["did_anything"] is False
    assert result["notes"]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "says"),
    [
        (["plan", "{empty}"], 2, "no SlateDB database"),
        (["plan", "{db}", "--segment", "xyz"], 2, "not hexadecimal"),
        (["plan", "{db}", "--segment", "61"], 2, "segment"),
        (["plan", "ftp://host/db"], 2, "scheme"),
        (["compact", "{db}", "--compression", "brotli"], 2, "brotli"),
        (["compact", "{db}", "--merge-operator", "no.such:thing"], 2, "no.such"),
        (["compact", "{db}", "--store-option", "x"], 2, "KEY=VALUE"),
        (["inspect", "compactions", "{db}"], 2, "no compactions file"),
        (["inspect", "sst", "{db}/compacted/missing.sst"], 5, "missing.sst"),
    ],
)
def test_refusals_say_what_to_do_and_write_nothing(
    path: Path, tmp_path: Path, arguments: list[str], exit_code: int, says: str
) -> None:
    (tmp_path / "empty").mkdir()
    before = files(path)
    result = invoke(*(a.format(db=path, empty=tmp_path / "empty") for a in arguments))
    assert result.exit_code == exit_code, result.stderr
    assert says in result.stderr
    assert files(path) == before


def test_a_live_coordinator_is_refused_with_its_own_exit_code(path: Path) -> None:
    compact_officially(path)
    with open_db(path) as database:
        for n in range(4):
            database.put(b"new%d" % n, b"v")
            database.flush()
    result = lithify("compact", path)
    assert result.returncode == 3
    assert "--take-over" in result.stderr
    assert "lithify worker" in result.stderr
