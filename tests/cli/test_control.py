"""`lithify submit`, `wait`, `cancel` and `retry` as a script uses them. No Spark: nothing runs here."""

from __future__ import annotations

from pathlib import Path

import pytest

from lithify.base.clock import SystemClock
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Leadership
from lithify.fleet.members import FleetRole, new_member_name
from tests.cli.invoking import invoke, invoke_json
from tests.cli.test_main import files
from tests.compacting import dataset_at
from tests.judge.official import Put, open_db
from tests.ledgers import take_epoch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database whose coordinator, Lithify's, has stopped."""
    path = tmp_path / "db"
    with open_db(path) as database:
        for n in range(3):
            database.write_batch([Put(b"k%02d" % k, b"%d" % n) for k in range(20)])
            database.flush()
    take_epoch(dataset_at(path))
    return path


def coordinated_by_invoke(path: Path) -> None:
    with Leadership(dataset_at(path), SystemClock(), RandomIds()).acquire(take_over=True):
        pass


def test_who_submits_to_a_fleet_is_told_of_its_coordinators(path: Path) -> None:
    name = new_member_name(FleetRole.COORDINATOR, RandomIds().ulid(0))
    with Leadership(dataset_at(path), SystemClock(), RandomIds(), name).acquire(take_over=True):
        pass
    submitted = invoke("submit", "--full", path)
    assert submitted.exit_code == 0
    assert "lithify run" not in submitted.stderr
    assert f"lithify fleet wake FLEET {path.as_uri()}" in " ".join(submitted.stderr.split())


def test_the_life_of_a_submitted_compaction(path: Path) -> None:
    coordinated_by_invoke(path)
    assert invoke("wait", path).stdout == "No compaction is under way.\n"
    submitted = invoke("submit", "--full", path)
    assert submitted.exit_code == 0, submitted.stderr
    assert "No coordinator is running" in submitted.stderr
    compaction_id = submitted.stdout.strip()

    waited = invoke("wait", "--timeout", "1s", "--set", "service.commit_compacted_interval=1s", path)
    assert waited.exit_code == 9
    told, _ = waited.stderr.splitlines()
    assert told == f"{compaction_id[-6:]} 0% submitted, waits for a coordinator; none is running"
    assert "lithify status" in waited.stderr

    cancelled = {"cancelled": [compaction_id], "left_alone_ms": 60_000}
    assert invoke_json("cancel", path, compaction_id) == cancelled
    ended = invoke("wait", path, compaction_id)
    assert (ended.exit_code, ended.stdout) == (1, f"{compaction_id} failed: was cancelled\n")
    assert invoke("cancel", path, compaction_id).exit_code == 2
    short = compaction_id[-6:].lower()
    assert invoke("wait", path, short).stdout == f"{compaction_id} failed: was cancelled\n"
    unknown = invoke("cancel", path, "ZZZZZZ")
    assert (unknown.exit_code, "whose id ends in ZZZZZZ" in unknown.stderr) == (2, True)

    again = invoke_json("retry", path, compaction_id)
    assert again["coordinator_is_alive"] is False
    (compaction,) = invoke_json("status", path)["compactions"]
    assert [compaction["id"]] == again["submitted"]
    assert compaction["waits_for"] == "a coordinator; none is running"


def test_given_sources(path: Path) -> None:
    (compaction_id,) = invoke_json("submit", "--l0", "all", path)["submitted"]
    ledger = dataset_at(path).ledger()
    assert ledger is not None
    compaction = ledger.get(compaction_id)
    assert compaction is not None
    assert len(compaction.spec.l0_view_ids) == 3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["submit", "{db}"], "--full"),
        (["submit", "{db}", "--full", "--run", "1"], "--full"),
        (["submit", "{db}", "--run", "7"], "7 is not a source"),
        (["submit", "{db}", "--l0", "x"], "is not the id of a view"),
        (["submit", "{db}", "--l0", "all", "--segment", "61"], "no segment 61"),
        (["cancel", "{db}", "nonsense"], "not the id"),
        (["cancel", "{db}", "01M7Y73N1RT45V6YVXGPSA14XX"], "SlateDB"),
        (["retry", "{db}", "01M7Y73N1RT45V6YVXGPSA14XX"], "is unknown"),
        (["wait", "{db}", "01M7Y73N1RT45V6YVXGPSA14XX"], "is unknown"),
        (["wait", "{db}", "--timeout", "5"], "not a duration"),
        (["status", "{db}/no"], "no SlateDB database"),
        (["wait", "{db}/no"], "no SlateDB database"),
        (["submit", "{db}", "--chunk", "2025-01-01"], "--chunk is for Iceberg tables only"),
        (["retry", "{db}/no", "01M7Y73N1RT45V6YVXGPSA14XX"], "no SlateDB database"),
        (["cancel", "{db}/no", "01M7Y73N1RT45V6YVXGPSA14XX"], "no SlateDB database"),
    ],
)
def test_mistakes_are_told(path: Path, arguments: list[str], says: str) -> None:
    before = files(path)
    result = invoke(*(a.format(db=path) for a in arguments))
    assert result.exit_code == 2, result.stderr
    assert says in result.stderr
    assert files(path) == before
