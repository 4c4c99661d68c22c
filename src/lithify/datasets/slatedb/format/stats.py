"""The stats block of an SST: how many rows of each kind, and how large (SlateDB format: stats).

Counts are rows, not keys. Sizes are uncompressed. Clients do not need the stats; Lithify uses them to find
out cheaply whether an SST holds merge operands. Written bytes equal those of the official client.
"""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lithify.base.errors import CorruptObject, Unsupported
from lithify.datasets.slatedb.format.sst import BytesLike, unseal
from lithify.datasets.slatedb.kernel import flatbuffer as fb
from lithify.datasets.slatedb.model import MAX_METADATA_BYTES, SstInfo, layout_problem
from lithify.kernel.cache import entry, inlined
from lithify.store.objects import ObjectStore

_log = logging.getLogger("lithify")

_COUNT = struct.Struct("<I")
_BLOCK_BYTES_MAX = 32
"""The most bytes of one block in the buffer: table, reference, vtable and padding."""
_FOREIGN_BLOCK_BYTES_MAX = 64
"""The same if no two blocks share a vtable."""
_ROOT_BYTES_MAX = 128
_U16_MAX = (1 << 16) - 1
_I64_MAX = (1 << 63) - 1
_TOTALS = 5
_ROOT_SLOTS = 6
_BLOCK_SLOTS = 3
_MAX_TABLE_BYTES = 16

_PROBLEMS = {fb.OUTSIDE: "lies outside the block", fb.UNALIGNED: "is not aligned"}


@dataclass(frozen=True, slots=True, eq=False)
class SstStats:
    """Rows and raw sizes of an SST, and rows of each of its data blocks."""

    num_puts: int
    num_deletes: int
    num_merges: int
    raw_key_bytes: int
    raw_value_bytes: int
    block_puts: NDArray[np.int64]
    block_deletes: NDArray[np.int64]
    block_merges: NDArray[np.int64]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, SstStats)
            and self._totals() == other._totals()
            and np.array_equal(self._blocks(), other._blocks())
        )

    __hash__ = None  # type: ignore[assignment]  # arrays have no hash

    def _totals(self) -> tuple[int, ...]:
        return (self.num_puts, self.num_deletes, self.num_merges, self.raw_key_bytes, self.raw_value_bytes)

    def _blocks(self) -> NDArray[np.int64]:
        return np.ascontiguousarray(
            np.stack((self.block_puts, self.block_deletes, self.block_merges), axis=1), dtype=np.int64
        )


def read_stats(store: ObjectStore, key: str, info: SstInfo) -> SstStats | None:
    """Return the stats of the SST with that key; `None` if it has none that can be read."""
    name = f"{key} (stats)"
    if not info.stats_len or layout_problem(info):
        return None
    try:
        stored = store.get_range(key, info.stats_offset, info.stats_len)
        return decode_stats(unseal(stored, info.compression, name, limit=MAX_METADATA_BYTES), name)
    except (CorruptObject, Unsupported) as error:
        _log.warning("%s", error)
        return None


def max_stats_bytes(blocks: int) -> int:
    """Return the most bytes of the raw stats of an SST with this many data blocks, for any writer."""
    return _ROOT_BYTES_MAX + _FOREIGN_BLOCK_BYTES_MAX * blocks


def encode_stats(stats: SstStats) -> bytes:
    """Return the raw stats block, byte for byte as the official client writes it."""
    totals, blocks = stats._totals(), stats._blocks()
    if not all(0 <= total <= _I64_MAX for total in totals):
        raise ValueError(f"a total of the stats is out of range: {totals}")
    if blocks.size and not 0 <= blocks.min() <= blocks.max() <= _U16_MAX:
        raise ValueError("a block's count is out of range")
    buffer = np.empty(_BLOCK_BYTES_MAX * len(blocks) + _ROOT_BYTES_MAX, np.uint8)
    used = _write_stats(buffer, np.array(totals, np.int64), blocks)
    return buffer[len(buffer) - used :].tobytes()


