"""The commands on an Iceberg table, by its URL and PyIceberg's own configuration."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyiceberg.table import Table

import lithify
from lithify.api import wiring
from lithify.base import events
from lithify.cli.options.settings import load_settings
from lithify.datasets.iceberg.deletes import equality_deletes
from lithify.datasets.iceberg.format.ownership import mark_of
from tests.cli.invoking import invoke, invoke_json
from tests.datasets.iceberg.other_cleaners import own_folder
from tests.datasets.iceberg.running import dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    Row,
    age_files,
    append,
    check,
    delete_equal,
    files_of,
    make_rows,
    new_catalog,
    new_table,
    orphan_of,
)
from tests.fuzz.running import run
from tests.judge.official import Put, open_db

URL = "iceberg://lake/db.events"
PATIENCE_S = 140.0


def uri(folder: Path) -> str:
    return f"sqlite:///{folder}/catalog.db"


@pytest.fixture
def lake(tmp_path: Path, table: Table) -> list[str]:
    """The table and its catalog, for this process: PyIceberg reads its configuration once."""
    return [URL, "--store-option", f"uri={uri(tmp_path)}"]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """A table with two days of small files, in a catalog that new processes know as `lake`."""
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", uri(tmp_path))
    table = new_table(new_catalog(tmp_path, name="lake"))
    for n in range(4):
        append(table, make_rows(10, START + n * DAY / 2, DAY / 4))
    return table


def rows_of(table: Table) -> list[Row]:
    return [
        tuple(row.values()) for row in table.catalog.load_table(table.name()).scan().to_arrow().to_pylist()
    ]


def test_plan_says_what_would_start_and_writes_nothing(lake: list[str], tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    plan = invoke_json("plan", *lake)
    assert plan["table"]["files"] == 4
    assert len(plan["starts"]) == 1
    assert [chunk["files"] for chunk in plan["chunks"]] == [2, 2]
    assert sum(amount["rows"] for amount in plan["totals"].values()) == 40
    shown = invoke("plan", *lake)
    assert "2025-01-01" in shown.stdout
    assert invoke("compact", *lake, "--dry-run").stdout == shown.stdout
    assert sorted(tmp_path.rglob("*")) == before


def test_run_compacts_until_stopped_and_the_rest_reports(table: Table, lake: list[str]) -> None:
    rows = rows_of(table)
    command = [sys.executable, "-m", "lithify.cli.main", "run", "--master", "local[1]", URL]
    names = ("poll_interval", "commit_compacted_interval")
    options = [f"--set=service.{name}=200ms" for name in names]
    process = subprocess.Popen([*command, *options], env=dict(os.environ), stderr=subprocess.PIPE, text=True)
    deadline_s = time.monotonic() + PATIENCE_S
    while len(files_of(table)) > 2 and time.monotonic() < deadline_s and process.poll() is None:
        time.sleep(0.2)
    status = invoke_json("status", *lake)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert len(files_of(table)) == 2, errors
    check(table, rows)

    assert status["coordinator"]["epoch"] == 1
    assert status["coordinator"]["is_alive"]
    assert not status["failures"]
    assert "Nothing to compact." in invoke("compact", *lake).stdout
    after = invoke_json("status", *lake)
    assert after["totals"]["compacted"]["files"] == 2
    for document in (status, after):
        for name in ("files", "bytes", "rows"):
            assert sum(total[name] for total in document["totals"].values()) == document["table"][name]
    assert not after["coordinator"]["is_alive"]
    assert "Lithify's, stopped" in invoke("status", *lake).stdout


def test_what_cannot_be_compacted_is_said_by_every_command(
    table: Table, lake: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equality_deletes, "MAX_ROWS", 5)
    delete_equal(table, range(1_000_000, 1_000_006))
    why = "have equality deletes that apply and have more than 5 rows in total"
    for command in (["plan"], ["status"], ["compact"]):
        document = invoke_json(*command, *lake, exit_code=int(command == ["compact"]))
        (left,) = document["left_alone"]
        assert (left["files"], left["rows"], left["is_stuck"]) == (4, 40, True)
        assert left["why"].startswith(why)
    said = invoke("compact", *lake)
    assert said.exit_code == 1
    assert "Nothing to compact" not in said.stdout
    assert why in " ".join(said.stdout.split())
    assert "Nothing to compact" not in invoke("plan", *lake).stdout
    found = invoke("doctor", "--read-only", *lake)
    assert found.exit_code == 10
    assert "lithify rewrite-equality-deletes" in found.stdout
    maintained = invoke_json("maintain", *lake, exit_code=1)
    assert not maintained["is_done"]


def left_behind(table: Table) -> Path:
    """A file that a killed attempt of a coordinator left, which had made Lithify's folder before."""
    dataset_of(table).take_epoch()
    age_files(own_folder(table), 1)
    return orphan_of(table)


