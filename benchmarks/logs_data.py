"""A keyed log to measure with: `python -m benchmarks.logs_data FOLDER RECORDS KEYS VALUE_BYTES CODEC FIRST`.

Records are written in numpy, a segment at a time, from a seed: a key of 12 digits, and a value of letters
that takes about half its size when compressed. With fewer keys than records these are drawn at random; else
each is there once. `FIRST` is the first offset. Beside the segments lies `dead`, the offsets that a newer
record of the same key supersedes, as little-endian 64-bit numbers.

All records of a batch but their offset and time deltas are equally long, so a batch is a template that is
filled: deltas below 64 take one byte, others two.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import zstandard
from aiokafka.record.util import calc_crc32c

Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

PARTITION = "orders-0"
DEAD = "dead"
BATCH_RECORDS, MAX_SEGMENT_BATCHES, MIN_SEGMENTS = 500, 2000, 10
KEY_BYTES = 12
ONE_BYTE_DELTAS = 64
START_MS = 1_700_000_000_000
CODECS = {"none": 0, "zstd": 4}
_HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("count", ">i4"),
    ]
)
_CHECKED_FROM = 21
_UNCOUNTED = 12


def made(cache: Path, records: int, keys: int, value_bytes: int, codec: str, first: int = 0) -> Path:
    """A folder with this log in it; made once."""
    folder = cache / f"log-v2-{records}-{keys}-{value_bytes}-{codec}-{first}"
    if not folder.exists():
        new = folder.with_name(f"{folder.name}.new")
        (new / PARTITION).mkdir(parents=True, exist_ok=True)
        write_log(new, records, keys, value_bytes, codec, first)
        new.rename(folder)
    return folder


def write_log(folder: Path, records: int, keys: int, value_bytes: int, codec: str, first: int) -> None:
    """Write the segments, and what of them is dead."""
    rng = np.random.default_rng(records + first)
    draws = rng.integers(0, keys, records) if keys < records else np.arange(first, first + records)
    pack = None if codec == "none" else zstandard.ZstdCompressor(level=3).compress
    segment_batches = -(-records // (BATCH_RECORDS * MIN_SEGMENTS))
    per_segment = BATCH_RECORDS * min(MAX_SEGMENT_BATCHES, segment_batches)
    for start in range(0, records, per_segment):
        found = draws[start : start + per_segment]
        batches = [found[at : at + BATCH_RECORDS] for at in range(0, len(found), BATCH_RECORDS)]
        whole = [batch for batch in batches if len(batch) == BATCH_RECORDS]
        data = _batches(np.array(whole), value_bytes, rng) if whole else []
        data += [_batches(batch[None, :], value_bytes, rng)[0] for batch in batches[len(whole) :]]
        path = folder / PARTITION / f"{first + start:020d}.log"
        with path.open("wb") as file:
            for number, (batch, payload) in enumerate(zip(batches, data, strict=True)):
                offset = first + start + number * BATCH_RECORDS
                file.write(_sealed(offset, len(batch), payload.tobytes(), CODECS[codec], pack))
    order = np.argsort(draws, kind="stable")
    is_dead = draws[order][1:] == draws[order][:-1]
    np.sort(order[:-1][is_dead] + first).astype("<i8").tofile(folder / DEAD)


def _batches(keys: Numbers, value_bytes: int, rng: np.random.Generator) -> list[Bytes]:
    """The records of batches of equal length, whose keys are the rows."""
    digits = (keys[..., None] // 10 ** np.arange(KEY_BYTES - 1, -1, -1)) % 10 + ord("0")
    short, long = np.split(np.arange(keys.shape[1]), [ONE_BYTE_DELTAS])
    parts = [_records(deltas, digits[:, deltas], value_bytes, rng) for deltas in (short, long) if len(deltas)]
    return list(np.concatenate(parts, axis=1))


def _records(deltas: Numbers, digits: Numbers, value_bytes: int, rng: np.random.Generator) -> Bytes:
    count, rows = digits.shape[0], len(deltas)
    delta = [_varint(int(one)) for one in deltas]
    value = rng.integers(ord("a"), ord("a") + 16, (count, rows, value_bytes), np.uint8)
    body = 1 + 2 * len(delta[0]) + len(_varint(KEY_BYTES)) + KEY_BYTES + len(_varint(value_bytes))
    begin, end = _varint(body + value_bytes + 1) + b"\0", _varint(KEY_BYTES)
    head = np.array([list(begin + one + one + end) for one in delta], np.uint8)
    middle = np.array(list(_varint(value_bytes)), np.uint8)
    shape = (count, rows)
    return np.concatenate(
        [
            np.broadcast_to(head, (*shape, head.shape[1])),
            digits.astype(np.uint8),
            np.broadcast_to(middle, (*shape, len(middle))),
            value,
            np.zeros((*shape, 1), np.uint8),
        ],
        axis=2,
    ).reshape(count, -1)


def _sealed(
    offset: int, count: int, payload: bytes, codec: int, pack: Callable[[bytes], bytes] | None
) -> bytes:
    payload = payload if pack is None else pack(payload)
    header = np.zeros(1, _HEADER)
    header["base_offset"] = offset
    header["length"] = _HEADER.itemsize + len(payload) - _UNCOUNTED
    header["magic"] = 2
    header["attributes"] = codec
    header["last_offset_delta"] = count - 1
    header["base_timestamp"], header["max_timestamp"] = START_MS + offset, START_MS + offset + count - 1
    header["producer_id"] = header["producer_epoch"] = header["base_sequence"] = -1
    header["count"] = count
    checked = header.tobytes()[_CHECKED_FROM:] + payload
    header["crc"] = calc_crc32c(checked)
    return header.tobytes()[:_CHECKED_FROM] + checked


def _varint(value: int) -> bytes:
    left, encoded = 2 * value, bytearray()
    while left >= 128:
        encoded.append(left & 127 | 128)
        left >>= 7
    return bytes([*encoded, left])


if __name__ == "__main__":
    _records_of, _keys, _size, _first = (int(sys.argv[at]) for at in (2, 3, 4, 6))
    write_log(Path(sys.argv[1]), _records_of, _keys, _size, sys.argv[5], _first)
