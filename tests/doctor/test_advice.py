"""What the doctor says to do is done to the letter, and then it has nothing more to say about that."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyiceberg.table import Table

from lithify.base.ids import RandomIds
from lithify.base.usercache import CACHE_VARIABLE
from lithify.coordination.expiry_runs import ExpiryRuns
from lithify.datasets.iceberg.maintenance import history_checks
from lithify.datasets.iceberg.maintenance.expire import ExpiryOutcome
from lithify.datasets.iceberg.maintenance.orphan_runs import OrphanRuns
from lithify.datasets.iceberg.maintenance.orphans import Orphans
from lithify.protocol import checks
from lithify.protocol.attempts import FailedAttempt
from lithify.protocol.model import Ledger
from tests.cli.invoking import invoke, invoke_json
from tests.datasets.iceberg.running import Steps, a_clock, dataset_of
from tests.datasets.iceberg.spark_checkpoint import SparkCheckpoint
from tests.datasets.iceberg.tables import START, append, fresh, make_rows, new_catalog, new_table
from tests.datasets.iceberg.test_expire import ids_of, maintenance_of
from tests.fuzz.running import without_waiting

URL = "iceberg://lake/db.events"
AT_ONCE = {"history.expire.max-snapshot-age-ms": "0"}


class Patient:
    """A table, and what the doctor says of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.table: Table = new_table(new_catalog(folder, name="lake"))
        for n in range(4):
            append(self.table, make_rows(3, START, device=str(n)))
        self.catalog = ["--store-option", f"uri=sqlite:///{folder}/catalog.db"]
        self.catalog += ["--store-option", f"warehouse={(folder / 'warehouse').as_uri()}"]

    def set(self, **properties: str | None) -> None:
        with fresh(self.table).transaction() as change:
            for name, value in properties.items():
                if value is None:
                    change.remove_properties(name)
                else:
                    change.set_properties({name: value})

    def advice(self, check: str) -> list[tuple[str, str]]:
        """What is wrong by this check, and what to do."""
        found = invoke("doctor", URL, *self.catalog, "--json")
        assert found.exit_code in (0, 10), found.stderr
        return [
            (f["says"], f["do"])
            for f in json.loads(found.stdout)
            if f["check"] == check and f["severity"] != "ok"
        ]

    def follow(self, do: str) -> None:
        """Run the command that the advice gives."""
        match = re.search(r"lithify ([a-z][^`;,]*)", do)
        assert match is not None, f"no command in: {do}"
        command = shlex.split(match[1])
        done = invoke(*command, *self.catalog)
        assert done.exit_code == 0, done.output

    @property
    def own(self) -> Path:
        (folder,) = (self.folder / "warehouse").glob("**/_lithify/*")
        return folder


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """Commands start no Spark."""
    with without_waiting():
        yield


@pytest.fixture
def patient(tmp_path: Path) -> Patient:
    return Patient(tmp_path)


def set_as_it_says(patient: Patient, **properties: str | None) -> Callable[[str], None]:
    """Change properties, each of which the advice names."""

    def cure(do: str) -> None:
        assert all(name in do for name in properties), do
        patient.set(**properties)

    return cure


def test_properties_of_the_data(patient: Patient) -> None:
    patient.set(**{"lithify.time-column": "nope"})
    ((says, do),) = patient.advice("table")
    assert "nope" in says
    set_as_it_says(patient, **{"lithify.skip-parts": "data"})(do)
    assert patient.advice("table") == []


@pytest.mark.parametrize(
    ("ill", "cure"),
    [
        ({"history.expire.max-snapshot-age-ms": "soon"}, {"history.expire.max-snapshot-age-ms": "432000000"}),
        (AT_ONCE, {"history.expire.max-snapshot-age-ms": "432000000"}),
        (
            {"history.expire.max-snapshot-age-ms": str(1 << 62)},
            {"history.expire.max-snapshot-age-ms": "432000000"},
        ),
        ({"gc.enabled": "false", "lithify.expire-snapshots": "1"}, {"gc.enabled": "true"}),
        ({"gc.enabled": "false", "lithify.expire-snapshots": "1"}, {"lithify.expire-snapshots": "0"}),
    ],
)
def test_policies(patient: Patient, ill: dict[str, str], cure: dict[str, str]) -> None:
    patient.set(**ill)
    ((says, do),) = patient.advice("policy")
    set_as_it_says(patient, **cure)(says + do)
    assert patient.advice("policy") == []


