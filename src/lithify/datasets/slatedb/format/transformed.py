"""Databases whose clients transform blocks, for example encrypt them (SlateDB's `BlockTransformer`).

No metadata says so. A transformed block has the right checksum, which is computed last, but its content
cannot be decoded, in any SST. Only the description of an SST is never transformed.
"""

from __future__ import annotations

from typing import NamedTuple

from lithify.base.errors import CorruptObject, Refused, StoreError, Unsupported
from lithify.datasets.slatedb.compaction.sources import Locator
from lithify.datasets.slatedb.format.flatbuffer import BYTES, U64, TableType, read, required, tables
from lithify.datasets.slatedb.format.paths import DatabasePaths
from lithify.datasets.slatedb.format.sst import check_seal, unseal
from lithify.datasets.slatedb.model import Manifest, View, layout_problem
from lithify.store.objects import ObjectStore

WITNESSES = 2
"""SSTs whose indexes must be unreadable: one may be damaged."""
_MAX_INDEX_BYTES = 1 << 20


class _BlockMetaRecord(NamedTuple):
    offset: int
    first_key: bytes


class _IndexRecord(NamedTuple):
    block_meta: tuple[_BlockMetaRecord, ...]


_BLOCK_META = TableType("BlockMeta", _BlockMetaRecord, (U64, required(BYTES)))
_INDEX = TableType("SsTableIndex", _IndexRecord, (required(tables(_BLOCK_META)),))


def check_not_transformed(store: ObjectStore, paths: DatabasePaths, manifest: Manifest, url: str) -> None:
    """Raise `Refused` if the smallest indexes of the database are undamaged but cannot be decoded."""
    smallest = sorted(manifest.views_by_sst().values(), key=lambda view: view.sst.info.index_len)[:WITNESSES]
    locate = Locator(store, paths, manifest)
    if smallest and all(_is_transformed(store, locate, view) for view in smallest):
        raise Refused(
            f"{url}: its blocks are transformed, for example encrypted, by a BlockTransformer of its "
            "clients; leave it to a SlateDB compactor that has the same transformer"
        )


def _is_transformed(store: ObjectStore, locate: Locator, view: View) -> bool:
    """Return whether the SST's index has the right checksum and no readable content."""
    info = view.sst.info
    if info.index_len > _MAX_INDEX_BYTES or layout_problem(info):
        return False
    try:
        key = locate(view)
        stored = store.get_range(key, info.index_offset, info.index_len)
        check_seal(stored, key)
    except (CorruptObject, StoreError, Refused):
        return False  # its compaction reports that
    try:
        read(bytes(unseal(stored, info.compression, key)), _INDEX, key)
    except Unsupported:
        return False
    except CorruptObject:
        return True
    return False
