"""Files to delete once a grace period is over: the second phase of an expiry.

1. *Before* snapshots are expired, the files that only they name are recorded: first their paths in numbered
   parts, `pending-files/<id>-<number>.json`, of up to `PART_FILES` each, then one entry for all parts in the
   next version of the numbered file `pending/`. So after a crash at any point these files are
   known, and only one part is ever in memory.
2. The grace period of an entry begins when a run finds all its snapshots gone (`confirm`); it is at least as
   long as that of the run that wrote the entry. A `blocked` entry may have lost snapshots of a new branch or
   tag (`expired_files`): its files, and all else that its snapshots name (`add_paths`), stay for good. An
   entry whose snapshots still exist after a day was never committed, and is dropped.
3. An entry whose grace period is over is carried out and dropped. Carrying it out twice does no harm.
4. Parts without an entry result from a crash in step 1, and are deleted after a day.

Times are by the object store's clock.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from typing import Any

from lithify.base.clock import Clock
from lithify.base.errors import CorruptObject, ObjectNotFound
from lithify.base.ids import Ids, Ulid, parse_ulid
from lithify.base.jsonvalues import UNDECODABLE, text, whole_number
from lithify.coordination.thresholds import MAX_POSITION
from lithify.datasets.iceberg.maintenance.reachable import FileKind, NamedFile
from lithify.store.keys import join
from lithify.store.objects import ObjectStore
from lithify.store.versions import VersionedFiles

ABANDONED_MS = 24 * 3_600_000
"""After so long no commit can still be under way."""
PART_FILES = 10_000
"""Paths in one object: some megabytes."""
_ADDED = "added-"
"""Precedes the numbers of parts that were added later."""
_ULID_CHARS = 26
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class PendingFiles:
    """An entry: files that wait to be deleted."""

    id: Ulid
    snapshots: tuple[int, ...]
    """The snapshots that alone name the files."""
    files: int
    size_bytes: int
    written_ms: int
    grace_ms: int = 0
    """The minimum time between the expiry and the deletion."""
    base: str = ""
    """The metadata file to be replaced, if the catalog does not check that itself."""
    since_ms: int | None = None
    """When the snapshots were found to be gone; `None` while they exist."""
    blocked: str = ""
    """Why the files stay for good; empty if they are to be deleted."""


class Pending:
    """The pending files of the table whose own folder is `folder` of `store`."""

    def __init__(
        self, store: ObjectStore, folder: str, clock: Clock, ids: Ids, rng: random.Random | None = None
    ) -> None:
        self._store = store
        self._lists = join(folder, "pending-files")
        self.files = VersionedFiles(
            store, join(folder, "pending"), _SUFFIX, join(folder, "pending.boundary"), ids, clock=clock
        )
        self._clock = clock
        self._ids = ids
        self._rng = rng if rng is not None else random.Random()

    def read(self) -> tuple[PendingFiles, ...]:
        """Return all entries, the oldest first."""
        version = self.files.found_anew()
        return () if version is None else self.files.decode(version, _decode)

    def write(
        self, files: Iterable[NamedFile], snapshots: Set[int], now_ms: int, grace_ms: int, base: str = ""
    ) -> PendingFiles:
        """Record the files that these snapshots alone name, before they are expired."""
        entry_id = self._ids.ulid(max(now_ms, 0))
        count, size_bytes = self._put_parts(entry_id, files)
        entry = PendingFiles(
            id=entry_id,
            snapshots=tuple(sorted(snapshots)),
            files=count,
            size_bytes=size_bytes,
            written_ms=now_ms,
            grace_ms=grace_ms,
            base=base,
        )
        self._change(lambda entries: (*(e for e in entries if e.id != entry.id), entry))
        return entry

    def confirm(self, there: Set[int], now_ms: int, checked: Mapping[Ulid, str]) -> tuple[PendingFiles, ...]:
        """Begin the grace period of expired entries, drop entries that were never committed, and return the
        rest. `there` has the table's snapshots. An entry with a `base` begins only if it is in `checked`,
        whose value is the reason to block it, or empty."""

        def confirmed(entries: tuple[PendingFiles, ...]) -> tuple[PendingFiles, ...]:
            found = []
            for entry in entries:
                if entry.since_ms is None and there.isdisjoint(entry.snapshots):
                    is_checked = not entry.base or entry.id in checked
                    why = checked.get(entry.id, "")
                    found.append(replace(entry, since_ms=now_ms, blocked=why) if is_checked else entry)
                elif entry.since_ms is not None or now_ms < entry.written_ms + ABANDONED_MS:
                    found.append(entry)
            return tuple(found)

        entries = self._change(confirmed)
        self.sweep(entries, now_ms)
        return entries

    def paths(self, entry: PendingFiles) -> Iterator[NamedFile]:
        """Yield the files of an entry, perhaps some twice; none if another process has carried it out."""
        for key in self._parts(entry.id):
            try:
                found = [_named(fields) for fields in json.loads(self._store.get(key))]
            except ObjectNotFound:
                continue
            except UNDECODABLE as error:
                raise CorruptObject(key, f"does not decode as a list of files: {error}") from error
            yield from found

    def add_paths(self, entry: PendingFiles, files: Iterable[NamedFile]) -> None:
        """Add files that are kept or deleted together with an entry's. Idempotent."""
        self._put_parts(entry.id, files, _ADDED)

    def drop(self, entry: PendingFiles) -> None:
        """Delete the entry and its parts."""
        self._change(lambda entries: tuple(one for one in entries if one.id != entry.id))
        for key in self._parts(entry.id):
            self._store.delete(key)

    def sweep(self, entries: Sequence[PendingFiles], now_ms: int) -> None:
        """Delete old parts that belong to none of the entries. `entries` must be all there are."""
        known = {str(entry.id) for entry in entries}
        for meta in list(self._store.list(self._lists)):
            if _entry_of(meta.key) not in known and meta.last_modified_ms < now_ms - ABANDONED_MS:
                self._store.delete(meta.key)

    def _parts(self, entry_id: Ulid) -> list[str]:
        return [meta.key for meta in self._store.list(self._lists) if _entry_of(meta.key) == str(entry_id)]

    def _put_parts(self, entry_id: Ulid, files: Iterable[NamedFile], kind: str = "") -> tuple[int, int]:
        """Write the parts; return the number of files and their bytes."""
        count = size_bytes = 0
        rest = iter(files)
        for number in itertools.count():
            part = [asdict(file) for file in itertools.islice(rest, PART_FILES)]
            if not part and number:
                break
            key = join(self._lists, f"{entry_id}-{kind}{number:05}{_SUFFIX}")
            self._store.put(key, json.dumps(part).encode())
            count += len(part)
            size_bytes += sum(file["size_bytes"] for file in part)
        return count, size_bytes

    def _change(
        self, change: Callable[[tuple[PendingFiles, ...]], tuple[PendingFiles, ...]]
    ) -> tuple[PendingFiles, ...]:
        def changed(version: Any) -> bytes | None:
            now = () if version is None else self.files.decode(version, _decode)
            new = change(now)
            return None if new == now else _encode(new)

        self.files.found_anew()  # another program may have removed the cached version
        version = self.files.update(changed, self._clock, self._rng)
        return () if version is None else self.files.decode(version, _decode)


