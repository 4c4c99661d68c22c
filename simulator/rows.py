"""Rows and SSTs of the simulation, and a merge in place of the compiled kernel.

An SST object holds its rows plainly, so that reading it costs nothing, and a missing object means
missing rows. Its descriptor is a real one, so that manifest and ledger carry it as they carry others.

`merge_rows` follows SlateDB's row semantics: per key, newest first, keep every version above the
snapshot horizon and the newest at or below it; what has expired by the manifest's clock becomes a
tombstone; in the last run, tombstones at the old end vanish.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from lithify.base.ids import Ulid, ulid_ms
from lithify.datasets.slatedb.compaction.task import RowRules
from lithify.datasets.slatedb.model import EVERYTHING, KeyRange, Manifest, Sst, SstInfo, Tree

ROW_BYTES = 100
"""What a row counts in sizes."""
_INDEX_BYTES = 20


@dataclass(frozen=True, slots=True)
class Row:
    """One version of a key. `value` is `None` for a tombstone; `expire_ms` 0 means never."""

    key: bytes
    seq: int
    value: int | None
    expire_ms: int = 0


Versions = Mapping[bytes, Sequence[Row]]
"""The versions of each key, newest first."""


def encode_rows(rows: Sequence[Row]) -> bytes:
    """The object of an SST."""
    return pickle.dumps([(row.key, row.seq, row.value, row.expire_ms) for row in rows])


@lru_cache(maxsize=4096)
def decode_rows(data: bytes) -> tuple[Row, ...]:
    """The rows of an SST's object."""
    return tuple(Row(*fields) for fields in pickle.loads(data))


@lru_cache(maxsize=4096)
def versions_of(data: bytes) -> Versions:
    """The rows of an SST's object by key."""
    return {key: tuple(rows) for key, rows in groupby(decode_rows(data), key=lambda row: row.key)}


def describe(sst_id: Ulid, rows: Sequence[Row]) -> Sst:
    """The descriptor of an SST with these rows, in order."""
    data_bytes = ROW_BYTES * len(rows)
    info = SstInfo(rows[0].key, rows[-1].key, data_bytes, _INDEX_BYTES, data_bytes, 0, 0, 0)
    return Sst(sst_id, info)


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Rows by ascending key, newest version first."""
    return sorted(rows, key=lambda row: (row.key, -row.seq))


def merge_rows(rows: Iterable[Row], rules: RowRules) -> Iterator[Row]:
    """What a compaction makes of its input rows."""
    for _, versions in groupby(in_order(rows), key=lambda row: row.key):
        yield from _retained(versions, rules)


def _retained(versions: Iterable[Row], rules: RowRules) -> list[Row]:
    kept: list[Row] = []
    for row in versions:
        is_expired = row.value is not None and 0 < row.expire_ms <= rules.clock_tick_ms
        kept.append(Row(row.key, row.seq, None) if is_expired else row)
        if row.seq <= rules.retention_min_seq:
            break
    while rules.is_last_run and kept and kept[-1].value is None:
        kept.pop()
    return kept


def cut(keys: Iterable[bytes], keys_per_range: int) -> tuple[KeyRange, ...]:
    """Ranges that cover everything, of so many of these keys each."""
    starts = sorted(set(keys))[keys_per_range::keys_per_range]
    if not starts:
        return (EVERYTHING,)
    return tuple(KeyRange(start, end) for start, end in zip([None, *starts], [*starts, None], strict=True))


def visible_value(row: Row | None, clock_tick_ms: int) -> int | None:
    """What a reader sees of the newest version it may see."""
    if row is None or row.value is None or 0 < row.expire_ms <= clock_tick_ms:
        return None
    return row.value


def read_key(tree: Tree, contents: Mapping[Ulid, Versions], key: bytes, seq: int) -> Row | None:
    """A point read: the first version at or below `seq`, sources in the order of the manifest."""
    for view in tree.views():
        for row in contents[view.sst.id].get(key, ()):
            if row.seq <= seq:
                return row
    return None


def newest_by_seq(tree: Tree, contents: Mapping[Ulid, Versions], key: bytes, seq: int) -> Row | None:
    """A scan: the version with the highest number at or below `seq`, wherever it lies."""
    found = (row for view in tree.views() for row in contents[view.sst.id].get(key, ()) if row.seq <= seq)
    return max(found, key=lambda row: row.seq, default=None)


def tree_of(manifest: Manifest, key: bytes) -> Tree | None:
    """The tree a key belongs to."""
    if not manifest.segments and manifest.segment_extractor_name is None:
        return manifest.root
    return next((tree for tree in manifest.segments if key.startswith(tree.prefix)), None)


def newest_l0_ms(tree: Tree) -> int:
    """The time in the id of the newest L0 SST a tree has, or had; 0 if there never was one."""
    if tree.l0:
        return ulid_ms(tree.l0[0].sst.id)
    return ulid_ms(tree.last_compacted_l0) if tree.last_compacted_l0 is not None else 0
