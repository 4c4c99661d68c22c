"""What was ever written to the log, and what a reader of it has to have."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field

from simulator.groups import rules
from simulator.groups.log import Record


def _offset(record: Record) -> int:
    return record.offset


@dataclass
class Truth:
    """All records, whatever became of them."""

    end: int = 0
    committed: dict[str, list[Record]] = field(default_factory=dict)
    """The rows of each key that count, by offset."""
    ended: dict[int, int] = field(default_factory=dict)
    """Of each row of a transaction that has ended, the offset of its marker."""
    waiting: dict[int, list[Record]] = field(default_factory=dict)
    """Rows of open transactions, by producer."""
    aborted: set[int] = field(default_factory=set)

    markers_end: int = 0
    """The offset after the last marker."""

    def append(self, record: Record) -> None:
        self.end = record.offset + 1
        if not record.is_row:
            self.markers_end = self.end
        if record.producer is None:
            self._commit(record)
        elif record.is_row:
            self.waiting.setdefault(record.producer, []).append(record)
        else:
            for row in self.waiting.pop(record.producer, ()):
                self.ended[row.offset] = record.offset
                if record.kind is record.kind.COMMIT:
                    self._commit(row)
                else:
                    self.aborted.add(row.offset)

    def _commit(self, row: Record) -> None:
        insort(self.committed.setdefault(row.key, []), row, key=_offset)

    def stable_end(self, end: int) -> int:
        """The first row of a transaction that had not ended there; where there is none, that place."""
        still_open = [row.offset for rows in self.waiting.values() for row in rows]
        still_open += [offset for offset, marker in self.ended.items() if marker >= end]
        return min([end, *still_open])

    def wrong(self, rows: Mapping[str, Record], end: int) -> tuple[str, str] | None:
        """What is wrong, by which rule, with the newest rows that somebody has who has seen all below `end`.
        What he has not is no matter where he is still to get something newer of the key."""
        for row in rows.values():
            if row.offset in self.aborted:
                return rules.ABORTED, f"key {row.key} has aborted {row.value}"
        for key, written in self.committed.items():
            place = bisect_left(written, end, key=_offset)
            if place < len(written):
                continue
            expected = written[-1].value
            found = rows[key].value if key in rows else None
            if found != expected:
                rule = rules.DELETED if expected is None else rules.COMMITTED
                return rule, f"key {key} has {found} below {end} where {expected} was written last"
        return None

    def latest(self) -> dict[str, str]:
        """Values by key."""
        newest = {key: written[-1].value for key, written in self.committed.items()}
        return {key: value for key, value in newest.items() if value is not None}
