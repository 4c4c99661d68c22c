"""The journal as objects in Lithify's folder of a dataset, for every kind.

| object, under Lithify's own folder             | value                          |
|------------------------------------------------|--------------------------------|
| `progress/<compaction>/<index>-<unique>.json`  | `Movement`, rewritten in place |
| `progress/<compaction>/finished-<worker>.json` | names of last outputs          |
| `attempts/<compaction>/<unique>.json`          | `Attempt`, written once        |
| `failures/<compaction>.json`                   | `FailedAttempt`, written once  |

Any program may have written there, so an object with any invalid value, or larger than `MAX_NOTE_BYTES`,
counts as absent.

A worker's name is free text, so keys have its hash. The `<unique>` of an attempt or movement is a ULID.
Objects written once are read once.

`MovementReporter` is the task's side: it writes every `REPORT_INTERVAL_S` if bytes have moved, when the loop
that moves them asks for it, so a loop that hangs reports nothing (`reporting` does this in the background).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar

from lithify.base.clock import Clock
from lithify.base.concurrency import all_of
from lithify.base.documents import DocumentCodec
from lithify.base.errors import CorruptObject, ObjectNotFound, StoreError
from lithify.base.ids import Ids, Ulid, parse_ulid
from lithify.coordination.observers import DatasetObservers
from lithify.protocol.attempts import MAX_FAILURES, Attempt, FailedAttempt, Movement, in_vain
from lithify.store.keys import join
from lithify.store.objects import ObjectMeta, ObjectStore

REPORT_INTERVAL_S = 2.0
MAX_NOTE_BYTES = 16 << 20
"""Many times the size of the names of ten thousand ranges."""
_READS_AT_ONCE = 16
_MAX_REASON_CHARS = 4000
_FINISHED = "finished-"
_SUFFIX = ".json"

ValueT = TypeVar("ValueT")


class ObjectJournal:
    """The journal of the dataset whose own folder is `folder` of `store` (`lithify.protocol.attempts`).
    `observers` are told what is read and written."""

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        clock: Clock,
        ids: Ids,
        observers: DatasetObservers | None = None,
    ) -> None:
        self._store = store
        self._observers = observers if observers is not None else DatasetObservers()
        self._clock = clock
        self._ids = ids
        self._progress = join(folder, "progress")
        self._attempts = join(folder, "attempts")
        self._failures = join(folder, "failures")
        self._known: dict[str, dict[str, Any]] = {}
        """Cached contents of objects that are written once, by folder and key."""

    def reporting(self, compaction_id: Ulid, index: int, worker: str, claimed_at_ms: int) -> Reporting:
        """Return what the task of a range needs to report its movements."""
        return Reporting(join(self._progress, compaction_id), index, worker, claimed_at_ms)

    def compactions(self) -> frozenset[Ulid]:
        return frozenset(
            found
            for folder in (self._progress, self._attempts)
            for meta in self._store.list(folder)
            if (found := _compaction_of(meta.key, folder)) is not None
        )

    def clear(self, compaction_id: Ulid) -> None:
        for folder in (self._progress, self._attempts):
            for meta in list(self._store.list(join(folder, compaction_id))):
                self._store.delete(meta.key)
        self._observers.tell(lambda observer: observer.cleared(compaction_id))

    def movements(self, compaction_id: Ulid) -> Mapping[str, Movement]:
        there = self._store.list(join(self._progress, compaction_id))
        read = self._all_of([meta for meta in there if not _name(meta.key).startswith(_FINISHED)], _MOVEMENTS)
        found = {_name(key): movement for key, movement in read.items() if movement is not None}
        self._observers.tell(lambda observer: observer.saw_movements(compaction_id, found))
        return found

    def finished(self, compaction_id: Ulid) -> frozenset[str]:
        there = self._store.list(join(self._progress, compaction_id))
        read = self._all_of([meta for meta in there if _name(meta.key).startswith(_FINISHED)], _RANGES)
        found = frozenset(name for one in read.values() if one is not None for name in one.last_outputs)
        self._observers.tell(lambda observer: observer.saw_finished(compaction_id, found))
        return found

    def note_finished(self, compaction_id: Ulid, worker: str, last_outputs: Iterable[str]) -> None:
        name = f"{_FINISHED}{sha256(worker.encode()).hexdigest()[:26]}{_SUFFIX}"
        names = tuple(sorted(last_outputs))
        self._store.put(
            join(self._progress, compaction_id, name), _RANGES.encode(_FinishedRanges(names, worker))
        )
        self._observers.tell(lambda observer: observer.saw_finished(compaction_id, names))

    def attempts(self) -> Mapping[Ulid, tuple[Attempt, ...]]:
        found: dict[Ulid, list[Attempt]] = {}
        for key, attempt in self._read_once(self._attempts, _ATTEMPTS).items():
            compaction_id = _compaction_of(key, self._attempts)
            if compaction_id is not None:
                found.setdefault(compaction_id, []).append(attempt)
        # A writer whose answer was lost writes again: equal notes are one attempt.
        once = {i: sorted(dict.fromkeys(tries), key=lambda a: a.at_ms) for i, tries in found.items()}
        attempts = {i: in_vain(tries) for i, tries in once.items()}
        self._observers.tell(lambda observer: observer.saw_attempts(attempts))
        return attempts

    def add_attempt(self, compaction_id: Ulid, attempt: Attempt) -> None:
        name = f"{self._ids.ulid(self._clock.now_ms())}{_SUFFIX}"
        document = replace(attempt, reason=attempt.reason[:_MAX_REASON_CHARS])
        self._store.put(join(self._attempts, compaction_id, name), _ATTEMPTS.encode(document))
        self._observers.tell(lambda observer: observer.added_attempt(compaction_id, attempt))

    def failures(self) -> tuple[FailedAttempt, ...]:
        read = self._read_once(self._failures, _FAILURES).values()
        found = tuple(sorted(read, key=lambda failure: (failure.at_ms, failure.compaction)))
        self._observers.tell(lambda observer: observer.saw_failures(found))
        return found

    def add_failure(self, failure: FailedAttempt) -> None:
        document = replace(failure, reason=failure.reason[:_MAX_REASON_CHARS])
        self._forget_read(failure.compaction)
        self._store.put(self._failure_key(failure.compaction), _FAILURES.encode(document))
        for old in self.failures()[:-MAX_FAILURES]:
            self.forgive(old.compaction)

    def forgive(self, compaction_id: Ulid) -> None:
        self._forget_read(compaction_id)
        self._store.delete(self._failure_key(compaction_id))
        self._observers.tell(lambda observer: observer.forgave(compaction_id))

    def _forget_read(self, compaction_id: Ulid) -> None:
        """Drop the cached failure, because another may be recorded for the same compaction."""
        self._known.get(self._failures, {}).pop(self._failure_key(compaction_id), None)

    def _failure_key(self, compaction_id: Ulid) -> str:
        return join(self._failures, f"{compaction_id}{_SUFFIX}")

    def _read_once(self, folder: str, codec: DocumentCodec[ValueT]) -> dict[str, ValueT]:
        """Return the values under a folder by key; read only those not cached."""
        before: dict[str, ValueT | None] = self._known.get(folder, {})
        there = list(self._store.list(folder))
        read = self._all_of([meta for meta in there if meta.key not in before], codec)
        now = {meta.key: before[meta.key] if meta.key in before else read[meta.key] for meta in there}
        self._known[folder] = now
        return {key: value for key, value in now.items() if value is not None}

    def _all_of(self, metas: Sequence[ObjectMeta], codec: DocumentCodec[ValueT]) -> dict[str, ValueT | None]:
        read = all_of((partial(self._read, meta, codec) for meta in metas), _READS_AT_ONCE)
        return {meta.key: value for meta, value in zip(metas, read, strict=True)}

    def _read(self, meta: ObjectMeta, codec: DocumentCodec[ValueT]) -> ValueT | None:
        """Return the value, or `None` if it is missing or invalid."""
        if meta.size > MAX_NOTE_BYTES:
            return None
        try:
            return codec.decode(self._store.get(meta.key), meta.key)
        except (ObjectNotFound, CorruptObject):
            return None


@dataclass(frozen=True, slots=True)
class Reporting:
    """The place where the task of a range reports its movements, and the claim it belongs to."""

    folder: str
    index: int
    worker: str
    claimed_at_ms: int


class MovementReporter:
    """The reporter of one range's task."""

    def __init__(self, reporting: Reporting, store: ObjectStore, clock: Clock, ids: Ids) -> None:
        self._reporting = reporting
        self._store = store
        self._clock = clock
        self._key = join(reporting.folder, f"{reporting.index}-{ids.ulid(clock.now_ms())}{_SUFFIX}")
        self._written = (-1, -1)
        self._due_s = clock.monotonic_s()

    def is_due(self) -> bool:
        """Return whether to report now; cheap."""
        return self._clock.monotonic_s() >= self._due_s

    def report(self, bytes_read: int, bytes_written: int) -> None:
        """Report how many bytes have moved since the task began, if that has changed."""
        self._due_s = self._clock.monotonic_s() + REPORT_INTERVAL_S
        if (bytes_read, bytes_written) == self._written:
            return
        to = self._reporting
        now_ms = self._clock.now_ms()
        movement = Movement(to.index, to.worker, to.claimed_at_ms, bytes_read, bytes_written, now_ms)
        # A failed report costs a heartbeat at most; it must not end the merge.
        with suppress(StoreError):
            self._store.put(self._key, _MOVEMENTS.encode(movement))
            self._written = (bytes_read, bytes_written)

    def close(self) -> None:
        """Delete the report at the end of the task; leftovers are deleted with the compaction."""
        with suppress(StoreError):
            self._store.delete(self._key)


def _name(key: str) -> str:
    return key.rpartition("/")[2]


def _compaction_of(key: str, folder: str) -> Ulid | None:
    try:
        return parse_ulid(key.removeprefix(f"{folder}/").partition("/")[0])
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class _FinishedRanges:
    last_outputs: tuple[str, ...]
    worker: str = ""


_MOVEMENTS = DocumentCodec(Movement, mends_text=True)
_RANGES = DocumentCodec(_FinishedRanges, optional={"worker"}, mends_text=True)
_ATTEMPTS = DocumentCodec(Attempt, optional={"recorded"}, mends_text=True)
_FAILURES = DocumentCodec(FailedAttempt, optional={"is_cancelled", "unit"}, mends_text=True)
