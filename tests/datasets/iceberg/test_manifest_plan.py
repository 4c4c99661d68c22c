"""Which manifests are worth writing anew: each reason, and that nothing is left to do afterwards, whatever
they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.datasets.iceberg.format.manifest_plan import Facts, ManifestPlan, RewriteReason, plan_manifests

TARGET = 100
DATA = (0, "DATA")


def manifest(
    path: str,
    low: int = 0,
    high: int | None = None,
    *,
    size: int = TARGET,
    live: int | None = 50,
    deleted: int = 0,
    kind: tuple[int, str] = DATA,
) -> Facts:
    return Facts(path, kind, size, live, deleted, (1, low), (1, low if high is None else high))


def planned(*manifests: Facts) -> ManifestPlan:
    return plan_manifests(manifests, TARGET)


def groups(plan: ManifestPlan) -> list[tuple[str, ...]]:
    return [group.manifests for group in plan.groups]


def test_what_is_whole_and_in_order_stays() -> None:
    assert (
        planned(manifest("a", 0, 3), manifest("b", 3, 5), manifest("c", 5), manifest("d", 5, 9)).manifests
        == 0
    )


def test_small_neighbours_are_merged_and_a_single_one_is_not() -> None:
    plan = planned(
        manifest("a", 0, size=10), manifest("b", 1, size=49), manifest("c", 2), manifest("d", 3, size=10)
    )
    assert (groups(plan), plan.new, plan.reasons) == ([("a", "b")], 1, {RewriteReason.SMALL: 2})


def test_overlapping_ones_are_written_anew_with_small_ones_beside_them() -> None:
    plan = planned(
        manifest("a", 0, 5),
        manifest("b", 4, 9),
        manifest("c", 9, size=20),
        manifest("d", 10),
        manifest("e", 7),
    )
    assert groups(plan) == [("a", "b", "e", "c")]
    assert plan.reasons == {RewriteReason.OVERLAPPING: 3, RewriteReason.SMALL: 1}
    assert plan.new == 4


def test_what_shares_an_edge_does_not_overlap() -> None:
    assert (
        planned(manifest("a", 0, 5), manifest("b", 5, 5), manifest("c", 5, 7), manifest("d", 0)).overlapping
        == 0
    )


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ([(0, 9), (1, 3), (2, 4)], 3),
        ([(0, 9), (1, 3), (3, 4)], 2),
        ([(0, 9), (3, 3), (3, 3), (5, 5)], 3),
        ([(0, 2), (1, 3), (2, 4)], 2),
    ],
)
def test_how_many_overlap_in_one_value(bounds: Sequence[tuple[int, int]], expected: int) -> None:
    manifests = [manifest(str(n), *both) for n, both in enumerate(bounds)]
    assert plan_manifests(manifests, TARGET).overlapping == expected


def test_deleted_entries_are_a_reason_when_they_are_many() -> None:
    few, many = manifest("a", 0, live=91, deleted=9), manifest("b", 1, live=90, deleted=10)
    plan = planned(few, many)
    assert (groups(plan), plan.reasons) == ([("b",)], {RewriteReason.DELETED: 1})
    unknown = replace(many, live=None)
    assert planned(unknown).manifests == 0


def test_without_live_entries_they_are_left_out() -> None:
    plan = planned(manifest("a", live=0, deleted=3), manifest("b"))
    assert (plan.empty, plan.groups, plan.manifests, plan.new) == (("a",), (), 1, 0)


def test_kinds_are_kept_apart() -> None:
    kinds = [DATA, (0, "DELETES"), (1, "DATA")]
    small = [manifest(f"{n}{kind}", size=10, kind=kind) for kind in kinds for n in range(2)]
    plan = plan_manifests(small, TARGET)
    assert [group.kind for group in plan.groups] == sorted(kinds)
    assert {len(group.manifests) for group in plan.groups} == {2}


def test_what_is_worth_it_unasked() -> None:
    small = planned(*(manifest(str(n), n, size=10) for n in range(20)))
    assert (small.is_worth(20), small.is_worth(21)) == (True, False)
    overlapping = planned(*(manifest(str(n), 0, 9) for n in range(10)))
    assert overlapping.is_worth(100)


# Whatever they are


@st.composite
def heads(draw: st.DrawFn) -> list[list[int]]:
    """For each manifest the values of its live entries."""
    return draw(st.lists(st.lists(st.integers(0, 12), min_size=0, max_size=12), max_size=14))


def facts_of(number: int, values: Sequence[int], deleted: int) -> Facts:
    """Ten bytes for each entry."""
    low, high = (min(values), max(values)) if values else (0, 0)
    size = 10 * (len(values) + deleted)
    return manifest(f"{number:03}", low, high, size=size, live=len(values), deleted=deleted)


@given(heads(), st.lists(st.integers(0, 3), min_size=14, max_size=14), st.sets(st.integers(0, 13)))
def test_nothing_is_left_to_do_afterwards(
    head: list[list[int]], deleted: list[int], uncounted: set[int]
) -> None:
    """Groups are written as `manifest_merge` does: in order, to manifests of the target size. Of some of them
    the list does not say how many entries they have."""
    manifests = [facts_of(n, values, deleted[n]) for n, values in enumerate(head)]
    manifests = [replace(m, live=None, deleted=0) if n in uncounted else m for n, m in enumerate(manifests)]
    contents = {one.path: values for one, values in zip(manifests, head, strict=True)}
    plan = plan_manifests(manifests, TARGET)
    gone = {*plan.empty, *(path for group in plan.groups for path in group.manifests)}
    assert plan.manifests == len(gone)
    after = [one for one in manifests if one.path not in gone]
    for group in plan.groups:
        values = sorted(value for path in group.manifests for value in contents[path])
        for start in range(0, len(values), TARGET // 10):
            new = facts_of(1000 + len(after), values[start : start + TARGET // 10], 0)
            contents[new.path] = values[start : start + TARGET // 10]
            after.append(new)
    left = Counter(value for one in after for value in contents[one.path])
    assert left == Counter(value for values in head for value in values)
    assert plan_manifests(after, TARGET).manifests == 0
