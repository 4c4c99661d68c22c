"""Expiry under attack: whatever others do at whatever step of a run, clocks that are an hour off, odd names,
and metadata that are damaged. Nobody loses what was promised to him."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from lithify.base.errors import CorruptObject, LithifyError, Refused
from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.maintenance.expire import ExpireOptions, Expirer, ExpiryOutcome
from lithify.datasets.iceberg.maintenance.history_view import show_expiry
from lithify.datasets.iceberg.maintenance.operations import TableMaintenance
from lithify.datasets.maintenance import HoldRequest
from lithify.testing import ManualClock
from tests.datasets.iceberg.faults import Faults, Meanwhile, install
from tests.datasets.iceberg.running import a_clock, dataset_of
from tests.datasets.iceberg.tables import (
    NAME,
    append,
    fresh,
    make_rows,
    named_paths,
    new_catalog,
    new_table,
    read,
)
from tests.datasets.iceberg.test_expire import ALL, contents, ids_of, on_disk, run, six_snapshots
from tests.datasets.iceberg.test_expire_crashes import EVERYTHING, Template

LEASE_MS = 3_600_000
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return Template(tmp_path_factory.mktemp("attacks"))


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    install(Faults())


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    return six_snapshots(new_table(catalog))


# At every step


@dataclass
class Promised:
    """What somebody was promised."""

    snapshots: list[int] = field(default_factory=list)
    refs: dict[str, int] = field(default_factory=dict)


def make_refs(table: Table, promised: Promised) -> None:
    """A tag and a branch of the oldest snapshots that are there."""
    chosen = [snapshot.snapshot_id for snapshot in table.snapshots()[:2]]
    for kind, snapshot_id in zip(("tag", "branch"), reversed(chosen), strict=False):
        with suppress(CommitFailedException, ValueError), fresh(table).manage_snapshots() as change:
            getattr(change, f"create_{kind}")(snapshot_id, kind)
        if kind in fresh(table).metadata.refs:
            promised.refs[kind] = snapshot_id
            promised.snapshots.append(snapshot_id)


def take_holds(table: Table, promised: Promised) -> None:
    """Of every snapshot that is there."""
    clock = a_clock()
    maintenance = TableMaintenance(dataset_of(table, clock=clock), clock, RandomIds())
    for snapshot in table.snapshots():
        with suppress(Refused):
            maintenance.hold(HoldRequest(version=snapshot.snapshot_id), LEASE_MS, None, "somebody")
            promised.snapshots.append(snapshot.snapshot_id)


def run_and_append(table: Table, promised: Promised) -> None:
    """A second coordinator, which is faster, and a writer."""
    Expirer(dataset_of(table), a_clock(), RandomIds()).run(EVERYTHING)
    append(table, make_rows(1))
    promised.snapshots.append(ids_of(table)[-1])


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("attack", "every"),
    [
        (make_refs, 7),
        (take_holds, 9),
        (run_and_append, 9),
        *(
            pytest.param(attack, 1, marks=pytest.mark.whole)
            for attack in (make_refs, take_holds, run_and_append)
        ),
    ],
)
def test_whatever_happens_at_any_step(
    template: Template, attack: Callable[[Table, Promised], None], every: int
) -> None:
    template.restore()
    calls = install(Faults()).calls
    template.run()
    # Files are read and deleted one after the other: what comes between two is the same as before the first.
    alike = ("read file:", "delete file:")
    steps = [n for n, call in enumerate(calls, 1) if not call.startswith(alike)]
    steps += [n for n, (a, b) in enumerate(pairwise(calls), 2) if a[:5] != b[:5] and b.startswith(alike)]
    promised = sum(attacked(template, number, calls[number - 1], attack) for number in steps[::every])
    assert promised > len(steps) // every // 2, "most come in time"


def attacked(template: Template, number: int, call: str, attack: Callable[[Table, Promised], None]) -> bool:
    """Play it; whether anything was promised."""
    promised, site = Promised(), f"before call {number}, {call}"
    template.restore()

    def act() -> None:
        with closing(new_catalog(template.folder)) as catalog:
            attack(catalog.load_table(NAME), promised)

    meanwhile = Meanwhile(number, act)
    install(meanwhile)
    template.run()
    install(Faults())
    assert meanwhile.has_happened
    with closing(new_catalog(template.folder)) as catalog:
        table = catalog.load_table(NAME)
        for _ in range(2):
            judge(table, template.contents, promised, site)
            Expirer(dataset_of(table), a_clock(), RandomIds()).run(EVERYTHING)
        root = Path(table.location().removeprefix("file://"))
        there = {path.as_uri() for path in root.rglob("*") if path.suffix in (".parquet", ".avro")}
        assert there == named_paths(table), site
    return bool(promised.snapshots)


def judge(table: Table, before: dict[int, Any], promised: Promised, site: str) -> None:
    there = ids_of(table)
    assert set(promised.snapshots) <= set(there), site
    refs = {name: ref.snapshot_id for name, ref in fresh(table).metadata.refs.items()}
    assert promised.refs.items() <= refs.items(), site
    for snapshot_id in there:
        rows = read(table, snapshot_id)
        assert rows == before.get(snapshot_id, rows), site


# Clocks


@pytest.mark.parametrize("off_ms", [-HOUR_MS, HOUR_MS])
def test_machines_whose_clocks_are_an_hour_off(table: Table, off_ms: int) -> None:
    """The one that holds, the one that runs: leases and ages are told by the store's clock."""
    ids, before = ids_of(table), contents(table)
    wrong, right = ManualClock(a_clock().now_ms() + off_ms), a_clock()
    for holding, running in ((wrong, right), (right, wrong), (wrong, ManualClock(right.now_ms() - off_ms))):
        maintenance = TableMaintenance(dataset_of(table, clock=holding), holding, RandomIds())
        placed = maintenance.hold(HoldRequest(version=ids[1]), 60_000, None, "me")
        done = Expirer(dataset_of(table, clock=running), running, RandomIds()).run(
            ExpireOptions(older_than_ms=4_000_000_000_000, grace_ms=0)
        )
        assert ids_of(table) == ids[1:], done
        assert maintenance.renew(placed).name == placed.name
        maintenance.release(placed)
    assert contents(table) == {snapshot_id: before[snapshot_id] for snapshot_id in ids[1:]}


