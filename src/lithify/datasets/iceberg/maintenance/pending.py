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
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from lithify.base.clock import Clock
from lithify.base.documents import Count, DocumentCodec, UlidText
from lithify.base.errors import ObjectNotFound
from lithify.base.ids import Ids, Ulid
from lithify.datasets.iceberg.maintenance.reachable import NamedFile
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

    id: UlidText
    snapshots: tuple[int, ...]
    """The snapshots that alone name the files."""
    files: Count
    size_bytes: Count
    written_ms: Count
    grace_ms: Count = 0
    """The minimum time between the expiry and the deletion."""
    base: str = ""
    """The metadata file to be replaced, if the catalog does not check that itself."""
    since_ms: Count | None = None
    """When the snapshots were found to be gone; `None` while they exist."""
    blocked: str = ""
    """Why the files stay for good; empty if they are to be deleted."""


@dataclass(frozen=True, slots=True)
class _Entries:
    entries: tuple[PendingFiles, ...]


_ENTRIES = DocumentCodec(_Entries, "what is to be deleted")
_PARTS = DocumentCodec(tuple[NamedFile, ...], "a list of files")


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
        return () if version is None else self.files.decode(version, _ENTRIES.decode).entries

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
                found = _PARTS.decode(self._store.get(key), key)
            except ObjectNotFound:
                continue
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
            part = tuple(itertools.islice(rest, PART_FILES))
            if not part and number:
                break
            key = join(self._lists, f"{entry_id}-{kind}{number:05}{_SUFFIX}")
            self._store.put(key, _PARTS.encode(part))
            count += len(part)
            size_bytes += sum(file.size_bytes for file in part)
        return count, size_bytes

    def _change(
        self, change: Callable[[tuple[PendingFiles, ...]], tuple[PendingFiles, ...]]
    ) -> tuple[PendingFiles, ...]:
        def changed(version: Any) -> bytes | None:
            now = () if version is None else self.files.decode(version, _ENTRIES.decode).entries
            new = change(now)
            return None if new == now else _ENTRIES.encode(_Entries(new))

        self.files.found_anew()  # another program may have removed the cached version
        version = self.files.update(changed, self._clock, self._rng)
        return () if version is None else self.files.decode(version, _ENTRIES.decode).entries


def _entry_of(key: str) -> str:
    return key.rpartition("/")[2][:_ULID_CHARS]
