"""Records shared by compiled code and Python, their status codes, and the format's constants.

A record batch of message format 2, all numbers big-endian:

    0 base offset i64 · 8 length i32 of all that follows · 12 leader epoch i32 · 16 magic i8 ·
    17 CRC-32C u32 of all that follows · 21 attributes i16 · 23 last offset delta i32 ·
    27 base timestamp i64 · 35 greatest timestamp i64 · 43 producer id i64 · 51 producer epoch i16 ·
    53 base sequence i32 · 57 number of records i32 · 61 the records, compressed together

A record: length of the rest · attributes i8, without a meaning · timestamp delta · offset delta · key length,
key · value length, value · number of headers, each with key length, key, value length, value. All numbers are
zigzag varints; a length of -1 means null.

Positions count from the start of one block of memory: the object's bytes, then the unpacked records of its
compressed batches.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

Record = Any
"""A record in compiled code: its fields are attributes, unknown to type checkers."""
Records = Any

MAGIC = 2
HEADER_BYTES = 61
BASE_OFFSET_BYTES = 8
LENGTH_AT = 8
LEADER_EPOCH_AT = 12
MAGIC_AT = 16
CHECKSUM_AT = 17
ATTRIBUTES_AT = 21
LAST_OFFSET_DELTA_AT = 23
BASE_TIMESTAMP_AT = 27
MAX_TIMESTAMP_AT = 35
PRODUCER_ID_AT = 43
PRODUCER_EPOCH_AT = 51
BASE_SEQUENCE_AT = 53
COUNT_AT = 57
MAX_OFFSET_DELTA = (1 << 31) - 1
UNCOUNTED_BYTES = 12
"""Bytes of a batch before the part that its length counts."""

CODEC_MASK = 7
LOG_APPEND_TIME = 8
TRANSACTIONAL = 16
CONTROL = 32
DELETE_HORIZON = 64
"""The base timestamp is the time from which this batch's tombstones and markers may be removed."""
KNOWN_ATTRIBUTES = 127
MAX_CODEC = 4

ABORT = 0
COMMIT = 1
NO_MARKER = -1
NO_TIMESTAMP = -1
NO_PRODUCER = -1

MIN_RECORD_BYTES = 7
MAX_RECORD_OVERHEAD_BYTES = 21
"""The most bytes of a record's length, attributes and two deltas."""


class KernelStatus(IntEnum):
    """Why compiled code returned. Values from `CUT_OFF` on refuse the input."""

    OK = 0
    PACK = 1
    """The records of a batch are written and have to be compressed."""
    CUT_OFF = 10
    BAD_SIZE = 11
    BAD_MAGIC = 12
    BAD_CHECKSUM = 13
    UNKNOWN_ATTRIBUTES = 14
    UNKNOWN_CODEC = 15
    BAD_OFFSET = 16
    BAD_ORDER = 17
    BAD_COUNT = 18
    BAD_PRODUCER = 19
    BAD_HORIZON = 20
    BAD_LENGTH = 30
    BAD_RECORD_OFFSET = 32
    BAD_HEADERS = 33
    BAD_MARKER = 34
    TRAILING = 35


REASONS = {
    KernelStatus.CUT_OFF: "the batch is longer than the rest of the object",
    KernelStatus.BAD_SIZE: "the batch is shorter than its header",
    KernelStatus.BAD_CHECKSUM: "the checksum does not match",
    KernelStatus.UNKNOWN_ATTRIBUTES: "the batch has attributes that this version does not know",
    KernelStatus.UNKNOWN_CODEC: "the batch is compressed by a codec that this version does not know",
    KernelStatus.BAD_OFFSET: "the offsets are negative or too large",
    KernelStatus.BAD_ORDER: "the batch begins at or before the last offset of the one before",
    KernelStatus.BAD_COUNT: "the batch claims more records than it has offsets or bytes for, or a "
    "negative number of them",
    KernelStatus.BAD_PRODUCER: "the batch is transactional and has no producer id, or has negative "
    "numbers of one",
    KernelStatus.BAD_HORIZON: "the batch has a delete horizon before 1970",
    KernelStatus.BAD_LENGTH: "a length exceeds its container",
    KernelStatus.BAD_RECORD_OFFSET: "an offset is outside the batch or not above the one before",
    KernelStatus.BAD_HEADERS: "the headers of a record do not fit into it",
    KernelStatus.BAD_MARKER: "a control record has no type",
    KernelStatus.TRAILING: "bytes follow the last record",
}

BATCH = np.dtype(
    [
        ("position", "i8"),
        ("size", "i8"),
        ("base_offset", "i8"),
        ("last_offset", "i8"),
        ("leader_epoch", "i8"),
        ("attributes", "i8"),
        ("base_timestamp", "i8"),
        ("max_timestamp", "i8"),
        ("producer_id", "i8"),
        ("producer_epoch", "i8"),
        ("base_sequence", "i8"),
        ("count", "i8"),
        ("payload", "i8"),  # position of the unpacked records
        ("payload_len", "i8"),
        ("first_record", "i8"),  # index among the records of all batches
        ("marker", "i8"),  # type of the first control record
    ]
)

RECORD = np.dtype(
    [
        ("offset", "i8"),
        ("timestamp", "i8"),  # as readers see it: the broker's, if the batch has log append time
        ("tail", "i8"),  # key length to headers, up to `end`: independent of the batch
        ("end", "i8"),
        ("key", "i8"),
        ("value", "i8"),
        ("key_len", "i4"),  # -1: null
        ("value_len", "i4"),  # -1: null, a tombstone
        ("batch", "i4"),
        ("header_count", "i4"),
    ]
)

OUTPUT = np.dtype(
    [
        ("buffer", "i8"),  # address
        ("position", "i8"),
        ("batch", "i8"),  # the next one
        ("batch_start", "i8"),  # position of the one to compress
    ]
)
"""The state of writing filtered batches."""