@pytest.mark.parametrize("by_command", [True, False])
def test_a_history_that_nobody_expires(
    patient: Patient, monkeypatch: pytest.MonkeyPatch, by_command: bool
) -> None:
    monkeypatch.setattr(history_checks, "FORGOTTEN", 2)
    monkeypatch.setattr(history_checks, "SHORTEST_MS", 0)
    patient.set(**AT_ONCE)
    ((_, do),) = patient.advice("policy")
    if by_command:
        patient.follow(do)
    else:
        set_as_it_says(patient, **{"lithify.expire-snapshots": "1"})(do)
    assert patient.advice("policy") == []


@pytest.mark.parametrize("is_gone", [True, False])
def test_readers(patient: Patient, is_gone: bool) -> None:
    checkpoint = SparkCheckpoint(patient.folder / "checkpoint")
    maintenance_of(patient.table).add_reader(checkpoint.url, "dash", {})
    ((_, do),) = patient.advice("readers")
    assert do.startswith("start it")
    patient.set(**AT_ONCE)
    invoke("expire", URL, *patient.catalog)
    ((_, after),) = patient.advice("expiry")
    if is_gone:
        patient.follow(do.partition("gone for good: ")[2])
    else:
        checkpoint.begin(ids_of(patient.table)[-1])
    patient.follow(after)
    assert (patient.advice("readers"), patient.advice("expiry")) == ([], [])


def test_an_expiry_that_failed(patient: Patient) -> None:
    dataset = dataset_of(patient.table)
    ExpiryRuns(dataset.store, dataset.own_folder).add(ExpiryOutcome.LOST_RACE.value, "another came first", 5)
    ((_, do),) = patient.advice("expiry")
    patient.follow(do)
    assert patient.advice("expiry") == []


def test_a_look_for_orphans_that_was_refused(patient: Patient) -> None:
    dataset = dataset_of(patient.table)
    OrphanRuns(dataset.store, dataset.own_folder).note_refused("another table", 5, a_clock().now_ms())
    patient.set(**{"lithify.remove-orphans": "1"})
    ((_, do),) = patient.advice("orphans")
    patient.follow(do)
    assert patient.advice("orphans") == []


def test_orphans_that_no_coordinator_looks_for(patient: Patient) -> None:
    dataset = dataset_of(patient.table)
    runs = OrphanRuns(dataset.store, dataset.own_folder)
    runs.note(Orphans(older_than_ms=5, dry_run=False), 5)
    patient.set(**{"lithify.remove-orphans": "1"})
    ((_, do),) = patient.advice("orphans")
    patient.follow(do)
    assert patient.advice("orphans") == []


def test_a_damaged_hold(patient: Patient) -> None:
    invoke("hold", URL, "--name", "mine", *patient.catalog)
    dataset = dataset_of(patient.table)
    (damaged,) = [meta.key for meta in dataset.store.list(dataset.own_folder) if "/holds/" in meta.key]
    dataset.store.put(damaged, b"?")
    ((says, do),) = patient.advice("history")
    assert (damaged in says, "delete it" in do) == (True, True)
    dataset.store.delete(damaged)
    assert patient.advice("history") == []


def test_compactions_without_a_coordinator(patient: Patient) -> None:
    Steps(dataset_of(patient.table)).schedule()
    ((_, do),) = patient.advice("coordinator")
    patient.follow(do.partition("; or once: ")[2])
    assert patient.advice("coordinator") == []


def test_what_was_given_up(patient: Patient) -> None:
    dataset = dataset_of(patient.table)
    dataset.take_epoch()
    (proposal,) = dataset.propose(dataset.snapshot(), Ledger()).proposals
    gone = RandomIds().ulid(1)
    dataset.journal.add_failure(FailedAttempt(gone, "disk on fire", 5, 1, dataset.encode_spec(proposal.spec)))
    ((_, do),) = patient.advice("given up")
    patient.follow(do)
    assert patient.advice("given up") == []


def test_versions_that_pile_up(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert invoke("compact", URL, *patient.catalog).exit_code == 0
    monkeypatch.setattr(checks, "MAX_VERSIONS", 1)
    ((_, do),) = patient.advice("versions")
    patient.follow(do)


def test_the_cache(patient: Patient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    monkeypatch.setattr("lithify.datasets.registry.all_registered", lambda: [])
    found = {f["check"]: f for f in invoke_json("doctor", exit_code=10)}
    assert f"set {CACHE_VARIABLE} to a folder" in found["cache"]["do"]
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    assert {f["check"]: f for f in invoke_json("doctor")}["cache"]["severity"] == "ok"