def test_gc_lists_orphans_and_deletes_them_when_told_to(table: Table, lake: list[str]) -> None:
    orphan = left_behind(table)
    other = orphan.with_name("somebody-elses.parquet")
    other.write_bytes(b"not ours")
    age_files(Path(table.location().removeprefix("file://")), 100)
    assert not invoke_json("gc", *lake)["garbage"]
    listed = invoke_json("gc", "--min-age", "60", *lake)
    assert [found["path"] for found in listed["garbage"]] == [orphan.as_uri()]
    assert listed["dry_run"]
    assert "data files" in invoke("gc", "--min-age", "60", *lake).stdout
    assert not invoke_json("gc", "--min-age", "60", "--delete", *lake)["dry_run"]
    assert not orphan.exists()
    assert other.exists()


@pytest.mark.parametrize(
    ("section", "kept"),
    [
        ("data_files", "orphan"),
        ("manifests", "manifest"),
        ("ledger_versions", "version"),
        ("lithify", "staged"),
    ],
)
@pytest.mark.parametrize("setting", ["dry_run=true", "min_age=1d", None])
def test_a_coordinator_collects_as_the_settings_say(
    table: Table, tmp_path: Path, section: str, kept: str, setting: str | None
) -> None:
    """Each of a table's kinds of garbage by its section, with the minimum age of tables where none is set."""
    data = Path(table.location().removeprefix("file://"))
    dataset = dataset_of(table)
    for _ in range(12):
        dataset.take_epoch()
    orphan, ledgers = orphan_of(table), Path("/") / dataset.numbered_files[0].folder
    garbage = {
        "orphan": orphan,
        "manifest": data / "metadata" / f"lithify-{mark_of(table.metadata)}-{'0' * 32}-m0.avro",
        "version": ledgers / f"{1:020d}.json",
        "staged": ledgers / f"{99:020d}.json#123",
    }
    for name in ("manifest", "staged"):
        garbage[name].write_bytes(b"left behind")
    sets = [] if setting is None else [f"iceberg.garbage.{section}.{setting}"]
    config = load_settings(None, [*sets, f"store_options.uri={uri(tmp_path)}"]).config
    collector = wiring.collector(wiring.open_dataset(URL, config), config, events.ignore)
    assert collector is not None
    age_files(tmp_path, 1800)
    collector.tick()
    assert all(file.exists() for file in garbage.values()), "an hour is the minimum age of tables"
    age_files(tmp_path, 7200)
    collector = wiring.collector(wiring.open_dataset(URL, config), config, events.ignore)
    assert collector is not None
    collector.tick()
    there = {name for name, file in garbage.items() if file.exists()}
    assert there == (set() if setting is None else {kept})


def test_a_coordinator_that_is_to_collect_nothing(table: Table, tmp_path: Path) -> None:
    sets = ["service.collect_garbage=false", f"store_options.uri={uri(tmp_path)}"]
    config = load_settings(None, sets).config
    assert wiring.collector(wiring.open_dataset(URL, config), config, events.ignore) is None


def test_gc_does_with_each_kind_as_the_settings_say(table: Table, lake: list[str], tmp_path: Path) -> None:
    orphan = left_behind(table)
    age_files(tmp_path)
    old = ["--set", "iceberg.garbage.data_files.min_age=7d"]
    said = ["--set", "iceberg.garbage.data_files.dry_run=true"]
    kept = invoke_json("gc", "--delete", *old, *lake)
    assert (kept["garbage"], kept["reported_only"]) == ([], [])
    reported = invoke_json("gc", "--delete", *old, *said, "--min-age", "1h", *lake)
    assert [found["path"] for found in reported["garbage"]] == [orphan.as_uri()]
    assert (reported["dry_run"], reported["reported_only"]) == (False, ["data files"])
    assert "the settings set dry_run" in invoke("gc", "--delete", *said, *lake).stdout
    settings = {"store_options.uri": uri(tmp_path), "iceberg.garbage.data_files.dry_run": True}
    with lithify.open(URL, settings=settings) as opened:
        opened.maintain(skip=["data"])
    assert orphan.exists()
    assert "Deleted" in invoke("gc", "--delete", *old, "--min-age", "1h", *lake).stdout
    assert not orphan.exists()


def test_gc_stops_before_it_deletes_too_much(table: Table, lake: list[str], tmp_path: Path) -> None:
    orphan = left_behind(table)
    for number in range(1, 120):
        orphan.with_name(orphan.name.replace("0" * 32, f"{number:032x}")).write_bytes(b"left behind")
    age_files(tmp_path)
    refused = invoke("gc", "--delete", *lake)
    assert refused.exit_code == 2
    assert "--max-percent" in refused.stderr
    assert orphan.exists()
    assert len(invoke_json("gc", "--delete", "--max-percent", "100", *lake)["garbage"]) == 120


