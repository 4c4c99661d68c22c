"""Which delete files apply to nothing, and which are merged: each rule of the plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lithify.datasets.iceberg.format.partitions import place
from lithify.datasets.iceberg.rewriting.delete_plan import (
    MAX_ROWS,
    DataFacts,
    DeleteFacts,
    DeletePlan,
    plan_deletes,
)

A, B = (0, ("a",)), (0, ("b",))


def delete(path: str, *, rows: int = 10, number: int = 5, only: str | None = None) -> DeleteFacts:
    low, high = (only, only) if only is not None else ("a1", "a9")
    return DeleteFacts(
        path, A, is_global=False, is_equality=False, number=number, rows=rows, only=only, low=low, high=high
    )


def equality(path: str, number: int, *, is_global: bool = False) -> DeleteFacts:
    return DeleteFacts(path, A, is_global=is_global, is_equality=True, number=number, rows=1)


def data() -> DataFacts:
    """Two files in one partition, one in another."""
    found = DataFacts()
    found.add("a1", A, 3)
    found.add("a5", A, 4)
    found.add("b1", B, 2)
    return found


def planned(*deletes: DeleteFacts, busy: str | None = None, by_partition: bool = False) -> DeletePlan:
    paths = {busy} - {None}
    places = {A if path == "a1" else B for path in paths}
    return plan_deletes(deletes, data(), filter(None, paths), places, by_partition=by_partition)


@pytest.mark.parametrize(
    ("one", "dangles"),
    [
        (delete("d", only="a1"), False),
        (delete("d", only="a1", number=3), False),  # deletes of the same commit apply
        (delete("d", only="a1", number=2), True),
        (delete("d", only="b1"), False),  # of another partition, and it says which file it is for
        (delete("d", only="gone"), True),
        (delete("d", number=3), False),
        (delete("d", number=2), True),
        (replace(delete("d"), low="a2", high="a4"), True),
        (replace(delete("d"), low="a2", high="a5"), False),
        (replace(delete("d"), low="a6", high="z"), True),
        (replace(delete("d"), low=None), False),
        (equality("d", 4), False),
        (equality("d", 3), True),  # those of the same commit do not apply
        (equality("d", 3, is_global=True), False),  # to a file of the other partition
        (equality("d", 2, is_global=True), True),
    ],
)
def test_what_dangles(one: DeleteFacts, dangles: bool) -> None:
    assert planned(one).dangling == (("d",) if dangles else ())


def test_what_is_merged_keeps_its_scope() -> None:
    deletes = [
        delete("d1", only="a1"),
        delete("d2", only="a1"),
        delete("d3", only="a5"),
        delete("d4"),
        delete("d5"),
    ]
    assert set(planned(*deletes).merges) == {("d1", "d2"), ("d4", "d5")}


def test_by_partition_all_are_merged_but_for_other_partitions_files() -> None:
    deletes = [delete("d1", only="a1"), delete("d2", only="a5"), delete("d3"), delete("d4", only="b1")]
    (merge,) = planned(*deletes, by_partition=True).merges
    assert set(merge) == {"d1", "d2", "d3"}


def test_large_ones_and_what_cannot_be_merged_stay() -> None:
    large, odd = delete("d1", rows=MAX_ROWS // 2), replace(delete("d2"), can_merge=False)
    assert planned(large, odd, delete("d3")).rewritten == 0


def test_merged_files_have_at_most_so_many_rows() -> None:
    deletes = [delete(f"d{n}", rows=MAX_ROWS // 4) for n in range(6)]
    assert [len(merge) for merge in planned(*deletes).merges] == [4, 2]


@pytest.mark.parametrize(("busy", "left"), [("a1", {"d2"}), ("b1", {"d1", "d2", "d3"})])
def test_what_compactions_apply_is_left_to_them(busy: str, left: set[str]) -> None:
    """All of these dangle or could be merged, but for that."""
    deletes = [
        delete("d1", only="a1", number=1),
        delete("d2", only="gone"),
        replace(delete("d3"), low="a2", high="a4"),
    ]
    assert set(planned(*deletes, busy=busy).dangling) == left


def test_global_equality_deletes_wait_for_every_compaction() -> None:
    assert planned(equality("d", 2, is_global=True), busy="b1").rewritten == 0
    assert planned(equality("d", 3), busy="b1").rewritten == 1


def test_partitions_of_floats() -> None:
    nan, zero, minus = (place(0, [value]) for value in (float("nan"), 0.0, -0.0))
    assert place(0, [float("nan")]) == nan
    assert len({nan, zero, minus}) == 3
