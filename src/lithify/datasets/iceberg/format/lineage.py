"""Checks that a loaded table continues the one that Lithify recorded.

A catalog restored from a backup, or a second catalog with the same table, shows a history that looks complete
and lacks the other history's files. They would seem garbage.

1. `lineage.json` next to the table names the newest metadata file that Lithify has read: at a coordinator's
   start, after each of its commits, and at each collection.
2. A table continues the record if it is at that metadata file or has it in its metadata log. If the log is
   too short, it must at least begin later: by its timestamps or, since a clock may have been ahead, by the
   sequence number of its oldest file.
3. A table that does not continue the record is not compacted, because its new files would be garbage to the
   other history's collections. It does not replace the record, and nothing is collected until an operator
   decides which history is in use and deletes the record.

If the table's location changes, this record stays at the old one unless an operator moves it; the log and the
snapshots still name the old location (`former_roots`).

Invariant: the record is read before the table, so a table that continues it is at least as new.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from lithify.base.documents import DocumentCodec
from lithify.base.errors import CorruptObject, ObjectNotFound, Refused
from lithify.datasets.iceberg.errors import advised, translated
from lithify.datasets.iceberg.io.places import canonical
from lithify.store.keys import url_of
from lithify.store.objects import ObjectStore


@dataclass(frozen=True, slots=True)
class KnownState:
    metadata_location: str
    last_updated_ms: int
    """By the clock of the table's writer."""
    sequence_number: int | None = None
    """The last one; `None` in records of old versions."""


_STATES = DocumentCodec(KnownState, optional={"sequence_number"})


class Lineage:
    """The record of the table at `url`, in the object `key`."""

    def __init__(self, url: str, store: ObjectStore, key: str) -> None:
        self._url = url
        self._store = store
        self.key = key

    def read(self) -> KnownState | None:
        """Return the recorded state, if any. Raise `CorruptObject` if it does not decode."""
        try:
            with advised("delete it if the table is in the right state"):
                return _STATES.decode(self._store.get(self.key), self.key)
        except ObjectNotFound:
            return None

    def check(self, table: Table, load: Callable[[], Table]) -> None:
        """Raise `Refused` if the table does not continue the record. A damaged record passes: it stops only
        collections."""
        try:
            known = self.read()
        except CorruptObject:
            return
        # The table was loaded before the record was read and may only be stale, so load it again.
        if not continues(known, table) and not continues(known, load()):
            raise self.refusal(known, "nothing is compacted")

    def refusal(self, known: KnownState | None, so: str) -> Refused:
        """Return the error for a table that does not continue the record."""
        assert known is not None
        return Refused(
            f"{self._url}: this table is not the one that Lithify saw last, {known.metadata_location}; it "
            "may be registered in a second catalog, or its catalog was restored, so its files may be needed "
            f"elsewhere, and {so}; if only this table is in use, delete {url_of(self._store.url, self.key)}"
        )

    def advance(self, table: Table) -> None:
        """Record the table's state if it continues the record. A damaged record is kept for the operator."""
        try:
            known = self.read()
        except CorruptObject:
            return
        now = state_of(table)
        if now != known and continues(known, table):
            self._store.put(self.key, _STATES.encode(now))


def state_of(table: Table) -> KnownState:
    metadata = table.metadata
    return KnownState(table.metadata_location, metadata.last_updated_ms, _number(metadata))


def former_roots(table: Table) -> tuple[str, ...]:
    """Return earlier locations that the table's log and snapshots show (pure)."""
    metadata = table.metadata
    paths = [table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)]
    paths += [snapshot.manifest_list for snapshot in metadata.snapshots]
    roots = {path.rpartition("/")[0].removesuffix("/metadata") for path in paths if "/" in path}
    return tuple(sorted(root for root in roots if canonical(root) != canonical(metadata.location)))


def continues(known: KnownState | None, table: Table) -> bool:
    """Return whether the table is the recorded state or a later one. May read the oldest file in its log."""
    if known is None:
        return True
    log = table.metadata.metadata_log
    files = table.metadata_location, *(entry.metadata_file for entry in log)
    if canonical(known.metadata_location) in map(canonical, files):
        return True
    reaches_back_to_ms = min((entry.timestamp_ms for entry in log), default=table.metadata.last_updated_ms)
    return known.last_updated_ms < reaches_back_to_ms or _begins_after(table, known.sequence_number)


def _begins_after(table: Table, sequence_number: int | None) -> bool:
    """Return whether the oldest file in the table's log has a later sequence number; `False` if it is
    gone."""
    log = table.metadata.metadata_log
    if not log or sequence_number is None:
        return False
    with translated(f"reading former metadata of {'.'.join(table.name())}"):
        try:
            oldest = _metadata_in(table, log[0].metadata_file)
        except FileNotFoundError:
            return False
    return (_number(oldest) or 0) > sequence_number


def _metadata_in(table: Table, path: str) -> TableMetadata:
    return FromInputFile.table_metadata(table.io.new_input(path))


def _number(metadata: TableMetadata) -> int | None:
    """Return the last sequence number; `None` in format version 1."""
    number: int | None = getattr(metadata, "last_sequence_number", None)
    return number
