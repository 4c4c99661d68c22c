"""Records of commits, with reason and cost: small objects that outlive the ledger's entries.

| object, under Lithify's own folder      | written by                                             |
|-----------------------------------------|--------------------------------------------------------|
| `history/<ms>-<compaction>-commit.json` | the process that committed                             |
| `history/<ms>-<compaction>-work.json`   | a worker in another process, when its claim has ended  |

1. An object is written once, after the commit, and nothing waits for it. After a crash before that, the
   commit is valid; only its record is missing.
2. Names begin with the time, so one listing finds the newest without reading the others.
3. Work of other processes is added to the commit that it belongs to (`merged`).
4. Garbage collection keeps the records; the process that writes them deletes those that are too old
   (`sweep`).

Any process may have written there: objects that cannot be decoded count as absent.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

from annotated_types import Interval
from typing_extensions import TypedDict

from lithify.base.concurrency import all_of
from lithify.base.documents import MAX_COUNT, Count, DocumentCodec
from lithify.base.errors import CorruptObject, ObjectNotFound
from lithify.base.ids import MAX_ULID_MS, Ulid
from lithify.coordination.observers import DatasetObservers
from lithify.store.keys import join
from lithify.store.objects import ObjectMeta, ObjectStore

FOLDER = "history"
MAX_RECORD_BYTES = 64 << 10
_NAME = re.compile(r"([0-9]{13})-([0-7][0-9A-HJKMNP-TV-Z]{25})-(commit|work)\.json")
_Seconds = Annotated[float, Interval(ge=0, le=MAX_COUNT)]
_MAX_TEXT_CHARS = 4000
_READS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """A commit, or the work of another process for one."""

    compaction: Ulid
    at_ms: int
    """Wall-clock milliseconds of the commit, or of the end of the work."""
    is_commit: bool
    unit: str = ""
    reason: str = ""
    """Why the planner proposed it; empty if it did not, or if that is not known any more."""
    workers: tuple[str, ...] = ()
    bytes_read: int = 0
    bytes_written: int = 0
    rows: Mapping[str, int] = field(default_factory=dict)
    """Rows in, out, and dropped by reason."""
    ranges: int = 0
    seconds: float = 0.0
    """From claim to end, over all attempts."""
    cpu_seconds: float = 0.0
    requests: Mapping[str, int] = field(default_factory=dict)
    """Requests of the process to the dataset's store since its last record, by verb; without those of
    tasks."""


class CommitRecords:
    """The commit records of the dataset whose own folder is `folder` of `store`. `observers` are told of each
    that is added."""

    def __init__(self, store: ObjectStore, folder: str, observers: DatasetObservers | None = None) -> None:
        self._store = store
        self._observers = observers if observers is not None else DatasetObservers()
        self._folder = join(folder, FOLDER)
        self._known: dict[str, CommitRecord | None] = {}
        """The cached contents of objects, which are written once and so read once."""

    def add(self, record: CommitRecord) -> None:
        """Write the record; idempotent."""
        kind = "commit" if record.is_commit else "work"
        fields: Any = {name: getattr(record, name) for name in _Fields.__annotations__}
        fields |= {"unit": record.unit[:_MAX_TEXT_CHARS], "reason": record.reason[:_MAX_TEXT_CHARS]}
        name = f"{record.at_ms:013d}-{record.compaction}-{kind}.json"
        self._store.put(join(self._folder, name), _RECORDS.encode(fields))
        self._observers.tell(lambda observer: observer.committed(record))

    def newest(self, most: int | None = None, since_ms: int = 0) -> tuple[CommitRecord, ...]:
        """Return the commits since a time, oldest first; at most the newest `most`."""
        named = [(found, meta) for meta in self._store.list(self._folder) if (found := self._named(meta))]
        commits = sorted(
            (int(found[1]), found[2])
            for found, _ in named
            if found[3] == "commit" and int(found[1]) >= since_ms
        )
        wanted = {
            compaction for _, compaction in (commits if most is None else commits[-most:] if most else [])
        }
        metas = [meta for found, meta in named if found[2] in wanted]
        new = [meta for meta in metas if meta.key not in self._known]
        read = all_of((partial(self._read, meta) for meta in new), _READS_AT_ONCE)
        known = self._known | dict(zip((meta.key for meta in new), read, strict=True))
        self._known = {meta.key: known[meta.key] for meta in metas}
        return merged(record for record in self._known.values() if record is not None)

    def sweep(self, before_ms: int) -> int:
        """Delete older records. Return how many."""
        old = [
            m.key for m in self._store.list(self._folder) if (f := self._named(m)) and int(f[1]) < before_ms
        ]
        for key in old:
            self._store.delete(key)
        return len(old)

    def _named(self, meta: ObjectMeta) -> re.Match[str] | None:
        found = _NAME.fullmatch(meta.key.removeprefix(f"{self._folder}/"))
        return found if found is not None and int(found[1]) <= MAX_ULID_MS else None

    def _read(self, meta: ObjectMeta) -> CommitRecord | None:
        found = self._named(meta)
        if found is None or meta.size > MAX_RECORD_BYTES:
            return None
        try:
            fields = _RECORDS.decode(self._store.get(meta.key), meta.key)
        except (ObjectNotFound, CorruptObject):
            return None
        return CommitRecord(Ulid(found[2]), int(found[1]), found[3] == "commit", **fields)


def merged(records: Iterable[CommitRecord]) -> tuple[CommitRecord, ...]:
    """Return the commits, oldest first, each with the work that other processes did for it. Work without a
    commit is left out (pure)."""
    commits: dict[Ulid, CommitRecord] = {}
    works: list[CommitRecord] = []
    for record in sorted(records, key=lambda r: (r.at_ms, r.compaction)):
        if record.is_commit:
            commits.setdefault(record.compaction, record)
        else:
            works.append(record)
    for work in works:
        if work.compaction in commits:
            commits[work.compaction] = _added(commits[work.compaction], work)
    return tuple(commits.values())


def _added(commit: CommitRecord, work: CommitRecord) -> CommitRecord:
    return replace(
        commit,
        workers=tuple(dict.fromkeys((*commit.workers, *work.workers))),
        bytes_read=commit.bytes_read + work.bytes_read,
        bytes_written=commit.bytes_written + work.bytes_written,
        rows=dict(Counter(commit.rows) + Counter(work.rows)),
        ranges=commit.ranges + work.ranges,
        seconds=commit.seconds + work.seconds,
        cpu_seconds=commit.cpu_seconds + work.cpu_seconds,
        requests=dict(Counter(commit.requests) + Counter(work.requests)),
    )


class _Fields(TypedDict):
    """A record's fields that its name does not have."""

    unit: str
    reason: str
    workers: tuple[str, ...]
    bytes_read: Count
    bytes_written: Count
    rows: dict[str, Count]
    ranges: Count
    seconds: _Seconds
    cpu_seconds: _Seconds
    requests: dict[str, Count]


_RECORDS = DocumentCodec(_Fields, mends_text=True)
