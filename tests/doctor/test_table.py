"""What the doctor finds in Iceberg tables."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.checks import check_table
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.protocol import checks, transitions
from lithify.protocol.attempts import FailedAttempt
from lithify.protocol.finding import Finding, Severity
from lithify.protocol.model import Compaction, Ledger
from lithify.protocol.transitions import AnyCompaction
from lithify.service.status import status
from lithify.testing import ManualClock
from tests.aging import age
from tests.cli.invoking import invoke
from tests.datasets.iceberg.running import a_clock, dataset_of
from tests.datasets.iceberg.tables import START, append, make_rows, new_catalog, new_table

URL = "iceberg://lake/db.events"


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return new_catalog(tmp_path, name="lake")


def dataset(catalog: SqlCatalog, **properties: str) -> IcebergDataset:
    table = new_table(catalog, properties={name.replace("_", "-"): v for name, v in properties.items()})
    for n in range(2):
        append(table, make_rows(3, START, device=str(n)))
    return dataset_of(table)


def examine(dataset: IcebergDataset) -> dict[str, Finding]:
    now_ms = a_clock().now_ms()
    find = partial(status, clock=ManualClock(now_ms), heartbeat_timeout_ms=30_000)
    found = check_table(lambda: dataset, find, now_ms)
    return {finding.check: finding for finding in found}


def test_a_sound_table(catalog: SqlCatalog) -> None:
    sound = dataset(catalog, **{"lithify.skip-from-now-seconds": str(100 * 365 * 86_400)})
    assert {f.severity for f in examine(sound).values()} == {Severity.OK}


def test_what_can_be_wrong(catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ill = dataset(catalog, **{"lithify.min-saved-files": "1"})
    assert "run lithify compact once" in examine(ill)["coordinator"].says
    with ill.load().transaction() as change:
        change.set_properties({"s3.endpoint": "http://elsewhere"})
    assert "s3.endpoint are ignored" in examine(ill)["limits"].says

    ill.take_epoch()
    (proposal,) = ill.propose(ill.snapshot(), ill.ledger() or Ledger()).proposals
    now_ms, ids = a_clock().now_ms(), RandomIds()
    new: AnyCompaction = Compaction(ids.ulid(now_ms), proposal.spec)
    ill.update_ledger(
        lambda ledger: transitions.claim(
            transitions.schedule(transitions.submit(ledger, new), new.id),
            new.id,
            "slow-worker",
            now_ms + 90_000,
        )
    )
    spec = ill.encode_spec(proposal.spec)
    ill.journal.add_failure(FailedAttempt(ids.ulid(1), "disk on fire", 5, now_ms, spec))
    ill.journal.add_failure(FailedAttempt(ids.ulid(2), "was cancelled", 5, now_ms, spec, is_cancelled=True))
    monkeypatch.setattr(checks, "MAX_VERSIONS", 1)
    age(tmp_path, 60_000)
    found = examine(ill)
    assert "slow-worker" in found["heartbeats"].says
    assert "disk on fire" in found["given up"].says
    assert "versions of the ledger" in found["versions"].says
    assert "slow-worker" in found["clocks"].says


@pytest.mark.parametrize(
    ("properties", "says"),
    [({"lithify.nonsense": "1"}, "lithify.nonsense"), ({"lithify.time-column": "nope"}, "nope")],
)
def test_a_table_that_cannot_be_compacted(catalog: SqlCatalog, properties: dict[str, str], says: str) -> None:
    found = examine(dataset(catalog, **properties))
    assert found["table"].severity is Severity.PROBLEM
    assert says in found["table"].says
    assert found["coordinator"].severity is Severity.OK, "the rest is checked all the same"


def test_a_table_whose_data_are_left_out(catalog: SqlCatalog) -> None:
    left_out = {"lithify.time-column": "nope", "lithify.skip-parts": "data"}
    found = examine(dataset(catalog, **left_out))
    assert {finding.severity for finding in found.values()} == {Severity.OK}
    assert "lithify.skip-parts names data" in found["table"].says


def test_each_part_that_cannot_be_done(catalog: SqlCatalog) -> None:
    found = examine(dataset(catalog, **{"encryption.key-id": "k"}))
    assert found["table"].severity is Severity.PROBLEM
    for part in ("deletes", "manifests"):
        assert found[part].severity is Severity.WARNING
        assert "encrypted" in found[part].says


def test_the_command_tries_the_store_too(catalog: SqlCatalog, tmp_path: Path) -> None:
    doctor = partial(invoke, "doctor", "--store-option", f"uri=sqlite:///{tmp_path}/catalog.db")
    missing = doctor(URL)
    assert (missing.exit_code, "does not exist" in missing.stdout) == (10, True)
    dataset(catalog, **{"lithify.skip-from-now-seconds": str(100 * 365 * 86_400)})
    before = sorted(tmp_path.rglob("*"))
    sound = doctor(URL)
    assert sound.exit_code == 0, sound.stdout
    assert "create-if-absent" in sound.stdout
    assert "create-if-absent" not in doctor("--read-only", URL).stdout
    left = [p for p in set(tmp_path.rglob("*")) - set(before) if p.is_file() and "#" not in p.name]
    assert left == []
