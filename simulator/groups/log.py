"""A keyed log as a list of small values, and a reference cleaner for it.

A record is a row (a tombstone where its value is `None`) or the marker with which a transaction ends. A row
of a transaction belongs to its producer until it is resolved; the next marker of that producer decides it.
Where a marker is gone too early the row waits for ever, or the marker of another transaction decides it.

A round of the cleaner over the part below some offset:

1. Only what is decided is touched: below the first row of an open transaction.
2. Resolving: of what lies at or past the own resolved mark, aborted rows go, and committed ones become plain;
   or, as in segments, they stay part of their transaction (`Round.keeps_transactions`), and its marker stays
   until a round finds none of them. Then the mark says only that this copy has the markers of all rows below.
3. Cleaning: the newest offset of each key is looked for at or past the own clean mark only, as brokers do,
   and every older row of that key goes, wherever it lies.
4. Tombstones and markers go below the bounds that were given, and when they have stood for the retention
   since this copy was first clean past them, or, markers, since the first round past them.

So a mark that says too much leaves something behind: an older row, or a row whose marker goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from lithify.watermarks.groups import NO_MARKS, Marks, PartitionStanding


class Kind(Enum):
    ROW = "row"
    COMMIT = "commit"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Record:
    offset: int
    key: str = ""
    value: str | None = None
    producer: int | None = None
    """Whose transaction it belongs to, or ends; `None` for a plain row."""
    kind: Kind = Kind.ROW
    horizon_ms: int | None = None
    """Before when it stays, a tombstone or a marker; `None`: no round has been past it."""

    @property
    def is_row(self) -> bool:
        return self.kind is Kind.ROW

    @property
    def is_tombstone(self) -> bool:
        return self.is_row and self.value is None


@dataclass(frozen=True, slots=True)
class Log:
    """What a copy has of a partition."""

    records: tuple[Record, ...] = ()
    end: int = 0
    marks: Marks = NO_MARKS
    """What is so of these records, or was adopted when there were none."""
    incarnation: str = ""
    rounds: int = 0
    """How many were committed."""

    @property
    def standing(self) -> PartitionStanding:
        markers = (record.offset + 1 for record in self.records if not record.is_row)
        return PartitionStanding(self.marks, self.end, max(markers, default=0))


def reported(log: Log) -> PartitionStanding:
    """The report of a copy about its records, with the keys of all of them."""
    sample = {record.offset: int(record.key[1:]) for record in log.records if record.is_row}
    return replace(log.standing, sample=sample)


def decided(records: Iterable[Record]) -> dict[int, bool]:
    """Of each row of a transaction that has ended, by its offset, whether it is committed."""
    return {offset: marker.kind is Kind.COMMIT for offset, marker in markers(records).items()}


def markers(records: Iterable[Record]) -> dict[int, Record]:
    """Of each row of a transaction that has ended, by its offset, the marker."""
    open_rows: dict[int, list[int]] = {}
    found: dict[int, Record] = {}
    for record in records:
        if record.producer is None:
            continue
        if record.is_row:
            open_rows.setdefault(record.producer, []).append(record.offset)
        else:
            found.update(dict.fromkeys(open_rows.pop(record.producer, ()), record))
    return found


def stable_end(log: Log) -> int:
    """The offset of the first row that is not decided; where there is none, the end."""
    return _stable_end(log, decided(log.records))


def _stable_end(log: Log, found: Mapping[int, bool]) -> int:
    waiting = (r.offset for r in log.records if r.producer is not None and r.is_row and r.offset not in found)
    return next(waiting, log.end)


def shown(log: Log) -> tuple[list[Record], int]:
    """What a reader of committed rows is shown, and up to where."""
    found = decided(log.records)
    end = _stable_end(log, found)
    rows = [r for r in log.records if (r.producer is None or found.get(r.offset)) and r.is_row]
    return [row for row in rows if row.offset < end], end


def latest(rows: Iterable[Record]) -> dict[str, Record]:
    """The newest row of each key, tombstones too."""
    return {row.key: row for row in rows}


def without_tombstones(rows: Mapping[str, Record]) -> dict[str, str]:
    return {key: row.value for key, row in rows.items() if row.value is not None}


def fetched(source: Log, begin: int, most: int, resolved: int = 0) -> tuple[tuple[Record, ...], int]:
    """Up to so many records of `source` from `begin` on, and how far they reach; more if they would end
    within a transaction below `resolved`, the own mark. The age of tombstones and markers in the source does
    not matter to the copy."""
    there = [replace(record, horizon_ms=None) for record in source.records if record.offset >= begin]
    ends = {offset: marker.offset for offset, marker in markers(source.records).items() if offset >= begin}
    while most < len(there):
        end = there[most - 1].offset + 1
        if not _is_within_transaction(ends, end, resolved):
            return tuple(there[:most]), end
        most += 1
    return tuple(there), source.end


def _is_within_transaction(ends: Mapping[int, int], end: int, resolved: int) -> bool:
    """Whether rows before `end` have their markers after it, where these may go: below `resolved`."""
    return any(row < end <= marker < resolved for row, marker in ends.items())


def extended(log: Log, records: tuple[Record, ...], end: int) -> Log:
    return replace(log, records=log.records + records, end=end)


@dataclass(frozen=True, slots=True)
class Round:
    """What a round of the cleaner does."""

    upto: int
    bound: Marks
    """Below which tombstones and markers may go."""
    now_ms: int
    retention_ms: int = 0
    cleans: bool = True
    resolves: bool = True
    keeps_transactions: bool = False
    """Whether committed rows stay part of their transaction."""


def cleaned(log: Log, round_: Round) -> Log:
    """The log after a round."""
    ends = markers(log.records)
    committed = {offset: marker.kind is Kind.COMMIT for offset, marker in ends.items()}
    full = {marker.offset for marker in ends.values()} if round_.keeps_transactions else frozenset()
    upto = min(round_.upto, _stable_end(log, committed))
    newest: dict[str, int] = {}
    for record in log.records:
        is_dirty = round_.cleans and log.marks.clean <= record.offset < upto
        if is_dirty and record.is_row and committed.get(record.offset, record.producer is None):
            newest[record.key] = record.offset
    kept = []
    for record in log.records:
        is_touched = record.offset < upto and record.offset not in full
        after = _kept(record, log.marks, round_, committed, newest) if is_touched else record
        if after is not None:
            kept.append(after)
    marks = Marks(
        max(log.marks.clean, upto if round_.cleans else 0),
        max(log.marks.resolved, upto if round_.resolves else 0),
    )
    return replace(log, records=tuple(kept), marks=marks, rounds=log.rounds + 1)


def _kept(
    record: Record, own: Marks, round_: Round, committed: Mapping[int, bool], newest: Mapping[str, int]
) -> Record | None:
    """What a round leaves of a record."""
    if not record.is_row:
        return _stays(record, round_, round_.bound.resolved, is_past=True)
    is_committed = committed.get(record.offset, record.producer is None)
    if record.producer is not None and round_.resolves and record.offset >= own.resolved:
        if not is_committed:
            return None
        record = record if round_.keeps_transactions else replace(record, producer=None)
    if not is_committed:
        return record
    if newest.get(record.key, -1) > record.offset:
        return None
    if record.is_tombstone:
        return _stays(record, round_, round_.bound.clean, is_past=round_.cleans)
    return record


def _stays(record: Record, round_: Round, bound: int, *, is_past: bool) -> Record | None:
    """A tombstone or marker, unless it may go."""
    horizon_ms = record.horizon_ms
    if horizon_ms is None:
        return replace(record, horizon_ms=round_.now_ms + round_.retention_ms) if is_past else record
    return None if record.offset < bound and horizon_ms <= round_.now_ms else record
