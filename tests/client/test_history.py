"""Holds and readers of a table, as programs and commands ask for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

import lithify
from lithify.base.errors import HoldLapsed
from lithify.testing import ManualClock
from tests.cli.invoking import invoke
from tests.datasets.iceberg.spark_checkpoint import SparkCheckpoint
from tests.datasets.iceberg.tables import (
    append,
    delete_equal,
    delete_positions,
    files_of,
    make_rows,
    new_catalog,
    new_table,
    read,
)

URL = "iceberg://lake/db.events"


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    """How to reach a table with three snapshots."""
    table = new_table(new_catalog(tmp_path, name="lake"))
    for _ in range(3):
        append(table, make_rows(2))
    return {"store_options.uri": f"sqlite:///{tmp_path}/catalog.db"}


def test_a_hold_as_a_context(settings: dict[str, str]) -> None:
    with lithify.open(URL, settings=settings) as table:
        with table.hold(name="mine", lease_s=30) as held:
            assert table.holds() == ("mine",)
            assert table.show_holds().document["holds"][0]["snapshot_id"] == held.snapshot
            held.renew()
            held.check()
        assert table.holds() == ()


def test_a_hold_that_was_not_renewed_in_time_says_so(settings: dict[str, str]) -> None:
    clock = ManualClock()
    with lithify.open(URL, settings=settings, clock=clock) as table:
        held = table.hold(lease_s=30)
        clock.advance_s(29.9)
        held.check()
        clock.advance_s(0.1)
        with pytest.raises(HoldLapsed, match="not renewed in time"):
            held.check()
        with pytest.raises(HoldLapsed), table.hold(lease_s=30) as late:
            clock.advance_s(30)
        assert late.name not in table.holds()


def test_the_end_of_a_hold_asks_the_store(settings: dict[str, str]) -> None:
    with lithify.open(URL, settings=settings, clock=ManualClock()) as table:
        with pytest.raises(HoldLapsed), table.hold(name="mine", lease_s=30):
            table.release_hold("mine")
        with table.hold(name="mine", lease_s=30) as held:
            held.release()


def test_a_hold_is_renewed_and_released_by_name(settings: dict[str, str]) -> None:
    with lithify.open(URL, settings=settings) as table:
        table.put_hold(name="mine", lease_s=30)
        assert table.renew_hold("mine", lease_s=60).document["hold"]["lease_ms"] == 60_000
        table.release_hold("mine")
        with pytest.raises(HoldLapsed):
            table.renew_hold("mine")


def test_a_database_has_no_history_here(tmp_path: Path) -> None:
    with lithify.open(str(tmp_path)) as database, pytest.raises(lithify.Refused, match="checkpoints"):
        database.hold()


def asked(settings: dict[str, str], *words: str) -> dict[str, Any]:
    result = invoke(*words, "--json", "--store-option", f"uri={settings['store_options.uri']}")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_the_commands(settings: dict[str, str], tmp_path: Path) -> None:
    held = asked(settings, "hold", URL, "--name", "mine", "--lease", "6h")["hold"]
    assert held["lease_ms"] == 6 * 3_600_000
    assert asked(settings, "hold", URL, "--list")["holds"] == [held]
    assert asked(settings, "hold", URL, "--renew", "mine", "--lease", "1h")["hold"]["lease_ms"] == 3_600_000
    assert asked(settings, "hold", URL, "--release", "mine")["holds"] == []
    checkpoint = SparkCheckpoint(tmp_path / "checkpoint")
    checkpoint.begin(held["snapshot_id"])
    (added,) = asked(settings, "readers", "add", URL, checkpoint.url, "--name", "r", "--continuous")[
        "readers"
    ]
    assert (added["needs_snapshot_id"], added["continuous"]) == (held["snapshot_id"], True)
    assert asked(settings, "readers", "list", URL)["readers"] == [added]
    assert asked(settings, "readers", "drop", URL, "r") == {"url": URL, "dropped": "r"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["hold", "--renew", "x", "--list", URL], "cannot be given together"),
        (["hold", "--renew", "x", "--name", "y", URL], "cannot be given together"),
        (["hold", "--lease", "soon", URL], "not a duration"),
        (["hold", "--at", "yesterday", URL], "is not a time"),
        (["hold", "--lease", "1s", URL], "too short"),
        (["readers", "drop", URL, "nobody"], "no reader nobody"),
    ],
)
def test_what_is_refused(settings: dict[str, str], words: list[str], says: str) -> None:
    result = invoke(*words, "--store-option", f"uri={settings['store_options.uri']}")
    assert (result.exit_code, says in " ".join(result.stderr.split())) == (2, True), result.stderr


def test_expire(settings: dict[str, str]) -> None:
    asked(settings, "hold", URL, "--name", "mine")
    options = ("--older-than", "2100-01-01", "--grace", "0s")
    dry = asked(settings, "expire", URL, "--dry-run", *options)
    done = asked(settings, "expire", URL, *options)
    assert (dry["outcome"], done["outcome"]) == ("expired", "expired")
    assert dry["expired_snapshots"] == done["expired_snapshots"]
    assert len(done["expired_snapshots"]) == 2
    assert dry["would_delete_files"] == done["deleted_manifest_lists_count"] == 2
    assert done["deleted_data_files_count"] == done["pending_files"] == 0
    assert [needed["by"].split(" of ")[0] for needed in done["needed"]] == ["hold mine"]
    again = asked(settings, "expire", URL, *options)
    assert (again["outcome"], again["snapshots"]) == ("nothing_to_do", 1)


def test_expire_says_what_stands_in_the_way(settings: dict[str, str], tmp_path: Path) -> None:
    store = ("--store-option", f"uri={settings['store_options.uri']}")
    asked(settings, "readers", "add", URL, (tmp_path / "new").as_uri(), "--name", "r")
    result = invoke("expire", URL, "--older-than", "2100-01-01", *store)
    assert result.exit_code == 1
    assert "reader r: it has not started" in " ".join(result.stdout.split())
    asked(settings, "readers", "drop", URL, "r")
    result = invoke("expire", URL, "--older-than", "2100-01-01", *store)
    assert result.exit_code == 0
    assert "2 snapshots expired; 1 is left." in result.stdout
    assert "are kept for 1h" in result.stdout


def test_programs_expire(settings: dict[str, str]) -> None:
    with lithify.open(URL, settings=settings) as table:
        assert table.expire().outcome == "nothing_to_do"
        assert table.expire(retain_last=2, dry_run=True).is_done
        with pytest.raises(lithify.Refused, match="retain-last"):
            table.expire(retain_last=0)


def test_rewrite_manifests(settings: dict[str, str]) -> None:
    dry = asked(settings, "rewrite-manifests", URL, "--dry-run")
    counts = dry["rewritten_manifests_count"], dry["added_manifests_count"], dry["manifests"]
    assert (dry["outcome"], counts, dry["reasons"]) == ("rewritten", (3, 1, 1), {"small": 3})
    with lithify.open(URL, settings=settings) as table:
        done = table.rewrite_manifests()
        assert (done.outcome, done.is_done) == ("rewritten", True)
        assert done.shown.document["rewritten_manifests_count"] == 3
    again = asked(settings, "rewrite-manifests", URL)
    assert (again["outcome"], again["manifests"], again["reasons"]) == ("nothing_to_do", 1, {})


def test_rewrite_equality_deletes(settings: dict[str, str]) -> None:
    table = load_catalog("lake", uri=settings["store_options.uri"], type="sql").load_table("db.events")
    rows = [row[1] for row in read(table)]
    delete_equal(table, rows[:2])
    paid = asked(settings, "status", URL)["equality_deletes"]
    assert (paid["files"], paid["keys"]) == (1, 2)
    assert paid["scan_keys"] == 2 * len(files_of(table))
    dry = asked(settings, "rewrite-equality-deletes", URL, "--dry-run")
    assert (dry["outcome"], dry["rewritten_equality_delete_keys_count"]) == ("rewritten", 2)
    with lithify.open(URL, settings=settings) as dataset:
        done = dataset.rewrite_equality_deletes()
        assert (done.outcome, done.is_done) == ("rewritten", True)
        assert done.shown.document["deleted_rows_count"] == 2
        maintained = dataset.maintain(skip=("data",)).document
    assert maintained["deletes"]["equality_deletes"]["outcome"] == "nothing_to_do"
    assert [row[1] for row in read(table.refresh())] == rows[2:]


def test_rewrite_position_delete_files(settings: dict[str, str]) -> None:
    table = load_catalog("lake", uri=settings["store_options.uri"], type="sql").load_table("db.events")
    for row in (0, 1):
        delete_positions(table, {files_of(table)[0].file_path: [row]})
    dry = asked(settings, "rewrite-position-delete-files", URL, "--dry-run")
    counts = dry["rewritten_delete_files_count"], dry["added_delete_files_count"], dry["delete_files"]
    assert (dry["outcome"], counts) == ("rewritten", (2, 1, 2))
    with lithify.open(URL, settings=settings) as dataset:
        done = dataset.rewrite_position_delete_files()
        assert (done.outcome, done.is_done) == ("rewritten", True)
        assert done.shown.document["rewritten_delete_files_count"] == 2
    again = asked(settings, "rewrite-position-delete-files", URL)
    assert (again["outcome"], again["delete_files"]) == ("nothing_to_do", 1)
