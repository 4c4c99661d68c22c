"""A copy that joins without data relies on the threshold for markers. All ways to copy a short log from two
copies, one of which has removed a transaction's marker: whole transactions are enough, and needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from simulator.groups import log
from simulator.groups.log import Kind, Log, Record, Round, cleaned, extended, fetched, latest, shown

from lithify.watermarks.groups import Marks, is_source

WRITTEN = (
    Record(0, "k", "1", producer=1),
    Record(1, "j", "1"),
    Record(2, producer=1, kind=Kind.COMMIT),
    Record(3, "k", "2"),
    Record(4, "z", "1", producer=1),
    Record(5, producer=1, kind=Kind.ABORT),
    Record(6, "y", "1"),
)
END = len(WRITTEN)
ADOPTED = Marks(clean=0, resolved=END)
LATEST = {"k": "2", "j": "1", "y": "1"}


def copies() -> list[Log]:
    """One has resolved all; the other has been compacted so often that no marker without rows is left."""
    resolved = cleaned(Log(WRITTEN, END), Round(END, Marks(), 0, cleans=False, keeps_transactions=True))
    compacted = resolved
    for now_ms in range(4):
        compacted = cleaned(compacted, Round(END, ADOPTED, now_ms, keeps_transactions=True))
    assert [record.offset for record in resolved.records] == [0, 1, 2, 3, 5, 6]
    assert [record.offset for record in compacted.records] == [1, 3, 6]
    return [resolved, compacted]


def results() -> Iterator[Log]:
    """A new copy at its end, copied in pieces of any length, each from any of the copies."""
    sources, waiting, seen = copies(), [Log(marks=ADOPTED)], set[Log]()
    while waiting:
        new = waiting.pop()
        if new in seen:
            continue
        seen.add(new)
        if new.end == END:
            yield new
            continue
        for source in sources:
            assert is_source(Marks(0, new.marks.resolved), new.end, source.marks)
            for most in range(1, END):
                records, end = fetched(source, new.end, most, new.marks.resolved)
                waiting.append(extended(new, records, end))


def is_right(new: Log) -> bool:
    rows, stable = shown(new)
    newest: Mapping[str, Record] = latest(rows)
    return stable == END and {key: row.value for key, row in newest.items()} == LATEST


def test_whole_transactions_are_enough() -> None:
    found = list(results())
    assert len({new.records for new in found}) > 1
    assert all(map(is_right, found))


def test_a_copy_that_stops_within_a_transaction_may_never_get_its_marker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log, "_is_within_transaction", lambda *_: False)
    assert not all(map(is_right, results()))
