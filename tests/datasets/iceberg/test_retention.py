"""What the policy of a table lets go: the rules of Java Iceberg's `RemoveSnapshots`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Snapshot

from lithify.base.errors import Refused
from lithify.datasets.iceberg.io.places import key_of
from lithify.datasets.iceberg.maintenance.expiry_policy import (
    DEFAULT_MAX_AGE_MS,
    Expirable,
    expirable,
    low_watermark,
    may_expire,
    retention_of,
)
from lithify.datasets.iceberg.maintenance.reachable import Names, is_deletable
from tests.datasets.iceberg.tables import new_catalog, new_table

HOUR = 3_600_000
NOW = 100 * 24 * HOUR


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> TableMetadata:
    catalog: SqlCatalog = new_catalog(tmp_path_factory.mktemp("retention"))
    return new_table(catalog).metadata


def ref(snapshot_id: int, kind: str = "branch", **settings: Any) -> SnapshotRef:
    fields = {name.replace("_", "-"): value for name, value in settings.items()}
    return SnapshotRef.model_validate({"snapshot-id": snapshot_id, "type": kind, **fields})


def history(
    empty: TableMetadata, ages: dict[int, tuple[int | None, int]], **refs: SnapshotRef
) -> TableMetadata:
    """Snapshots with their parents and how many hours old they are."""
    snapshots = [
        Snapshot.model_validate(
            {
                "snapshot-id": snapshot_id,
                "parent-snapshot-id": parent,
                "timestamp-ms": NOW - hours * HOUR,
                "manifest-list": f"list-{snapshot_id}",
            }
        )
        for snapshot_id, (parent, hours) in ages.items()
    ]
    return empty.model_copy(update={"snapshots": snapshots, "refs": refs})


LINE = {1: (None, 9), 2: (1, 8), 3: (2, 7), 4: (3, 6), 5: (4, 5)}


def gone(metadata: TableMetadata, properties: dict[str, str] | None = None, **options: int) -> set[int]:
    return set(expirable(metadata, retention_of(properties or {}, NOW, **options)).snapshots)


def test_five_days_are_kept_unless_somebody_says_otherwise(empty: TableMetadata) -> None:
    assert DEFAULT_MAX_AGE_MS == 5 * 24 * HOUR
    old = {1: (None, 122), 2: (1, 121), 3: (2, 120), 4: (3, 1)}
    assert gone(history(empty, old, main=ref(4))) == {1, 2}
    age = {"history.expire.max-snapshot-age-ms": str(7 * HOUR)}
    assert gone(history(empty, LINE, main=ref(5)), age) == {1, 2}
    assert gone(history(empty, LINE, main=ref(5)), age, older_than_ms=NOW - 6 * HOUR) == {1, 2, 3}


def test_the_newest_stay_however_old(empty: TableMetadata) -> None:
    line = history(empty, LINE, main=ref(5))
    assert gone(line, older_than_ms=NOW) == {1, 2, 3, 4}
    assert gone(line, {"history.expire.min-snapshots-to-keep": "3"}, older_than_ms=NOW) == {1, 2}
    assert gone(line, {"history.expire.min-snapshots-to-keep": "3"}, older_than_ms=NOW, retain_last=2) == {
        1,
        2,
        3,
    }
    assert gone(line, older_than_ms=NOW, retain_last=9) == set()


def test_the_first_old_one_ends_a_branch_though_one_before_it_is_younger(empty: TableMetadata) -> None:
    skewed = {1: (None, 4), 2: (1, 8), 3: (2, 3)}
    assert gone(history(empty, skewed, main=ref(3)), older_than_ms=NOW - 5 * HOUR) == {1, 2}


def test_a_branch_has_its_own_retention_a_tag_keeps_one(empty: TableMetadata) -> None:
    forked = {**LINE, 6: (2, 6), 7: (6, 5)}
    other = ref(7, min_snapshots_to_keep=2, max_snapshot_age_ms=HOUR)
    assert gone(history(empty, forked, main=ref(5), other=other), older_than_ms=NOW) == {1, 2, 3, 4}
    long = ref(7, max_snapshot_age_ms=8 * HOUR)
    assert gone(history(empty, forked, main=ref(5), other=long), older_than_ms=NOW) == {1, 3, 4}
    assert gone(history(empty, LINE, main=ref(5), tag=ref(2, "tag")), older_than_ms=NOW) == {1, 3, 4}


def test_refs_grow_too_old_but_main_does_not(empty: TableMetadata) -> None:
    metadata = history(empty, LINE, main=ref(4), tag=ref(2, "tag", max_ref_age_ms=8 * HOUR), b=ref(5))
    assert expirable(metadata, retention_of({}, NOW)).refs == ()
    for own, refs in ((7 * HOUR, ("tag",)), (8 * HOUR, ())):
        metadata = history(empty, LINE, main=ref(4), tag=ref(2, "tag", max_ref_age_ms=own))
        assert expirable(metadata, retention_of({}, NOW)).refs == refs
    metadata = history(empty, LINE, main=ref(1), tag=ref(2, "tag"), b=ref(5), ghost=ref(99, "tag"))
    found = expirable(metadata, retention_of({"history.expire.max-ref-age-ms": str(6 * HOUR)}, NOW))
    assert found.refs == ("ghost", "tag")


def test_what_no_ref_reaches_goes_by_age(empty: TableMetadata) -> None:
    staged = {**LINE, 8: (3, 3), 9: (3, 1)}
    assert gone(history(empty, staged, main=ref(5)), older_than_ms=NOW - 2 * HOUR) == {1, 2, 3, 4, 8}
    assert gone(history(empty, staged), older_than_ms=NOW - 6 * HOUR) == {1, 2, 3}


def test_the_low_watermark_is_just_past_what_goes(empty: TableMetadata) -> None:
    line = history(empty, LINE, main=ref(5))
    assert low_watermark(line, Expirable(), NOW) is None
    assert low_watermark(line, Expirable(frozenset({1, 3})), NOW) == NOW - 7 * HOUR + 1
    assert low_watermark(line, Expirable(frozenset({1, 3})), NOW - 9 * HOUR) == NOW - 9 * HOUR


def test_the_low_watermark_is_past_what_that_descends_from(empty: TableMetadata) -> None:
    """Where a clock went back: else the older parent would keep its child, which the policy lets go."""
    line = history(empty, {1: (None, 7), 2: (1, 8), 3: (2, 5)}, main=ref(3), tag=ref(1, "tag"))
    assert low_watermark(line, Expirable(frozenset({2})), NOW) == NOW - 7 * HOUR + 1
    line = history(empty, {1: (None, 7), 2: (1, 9), 3: (2, 8)}, main=ref(3), tag=ref(1, "tag"))
    headed = line.model_copy(update={"current_snapshot_id": 3})
    assert low_watermark(headed, Expirable(frozenset({2})), NOW) == NOW - 8 * HOUR


@pytest.mark.parametrize(
    "properties",
    [
        {"history.expire.max-snapshot-age-ms": "soon"},
        {"history.expire.max-snapshot-age-ms": "-1"},
        {"history.expire.min-snapshots-to-keep": "0"},
        {"history.expire.max-ref-age-ms": "1e9"},
    ],
)
def test_properties_without_meaning_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(Refused, match=r"history\.expire"):
        retention_of(properties, NOW)


def test_gc_enabled_as_java_reads_it() -> None:
    assert may_expire({})
    assert may_expire({"gc.enabled": "TRUE"})
    assert not may_expire({"gc.enabled": "no"})


# Paths


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("s3://b/t/data/x", "s3a://b/t/data/x", True),
        ("s3://b/t/data/x", "s3://b/t//data/./y/../x", True),
        ("s3://b/t/d=Z%C3%BC/x", "s3://b/t/d=Zü/x", True),
        ("file:///t/x", "file:/t/x", True),
        ("file:///t/x", "/t/x", True),
        ("s3://b/t/x", "s3://b/t/X", False),
        ("s3://b/t/x", "s3://b/t/data/x", False),
    ],
)
def test_paths_of_the_same_file(one: str, other: str, is_same: bool) -> None:
    assert (key_of(one) == key_of(other)) is is_same


def test_what_is_the_tables_to_delete(empty: TableMetadata, tmp_path: Path) -> None:
    root = empty.location
    assert is_deletable(f"{root}/data/a.parquet", empty)
    assert is_deletable(f"{root}/metadata/snap-1.avro", empty)
    assert not is_deletable(f"{root}2/data/a.parquet", empty)
    assert not is_deletable(f"{root}/../other/data/a.parquet", empty)
    assert not is_deletable(f"{root}/_lithify/x/lineage.json", empty)
    assert not is_deletable(f"{tmp_path}/data/a.parquet", empty)


@pytest.mark.parametrize("odd", ["a#1", "a?b", "a*", "a[b]", "a\tb", "a\rb", "a\nb"])
def test_what_can_be_taken_for_another_file_is_not_deleted(empty: TableMetadata, odd: str) -> None:
    assert not is_deletable(f"{empty.location}/data/{odd}.parquet", empty)


def test_a_needed_path_keeps_what_pyiceberg_makes_of_it(tmp_path: Path) -> None:
    names = Names("s3://b/t")
    names.add("s3://b/t/data/a.parquet#1")
    names.add("s3://b/t/data/c\td.parquet")
    assert names.has("s3://b/t/data/a.parquet")
    assert names.has("s3://b/t/data/cd.parquet")
    assert not names.has("s3://b/t/data/b.parquet")
    names.add("s3://other/t/data/far.parquet")
    assert names.has("s3://b/t/elsewhere/far.parquet"), "a folder may have two names"
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    local = Names(tmp_path.as_uri())
    local.add(f"{tmp_path.as_uri()}/real/a.parquet")
    assert local.has(f"{tmp_path.as_uri()}/link/a.parquet")
