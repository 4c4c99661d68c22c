"""A slice of the random tables of any kind (`make tables` plays ten thousand), and damage that is found."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

from tests.datasets.iceberg import any_shapes as shapes
from tests.datasets.iceberg.any_random import Lake, Subject, a_lake, play
from tests.judge.iceberg_java import IcebergJava

SEEDS = range(1, 7)


@pytest.fixture(scope="module")
def lake(java: IcebergJava, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Catalogs for all tables here."""
    with a_lake(tmp_path_factory.mktemp("any")) as made:
        yield made


@pytest.mark.parametrize("seed", SEEDS)
def test_all_readers_read_what_they_read_before(lake: Lake, seed: int) -> None:
    counts = play(lake, seed)
    assert counts["snapshots read by Java"]
    assert any(name.startswith("Lithify: data: ") for name in counts)


def a_subject(lake: Lake, name: str, version: int) -> Subject:
    """A table of three commits from which rows 1 and 2 are deleted."""
    rng = random.Random(name)
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "tenant", StringType()),
        NestedField(3, "x", DoubleType()),
    )
    properties = {"format-version": str(version), **shapes.PROPERTIES}
    shape = shapes.Shape(
        version, (), False, schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, properties
    )
    subject = Subject(lake, name, shape, rng)
    for first in (1, 5, 9):
        subject.append([[shapes.row(rng, schema, n) for n in range(first, first + 4)]])
    subject.delete([1, 2])
    subject.judge.learn(subject.table)
    return subject


def lose(subject: Subject) -> None:
    subject.delete([7])


def duplicate(subject: Subject) -> None:
    subject.sql("INSERT INTO events SELECT * FROM events WHERE id = 7")


def resurrect(subject: Subject) -> None:
    first = min(subject.table.snapshots(), key=lambda s: s.sequence_number or 0)
    subject.sql(f"INSERT INTO events SELECT * FROM events VERSION AS OF {first.snapshot_id} WHERE id = 1")


def renumber(subject: Subject) -> None:
    subject.sql("INSERT OVERWRITE events SELECT * FROM events")


def change(subject: Subject) -> None:
    subject.sql("UPDATE events SET x = 77 WHERE id = 7")


def delete_a_file(subject: Subject) -> None:
    folder = Path(subject.table.location().removeprefix("file:").removeprefix("//"), "data")
    next(folder.glob("java-*.parquet")).unlink()


def add_a_branch(subject: Subject) -> None:
    first = min(subject.table.snapshots(), key=lambda s: s.sequence_number or 0)
    with subject.table.manage_snapshots() as refs:
        refs.create_branch(first.snapshot_id, "new")


@pytest.mark.parametrize(
    ("damage", "version", "found"),
    [
        (lose, 2, "Java: too many: 0 rows, .*missing: 1 rows"),
        (lose, 3, "Java: too many: 0 rows, .*missing: 1 rows"),
        (duplicate, 2, "Java: too many: 1 rows, .*missing: 0 rows"),
        (duplicate, 3, "Java: too many: 1 rows, .*missing: 0 rows"),
        (resurrect, 2, "Java: too many: 1 rows, .*missing: 0 rows"),
        (resurrect, 3, "Java: too many: 1 rows, .*missing: 0 rows"),
        (change, 2, "Java: too many: 1 rows, .*missing: 1 rows"),
        (renumber, 3, "Java: too many: 10 rows, .*missing: 10 rows"),
        (delete_a_file, 3, "files of a snapshot are gone"),
        (add_a_branch, 2, "no branch or tag is new"),
    ],
)
def test_damage_is_found(
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Subject], None],
    version: int,
    found: str,
) -> None:
    """The damage is done in place of a compaction."""
    subject = a_subject(lake, f"{damage.__name__}{version}", version)

    def compact(_: Subject, what: str) -> str:
        damage(subject)
        return "compacted"

    monkeypatch.setattr(Subject, "_run", compact)
    with pytest.raises(AssertionError, match=found):
        subject.operate("data")
