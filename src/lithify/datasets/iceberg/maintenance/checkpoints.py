"""The position of a Spark Structured Streaming reader in a table, read from its checkpoint folder.

1. `commits/N` exists once batch N is complete: a line `v1` (Spark 4 may write `v2`) and a line of JSON; a
   half-written one does not count. `offsets/N` has the end positions of batch N: one line per source, after
   `v1` and a line of Spark's own. The reader's position is that of the highest committed N, not of a planned
   one.
2. Iceberg's source writes its initial position once, before the first batch, as `sources/K/offsets/0`. A
   reader without commits is there. With `Trigger.AvailableNow` a restarted reader walks from there to the
   newest snapshot, however far it has read (apache/iceberg #18000), so it needs that whole range.
3. A position is `{"version": 1, "snapshot_id": …, "position": …, "scan_all_files": …}`. Snapshot -1 is the
   beginning of the table.
4. A checkpoint may have several sources. Those of this table are recognized by its snapshots.

Undecodable content is an error, because the reader's needs are unknown then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lithify.base.errors import CorruptObject, ObjectNotFound
from lithify.base.jsonvalues import UNDECODABLE, whole_number
from lithify.store.keys import join
from lithify.store.objects import ObjectStore

BEGINNING = -1
"""The position before the first snapshot."""
_VERSION = "v1"
_MAX_ID = (1 << 63) - 1
_NO_OFFSET = "-"


@dataclass(frozen=True, slots=True)
class StreamSource:
    """A source of a checkpoint that reads an Iceberg table; its positions are snapshot ids."""

    initial: int | None
    """The initial position; `None` if it is not written yet."""
    committed: int | None
    """The position after the last committed batch; `None` if no batch was committed."""


@dataclass(frozen=True, slots=True)
class StreamCheckpoint:
    """The decoded content of a checkpoint folder."""

    sources: tuple[StreamSource, ...]
    committed_ms: int | None = None
    """When the last batch was completed, by the store's clock; `None` before the first."""

    @property
    def is_begun(self) -> bool:
        """Whether the checkpoint has any position."""
        return bool(self.sources)


def read_checkpoint(store: ObjectStore, folder: str) -> StreamCheckpoint:
    """Return the checkpoint in a folder of a store, without sources if the folder is empty. Raise
    `CorruptObject` if it does not decode."""
    batch, committed_ms = _committed(store, join(folder, "commits"))
    committed: dict[int, int] = {}
    if batch is not None:
        key = join(folder, "offsets", str(batch))
        try:
            committed = parse_offsets(store.get(key), key)
        except ObjectNotFound:
            raise CorruptObject(key, f"batch {batch} was committed, but its offsets are missing") from None
    initial = dict(_initial(store, join(folder, "sources")))
    numbers = sorted(committed.keys() | initial.keys())
    return StreamCheckpoint(
        tuple(StreamSource(initial.get(n), committed.get(n)) for n in numbers), committed_ms
    )


def parse_offsets(data: bytes, key: str) -> dict[int, int]:
    """Return the snapshots of all sources that read Iceberg tables, by the source's number (pure)."""
    try:
        version, _, *lines = data.decode().splitlines()
        if version != _VERSION:
            raise ValueError(f"its format is {version[:20]!r}, not {_VERSION!r}")
        found = {n: _snapshot_of(line) for n, line in enumerate(lines) if line != _NO_OFFSET}
    except UNDECODABLE as error:
        raise CorruptObject(key, f"does not decode as offsets of Spark: {error}") from error
    return {n: snapshot for n, snapshot in found.items() if snapshot is not None}


def parse_offset(data: bytes, key: str) -> int | None:
    """Return the snapshot of one position; `None` if another kind of source wrote it (pure)."""
    try:
        return _snapshot_of(data.decode().splitlines()[-1])
    except UNDECODABLE as error:
        raise CorruptObject(key, f"does not decode as an offset of Iceberg: {error}") from error


def _snapshot_of(line: str) -> int | None:
    fields: Any = json.loads(line)
    if not isinstance(fields, dict) or "snapshot_id" not in fields:
        return None
    if fields["version"] != 1:
        raise ValueError(f"a position has the version {fields['version']!r}; Lithify knows 1")
    return whole_number(fields["snapshot_id"], least=BEGINNING, most=_MAX_ID)


def _committed(store: ObjectStore, folder: str) -> tuple[int | None, int | None]:
    """Return the highest completed batch, and its time."""
    names = ((meta.key.removeprefix(f"{folder}/"), meta.last_modified_ms) for meta in store.list(folder))
    batches = ((int(name), at_ms) for name, at_ms in names if name.isascii() and name.isdigit())
    for batch, at_ms in sorted(batches, reverse=True):
        key = join(folder, str(batch))
        try:
            if is_done(store.get(key), key):
                return batch, at_ms
        except ObjectNotFound:
            continue
    return None, None


def is_done(data: bytes, key: str) -> bool:
    """Return whether a commit file of Spark is complete (pure). Raise `CorruptObject` if its format is
    unknown."""
    version, _, rest = data.decode(errors="replace").partition("\n")
    if not re.fullmatch(r"(v\d{0,3})?", version):
        raise CorruptObject(key, f"does not decode as a commit of Spark: it begins with {version[:20]!r}")
    try:
        return isinstance(json.loads(rest), dict)
    except UNDECODABLE:
        return False


def _initial(store: ObjectStore, folder: str) -> Iterable[tuple[int, int]]:
    for meta in store.list(folder):
        number, _, rest = meta.key.removeprefix(f"{folder}/").partition("/")
        if rest == "offsets/0" and number.isascii() and number.isdigit():
            try:
                snapshot = parse_offset(store.get(meta.key), meta.key)
            except ObjectNotFound:
                continue
            if snapshot is not None:
                yield int(number), snapshot