def test_commands_for_databases_only_say_so() -> None:
    refused = invoke("inspect", "manifest", URL)
    assert refused.exit_code == 2
    assert "SlateDB databases only" in refused.output


def test_what_is_held_is_compacted_when_asked_for(table: Table, lake: list[str]) -> None:
    table.transaction().set_properties(
        {"lithify.skip-from-now-seconds": str(100 * 365 * 86_400)}
    ).commit_transaction()
    assert not invoke_json("plan", *lake)["starts"]
    assert len(invoke_json("plan", "--full", *lake)["starts"]) == 1
    refused = invoke("submit", "--full", *lake)
    assert refused.exit_code == 2
    assert f"lithify run {URL}" in refused.stderr
    dataset_of(table).take_epoch()
    (compaction_id,) = invoke_json("submit", "--chunk", "2025-01-02", *lake)["submitted"]
    found = invoke_json("status", *lake)
    assert [c["id"] for c in found["compactions"]] == [compaction_id]
    assert found["totals"]["awaiting"]["files"] == 2
    assert compaction_id[-6:] in invoke("status", *lake).stdout
    assert invoke_json("cancel", *lake, compaction_id)["cancelled"] == [compaction_id]
    ended = invoke("wait", *lake, compaction_id)
    assert (ended.exit_code, ended.stdout) == (1, f"{compaction_id} failed: was cancelled\n")
    assert "Cancelled" in invoke("status", *lake).stdout
    assert len(invoke_json("retry", *lake, compaction_id)["submitted"]) == 1


def test_what_tables_do_not_have_is_refused(table: Table, lake: list[str]) -> None:
    wrong = [
        (["plan", "--segment", "61"], "--segment is for SlateDB databases only"),
        (["compact", "--merge-operator", "a:b", "--block-size", "1"], "--merge-operator, --block-size"),
        (["run", "--scheduler-option", "a=b"], "--scheduler-option"),
        (["gc", "--wal-fences"], "--wal-fences"),
        (["submit"], "--full, or chunks with --chunk"),
        (["submit", "--full", "--chunk", "2025-01-01"], "--full, or chunks with --chunk"),
        (["submit", "--l0", "all"], "--l0 is for SlateDB databases only"),
        (["submit", "--chunk", "2024-01-01"], "no chunk 2024-01-01"),
    ]
    for (command, *options), says in wrong:
        result = invoke(command, *lake, *options)
        assert (result.exit_code, says in result.stderr) == (2, True), result.stderr


def test_an_unknown_table_is_refused(lake: list[str]) -> None:
    refused = invoke("plan", "iceberg://lake/db.nothing", *lake[1:])
    assert refused.exit_code == 2
    assert "does not exist" in refused.output


