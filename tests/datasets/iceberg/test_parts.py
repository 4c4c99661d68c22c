"""Each part of maintenance has preconditions of its own: one that is not met stops that part alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

import lithify
from lithify.api.client import Dataset
from lithify.base import events
from lithify.base.errors import Refused
from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.maintenance.expire import ExpireOptions, Expirer, ExpiryOutcome
from lithify.datasets.iceberg.maintenance.orphans import OrphanOptions, remove_orphans
from lithify.testing.engine import InlineEngine
from tests.datasets.iceberg.running import Steps, a_clock, dataset_of
from tests.datasets.iceberg.tables import (
    age_files,
    append,
    fresh,
    make_rows,
    named_paths,
    new_catalog,
    new_table,
    read,
    read_by_duckdb,
    read_by_java,
    set_version,
)
from tests.datasets.iceberg.test_expire import ids_of, on_disk, six_snapshots

NO_TIMES = Schema(
    NestedField(1, "id", LongType(), required=False), NestedField(2, "name", StringType(), required=False)
)
FILES = 3
AT_ONCE = {"history.expire.max-snapshot-age-ms": "0"}
URL = "iceberg://lake/db.events"
DOCS = Path(__file__).parents[3] / "docs" / "iceberg.md"


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SqlCatalog:
    """An empty catalog that is configured as `lake`."""
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    return new_catalog(tmp_path, name="lake")


def opened(lake: SqlCatalog, **settings: str) -> Dataset:
    """The table as programs open it."""
    options = {"store_options.uri": lake.properties["uri"], **settings}
    return lithify.open(URL, settings=options, engine=InlineEngine())


def without_times(lake: SqlCatalog, axis: str = "time", **properties: str) -> Table:
    """A table without a time column, of as many snapshots as files, whose policy requires one."""
    table = new_table(lake, schema=NO_TIMES, properties={"lithify.axis": axis, **properties})
    for n in range(FILES):
        fresh(table).append(pa.table({"id": pa.array([n]), "name": pa.array(["a"])}))
    return table


def of_version(lake: SqlCatalog, version: int, **properties: str) -> Table:
    """A table of that format version, of six snapshots."""
    table = new_table(lake, properties={"format-version": str(min(version, 2))})
    six_snapshots(table)
    with fresh(table).transaction() as change:
        change.set_properties(properties)
    if version > 2:
        set_version(table, version)
    return table


def test_maintain_does_all_but_what_is_refused(lake: SqlCatalog) -> None:
    table = without_times(lake, **AT_ONCE)
    before = fresh(table).scan().to_arrow().sort_by("id")
    with opened(lake) as dataset:
        done = dataset.maintain()
        with pytest.raises(Refused, match="no timestamp and no date column"):
            dataset.compact()
        with pytest.raises(Refused, match="no timestamp and no date column"):
            dataset.submit(full=True)
    document: dict[str, Any] = dict(done.document)
    assert not done.is_done
    assert document["data"]["outcome"] == "refused"
    assert "no timestamp and no date column" in document["data"]["why"]
    assert list(done.errors) == ["data"]
    assert document["expiry"]["outcome"] == "expired"
    assert (document["deletes"]["outcome"], document["manifests"]["outcome"]) == (
        "nothing_to_do",
        "rewritten",
    )
    assert document["files"]["garbage"] == []
    assert len(ids_of(table)) == 1
    assert fresh(table).scan().to_arrow().sort_by("id") == before


def test_a_table_without_a_time_column_is_maintained_like_any_other(lake: SqlCatalog) -> None:
    table = without_times(lake, "auto", **AT_ONCE)
    before = fresh(table).scan().to_arrow().sort_by("id")
    with opened(lake) as dataset:
        status, plan = dataset.show_status(), dataset.plan()
        assert status.document["refused"] == plan.document["refused"] == {}
        assert [chunk["name"] for chunk in plan.document["chunks"]] == ["(files)"]
        assert plan.document["starts"] == ["0:@null"]
        done = dataset.maintain()
        assert done.is_done
        assert not dataset.compact().document["did_anything"]
        with pytest.raises(Refused, match="nothing to compact"):
            dataset.submit(full=True)
        status = dataset.show_status()
    assert len(done.document["data"]["committed"]) == 1
    assert done.document["expiry"]["outcome"] == "expired"
    assert status.document["table"]["files"] == 1
    assert fresh(table).scan().to_arrow().sort_by("id") == before


def test_data_that_are_left_out_refuse_nothing(lake: SqlCatalog) -> None:
    without_times(lake, **AT_ONCE, **{"lithify.skip-parts": "data"})
    with opened(lake) as dataset:
        done = dataset.maintain()
    assert done.is_done
    assert done.document["data"] is None


def with_two_branches(lake: SqlCatalog) -> Table:
    table = of_version(lake, 2)
    with fresh(table).manage_snapshots() as changes:
        changes.create_branch(ids_of(table)[0], "side")
    return table


NOT_WRITTEN = {"data", "deletes", "manifests"}
ENCRYPTED = {"encryption.key-id": "k"}
ALL = {*NOT_WRITTEN, "expiry", "orphans"}
CASES: dict[str, tuple[Callable[[SqlCatalog], Table], set[str]]] = {
    "format version 1": (lambda lake: of_version(lake, 1), set()),
    "format version 2": (lambda lake: of_version(lake, 2), set()),
    "format version 3": (lambda lake: of_version(lake, 3), set()),
    "no time column": (lambda lake: without_times(lake, "auto"), set()),
    "no time column, but `lithify.axis=time`": (without_times, {"data"}),
    "an invalid `lithify.…` property": (
        lambda lake: of_version(lake, 2, **{"lithify.granularity": "fortnight"}),
        {"data"},
    ),
    "`write.format.default` is not Parquet": (
        lambda lake: of_version(lake, 2, **{"write.format.default": "orc"}),
        {"data"},
    ),
    "a `write.…` property that cannot be followed": (
        lambda lake: of_version(lake, 2, **{"write.parquet.compression-codec": "none such"}),
        NOT_WRITTEN,
    ),
    "several branches, none chosen": (with_two_branches, NOT_WRITTEN),
    "encrypted, version 1 or 2": (
        lambda lake: of_version(lake, 2, **{"encryption.key-id": "k"}),
        NOT_WRITTEN,
    ),
    "encrypted, version 3": (lambda lake: of_version(lake, 3, **{"encryption.key-id": "k"}), ALL),
}


@pytest.mark.parametrize("name", CASES)
def test_status_and_plan_say_which_parts_are_refused(lake: SqlCatalog, name: str) -> None:
    make, refused = CASES[name]
    make(lake)
    with opened(lake) as dataset:
        status, plan = dataset.show_status(), dataset.plan()
        assert dataset.history() == ()
    for document in (status.document, plan.document):
        assert set(document["refused"]) == refused
        assert all(why.startswith(URL) for why in document["refused"].values())
        assert document["table"]["files"] == FILES
        assert document["table"]["rows"] > 0
        assert sum(total["files"] for total in document["totals"].values()) == FILES
    assert (plan.document["history"]["outcome"] is None) == ("expiry" in refused)
    assert bool(plan.notes) == bool(refused)
    cells = ("no" if part in status.document["refused"] else "yes" for part in sorted(ALL))
    assert f"| {name} | {' | '.join(cells)} |" in DOCS.read_text().splitlines(), "as the documents say"


def test_a_coordinator_sees_to_the_rest_and_says_why_once(lake: SqlCatalog) -> None:
    table = without_times(lake)
    heard: list[events.Event] = []
    steps = Steps(dataset_of(table))
    steps.coordinator._observe = heard.append
    for _ in range(3):
        assert steps.coordinator.tick().is_idle
        steps.worker.tick()
    (said,) = [event for event in heard if isinstance(event, events.CannotCompact)]
    assert "no timestamp and no date column" in said.reason
    with fresh(table).update_schema() as change:
        change.add_column("at", TimestamptzType())
    steps.coordinator.tick()
    assert isinstance(heard[-1], events.CanCompact)


def test_what_was_rewritten_before_the_table_was_changed_waits(lake: SqlCatalog) -> None:
    table = new_table(lake)
    rows = [row for _ in range(6) for row in append(table, make_rows(5))]
    steps = Steps(dataset_of(table))
    steps.schedule()
    steps.execute()
    with fresh(table).transaction() as change:
        change.set_properties({"lithify.time-column": "when"})
    with pytest.raises(Refused, match="time column 'when' does not exist"):
        steps.commit()
    assert len(read(table)) == len(rows)
    status = steps.dataset.snapshot()
    assert "when" in status.refusal, "all else goes on"
    with fresh(table).transaction() as change:
        change.set_properties({"lithify.time-column": "event_time"})
    assert steps.commit().committed
    assert len(read(table)) == len(rows)


def test_version_1_is_expired_and_swept(catalog: SqlCatalog) -> None:
    table = six_snapshots(new_table(catalog, properties={"format-version": "1"}))
    rows, newest = read(table), ids_of(table)[-1:]
    with fresh(table).manage_snapshots() as changes:
        changes.create_tag(ids_of(table)[2], "kept")
    kept = ids_of(table)[2]
    orphan = Path(table.location().removeprefix("file://")) / "data" / "left.parquet"
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"left")
    found = Expirer(dataset_of(table), a_clock(), RandomIds()).run(
        ExpireOptions(grace_ms=0, older_than_ms=1 << 62)
    )
    assert found.outcome is ExpiryOutcome.EXPIRED
    assert ids_of(table) == [kept, *newest]
    assert fresh(table).metadata.format_version == 1
    Expirer(dataset_of(table), a_clock(), RandomIds()).run(ExpireOptions(grace_ms=0))
    age_files(Path(table.location().removeprefix("file://")), 10 * 86400)
    removed = remove_orphans(dataset_of(table), a_clock(), RandomIds(), OrphanOptions(dry_run=False))
    assert (removed.deleted, removed.paths) == (1, [orphan.as_uri()])
    assert on_disk(table) == named_paths(table)
    assert read(table) == rows == read_by_duckdb(table) == read_by_java(table)
    assert read(table, kept) == read_by_java(table, kept)
