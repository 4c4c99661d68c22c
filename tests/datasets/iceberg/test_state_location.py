"""`iceberg.state_location`: no state of Lithify lies beside a table, and every process finds the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from lithify.api import wiring
from lithify.base import events
from lithify.base.errors import Refused, StoreError
from lithify.base.ids import RandomIds
from lithify.cli.options.settings import load_settings
from lithify.datasets.iceberg.checks import check_table
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.io.catalogs import TableUrl
from lithify.datasets.iceberg.io.state_location import StateLocation, open_state_location
from lithify.datasets.iceberg.maintenance.duties import duties
from lithify.datasets.iceberg.maintenance.expire import ExpireOptions, Expirer, ExpiryOutcome
from lithify.datasets.iceberg.maintenance.garbage import GarbageOptions, collect
from lithify.datasets.iceberg.maintenance.operations import TableMaintenance
from lithify.datasets.iceberg.maintenance.orphans import OrphanOptions, remove_orphans
from lithify.datasets.iceberg.maintenance.own_state import PREFIX, recorded_in
from lithify.datasets.maintenance import HoldRequest, OrphansAsked
from lithify.service.status import status
from lithify.store.objects import ObjectStore
from lithify.store.urls import open_store
from tests.datasets.iceberg.other_cleaners import root_of
from tests.datasets.iceberg.running import Steps, a_clock, compact, dataset_of
from tests.datasets.iceberg.spark_checkpoint import SparkCheckpoint
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    Row,
    age_files,
    append,
    check,
    fresh,
    make_rows,
    new_catalog,
    new_table,
    orphan_of,
)

HOUR_MS = 3_600_000
ALL = ExpireOptions(older_than_ms=4_000_000_000_000, grace_ms=0)


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    """A table of four small files a day, and of a few snapshots."""
    table = new_table(catalog, properties={"lithify.min-saved-files": "1"})
    for n in range(4):
        append(table, make_rows(3, START + n * DAY / 8))
    return fresh(table)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "elsewhere"


def opened(table: Table, place: Path | str, name: str = "test") -> IcebergDataset:
    """The table as a dataset whose state is at a place."""
    location = open_state_location(str(place), table.catalog, {})
    url = TableUrl(name, table.name())
    return IcebergDataset(table.catalog, url, a_clock(), RandomIds(), state_location=location)


def rows_of(table: Table) -> list[Row]:
    return [tuple(row.values()) for row in fresh(table).scan().to_arrow().to_pylist()]


def foreign_files(table: Table) -> list[str]:
    """All files under the table's location that are neither its data nor its metadata."""
    root = root_of(table)
    inside = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return sorted(str(path) for path in inside if path.parts[0] not in ("data", "metadata"))


def operations(table: Table, place: Path, folder: Path) -> list[tuple[str, Callable[[], object]]]:
    """All that writes something for a table, each in a new process."""
    clock = a_clock()

    def of() -> IcebergDataset:
        return opened(table, place)

    def maintenance() -> TableMaintenance:
        return TableMaintenance(of(), clock, RandomIds())

    def hold() -> None:
        placed = maintenance().hold(HoldRequest(), HOUR_MS, "training", "me")
        maintenance().renew(placed)

    def reader() -> None:
        checkpoint = SparkCheckpoint(folder / "dash")
        checkpoint.begin(fresh(table).snapshots()[-1].snapshot_id)
        maintenance().add_reader(checkpoint.url, "dash", {"continuous": True})

    def interrupted() -> None:
        steps = Steps(of())
        steps.schedule()
        steps.execute()

    find = partial(status, clock=clock, heartbeat_timeout_ms=30_000)
    delete = OrphansAsked(delete=True)
    return [
        ("status", lambda: status(of(), clock, 30_000)),
        ("plan", lambda: of().propose(of().snapshot(), Steps(of()).dataset.ledger())),  # type: ignore[arg-type]
        ("an interrupted compaction", interrupted),
        ("compact", lambda: compact(of())),
        ("hold", hold),
        ("readers add", reader),
        ("doctor", lambda: list(check_table(of, find, 0))),
        ("expire, held", lambda: Expirer(of(), clock, RandomIds()).run(ALL)),
        ("release", lambda: maintenance().release("training")),
        ("readers drop", lambda: maintenance().drop_reader("dash")),
        ("expire", lambda: Expirer(of(), clock, RandomIds()).run(ExpireOptions(ALL.older_than_ms))),
        ("expire, at once", lambda: Expirer(of(), clock, RandomIds()).run(ALL)),
        ("gc", lambda: collect(of(), clock, GarbageOptions(min_age_ms=0, dry_run=False))),
        (
            "remove-orphans",
            lambda: maintenance().remove_orphans(delete, lambda text: None),
        ),
        ("rewrite-manifests", lambda: maintenance().rewrite_manifests(dry_run=False)),
        ("rewrite-deletes", lambda: maintenance().rewrite_deletes(dry_run=False)),
        ("duties", lambda: duties(of(), clock, RandomIds(), {}, events.ignore).tick()),
    ]


