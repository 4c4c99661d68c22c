"""The encoder of output blocks (SlateDB format: SST version 2).

`append_row` adds one row to the output:

1. If the previous row completed the output, or there is no room, return without an effect.
2. Every 16th row of a block is a restart point, which shares nothing with the row before. Other rows leave
   out the prefix that they share with it.
3. If the block is not empty and would exceed the block size with this row, its restart and the count, finish
   the block and encode the row as the first of the next one.
4. Once the finished blocks exceed the size of an output, mark the output for closing. The row that exceeded
   it stays, as the last block's only row.
5. Store the key's hash, and that of its prefix, for the filters (`key_hashes`) and the counts for the stats.

`finish_block` appends the restart offsets and their count, compresses, appends the checksum and registers the
block: its offset, its counts, and the index key of the next block. That is the shortest prefix of the next
block's first key that is greater than this block's last key.

Invariants: between calls the buffer has room to finish the block in progress; the lists have room for one
more row and two more blocks.
"""

from __future__ import annotations

from lithify.datasets.slatedb.kernel.codecs import pack_block
from lithify.datasets.slatedb.kernel.key_hashes import add_hash, add_prefix_hash, finish_hashes
from lithify.datasets.slatedb.kernel.keys import common_length
from lithify.datasets.slatedb.kernel.layout import (
    CHECKSUM_BYTES,
    MERGE,
    RESTART_INTERVAL,
    TOMBSTONE,
    KernelStatus,
    Record,
    Records,
)
from lithify.datasets.slatedb.kernel.varint import varint_len, write_varint
from lithify.kernel.cache import called, entry, inlined
from lithify.kernel.crc32 import crc32
from lithify.kernel.memory import (
    copy_bytes,
    copy_key,
    copy_row,
    load_i64,
    store_64,
    store_u16_be,
    store_u32_be,
)

BLOCK_TRAILER_BYTES = 1024
"""An upper bound for the restart offsets, the count and the checksum of a block."""

_NO_COMPRESSION = 0
_MAX_LENGTHS_BYTES = 15

_OK = int(KernelStatus.OK)
_FLUSH = int(KernelStatus.FLUSH)
_CLOSE = int(KernelStatus.CLOSE)
_NEED_ROW_SPACE = int(KernelStatus.NEED_ROW_SPACE)
_COMPRESSION_FAILED = int(KernelStatus.COMPRESSION_FAILED)


@called
def _write_restarts(output: Record) -> int:
    """Write the restart offsets and their count. Return the end of the block."""
    position: int = output.position
    for index in range(output.restart_count):
        store_u16_be(position, load_i64(output.restarts + 8 * index))
        position += 2
    store_u16_be(position, output.restart_count)
    return position + 2


@called
def _register_block(output: Record, stored_len: int) -> None:
    block = output.blocks
    store_64(output.block_offsets + 8 * block, output.data_bytes)
    store_64(output.puts + 8 * block, output.block_puts)
    store_64(output.deletes + 8 * block, output.block_deletes)
    store_64(output.merges + 8 * block, output.block_merges)
    output.block_puts = 0
    output.block_deletes = 0
    output.block_merges = 0
    output.data_bytes += stored_len
    output.blocks = block + 1


@called
def finish_block(output: Record, codecs: Record) -> int:
    start = output.block_start
    end = _write_restarts(output)
    if output.codec != _NO_COMPRESSION:
        packed_len = pack_block(output.codec, codecs, start, end - start)
        if packed_len <= 0:
            return _COMPRESSION_FAILED
        copy_bytes(start, codecs.packed, packed_len)
        end = start + packed_len
    store_u32_be(end, crc32(start, end - start))
    end += CHECKSUM_BYTES
    _register_block(output, end - start)
    output.block_rows = 0
    output.restart_count = 0
    output.block_start = end
    output.position = end
    return _OK


@called
def _register_index_key(output: Record, key: int, length: int) -> None:
    used = output.index_keys_len
    copy_bytes(output.index_keys + used, key, length)
    used += length
    output.index_keys_len = used
    store_64(output.index_key_ends + 8 * output.blocks, used)


