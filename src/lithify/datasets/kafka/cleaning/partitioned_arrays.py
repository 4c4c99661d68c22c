"""Arrays in the store whose parts can be read separately.

A partitioned array is one object: `LFENCED1`, the number of parts u32, the CRC-32 u32 of the table, the
table, the elements. The table has for each part its end (in elements, u64) and the CRC-32 of its bytes (u64).
So a reader needs two requests: for the table, and for adjacent parts. Numbers are little-endian.

The table's checksum includes the object's key: an array stored under another key counts as damaged.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lithify.base.errors import CorruptObject, ObjectNotFound, StoreError, StoreUnavailable
from lithify.datasets.kafka.format.kernel.layout import Records
from lithify.store.objects import ObjectStore

_HEAD = struct.Struct("<8sII")
_MAGIC = b"LFENCED1"
_GONE = "is gone; run again"
_PART = np.dtype([("end", "<u8"), ("crc", "<u8")])


def put_fenced(store: ObjectStore, key: str, elements: Records, ends: Sequence[int] | Records) -> int:
    """Write the array and return its size in bytes; `ends` has the end of each part."""
    table = np.zeros(len(ends), _PART)
    table["end"] = ends
    data = np.ascontiguousarray(elements).view(np.uint8).data
    size, start = elements.dtype.itemsize, 0
    for part in table:
        end = int(part["end"]) * size
        part["crc"] = zlib.crc32(data[start:end])
        start = end
    assert start == len(data), "the last part ends with the array"
    raw = table.tobytes()
    whole = b"".join((_HEAD.pack(_MAGIC, len(table), _checksum(key, raw)), raw, data))
    store.put(key, whole)
    return len(whole)


def get_parts(
    store: ObjectStore, key: str, kind: npt.DTypeLike, parts: int, first: int, last: int
) -> Records:
    """Return the elements of the parts `first` to `last - 1` of an array with `parts` parts.

    Raises `CorruptObject`.
    """
    dtype = np.dtype(kind)
    head, table = _HEAD.size + parts * _PART.itemsize, _table(store, key, parts)
    start = int(table["end"][first - 1]) if first else 0
    end = int(table["end"][last - 1])
    found = _range(store, key, head + start * dtype.itemsize, (end - start) * dtype.itemsize)
    position = 0
    for part in table[first:last]:
        upto = (int(part["end"]) - start) * dtype.itemsize
        if zlib.crc32(found[position:upto]) != int(part["crc"]):
            raise CorruptObject(key, "the checksum of a part does not match")
        position = upto
    return np.frombuffer(found, dtype)


def first_element(store: ObjectStore, key: str, kind: npt.DTypeLike, parts: int) -> Any:
    """Return the first element of an array with `parts` parts; `None` if it is empty.

    Raises `CorruptObject`.
    """
    ends = _table(store, key, parts)["end"]
    filled = np.flatnonzero(ends)
    if not len(filled):
        return None
    at = int(filled[0])
    return get_parts(store, key, kind, parts, at, at + 1)[0]


def _table(store: ObjectStore, key: str, parts: int) -> Records:
    data = _range(store, key, 0, _HEAD.size + parts * _PART.itemsize)
    magic, count, crc = _HEAD.unpack_from(data)
    if magic != _MAGIC or count != parts or _checksum(key, data[_HEAD.size :]) != crc:
        raise CorruptObject(key, f"is not an array of {parts} parts")
    return np.frombuffer(data, _PART, offset=_HEAD.size)


def _checksum(key: str, table: bytes) -> int:
    return zlib.crc32(table, zlib.crc32(key.encode()))


def _range(store: ObjectStore, key: str, offset: int, length: int) -> bytes:
    """Read a range; raise `CorruptObject` if the object is gone or too short."""
    try:
        return store.get_range(key, offset, length)
    except ObjectNotFound as error:
        raise CorruptObject(key, _GONE) from error
    except StoreUnavailable:
        raise
    except StoreError as error:
        try:
            size = store.head(key).size
        except ObjectNotFound:
            raise CorruptObject(key, _GONE) from error
        if size < offset + length:
            raise CorruptObject(key, f"ends before byte {offset + length:,}") from error
        raise
