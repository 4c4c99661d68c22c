"""Registered readers of a table: checkpoint folders of Spark Structured Streaming.

Each is an object `readers/<name>.json` in Lithify's own folder of the table, written once, and the table
records its name (`own_state`). While the needs of a registered reader are unknown, nothing is expired. A
reader is added like a hold: create the object, then read the published threshold, and delete the object again
if the threshold is past the reader's needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated

from annotated_types import Predicate
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from lithify.base.documents import Count, DocumentCodec
from lithify.base.errors import (
    CorruptObject,
    LithifyError,
    ObjectExists,
    ObjectNotFound,
    Refused,
    StoreUnavailable,
)
from lithify.coordination.holds import checked_name
from lithify.coordination.thresholds import ThresholdFiles
from lithify.datasets.iceberg.io.places import canonical
from lithify.datasets.iceberg.io.reach import EVERYWHERE, REACH
from lithify.datasets.iceberg.io.stores import open_place
from lithify.datasets.iceberg.maintenance.checkpoints import (
    BEGINNING,
    StreamCheckpoint,
    StreamSource,
    read_checkpoint,
)
from lithify.datasets.iceberg.maintenance.expiry_policy import position_of
from lithify.datasets.iceberg.maintenance.own_state import recorded_in
from lithify.store.keys import join
from lithify.store.objects import ObjectStore
from lithify.watermarks.model import BlockReason
from lithify.watermarks.rules import admits

_SUFFIX = ".json"


def _is_name(name: str) -> bool:
    try:
        return bool(checked_name(name))
    except Refused:
        return False


@dataclass(frozen=True, slots=True)
class RegisteredReader:
    name: Annotated[str, Predicate(_is_name)]
    checkpoint: str
    """The URL of its checkpoint folder."""
    continuous: bool
    """Whether it never runs with `Trigger.AvailableNow`, so that it does not need its initial position."""
    added_ms: Count


_READERS = DocumentCodec(RegisteredReader)


@dataclass(frozen=True, slots=True)
class ReaderNeed:
    reader: RegisteredReader
    snapshots: tuple[int, ...] = ()
    """The reader needs each of these snapshots, and all later ones."""
    oldest: Snapshot | None = None
    """The oldest of them. Another program may expire it at any time, so it is not looked up again."""
    reason: BlockReason | None = None
    """Why the need is unknown; `None` if it is known."""
    why: str = ""
    """The reason as text."""
    read: frozenset[int] = frozenset()
    """The last snapshot read, one for each of its sources."""
    committed_ms: int | None = None
    """When it last committed, by the clock of its checkpoint's store; `None`: never."""


class Readers:
    """The readers of the table whose own folder is `folder` of `store`."""

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        thresholds: ThresholdFiles,
        open_checkpoint: Callable[[str, Table], tuple[ObjectStore, str]] | None = None,
    ) -> None:
        """`open_checkpoint` returns the store and the key of a checkpoint folder."""
        self._store = store
        self._folder = join(folder, "readers")
        self._thresholds = thresholds
        self._open = open_checkpoint if open_checkpoint is not None else _open_like_the_table

    def list(self) -> tuple[RegisteredReader, ...]:
        """Return all readers, by name."""
        found = []
        for meta in self._store.list(self._folder):
            if meta.key.endswith(_SUFFIX):
                try:
                    found.append(_decode(self._store.get(meta.key), meta.key))
                except ObjectNotFound:
                    continue
        return tuple(found)

    def add(
        self,
        load: Callable[[], Table],
        checkpoint: str,
        name: str | None,
        continuous: bool,
        now_ms: int,
        record: Callable[[Table, str], None],
    ) -> ReaderNeed:
        """Register a checkpoint folder, and return its reader's needs. `record` records the name in the
        table. Raise `Refused` if the needed history may be gone, if the name is taken, or if it cannot be
        recorded."""
        table = load()
        name = checked_name(name if name is not None else self._name_of(checkpoint, table))
        reader = RegisteredReader(name, checkpoint, continuous, now_ms)
        before = self.standing(reader, table)
        if before.reason is BlockReason.MISSING_MEMBER:
            raise Refused(f"{checkpoint}: {before.why}")
        key, is_new = self._key(name), True
        try:
            self._store.create(key, _READERS.encode(reader))
        except ObjectExists:
            there = _decode(self._store.get(key), key)
            if there.continuous != continuous or canonical(there.checkpoint) != canonical(checkpoint):
                raise Refused(
                    f"a reader {name} is already registered, for {there.checkpoint}; drop it or choose "
                    "another name"
                ) from None
            is_new = False  # the process that created it may have died before its checks
        table = load()
        standing = self.standing(reader, table)
        times = [position_of(table.metadata, snapshot) for snapshot in standing.snapshots]
        is_late = bool(times) and not admits(self._thresholds.read(), min(times))
        if is_new and (is_late or standing.reason is BlockReason.MISSING_MEMBER):
            self._store.delete(key)
            is_new = False
        if standing.reason is BlockReason.MISSING_MEMBER:
            raise Refused(f"{checkpoint}: {standing.why}")
        if is_late:
            raise Refused(
                f"reader {name} needs a snapshot that may be expired at any moment; let it catch up first"
            )
        try:
            record(table, name)
        except StoreUnavailable:
            raise  # it may still be recorded, so the reader stays; adding it again completes that
        except Exception:
            if is_new:
                self._store.delete(key)
            raise
        return standing

    def drop(self, table: Table, name_or_checkpoint: str, forget: Callable[[Table, str], None]) -> str:
        """Drop a reader, also one that only the table records, and return its name. `forget` removes the
        table's record. Raise `Refused` if there is none."""
        for reader in self.list():
            if name_or_checkpoint == reader.name or _is_at(reader, name_or_checkpoint):
                # The object last: a record without an object stops expiries.
                forget(table, reader.name)
                self._store.delete(self._key(reader.name))
                return reader.name
        if name_or_checkpoint not in recorded_in(table.metadata).readers:
            raise Refused(f"no reader {name_or_checkpoint} is registered; `lithify readers list` shows all")
        forget(table, name_or_checkpoint)
        return name_or_checkpoint

    def standing(self, reader: RegisteredReader, table: Table) -> ReaderNeed:
        """Return the reader's needs, by its current checkpoint."""
        try:
            store, folder = self._open(reader.checkpoint, table)
            found = read_checkpoint(store, folder)
        except LithifyError as error:
            why = f"its checkpoint cannot be read: {error}"
            return ReaderNeed(reader, reason=BlockReason.MISSING_MEMBER, why=why)
        return stands(reader, found, table.metadata)

    def _name_of(self, checkpoint: str, table: Table) -> str:
        """Return the name of a checkpoint's reader: the registered one, or else the default."""
        known = next((reader for reader in self.list() if _is_at(reader, checkpoint)), None)
        if known is not None:
            return known.name
        store, folder = self._open(checkpoint, table)
        return default_name(store.url, folder)

    def _key(self, name: str) -> str:
        return join(self._folder, f"{name}{_SUFFIX}")


