"""The records that compiled code and Python share, and the status codes.

Each record is one element of a numpy structured array; compiled code accesses its fields by name. A field
named after a buffer has its address; the code that sets it must keep the buffer alive. All other fields are
numbers or flags (0 or 1).

If compiled code needs something, it returns a `KernelStatus` *without an effect that a repeated call would
repeat*; Python provides it and calls again.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

Record = Any
"""A record as compiled code sees it. Its fields are attributes, unknown to type checkers."""
Records = Any
"""An array of records."""

RESTART_INTERVAL = 16
"""A row whose number in its block is a multiple of this shares nothing with the row before."""
CHECKSUM_BYTES = 4
ROW_FIXED_BYTES = 9
"""Sequence number and flags."""

TOMBSTONE = 1
HAS_EXPIRE = 2
HAS_CREATE = 4
MERGE = 8
ALL_FLAGS = 15


class KernelStatus(IntEnum):
    """Why compiled code returned. Codes from `BAD_CHECKSUM` on mean a corrupt input."""

    OK = 0
    DONE = 1
    """All rows are merged."""
    NEED_INPUT = 2
    """The source `at_source` has reached the end of its window."""
    NEED_KEY_SPACE = 3
    """The key buffer of `at_source` is shorter than its `needed` bytes."""
    NEED_UNPACK_SPACE = 4
    """The buffer for `at_source`'s decompressed blocks is shorter than its `needed` bytes."""
    NEED_TRANSCODE_SPACE = 5
    """The same for blocks transcoded from format 1 to format 2."""
    NEED_PENDING_SPACE = 6
    """The list of pending tombstones is full."""
    FLUSH = 7
    """The output buffer has no room for `needed` more bytes."""
    NEED_ROW_SPACE = 8
    """The lists of the output's rows and blocks are full."""
    CLOSE = 9
    """The output is complete; the next row belongs to a new one."""
    FOLD = 10
    """The row of `at_source` starts a fold by the merge operator."""
    FILTER = 11
    """The compaction filter must decide on the row in the merge record."""
    COMPRESSION_FAILED = 12
    BAD_CHECKSUM = 20
    BAD_COMPRESSION = 21
    BAD_SIZE = 22
    BAD_RESTARTS = 23
    BAD_LENGTH = 24
    BAD_SHARED = 25
    BAD_FLAGS = 26
    BAD_KEY = 27
    BAD_ORDER = 28
    BAD_BOUNDS = 29


REASONS = {
    KernelStatus.BAD_CHECKSUM: "the checksum does not match",
    KernelStatus.BAD_COMPRESSION: "the block does not decompress",
    KernelStatus.BAD_SIZE: "the block unpacks to more than it can hold, or than the rows of the SST have "
    "according to its stats",
    KernelStatus.BAD_RESTARTS: "the restart points do not fit into the block",
    KernelStatus.BAD_LENGTH: "a row is longer than the rest of the block",
    KernelStatus.BAD_SHARED: "a row shares more of the previous key than there is",
    KernelStatus.BAD_FLAGS: "a row has unknown or contradictory flags",
    KernelStatus.BAD_KEY: "a row has an empty key",
    KernelStatus.BAD_ORDER: "a row is not in order: keys ascend, sequence numbers of one key descend",
    KernelStatus.BAD_BOUNDS: "a key lies outside the first and last key of the SST",
}


class Decision(IntEnum):
    """A decision of the compaction filter on a row."""

    NONE = 0
    KEEP = 1
    DROP = 2
    REPLACE = 3


SOURCE = np.dtype(
    [
        # The current row. `tail_len` counts the value and everything after it.
        ("prefix", "u8"),  # the eight key bytes that follow the common prefix, as a number
        ("exhausted", "i8"),
        ("key", "i8"),
        ("key_len", "i8"),
        ("seq", "u8"),
        ("flags", "i8"),
        ("value", "i8"),
        ("value_len", "i8"),
        ("tail_len", "i8"),
        ("expire_ms", "i8"),
        # The position of the next row.
        ("cursor", "i8"),
        ("rows_end", "i8"),
        ("shareable", "i8"),  # length of the previous key of the same block
        ("has_previous", "i8"),
        # Key space.
        ("key_capacity", "i8"),
        ("common_len", "i8"),  # every key of the task starts with these bytes
        ("common", "i8"),
        ("check_start", "i8"),
        ("start", "i8"),
        ("start_len", "i8"),
        ("check_end", "i8"),
        ("end", "i8"),
        ("end_len", "i8"),
        ("end_prefix", "u8"),
        # Blocks, numbered from the first that may have rows of the task.
        ("block", "i8"),
        ("block_end", "i8"),
        ("window_end", "i8"),
        ("window_base", "i8"),  # the address that byte 0 of the SST would have
        ("offsets", "i8"),  # positions of `block_end + 1` blocks in the SST
        ("more_ssts", "i8"),
        ("codec", "i8"),
        ("row_format", "i8"),
        ("unpacked", "i8"),
        ("unpacked_capacity", "i8"),
        ("unpacked_limit", "i8"),  # of an unpacked block
        ("transcoded", "i8"),
        ("transcoded_capacity", "i8"),
        ("needed", "i8"),
        ("last_key_len", "i8"),
    ]
)
"""One source: a cursor over the rows of an L0 SST or of a sorted run's SSTs."""

