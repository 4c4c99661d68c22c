"""Whether a table is still the one that Lithify knew: proof that nobody else owns its files.

A catalog that was restored from a backup, and a second catalog in which the same table is registered, show a
table that looks whole and does not know the files of its other self. Garbage for the one is data of the
other.

1. `lineage.json` beside the table names the newest metadata file that Lithify saw: when a coordinator starts,
   after each of its commits, and at each collection.
2. A table continues that one if it is at that metadata file or has it in its metadata log. Where the log does
   not reach back so far, it must at least begin later: by the times in it, or, since a clock may have been
   ahead, by the sequence number of the oldest file in it, as these only grow.
3. A table that does not continue it is not compacted: files of Lithify's that only one of two selves knows
   would be garbage to the collections of the other. Nor does it replace the record, and nothing beside it is
   collected, until a person says which self is in use, by deleting the record.

A table can be given another location, and then everything beside it (this record too) is left behind at the
old one, unless somebody moves it. Its log and its snapshots still tell where it was (`former_roots`).

Invariant: the record is read before the table, so an honest table is at least as new.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from lithify.base.errors import CorruptObject, ObjectNotFound, Refused
from lithify.base.jsonvalues import UNDECODABLE
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.io.places import canonical
from lithify.store.keys import url_of
from lithify.store.objects import ObjectStore


@dataclass(frozen=True, slots=True)
class KnownState:
    """A state of a table."""

    metadata_location: str
    last_updated_ms: int
    """By the clock of who wrote it."""
    sequence_number: int | None = None
    """The last one; `None` in records of old versions."""


class Lineage:
    """The record of the table at `url`, in the object `key`."""

    def __init__(self, url: str, store: ObjectStore, key: str) -> None:
        self._url = url
        self._store = store
        self.key = key

    def read(self) -> KnownState | None:
        """The newest state that Lithify saw; `None` when it saw none."""
        try:
            fields = json.loads(self._store.get(self.key))
            location, updated_ms = str(fields["metadata_location"]), int(fields["last_updated_ms"])
            number = fields.get("sequence_number")
            return KnownState(location, updated_ms, None if number is None else int(number))
        except ObjectNotFound:
            return None
        except UNDECODABLE as error:
            raise CorruptObject(
                self.key, f"does not decode: {error}; delete it if the table is right"
            ) from error

    def check(self, table: Table, load: Callable[[], Table]) -> None:
        """`Refused` when the table does not continue what is on record. A damaged record stops collections,
        and nothing else."""
        try:
            known = self.read()
        except CorruptObject:
            return
        # It was loaded before the record was read, so what seems to be behind may be so honestly.
        if not continues(known, table) and not continues(known, load()):
            raise self.refusal(known, "nothing is compacted")

    def refusal(self, known: KnownState | None, so: str) -> Refused:
        """Says of a table that does not continue what is on record why, and what to do."""
        assert known is not None
        return Refused(
            f"{self._url}: this table is not the one that Lithify saw last, {known.metadata_location}; it "
            "may be registered in a second catalog, or its catalog was restored, so its files may be needed "
            f"elsewhere and {so}; if this one alone is in use, delete {url_of(self._store.url, self.key)}"
        )

    def advance(self, table: Table) -> None:
        """Put the table on record if it continues what is there. A damaged record stays until somebody has
        looked: it stops collections, and nothing else."""
        try:
            known = self.read()
        except CorruptObject:
            return
        now = state_of(table)
        if now != known and continues(known, table):
            self._store.put(self.key, json.dumps(asdict(now)).encode())


def state_of(table: Table) -> KnownState:
    """The state of a table as it was loaded."""
    metadata = table.metadata
    return KnownState(table.metadata_location, metadata.last_updated_ms, _number(metadata))


def former_roots(table: Table) -> tuple[str, ...]:
    """Folders that the table's metadata were in, as far as it knows, other than where it lies now (pure)."""
    metadata = table.metadata
    paths = [table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)]
    paths += [snapshot.manifest_list for snapshot in metadata.snapshots]
    roots = {path.rpartition("/")[0].removesuffix("/metadata") for path in paths if "/" in path}
    return tuple(sorted(root for root in roots if canonical(root) != canonical(metadata.location)))


def continues(known: KnownState | None, table: Table) -> bool:
    """Whether the table is a later state of what was known, or the same. Where neither its log nor the times
    in it say so, the oldest file in the log is read."""
    if known is None:
        return True
    log = table.metadata.metadata_log
    files = table.metadata_location, *(entry.metadata_file for entry in log)
    if canonical(known.metadata_location) in map(canonical, files):
        return True
    reaches_back_to_ms = min((entry.timestamp_ms for entry in log), default=table.metadata.last_updated_ms)
    return known.last_updated_ms < reaches_back_to_ms or _begins_after(table, known.sequence_number)


def _begins_after(table: Table, sequence_number: int | None) -> bool:
    """Whether the oldest file in the table's log is of later than this; not if that file is gone."""
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
    """The last sequence number; `None` in format version 1."""
    number: int | None = getattr(metadata, "last_sequence_number", None)
    return number
