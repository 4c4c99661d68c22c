"""What a compaction must make of its rows, said as plainly as possible.

An oracle for tests: slow, in memory, without any file format. It is itself judged against the official
compactor (`test_random_db`).

1. Rows of all sources are grouped by key, each key's rows newest first.
2. With a merge operator, operands at or below the snapshot horizon are folded, together with the
   following operands of the same expiry and the base they meet, if that has the same expiry as well.
3. Walking from the newest row: an expired operand goes, an expired value becomes a tombstone; a row is
   kept, and the walk goes on below it only while the row is above the horizon or an operand.
4. In the last run tombstones go from the oldest end of what was kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from tests.judge.client import MergeFunction
from tests.judge.sst import Row


@dataclass(frozen=True, slots=True)
class Rules:
    """Everything that decides about rows."""

    is_last_run: bool
    clock_tick_ms: int
    retention_min_seq: int
    merge_operator: MergeFunction | None = None


def compact_rows(sources: Iterable[Iterable[Row]], rules: Rules) -> tuple[Row, ...]:
    """The rows that remain of `sources`."""
    merged = sorted((row for rows in sources for row in rows), key=lambda row: (row.key, -row.seq))
    return tuple(
        row
        for _, versions in groupby(merged, key=lambda row: row.key)
        for row in _compact_key(list(versions), rules)
    )


def _compact_key(versions: Sequence[Row], rules: Rules) -> list[Row]:
    folded = versions if rules.merge_operator is None else list(_fold(versions, rules, rules.merge_operator))
    kept: list[Row] = []
    for row in folded:
        expired = row.expire_ts is not None and row.expire_ts <= rules.clock_tick_ms
        if expired and row.kind == "merge":
            continue
        kept.append(replace(row, kind="delete", value=b"", expire_ts=None) if expired else row)
        if row.seq <= rules.retention_min_seq and row.kind != "merge":
            break
    while rules.is_last_run and kept and kept[-1].kind == "delete":
        kept.pop()
    return kept


def _fold(versions: Sequence[Row], rules: Rules, operator: MergeFunction) -> Iterator[Row]:
    at = 0
    while at < len(versions):
        newest = versions[at]
        at += 1
        if newest.kind != "merge" or newest.seq > rules.retention_min_seq:
            yield newest
            continue
        operands, base = [newest], None
        while base is None and at < len(versions) and versions[at].expire_ts == newest.expire_ts:
            if versions[at].kind == "merge":
                operands.append(versions[at])
            else:
                base = versions[at]
            at += 1
        yield _folded(operands, base, operator)


def _folded(operands: Sequence[Row], base: Row | None, operator: MergeFunction) -> Row:
    value = base.value if base is not None and base.kind == "put" else None
    for operand in reversed(operands):
        value = operator(operand.key, value, operand.value)
    assert value is not None
    rows = [*operands, *([] if base is None else [base])]
    return replace(
        operands[0],
        kind="merge" if base is None else "put",
        value=value,
        create_ts=max((row.create_ts for row in rows if row.create_ts is not None), default=None),
    )