MERGER = np.dtype(
    [
        ("source_count", "i8"),
        ("at_source", "i8"),
        ("row_taken", "i8"),
        ("folded_ready", "i8"),
        # Rules.
        ("horizon", "u8"),
        ("clock_tick_ms", "i8"),
        ("drop_tombstones", "i8"),
        ("has_operator", "i8"),
        ("has_filter", "i8"),
        # The current group: the versions of one key.
        ("group_key", "i8"),
        ("group_key_len", "i8"),
        ("group_prefix", "u8"),
        ("group_seq", "u8"),
        ("group_rows", "i8"),
        ("group_done", "i8"),
        ("scratch_row", "i8"),
        # Tombstones that are kept only if an older version of the key is.
        ("pending_count", "i8"),
        ("pending_next", "i8"),
        ("pending_capacity", "i8"),
        ("pending_tails", "i8"),
        # The last row that an earlier attempt has written.
        ("resuming", "i8"),
        ("resume_key", "i8"),
        ("resume_key_len", "i8"),
        ("resume_seq", "u8"),
        # The row that the compaction filter decides on, then its replacement.
        ("decision", "i8"),
        ("filter_key", "i8"),
        ("filter_key_len", "i8"),
        ("filter_value", "i8"),
        ("filter_value_len", "i8"),
        ("filter_tail_len", "i8"),
        ("filter_flags", "i8"),
        # Counts.
        ("rows_in", "i8"),
        ("rows_out", "i8"),
        ("superseded", "i8"),
        ("tombstones", "i8"),
        ("expired", "i8"),
        ("filtered", "i8"),
        ("folded", "i8"),
    ]
)
"""The state of the merge."""

PENDING = np.dtype(
    [
        ("tail_len", "i8"),
        ("flags", "i8"),
        ("seq", "u8"),
        ("was_expired", "i8"),
    ]
)
"""A tombstone that is written only if an older version of its key is. Its bytes are in the memory at
`pending_tails`, `PENDING_TAIL_BYTES` for each."""

PENDING_TAIL_BYTES = 32

OUTPUT = np.dtype(
    [
        # The output buffer.
        ("buffer", "i8"),
        ("buffer_end", "i8"),
        ("position", "i8"),
        ("block_start", "i8"),
        ("needed", "i8"),
        # Rules.
        ("block_size", "i8"),
        ("max_sst_size", "i8"),
        ("codec", "i8"),
        ("hashing", "i8"),
        # The block in progress.
        ("block_rows", "i8"),
        ("restarts", "i8"),
        ("restart_count", "i8"),
        ("last_key", "i8"),
        ("last_key_len", "i8"),
        ("block_puts", "i8"),
        ("block_deletes", "i8"),
        ("block_merges", "i8"),
        # The output in progress.
        ("close_due", "i8"),
        ("data_bytes", "i8"),
        ("first_key", "i8"),
        ("first_key_len", "i8"),
        ("rows", "i8"),
        ("raw_key_bytes", "i8"),
        ("raw_value_bytes", "i8"),
        ("blocks", "i8"),
        ("block_capacity", "i8"),
        ("block_offsets", "i8"),
        ("index_key_ends", "i8"),
        ("puts", "i8"),
        ("deletes", "i8"),
        ("merges", "i8"),
        ("index_keys", "i8"),
        ("index_keys_len", "i8"),
        ("index_keys_capacity", "i8"),
        ("hashes", "i8"),
        ("prefix_len", "i8"),  # of the prefixes that are hashed too; 0: none
        ("prefixes", "i8"),
        ("prefix_hashes", "i8"),
        ("row_capacity", "i8"),
        # Keys that wait to be hashed together.
        ("waiting", "i8"),
        ("waiting_lengths", "i8"),
        ("waiting_keys", "i8"),
    ]
)
"""The SST being written."""

CODECS = np.dtype(
    [
        ("zstd_decompress", "i8"),
        ("zstd_decompress_context", "i8"),
        ("zlib_decompress", "i8"),
        ("compress", "i8"),
        ("compress_context", "i8"),
        ("level", "i8"),
        ("packed", "i8"),
        ("packed_capacity", "i8"),
        ("snappy_table", "i8"),
    ]
)
"""Functions and scratch memory of the compression libraries."""