def test_nothing_lies_beside_the_table_whatever_is_done(table: Table, place: Path, tmp_path: Path) -> None:
    rows = rows_of(table)
    for name, do in operations(table, place, tmp_path / "checkpoints"):
        do()
        assert foreign_files(table) == [], name
    check(table, rows)
    (folder,) = (place / "_lithify-state").iterdir()
    there = {path.name.partition(".")[0] for path in folder.iterdir()}
    assert {"state", "ledger", "lineage", "now", "watermark", "expiry-runs", "orphan-run"} <= there


class _Forbidden:
    """A store in which nothing may be read, written or listed by name."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.url = inner.url

    def __getattr__(self, name: str) -> object:
        def refuse(*arguments: object, **named: object) -> object:
            raise StoreError(f"{name} {arguments[:1]}: access denied")

        return refuse


def test_a_store_where_nothing_may_be_listed_or_written(table: Table, place: Path, tmp_path: Path) -> None:
    """Only the table's own files are read and written there, as any engine does."""
    rows = rows_of(table)
    location = open_state_location(str(place), table.catalog, {})
    store, root = open_store(table.location())

    def dataset() -> IcebergDataset:
        return IcebergDataset(
            table.catalog,
            TableUrl("test", table.name()),
            a_clock(),
            RandomIds(),
            open_place=lambda _: (_Forbidden(store), root),  # type: ignore[return-value,arg-type]
            state_location=location,
        )

    maintenance = TableMaintenance(dataset(), a_clock(), RandomIds())
    first = fresh(table).snapshots()[0].snapshot_id
    placed = maintenance.hold(HoldRequest(version=first), HOUR_MS, "training", "me")
    compact(dataset())
    assert Expirer(dataset(), a_clock(), RandomIds()).run(ALL).outcome is ExpiryOutcome.HELD
    maintenance.release(placed)
    assert Expirer(dataset(), a_clock(), RandomIds()).run(ALL).outcome is ExpiryOutcome.EXPIRED
    assert len(fresh(table).snapshots()) == 1
    check(table, rows)


def test_a_process_with_another_setting_refuses_the_table(table: Table, place: Path, tmp_path: Path) -> None:
    here = TableMaintenance(opened(table, place), a_clock(), RandomIds())
    here.hold(HoldRequest(), HOUR_MS, "training", "me")
    with pytest.raises(Refused, match="state of it is not in"):
        dataset_of(table)
    with pytest.raises(Refused, match="state of it is not in"):
        opened(table, tmp_path / "third")
    assert not (tmp_path / "third").exists()
    assert foreign_files(table) == []
    compact(opened(table, f"file://{place}/"))  # another way to write it


def test_a_process_that_runs_on_without_the_setting_stops(table: Table, place: Path) -> None:
    before = dataset_of(table)
    before.load()
    opened(table, place).take_epoch()
    with pytest.raises(Refused, match=r"iceberg\.state_location"):
        before.load()


def test_state_that_lies_beside_the_table_is_moved_first(table: Table, place: Path) -> None:
    compact(dataset_of(table))
    TableMaintenance(dataset_of(table), a_clock(), RandomIds()).hold(HoldRequest(), HOUR_MS, "training", "me")
    with pytest.raises(Refused, match="move that folder to") as refused:
        opened(table, place).take_epoch()
    there = opened(table, place)
    assert recorded_in(fresh(table).metadata).place is None
    folder = root_of(table) / "_lithify" / str(table.metadata.table_uuid)
    target = Path(f"/{there.own_folder}")
    assert str(target) in str(refused.value)
    target.parent.mkdir(parents=True, exist_ok=True)
    folder.rename(target)
    opened(table, place).take_epoch()
    (held,) = TableMaintenance(opened(table, place), a_clock(), RandomIds()).holds()
    assert held.name == "training"


def test_a_folder_elsewhere_that_is_lost_stops_everything(table: Table, place: Path) -> None:
    TableMaintenance(opened(table, place), a_clock(), RandomIds()).hold(HoldRequest(), HOUR_MS, "x", "me")
    place.rename(place.with_name("away"))
    with pytest.raises(Refused, match=f"remove the table's property {PREFIX}place"):
        opened(table, place)
    place.with_name("away").rename(place)
    opened(table, place)
    place.rename(place.with_name("away"))
    with fresh(table).transaction() as change:
        change.remove_properties(f"{PREFIX}place")
    assert Expirer(opened(table, place), a_clock(), RandomIds()).run(ALL).outcome is ExpiryOutcome.STATE_LOST