@called
def _start_output(output: Record, key: int, key_len: int) -> None:
    copy_key(output.first_key, key, key_len)
    output.first_key_len = key_len
    _register_index_key(output, key, 0)


@inlined
def _lacks_room(output: Record, key_len: int, tail_len: int) -> int:
    """Return `OK`, or why this row cannot be added yet."""
    needed = key_len + tail_len + _MAX_LENGTHS_BYTES + BLOCK_TRAILER_BYTES
    if output.position + needed > output.buffer_end:
        output.needed = output.position - output.block_start + needed
        return _FLUSH
    if (
        output.rows >= output.row_capacity
        or output.blocks + 2 > output.block_capacity
        or output.index_keys_len + key_len > output.index_keys_capacity
    ):
        output.needed = key_len
        return _NEED_ROW_SPACE
    return _OK


@inlined
def _fits(output: Record, shared: int, key_len: int, value_len: int, tail_len: int, restart: int) -> bool:
    unshared = key_len - shared
    row_len = varint_len(shared) + varint_len(unshared) + varint_len(value_len) + unshared + tail_len
    used = output.position - output.block_start + 2 * output.restart_count + 2
    return bool(used + row_len + 2 * restart <= output.block_size)


@inlined
def _write_row(
    output: Record, shared: int, key: int, key_len: int, value_len: int, tail: int, tail_len: int
) -> None:
    position = output.position
    unshared = key_len - shared
    position = write_varint(position, shared)
    position = write_varint(position, unshared)
    position = write_varint(position, value_len)
    copy_key(position, key + shared, unshared)
    position += unshared
    copy_row(position, tail, tail_len)
    output.position = position + tail_len


@inlined
def _count_row(output: Record, key: int, key_len: int, value_len: int, flags: int) -> None:
    if output.hashing:
        add_hash(output, key, key_len)
    if 0 < output.prefix_len <= key_len:
        add_prefix_hash(output, key)
    output.rows += 1
    output.block_rows += 1
    output.raw_key_bytes += key_len
    output.raw_value_bytes += value_len
    if flags & TOMBSTONE:
        output.block_deletes += 1
    elif flags & MERGE:
        output.block_merges += 1
    else:
        output.block_puts += 1


@inlined
def append_row(
    output: Record,
    codecs: Record,
    key: int,
    key_len: int,
    tail: int,
    value_len: int,
    tail_len: int,
    flags: int,
) -> int:
    """Append a row. The `tail_len` bytes at `tail` are its value, sequence number, flags and timestamps."""
    if output.close_due:
        return _CLOSE
    status = _lacks_room(output, key_len, tail_len)
    if status != _OK:
        return status
    restart = 1 if output.block_rows & (RESTART_INTERVAL - 1) == 0 else 0
    shared = 0
    if output.block_rows > 0:
        common = common_length(output.last_key, key, min(key_len, output.last_key_len))
        shared = 0 if restart else common
        if not _fits(output, shared, key_len, value_len, tail_len, restart):
            status = finish_block(output, codecs)
            if status != _OK:
                return status
            _register_index_key(output, key, min(common + 1, key_len))
            if output.data_bytes > output.max_sst_size:
                output.close_due = 1
            restart = 1
            shared = 0
    elif output.rows == 0:
        _start_output(output, key, key_len)
    if restart:
        store_64(output.restarts + 8 * output.restart_count, output.position - output.block_start)
        output.restart_count += 1
    _write_row(output, shared, key, key_len, value_len, tail, tail_len)
    copy_key(output.last_key, key, key_len)
    output.last_key_len = key_len
    _count_row(output, key, key_len, value_len, flags)
    return _OK


@entry
def finish_last_block(outputs: Records, codecs: Records) -> int:
    """Complete the last block and the hashes of an output."""
    output = outputs[0]
    if output.hashing:
        finish_hashes(output)
    return finish_block(output, codecs[0])
