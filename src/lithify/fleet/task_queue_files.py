"""Files of task offers: `boards/<queue id>/<member>.json`.

1. A *task offer* says that a compaction may be claimed (`lithify.planning.fleet.task_offers`). It is only a
   hint: the claim is a change of the dataset's ledger, and a stale, duplicate or lost offer costs a read or
   a delay.
2. Each file has one writer, its member, so it needs no bins and no sequence numbers. It is written when it
   has changed, at most once in `WRITE_EVERY_MS`, with the best `MAX_HINTS` offers; an empty one is deleted.
   If offers were only removed, it waits up to `TAKE_OFF_AFTER_MS` for a new one. An unchanged file is
   written again after `WRITE_AGAIN_MS` in case it was lost.
3. Readers merge the files of all members of a queue. Files that cannot be read count as absent; if one
   offer in a file cannot be read, only that offer does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from lithify.base import concurrency
from lithify.base.documents import DocumentCodec, OrOmitted
from lithify.base.errors import CorruptObject, ObjectNotFound
from lithify.planning.fleet.task_offers import ClaimOffer
from lithify.store.keys import join
from lithify.store.objects import ObjectStore

MAX_HINTS = 128
WRITE_EVERY_MS = 250
TAKE_OFF_AFTER_MS = 1_000
WRITE_AGAIN_MS = 60_000
READS_AT_ONCE = 8
_SUFFIX = ".json"
_MAX_BYTES = 4 << 20


def order(hint: ClaimOffer) -> tuple[int, float, int, str]:
    """Sort key: the most urgent first."""
    return hint.band, -hint.priority, hint.since_ms, hint.compaction


class BoardFiles:
    """The task offers of the fleet in `folder` of `store`."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store = store
        self._folder = join(folder, "boards")

    def write(self, queue_id: str, member: str, hints: Iterable[ClaimOffer]) -> None:
        """Replace the task offers of this member."""
        best = sorted(hints, key=order)[:MAX_HINTS]
        key = self._key(queue_id, member)
        if best:
            self._store.put(key, _BOARDS.encode(_Offers(tuple(best))))
        else:
            self._store.delete(key)

    def read(self, queue_id: str) -> tuple[ClaimOffer, ...]:
        """Return the offers of all members, the most urgent first, one for each compaction."""
        return self.read_of(queue_id, self.members(queue_id))

    def members(self, queue_id: str) -> tuple[str, ...]:
        """Return the members that have offers, with one listing."""
        return tuple(
            _member_of(meta.key)
            for meta in self._store.list(join(self._folder, queue_id))
            if meta.key.endswith(_SUFFIX) and meta.size <= _MAX_BYTES
        )

    def read_of(self, queue_id: str, members: Iterable[str]) -> tuple[ClaimOffer, ...]:
        """Return the offers of these members, with one GET for each, several at a time."""
        boards = sorted(members)  # to make replays deterministic
        if len(boards) == 1:
            return tuple(sorted(self._read(queue_id, boards[0]), key=order))
        reads = (partial(self._read, queue_id, member) for member in boards)
        found: dict[tuple[str, str], ClaimOffer] = {}
        for hints in concurrency.all_of(reads, READS_AT_ONCE):
            for hint in hints:
                found.setdefault((hint.url, hint.compaction), hint)
        return tuple(sorted(found.values(), key=order))

    def _read(self, queue_id: str, member: str) -> Sequence[ClaimOffer]:
        try:
            data = self._store.get(self._key(queue_id, member))
        except ObjectNotFound:
            return ()
        return _decode(data, member) if len(data) <= _MAX_BYTES else ()

    def forget(self, members: Iterable[str]) -> None:
        """Delete the files of these members, which are dead."""
        gone = set(members)
        for meta in self._store.list(self._folder):
            if _member_of(meta.key) in gone:
                self._store.delete(meta.key)

    def forget_strangers(self, known: Collection[str], before_ms: int) -> None:
        """Delete files written before that time by members that are not known."""
        for meta in self._store.list(self._folder):
            if meta.last_modified_ms < before_ms and _member_of(meta.key) not in known:
                self._store.delete(meta.key)

    def _key(self, queue_id: str, member: str) -> str:
        return join(self._folder, queue_id, f"{member}{_SUFFIX}")


def _member_of(key: str) -> str:
    return key.rpartition("/")[2].removesuffix(_SUFFIX)


@dataclass(frozen=True, slots=True)
class _Offers:
    hints: tuple[OrOmitted[ClaimOffer], ...]


_BOARDS = DocumentCodec(_Offers, optional={"board"}, mends_text=True)


def _decode(data: bytes, member: str) -> Sequence[ClaimOffer]:
    try:
        return [replace(hint, board=member) for hint in _BOARDS.decode(data, member).hints[:MAX_HINTS]]
    except CorruptObject:
        return ()