def test_tables_that_share_a_place_share_nothing(table: Table, place: Path, tmp_path: Path) -> None:
    second = new_table(table.catalog, name=("db", "second"), properties={"lithify.min-saved-files": "1"})
    append(second, make_rows(3))
    copy = new_catalog(tmp_path / "copy")
    folders = {opened(one, place).own_folder for one in (table, second)}
    assert len(folders) == 2
    location = StateLocation(opened(table, place).store, "", {})
    uuid = table.metadata.table_uuid
    ways = {location.folder_of(uuid, way) for way in ("s3://b/t", "s3a://b/t", "s3://b/t/", "s3n://b/t")}
    assert len(ways) == 1
    assert location.folder_of(uuid, "s3://b/copy") not in ways
    assert copy is not table.catalog


@pytest.mark.parametrize("inside", ["", "state", "data", "data/x", "metadata"])
def test_a_place_inside_the_table_outlives_the_removal_of_orphans(table: Table, inside: str) -> None:
    place = root_of(table) / inside
    maintenance = TableMaintenance(opened(table, place), a_clock(), RandomIds())
    held = maintenance.hold(HoldRequest(), 240 * HOUR_MS, "x", "me")
    opened(table, place).take_epoch()
    Expirer(opened(table, place), a_clock(), RandomIds()).run(ExpireOptions(ALL.older_than_ms))
    before = {path for path in place.rglob("_lithify-state/**/*.json") if "now" not in path.name}
    age_files(root_of(table), 4 * 24 * 3600)
    dataset = opened(table, place)
    found = remove_orphans(dataset, a_clock(), RandomIds(), OrphanOptions(dry_run=False, max_percent=100))
    collect(dataset, a_clock(), GarbageOptions(min_age_ms=0, dry_run=False, max_percent=100))
    assert not [path for path in found.paths if "_lithify-state" in path]
    assert before
    assert all(path.exists() for path in before)
    assert TableMaintenance(dataset, a_clock(), RandomIds()).holds()[0].name == held.name


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("state", "relative"),
        ("../state", "relative"),
        ("./state", "relative"),
        ("file:state", "relative|no absolute path"),
        ("file://host/state", "contains a host"),
        ("ftp://host/state", "scheme 'ftp' is not known"),
        ("http://169.254.169.254/state", "scheme 'http' is not known"),
        ("iceberg://lake/db.events", "scheme 'iceberg' is not known"),
        ("kafka+s3://b/state", "is not known"),
        ("s3://b/../other", "iceberg.state_location"),
        ("s3://b/a/./c", "iceberg.state_location"),
        ("s3://b/a//c", "iceberg.state_location"),
        ("s3://", "names no bucket"),
        ("s3://b/x?y=z", "'\\?'"),
        ("s3://b/x#y", "'#'"),
        ("C:\\state", "Windows"),
    ],
)
def test_what_is_no_place_is_refused_before_anything_is_written(table: Table, value: str, says: str) -> None:
    before = fresh(table).metadata_location
    with pytest.raises(Refused, match=says):
        opened(table, value)
    assert fresh(table).metadata_location == before
    assert foreign_files(table) == []


def test_the_clock_of_the_place_may_be_ahead_of_the_tables(table: Table, place: Path) -> None:
    """Ages of the table's files are told by another clock than theirs."""
    dataset = opened(table, place)
    dataset.take_epoch()
    age_files(place, 2 * 3600)
    orphan = orphan_of(table)
    age_files(orphan.parent, 3600 + 600)
    options = GarbageOptions(dry_run=False, max_percent=100)
    collect(dataset, a_clock(), options)
    assert orphan.exists(), "it may be of an hour ago in truth, or younger"
    age_files(orphan.parent, 600)
    collect(dataset, a_clock(), options)
    assert not orphan.exists()


def test_the_setting_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    table = new_table(new_catalog(tmp_path, name="lake"))
    sets = [f"store_options.uri=sqlite:///{tmp_path}/catalog.db", f"iceberg.state_location={place}"]
    dataset = wiring.open_dataset(
        f"iceberg://lake/{table.name()[0]}.{table.name()[1]}", load_settings(None, sets).config
    )
    assert isinstance(dataset, IcebergDataset)
    assert dataset.own_folder.startswith(str(place)[1:])


def test_an_option_of_the_place_wins_over_the_catalogs(table: Table) -> None:
    table.catalog.properties.update(
        {"s3.region": "of-the-catalog", "s3.access-key-id": "a", "s3.secret-access-key": "b"}
    )
    location = open_state_location(
        "s3://other/lithify", table.catalog, {"aws_region": "of-the-place", "uri": "x"}
    )
    assert location.task_options["aws_region"] == "of-the-place"
    assert location.task_options["aws_access_key_id"] == "a"
    assert "uri" not in location.task_options
    assert (location.store.url, location.key) == ("s3://other", "lithify")