@pytest.mark.parametrize("off_ms", [-HOUR_MS, HOUR_MS])
def test_the_age_of_snapshots_is_told_by_the_clock_of_the_store(table: Table, off_ms: int) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({"history.expire.max-snapshot-age-ms": str(HOUR_MS // 2)})
    clock = ManualClock(a_clock().now_ms() + off_ms)
    done = Expirer(dataset_of(table, clock=clock), clock, RandomIds()).run()
    assert done.outcome is ExpiryOutcome.NOTHING_TO_DO


# Names

ODD = (
    *("a/b", "ü", "x y", "#?%20", "'\"; DROP TABLE t", "日本", "..", ".", "main ", "MAIN", "$ref", "a\tb"),
    *("-n", "[red]x[/red]", "\u202e", "x" * 300),
)


@pytest.mark.parametrize("kind", ["tag", "branch"])
def test_branches_and_tags_with_odd_names(catalog: SqlCatalog, kind: str) -> None:
    table = new_table(catalog, properties={"history.expire.max-snapshot-age-ms": "1"})
    append(table, make_rows(1))
    for name in ODD:
        append(table, make_rows(1))
        with fresh(table).manage_snapshots() as change:
            head = fresh(table).metadata.current_snapshot_id
            assert head is not None
            getattr(change, f"create_{kind}")(head, name)
    before, refs = contents(table), set(fresh(table).metadata.refs)
    clock = a_clock()
    expirer = Expirer(dataset_of(table, clock=clock), clock, RandomIds())
    assert expirer.outlook().needed
    done = expirer.run(ALL)
    assert show_expiry("t", done, 0).blocks
    assert done.outcome is ExpiryOutcome.EXPIRED
    assert set(fresh(table).metadata.refs) == refs
    kept = {ref.snapshot_id for ref in fresh(table).metadata.refs.values()}
    assert kept <= set(ids_of(table)) < set(before)
    assert contents(table) == {snapshot_id: before[snapshot_id] for snapshot_id in ids_of(table)}
    assert on_disk(table) == named_paths(table)


# Damage


def cut(path: str) -> None:
    file = Path(path.removeprefix("file://"))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def a_manifest_list_that_stays(table: Table) -> None:
    head = fresh(table).current_snapshot()
    assert head is not None
    cut(head.manifest_list)


def a_manifest_that_stays(table: Table) -> None:
    head = fresh(table).current_snapshot()
    assert head is not None
    cut(head.manifests(table.io)[0].manifest_path)


def a_manifest_list_that_goes(table: Table) -> None:
    cut(fresh(table).snapshots()[0].manifest_list)


def the_metadata(table: Table) -> None:
    cut(fresh(table).metadata_location)


def own(name: str, data: bytes) -> Callable[[Table], None]:
    """An object of Lithify's beside the table."""

    def write(table: Table) -> None:
        dataset = dataset_of(table)
        dataset.store.put(f"{dataset.own_folder}/{name}", data)

    return write


NUMBER = f"{1:020}.json"


@pytest.mark.parametrize(
    "damage",
    [
        a_manifest_list_that_stays,
        a_manifest_that_stays,
        a_manifest_list_that_goes,
        the_metadata,
        own("lineage.json", b"{"),
        own("holds/h~t.json", b"{"),
        own("readers/r.json", b"{"),
        own(f"watermark/{NUMBER}", b"{"),
        own(f"pending/{NUMBER}", b'{"entries": [{}]}'),
        own(f"ledger/{NUMBER}", b"{"),
    ],
)
def test_what_is_damaged_stops_a_run_before_anything_goes(
    table: Table, damage: Callable[[Table], None]
) -> None:
    dataset, files = dataset_of(table), on_disk(table)
    location = fresh(table).metadata_location
    damage(table)
    with pytest.raises(LithifyError) as raised:
        Expirer(dataset, a_clock(), RandomIds()).run(ALL)
    assert isinstance(raised.value, CorruptObject)
    assert on_disk(table) == files
    if damage is not the_metadata:
        assert fresh(table).metadata_location == location


def test_two_runs_with_an_hour_between_their_clocks(table: Table) -> None:
    """One after the other, again and again, while somebody appends."""
    clocks = [ManualClock(a_clock().now_ms() + off_ms) for off_ms in (-HOUR_MS, HOUR_MS)]
    expirers = [Expirer(dataset_of(table, clock=clock), clock, RandomIds()) for clock in clocks]
    watermarks = []
    for n in range(4):
        append(table, make_rows(1))
        done = expirers[n % 2].run(ALL)
        assert done.outcome is ExpiryOutcome.EXPIRED, done
        watermarks.append(done.watermark_ms or 0)
    assert watermarks == sorted(watermarks)
    assert len(ids_of(table)) == 1
    assert run(table).outcome is ExpiryOutcome.NOTHING_TO_DO
    assert on_disk(table) == named_paths(table)
