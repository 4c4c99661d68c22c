"""The user's functions: loading them, folding with them, filtering with them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from lithify.base.errors import Refused
from lithify.datasets.slatedb.compaction.task import RowRules, SstOptions
from lithify.datasets.slatedb.hooks import Drop, FilterContext, FilterDecision, Keep, Modify, Row, RowKind
from tests.datasets.slatedb.merging import CONCATENATE, LAST_RUN, Bench, delete, merge, put
from tests.judge import sst

FOLD = replace(LAST_RUN, merge_operator=CONCATENATE, retention_min_seq=50, clock_tick_ms=1000)


def filter_by_value(row: Row) -> FilterDecision:
    """Does what the value says."""
    match row.value:
        case b"drop":
            return Drop()
        case b"bury":
            return Modify(None)
        case b"change":
            return Modify(b"changed" + str(row.kind.value).encode())
        case None:
            return Drop() if row.key == b"gone" else Keep()
    return Keep()


seen: list[Row] = []


def remember(row: Row) -> FilterDecision:
    seen.append(row)
    return Keep()


def not_bytes(key: bytes, existing: bytes | None, operand: bytes) -> str:
    return "text"


def fails(*arguments: object) -> None:
    raise KeyError("user's mistake")


def ends(*arguments: object) -> None:
    sys.exit("user's mistake")


def no_decision(row: Row) -> bool:
    return True


def here(name: str) -> str:
    return f"{__name__}:{name}"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([merge(b"a", 40, b"2"), merge(b"a", 30, b"1"), put(b"a", 20, b"0")], [put(b"a", 40, b"012")]),
        ([merge(b"a", 40, b"2"), merge(b"a", 30, b"1")], [merge(b"a", 40, b"12")]),
        ([merge(b"a", 40, b"2"), delete(b"a", 30), put(b"a", 20, b"x")], [put(b"a", 40, b"2")]),
        (
            [merge(b"a", 60, b"2"), merge(b"a", 40, b"1"), put(b"a", 30, b"0")],
            [merge(b"a", 60, b"2"), put(b"a", 40, b"01")],
        ),
        (
            [merge(b"a", 40, b"2", expire=5000), merge(b"a", 30, b"1"), put(b"a", 20, b"0")],
            [merge(b"a", 40, b"2", expire=5000), put(b"a", 30, b"01")],
        ),
        ([merge(b"a", 40, b"2", create=1), put(b"a", 20, b"0", create=9)], [put(b"a", 40, b"02", create=9)]),
        (
            [merge(b"a", 40, b"2", create=None), put(b"a", 20, b"0", create=None)],
            [put(b"a", 40, b"02", create=None)],
        ),
        ([merge(b"a", 40, b"2", expire=900), put(b"a", 20, b"0", expire=900)], []),
        (
            [merge(b"a", seq, b"%d," % seq) for seq in range(50, 0, -1)],
            [merge(b"a", 50, b"".join(b"%d," % seq for seq in range(1, 51)))],
        ),
    ],
)
def test_folds(rows: list[sst.Row], expected: list[sst.Row]) -> None:
    bench = Bench().add(rows[::2]).add(rows[1::2]) if len(rows) > 1 else Bench().add(rows)
    assert bench.rows(bench.run(bench.task(FOLD))) == expected


def test_a_fold_of_thousands_of_operands_over_many_windows() -> None:
    rules = replace(FOLD, retention_min_seq=1 << 40)
    rows = [merge(b"a", seq, b"%5d" % seq + b"." * 995) for seq in range(3000, 0, -1)]
    bench = Bench().add(rows[:1500]).add(rows[1500:]).add([put(b"b", 1)])
    result = bench.run(bench.task(rules))
    folded, after = bench.rows(result)
    assert folded.value == b"".join(row.value for row in reversed(rows))
    assert after == put(b"b", 1)
    assert result.rows.folded == 2999


def test_a_duplicate_operand_counts_once() -> None:
    rows = [merge(b"a", 40, b"2"), merge(b"a", 30, b"1")]
    bench = Bench().add(rows).add(rows)
    result = bench.run(bench.task(FOLD))
    assert bench.rows(result) == [merge(b"a", 40, b"12")]
    assert (result.rows.folded, result.rows.superseded) == (1, 2)


def test_without_operator_merge_rows_are_carried_through() -> None:
    rows = [merge(b"a", 40, b"2"), merge(b"a", 30, b"1"), put(b"a", 20, b"0")]
    bench = Bench().add(rows)
    assert bench.rows(bench.run(bench.task(replace(FOLD, merge_operator=None)))) == rows


def test_the_filter_keeps_drops_and_modifies() -> None:
    rules = RowRules(False, 1000, 50, compaction_filter=here("filter_by_value"))
    rows = [
        put(b"a", 40, b"stay"),
        put(b"b", 40, b"drop"),
        put(b"c", 40, b"bury", expire=5000),
        put(b"d", 40, b"change", expire=5000),
        merge(b"e", 40, b"change"),
        delete(b"f", 40),
        delete(b"gone", 40),
    ]
    bench = Bench().add(rows)
    result = bench.run(bench.task(rules, SstOptions(1024)))
    assert bench.rows(result) == [
        rows[0],
        delete(b"c", 40),
        put(b"d", 40, b"changedvalue", expire=5000),
        merge(b"e", 40, b"changedmerge"),
        rows[5],
    ]
    assert result.rows.filtered == 2


def test_the_filter_sees_what_is_left_after_retention() -> None:
    seen.clear()
    rules = RowRules(True, 1000, 50, compaction_filter=here("remember"))
    rows = [
        put(b"a", 60, b"new", expire=500),
        put(b"a", 40, b"old", create=3, expire=5000),
        put(b"a", 30),
        delete(b"b", 40),
        merge(b"c", 40, b"m"),
    ]
    bench = Bench().add(rows)
    bench.run(bench.task(rules))
    assert seen == [
        Row(b"a", 60, RowKind.TOMBSTONE, None, 7),
        Row(b"a", 40, RowKind.VALUE, b"old", 3, 5000),
        Row(b"c", 40, RowKind.MERGE, b"m", 7),
    ]


class DropsOldInLastRun:
    """Rows below the floor that a row names are dropped, but only where nothing lies below."""

    made: ClassVar[list[FilterContext]] = []
    ended: ClassVar[list[int]] = []

    def __init__(self, context: FilterContext) -> None:
        self.context = context
        self.rows = 0
        self.made.append(context)

    def __call__(self, row: Row) -> FilterDecision:
        self.rows += 1
        is_old = row.seq < 45 and row.seq < self.context.retention_min_seq
        return Drop() if is_old and self.context.is_last_run else Keep()

    def end(self) -> None:
        self.ended.append(self.rows)


@pytest.mark.parametrize("is_last_run", [True, False])
def test_a_filter_with_state_knows_its_compaction(is_last_run: bool) -> None:
    DropsOldInLastRun.made.clear()
    DropsOldInLastRun.ended.clear()
    rules = RowRules(is_last_run, 1000, 50, None, here("DropsOldInLastRun"), b"seg/", 7)
    rows = [put(b"a", 40), put(b"b", 48), put(b"c", 60)]
    bench = Bench().add(rows)
    assert bench.rows(bench.run(bench.task(rules))) == (rows[1:] if is_last_run else rows)
    assert DropsOldInLastRun.made == [FilterContext(b"seg/", 7, is_last_run, 1000, 50)]
    assert DropsOldInLastRun.ended == [3]


class FailsToBegin:
    def __init__(self, context: FilterContext) -> None:
        raise KeyError("user's mistake")


class FailsAtItsEnd:
    def __init__(self, context: FilterContext) -> None:
        pass

    def __call__(self, row: Row) -> FilterDecision:
        return Keep()

    def end(self) -> None:
        raise KeyError("user's mistake")


class NotCalled:
    def __init__(self, context: FilterContext) -> None:
        pass


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("FailsToBegin", "failed: KeyError"),
        ("FailsAtItsEnd", "the end of"),
        ("NotCalled", "cannot be called"),
    ],
)
def test_a_filter_that_is_a_broken_class(name: str, message: str) -> None:
    bench = Bench().add([put(b"a", 40)])
    with pytest.raises(Refused, match=message):
        bench.run(bench.task(RowRules(True, 0, 50, compaction_filter=here(name))))


def test_a_filter_over_many_blocks_and_outputs() -> None:
    rules = RowRules(True, 0, 1 << 60, compaction_filter=here("filter_by_value"))
    rows = [put(b"%05d" % i, 5, b"drop" if i % 3 == 0 else b"x" * 500) for i in range(6000)]
    bench = Bench().add(rows)
    result = bench.run(bench.task(rules, SstOptions(max_sst_size=200_000)))
    assert len(result.outputs) > 5
    assert bench.rows(result) == [row for row in rows if row.value != b"drop"]
    assert result.rows.filtered == 2000


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "not an import path"),
        ("nothing", "not an import path"),
        ("no.such.module:f", "cannot be imported"),
        (here("absent"), "has no function absent"),
        (here("FOLD"), "has no function FOLD"),
    ],
)
@pytest.mark.parametrize("field", ["merge_operator", "compaction_filter"])
def test_paths_that_name_no_function_are_refused(path: str, message: str, field: str) -> None:
    bench = Bench().add([merge(b"a", 40, b"2")])
    rules = {"is_last_run": True, "clock_tick_ms": 0, "retention_min_seq": 0, field: path}
    with pytest.raises(Refused, match=message):
        bench.run(bench.task(RowRules(**rules)))  # type: ignore[arg-type]


def test_a_module_that_raises_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_hook.py").write_text("raise RuntimeError('broken')")
    monkeypatch.syspath_prepend(tmp_path)
    bench = Bench().add([merge(b"a", 40, b"2")])
    (tmp_path / "ending_hook.py").write_text("raise SystemExit(1)")
    for module, error in (
        ("broken_hook", r"RuntimeError\('broken'\)"),
        ("ending_hook", r"SystemExit\(1\)"),
    ):
        with pytest.raises(Refused, match=rf"cannot be imported \({error}\)"):
            bench.run(bench.task(replace(FOLD, merge_operator=f"{module}:f")))


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (replace(FOLD, merge_operator=here("not_bytes")), "returned str instead of bytes for key b'a'"),
        (replace(FOLD, merge_operator=here("fails")), "failed for key b'a': KeyError"),
        (replace(LAST_RUN, compaction_filter=here("no_decision")), "returned True instead of"),
        (replace(LAST_RUN, compaction_filter=here("fails")), "failed for key b'a': KeyError"),
        (replace(FOLD, merge_operator=here("ends")), "failed for key b'a': SystemExit"),
        (replace(LAST_RUN, compaction_filter=here("ends")), "failed for key b'a': SystemExit"),
    ],
)
def test_functions_that_misbehave_are_refused(rules: RowRules, message: str) -> None:
    bench = Bench().add([merge(b"a", 40, b"2"), merge(b"a", 30, b"1")])
    with pytest.raises(Refused, match=message):
        bench.run(bench.task(rules))
    assert len(list(bench.store.list(""))) == 1