def stands(reader: RegisteredReader, found: StreamCheckpoint, metadata: TableMetadata) -> ReaderNeed:
    """Return a reader's needs, by its checkpoint (pure)."""
    if not found.is_begun:
        why = "it has not started: its checkpoint has no position yet"
        return ReaderNeed(reader, reason=BlockReason.UNPUBLISHED, why=why)
    there = {snapshot.snapshot_id for snapshot in metadata.snapshots}
    needed: set[int] = set()
    gone: set[int] = set()
    lost: set[int] = set()
    for source in found.sources:
        known = [s for s in (source.committed, source.initial) if s is not None and s != BEGINNING]
        if known and there.isdisjoint(known):
            gone |= set(known)  # expired, or of a source that reads another table
            continue
        for snapshot in _wanted(source, reader.continuous):
            if snapshot == BEGINNING:
                needed |= {s.snapshot_id for s in (_oldest(metadata.snapshots),) if s is not None}
            elif snapshot in there:
                needed.add(snapshot)
            elif snapshot == source.committed:
                lost.add(snapshot)
    if lost or (gone and not needed):
        why = (
            f"it needs snapshot {min(lost or gone)}, which the table does not have or no longer has; drop "
            "it, or restart it from the beginning"
        )
        return ReaderNeed(reader, reason=BlockReason.MISSING_MEMBER, why=why)
    read = frozenset(s.committed for s in found.sources if s.committed is not None)
    oldest = _oldest(snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id in needed)
    return ReaderNeed(reader, tuple(sorted(needed)), oldest, read=read, committed_ms=found.committed_ms)


def _wanted(source: StreamSource, continuous: bool) -> tuple[int, ...]:
    first = source.committed if source.committed is not None else source.initial
    wanted = (first,) if continuous else (first, source.initial)
    return tuple(dict.fromkeys(snapshot for snapshot in wanted if snapshot is not None))


def _oldest(snapshots: Iterable[Snapshot]) -> Snapshot | None:
    return min(snapshots, key=lambda s: (s.timestamp_ms, s.sequence_number or 0), default=None)


def _is_at(reader: RegisteredReader, checkpoint: str) -> bool:
    return canonical(reader.checkpoint) == canonical(checkpoint)


def default_name(store_url: str, folder: str) -> str:
    """Return the default name of a reader: always the same for the same folder."""
    return f"reader-{sha256(f'{canonical(store_url)}/{folder}'.encode()).hexdigest()[:12]}"


def _open_like_the_table(checkpoint: str, table: Table) -> tuple[ObjectStore, str]:
    # An operator has named it, and it is only read, so it may be in any store.
    return open_place(checkpoint, {**table.io.properties, REACH: EVERYWHERE})


def _decode(data: bytes, key: str) -> RegisteredReader:
    try:
        return _READERS.decode(data, key)
    except CorruptObject as error:
        reason = (
            f"is not a reader: it {error.reason}; find the program that wrote it, and delete it if it is "
            "not needed"
        )
        raise CorruptObject(key, reason) from error
