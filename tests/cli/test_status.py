"""`lithify status` of a database in different states."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from lithify.base.ids import RandomIds
from lithify.cli import status
from lithify.protocol import transitions
from lithify.protocol.attempts import Attempt, FailedAttempt
from lithify.protocol.model import Compaction, Ledger
from lithify.protocol.transitions import AnyCompaction
from tests.aging import age
from tests.cli.invoking import invoke, invoke_json
from tests.cli.test_main import files
from tests.compacting import dataset_at
from tests.judge.official import Put, compact_officially, open_db
from tests.ledgers import take_epoch


def database(path: Path, flushes: int) -> None:
    with open_db(path) as opened:
        for n in range(flushes):
            opened.write_batch([Put(b"k%02d" % k, b"%d" % n) for k in range(20)])
            opened.flush()


def test_a_database_at_rest_and_one_with_a_foreign_coordinator(tmp_path: Path) -> None:
    path = tmp_path / "db"
    database(path, 5)
    before = files(path)
    found = invoke_json("status", path, "--set", "slatedb.l0_max_ssts=5")
    assert found["coordinator"]["presence"] == "never"
    assert found["compactions"] == []
    assert len(found["proposals"]) == 1
    assert found["stall_ms"] == 0
    assert found["pressure"][0]["l0_ssts"] == 5
    shown = invoke("status", path, "--set", "slatedb.l0_max_ssts=5").stdout
    assert "stalls now" in shown
    assert "Would be added" in shown
    assert files(path) == before

    compact_officially(path)
    assert invoke_json("status", path)["coordinator"]["presence"] == "slatedb"


def test_it_is_watched_until_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "db"
    database(path, 2)
    slept = list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(status, "time", SimpleNamespace(sleep=sleep))  # other threads go on sleeping
    shown = invoke("status", "--watch", path)
    assert (shown.exit_code, shown.stdout.count("Coordinator: none has ever run")) == (130, 2)
    slept.clear()
    first, second, *_ = invoke("status", "--watch", "--json", path).stdout.splitlines()
    assert json.loads(first)["url"] == json.loads(second)["url"] == path.as_uri()


def test_what_is_under_way(tmp_path: Path) -> None:
    path = tmp_path / "db"
    database(path, 5)
    dataset = dataset_at(path)
    take_epoch(dataset)
    (proposal,) = dataset.propose(dataset.snapshot(), dataset.ledger() or Ledger()).proposals
    ids = RandomIds()
    compaction_id = ids.ulid(1_700_000_000_000)
    new: AnyCompaction = Compaction(compaction_id, proposal.spec)
    dataset.update_ledger(
        lambda ledger: transitions.claim(
            transitions.schedule(transitions.submit(ledger, new), compaction_id),
            compaction_id,
            "some-worker",
            1,
        )
    )
    dataset.journal.add_attempt(compaction_id, Attempt("other-worker", "disk on fire", 5))
    gone = ids.ulid(1_600_000_000_000)
    spec = dataset.encode_spec(proposal.spec)
    dataset.journal.add_failure(FailedAttempt(gone, "never worked", 3, 1_600_000_000_000, spec))

    (found,) = invoke_json("status", path)["compactions"]
    assert found["is_stale"] is False, "whatever the worker's clock says"
    age(path, 60_000)
    (found,) = invoke_json("status", path)["compactions"]
    assert found["id"] == compaction_id
    assert found["state"] == "running"
    assert found["worker"] == "some-worker"
    assert found["is_stale"] is True
    assert found["attempts"] == 1
    assert found["last_failure"] == "disk on fire"
    assert "silent worker" in found["waits_for"]
    assert found["cost_bytes"] == proposal.cost_bytes
    assert found["since_ms"] is not None
    shown = " ".join(invoke("status", path).stdout.split())
    for said in (
        "waits for its silent worker",
        "disk on fire",
        f"{gone[-6:]} after 3 attempts: never worked",
    ):
        assert said in shown
    assert compaction_id not in shown