def decode_stats(raw: BytesLike, name: str) -> SstStats:
    """Return the stats in an unsealed stats block. `name` identifies block and object in errors."""
    data = np.frombuffer(raw, np.uint8)
    totals = np.zeros(_TOTALS, np.int64)
    vector = _read_totals(data, totals)
    if vector < 0:
        _refuse(vector, "the stats", name)
    if totals.min() < 0:
        raise CorruptObject(name, "a total of the stats is beyond 63 bits")
    count = _COUNT.unpack_from(raw, vector)[0] if vector else 0
    blocks = np.zeros((count, _BLOCK_SLOTS), np.int64)
    status, block = _read_blocks(data, vector, blocks)
    if status < 0:
        _refuse(status, f"block {block} of the stats", name)
    puts, deletes, merges, raw_key_bytes, raw_value_bytes = map(int, totals)
    return SstStats(
        puts, deletes, merges, raw_key_bytes, raw_value_bytes, blocks[:, 0], blocks[:, 1], blocks[:, 2]
    )


def _refuse(status: int, what: str, name: str) -> None:
    if status == fb.UNKNOWN_SLOT:
        raise Unsupported(f"{name}: {what} has a field which this version of Lithify does not know")
    raise CorruptObject(name, f"{what} {_PROBLEMS[status]}")


@entry
def _read_totals(data: fb.Buffer, totals: fb.Numbers) -> int:
    """Fill the totals. Return the position of the vector of blocks, `fb.ABSENT`, or a negative status."""
    table = fb.root(data)
    if table < 0:
        return table
    status = fb.check_table(data, table, _ROOT_SLOTS)
    if status < 0:
        return status
    for i in range(_TOTALS):
        place = fb.slot(data, table, i, 8)
        if place < 0:
            return place
        if place != fb.ABSENT:
            totals[i] = fb.load(data, place, 8)
    reference = fb.slot(data, table, _TOTALS, fb.REF_BYTES)
    return fb.vector(data, reference, fb.REF_BYTES) if reference > 0 else reference


@entry
def _read_blocks(data: fb.Buffer, vector: int, blocks: NDArray[np.int64]) -> tuple[int, int]:
    """Fill the counts of all blocks. Return a status and the block it concerns."""
    for i in range(len(blocks)):
        reference = vector + 4 + 4 * i
        table = reference + fb.load(data, reference, 4)
        status = fb.check_table(data, table, _BLOCK_SLOTS)
        if status < 0:
            return status, i
        for kind in range(_BLOCK_SLOTS):
            place = fb.slot(data, table, kind, 2)
            if place < 0:
                return place, i
            if place != fb.ABSENT:
                blocks[i, kind] = fb.load(data, place, 2)
    return 0, 0


@entry
def _write_stats(buffer: fb.Buffer, totals: fb.Numbers, blocks: NDArray[np.int64]) -> int:
    """Write the stats to the end of the buffer; return their size."""
    tables = np.empty(len(blocks), np.int64)
    # A vtable is determined by which counts are not zero, and by the size of the table.
    vtables = np.zeros((1 << _BLOCK_SLOTS, _MAX_TABLE_BYTES + 1), np.int64)
    fields = np.zeros(_BLOCK_SLOTS, np.int64)
    used = 0
    for i in range(len(blocks)):
        tail = used
        present = 0
        for kind in range(_BLOCK_SLOTS - 1, -1, -1):
            fields[kind] = 0
            if blocks[i, kind] != 0:
                used = fb.put(buffer, used, blocks[i, kind], 2)
                fields[kind] = used
                present |= 1 << kind
        used = fb.pad(buffer, used, 4, 4) + 4
        table = used
        if vtables[present, table - tail] == 0:
            used = fb.put_vtable(buffer, used, table, tail, fields)
            vtables[present, table - tail] = used
        fb.link_vtable(buffer, table, vtables[present, table - tail])
        tables[i] = table
    return _write_root(buffer, used, totals, tables)


@inlined
def _write_root(buffer: fb.Buffer, used: int, totals: fb.Numbers, tables: fb.Numbers) -> int:
    vector = 0
    if len(tables) > 0:
        used = fb.put_references(buffer, used, tables)
        vector = used
    tail = used
    alignment = 4
    fields = np.zeros(_ROOT_SLOTS, np.int64)
    for i in range(_TOTALS - 1, -1, -1):
        if totals[i] != 0:
            used = fb.put(buffer, used, totals[i], 8)
            fields[i] = used
            alignment = 8
    if vector != 0:
        used = fb.put_reference(buffer, used, vector)
        fields[_TOTALS] = used
    used = fb.pad(buffer, used, 4, 4) + 4
    table = used
    used = fb.put_vtable(buffer, used, table, tail, fields)
    fb.link_vtable(buffer, table, used)
    return fb.finish(buffer, used, table, alignment)
