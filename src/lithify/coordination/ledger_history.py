"""The history of compactions, as far as retained versions of a ledger show it (`compaction.history`).

A version's time is when it was written. Garbage collection deletes versions after some minutes, and an old
one may be damaged, so every answer may be "not known".

`arrival` searches backwards from the latest version, in steps that double until it finds a version in which
the compaction had another state or worker, then bisects: few reads, however many heartbeats were written.
"""

from __future__ import annotations

from collections.abc import Callable

from lithify.base.errors import CorruptObject, ObjectNotFound, Unsupported
from lithify.base.ids import Ulid
from lithify.protocol.history import Arrival
from lithify.protocol.transitions import AnyCompaction, AnyLedger
from lithify.store.keys import format_id, parse_key
from lithify.store.objects import ObjectMeta, ObjectStore


class LedgerHistory:
    """The versions of one ledger under `folder`, listed once."""

    def __init__(
        self, store: ObjectStore, folder: str, suffix: str, decode: Callable[[bytes, str], AnyLedger]
    ) -> None:
        self._store = store
        self._decode = decode
        self._first = f"{folder}/{format_id(1)}{suffix}"
        self._read: dict[str, AnyLedger | None] = {}
        listed = [(parse_key(meta.key, folder, suffix), meta) for meta in store.list(folder)]
        self._versions: list[ObjectMeta] = [
            meta for _, meta in sorted((i, m) for i, m in listed if i is not None)
        ]

    def arrival(self, compaction: AnyCompaction) -> Arrival | None:
        """Return when `compaction` came into its state, under its worker."""
        return self._first_of(compaction.id, lambda entry: _is_same_stay(entry, compaction))

    def first_progress(self, compaction: AnyCompaction) -> Arrival | None:
        """Return when its present worker first had recorded progress: from the start, if it resumed another
        worker's."""
        return self._first_of(
            compaction.id, lambda entry: _is_same_stay(entry, compaction) and entry.progress is not None
        )

    def heard(self, compaction: AnyCompaction) -> Arrival | None:
        """Return when the last heartbeat of its present worker was written, or a later time if that version
        is gone."""
        first = self._begin_of_stretch(compaction.id, lambda entry: entry.worker == compaction.worker)
        return None if first is None else self._arrival(first, compaction.id)

    def _first_of(self, compaction_id: Ulid, holds: Callable[[AnyCompaction], bool]) -> Arrival | None:
        """Return the start of the last stretch of versions in which `holds` is true; `None` if unknown."""

        first = self._begin_of_stretch(compaction_id, holds)
        if first is None or (first == 0 and not self._is_first(0)):
            return None  # the stretch may begin in a deleted version
        return self._arrival(first, compaction_id)

    def _begin_of_stretch(self, compaction_id: Ulid, holds: Callable[[AnyCompaction], bool]) -> int | None:
        """Return the index of the first retained version from which on `holds` is true."""

        def holds_at(index: int) -> bool:
            entry = self._entry(index, compaction_id)
            return entry is not None and holds(entry)

        return _first_of_the_last(holds_at, len(self._versions))

    def _arrival(self, index: int, compaction_id: Ulid) -> Arrival | None:
        entry = self._entry(index, compaction_id)
        return Arrival(self._at_ms(index), entry) if entry is not None else None

    def last_entry(self, compaction_id: Ulid) -> AnyCompaction | None:
        """Return the compaction as in the newest version that has it."""
        for index in reversed(range(len(self._versions))):
            entry = self._entry(index, compaction_id)
            if entry is not None:
                return entry
        return None

    def _is_first(self, index: int) -> bool:
        return self._versions[index].key == self._first

    def _at_ms(self, index: int) -> int:
        return self._versions[index].last_modified_ms

    def _entry(self, index: int, compaction_id: Ulid) -> AnyCompaction | None:
        key = self._versions[index].key
        if key not in self._read:
            try:
                self._read[key] = self._decode(self._store.get(key), key)
            except (ObjectNotFound, CorruptObject, Unsupported):
                # Collected since it was listed, or unreadable; only the latest version is essential.
                self._read[key] = None
        ledger = self._read[key]
        return ledger.get(compaction_id) if ledger is not None else None


def _is_same_stay(entry: AnyCompaction, compaction: AnyCompaction) -> bool:
    owners = [c.worker.id if c.worker is not None else None for c in (entry, compaction)]
    return entry.state is compaction.state and owners[0] == owners[1]


def _first_of_the_last(is_same: Callable[[int], bool], count: int) -> int | None:
    """Return the first index of the stretch at the end of `range(count)` in which `is_same` holds; `None` if
    it does not hold at the end."""
    if count == 0 or not is_same(count - 1):
        return None
    same, step = count - 1, 1
    while same > 0:
        probe = max(same - step, 0)
        if is_same(probe):
            same, step = probe, step * 2
            continue
        other = probe
        while same - other > 1:
            middle = (same + other) // 2
            if is_same(middle):
                same = middle
            else:
                other = middle
        return same
    return 0