@pytest.mark.parametrize("source", ["option", "file", "environment"])
def test_settings_win_over_the_policy_of_the_table(
    source: str, table: Table, lake: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({"lithify.granularity": "year", "lithify.max-tasks": "1"})
    assert len(invoke_json("plan", *lake)["chunks"]) == 1
    given = {
        "option": ["--set", "iceberg.properties.granularity=day", "--set", "iceberg.properties.max-tasks=7"],
        "file": ["--config", str(tmp_path / "lithify.toml")],
        "environment": [],
    }
    if source == "environment":
        monkeypatch.setenv("LITHIFY_TABLE_OPTIONS", '{"granularity": "day", "max-tasks": "7"}')
    (tmp_path / "lithify.toml").write_text('[iceberg.properties]\ngranularity = "day"\nmax-tasks = 7\n')
    assert len(invoke_json("plan", *lake, *given[source])["chunks"]) == 2


def test_an_unknown_policy_is_refused(lake: list[str]) -> None:
    refused = invoke("plan", *lake, "--set", "iceberg.properties.grain=day")
    assert (refused.exit_code, "lithify.grain is unknown" in refused.stderr) == (2, True), refused.stderr


def test_a_worker_goes_on_without_a_table_that_is_gone(lake: list[str]) -> None:
    gone = f"{URL}-gone"
    ended = run(["worker", gone, *lake])
    assert ended.exit_code == 0
    assert ended.stderr.count("quarantined") == 1, ended.stderr
    assert run(["worker", gone, *lake[1:]]).exit_code == 2
    assert run(["worker", "iceberg://lake", *lake]).exit_code == 2


def test_remove_orphans(lake: list[str], table: Table) -> None:
    root = Path(table.location().removeprefix("file://"))
    orphan = root / "data" / "left-behind.parquet"
    orphan.write_bytes(b"left behind")
    age_files(root, 4 * 24 * 3600)
    rows = rows_of(table)
    found = invoke_json("remove-orphans", *lake)
    assert found["orphan_file_locations"] == [orphan.as_uri()]
    assert (found["dry_run"], found["orphan_files_count"], found["deleted_orphan_files_count"]) == (
        True,
        1,
        0,
    )
    assert "add --delete" in invoke("remove-orphans", *lake).stdout
    too_young = invoke("remove-orphans", "--older-than", "2100-01-01", *lake)
    assert (too_young.exit_code, "an age of at least a day" in too_young.stderr) == (2, True)
    deleted = invoke("remove-orphans", "--delete", "--older-than", "2020-01-01", *lake)
    assert "none that is older" in deleted.stdout
    assert "Deleted 1 files (11 B)." in invoke("remove-orphans", "--delete", *lake).stdout
    assert not orphan.exists()
    assert rows_of(table) == rows
    database = invoke("remove-orphans", str(root))
    assert database.exit_code == 2


def test_maintain(lake: list[str], table: Table) -> None:
    with table.transaction() as change:
        change.set_properties({"history.expire.max-snapshot-age-ms": "0"})
    rows = sorted(rows_of(table))
    done = json.loads(run(["maintain", "--json", *lake]).stdout)
    assert done["is_done"]
    assert len(done["data"]["committed"]) == 1
    assert (done["deletes"]["outcome"], done["manifests"]["outcome"]) == ("nothing_to_do", "rewritten")
    assert len(done["expiry"]["expired_snapshots"]) == 5
    assert done["files"]["dry_run"] is False
    assert len(files_of(table)) == 2
    assert sorted(rows_of(table)) == rows
    again = run(["maintain", *lake]).stdout
    assert [
        again.index(f"{part}:") for part in ("Data", "Deletes", "Manifests", "Expiry", "Files")
    ] == sorted(again.index(f"{part}:") for part in ("Data", "Deletes", "Manifests", "Expiry", "Files"))
    assert "Nothing to expire" in again
    some = json.loads(run(["maintain", "--json", "--skip", "data", "--skip", "files", *lake]).stdout)
    assert (some["data"], some["files"], some["expiry"]["outcome"]) == (None, None, "nothing_to_do")


def test_a_plan_tells_of_orphan_files_what_the_last_look_found(lake: list[str], table: Table) -> None:
    assert json.loads(run(["plan", "--json", *lake]).stdout)["orphans"] is None
    orphan = Path(table.location().removeprefix("file://")) / "data" / "left.parquet"
    orphan.write_bytes(b"left behind")
    age_files(orphan.parent, 4 * 24 * 3600)
    run(["remove-orphans", *lake])
    known = json.loads(run(["plan", "--json", *lake]).stdout)["orphans"]
    assert (known["orphan_files_count"], known["orphan_bytes"], known["deleted_bytes"]) == (1, 11, 0)
    assert "1 files (11 B) that no metadata refers to were found" in run(["plan", *lake]).stdout
    run(["remove-orphans", "--delete", *lake])
    known = json.loads(run(["plan", "--json", *lake]).stdout)["orphans"]
    assert (known["orphan_files_count"], known["deleted_orphan_files_count"]) == (0, 1)


@pytest.mark.parametrize("route", ["property", "settings", "file", "option"])
def test_a_part_of_maintenance_is_left_out(lake: list[str], table: Table, tmp_path: Path, route: str) -> None:
    """By the table, by the settings, by a file of settings, or for once."""
    asked = ["maintain", "--json", *lake]
    with table.transaction() as change:
        change.set_properties({"history.expire.max-snapshot-age-ms": "0"})
        if route == "property":
            change.set_properties({"lithify.skip-parts": "data,manifests"})
    if route == "settings":
        asked += ["--set", "iceberg.properties.skip-parts=data,manifests"]
    if route == "file":
        (tmp_path / "lithify.toml").write_text('[iceberg.properties]\nskip-parts = "data,manifests"\n')
        asked += ["--config", str(tmp_path / "lithify.toml")]
    if route == "option":
        asked += ["--skip", "data", "--skip", "manifests"]
    before = {file.file_path for file in files_of(table)}
    done = json.loads(run(asked).stdout)
    assert (done["data"], done["manifests"]) == (None, None)
    assert len(done["expiry"]["expired_snapshots"]) == 3
    assert {file.file_path for file in files_of(table)} == before


def test_maintenance_that_is_refused(lake: list[str], table: Table, tmp_path: Path) -> None:
    wrong = invoke("maintain", "--skip", "everything", *lake)
    assert (wrong.exit_code, "parts are data, deletes, manifests, expiry, files" in wrong.stderr) == (2, True)
    with open_db(tmp_path / "db") as database:
        database.write_batch([Put(b"k", b"v")])
    assert invoke("maintain", str(tmp_path / "db")).exit_code == 2
    with table.transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    blocked = run(["maintain", "--skip", "data", *lake])
    assert (blocked.exit_code, "gc.enabled" in blocked.stdout) == (1, True)