def _entry_of(key: str) -> str:
    return key.rpartition("/")[2][:_ULID_CHARS]


def _named(fields: Any) -> NamedFile:
    size_bytes = whole_number(fields["size_bytes"], most=MAX_POSITION)
    return NamedFile(text(fields["path"]), FileKind(fields["kind"]), size_bytes)


def _encode(entries: Sequence[PendingFiles]) -> bytes:
    return json.dumps({"entries": [asdict(entry) for entry in entries]}).encode()


def _decode(data: bytes, key: str) -> tuple[PendingFiles, ...]:
    try:
        return tuple(_entry(fields) for fields in json.loads(data)["entries"])
    except UNDECODABLE as error:
        raise CorruptObject(key, f"does not decode as what is to be deleted: {error}") from error


def _entry(fields: Any) -> PendingFiles:
    since = fields["since_ms"]
    return PendingFiles(
        id=parse_ulid(text(fields["id"])),
        snapshots=tuple(
            whole_number(s, least=-MAX_POSITION * 2, most=MAX_POSITION * 2) for s in fields["snapshots"]
        ),
        files=whole_number(fields["files"], most=MAX_POSITION),
        size_bytes=whole_number(fields["size_bytes"], most=MAX_POSITION),
        written_ms=whole_number(fields["written_ms"], most=MAX_POSITION),
        grace_ms=whole_number(fields["grace_ms"], most=MAX_POSITION),
        base=text(fields["base"]),
        blocked=text(fields["blocked"]),
        since_ms=None if since is None else whole_number(since, most=MAX_POSITION),
    )
