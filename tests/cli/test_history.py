"""`lithify history` after real runs, of a database and of a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lithify
from tests.cli.invoking import invoke, invoke_json
from tests.cli.test_golden import make_database, make_table
from tests.fuzz.running import run


def test_of_a_database(tmp_path: Path) -> None:
    path = make_database(tmp_path / "db")
    assert invoke("history", path).stdout == "No commit is recorded.\n"
    ran = json.loads(run(["compact", "--json", str(path)]).stdout)
    document = invoke_json("history", path)
    (commit,) = document["commits"]
    assert [commit["compaction"]] == ran["committed"]
    assert commit["unit"] == "root"
    assert "reached min_compaction_sources" in commit["reason"]
    assert (commit["bytes_read"], commit["bytes_written"]) == (ran["bytes_read"], ran["bytes_written"])
    assert commit["rows"] == {name: count for name, count in ran["rows"].items() if name in commit["rows"]}
    assert commit["rows"]["superseded"] == 400
    assert commit["requests"]["PUT"] > 0
    assert document["totals"]["commits"] == 1

    # What collects garbage leaves it alone, whatever the age.
    assert invoke("gc", "--delete", "--min-age", "0", path).exit_code == 0
    assert invoke_json("history", path)["commits"] == [commit]

    again = json.loads(run(["compact", "--full", "--json", str(path)]).stdout)
    if again["committed"]:
        assert len(invoke_json("history", path)["commits"]) == 2
    assert [c["compaction"] for c in invoke_json("history", "--last", "1", path)["commits"]] == [
        (again["committed"] or ran["committed"])[-1]
    ]
    assert invoke_json("history", "--since", "2999-01-01", path)["commits"] == []
    assert invoke_json("history", "--since", "1h", path)["commits"][0] == commit
    assert commit["compaction"][-6:] in invoke("history", path).stdout
    with lithify.open(str(path)) as opened:
        assert opened.history()[0].reason == commit["reason"]


def test_of_a_table(tmp_path: Path) -> None:
    make_table(tmp_path)
    lake = ["iceberg://lake/db.events", "--store-option", f"uri=sqlite:///{tmp_path}/catalog.db"]
    ran = json.loads(run(["compact", "--json", *lake]).stdout)
    (commit,) = invoke_json("history", *lake)["commits"]
    assert [commit["compaction"]] == ran["committed"]
    assert commit["bytes_read"] == ran["bytes_read"]
    assert run(["gc", "--delete", "--min-age", "0", *lake]).exit_code == 0
    assert invoke_json("history", *lake)["commits"] == [commit]


def test_none_is_kept_where_the_settings_say_so(tmp_path: Path) -> None:
    path = make_database(tmp_path / "db")
    ran = run(["compact", "--set", "service.keep_history=0s", str(path)])
    assert ran.exit_code == 0, ran.output
    assert invoke_json("history", path)["commits"] == []
    assert not (path / "lithify" / "history").exists()


@pytest.mark.parametrize("since", ["yesterday", "5", "-3d", ""])
def test_what_is_no_time_is_refused(tmp_path: Path, since: str) -> None:
    result = invoke("history", f"--since={since}", tmp_path / "db")
    assert (result.exit_code, "--since" in result.stderr) == (2, True), result.output
