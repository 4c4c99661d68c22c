"""Thrift's compact protocol: structs of any kind, each a dictionary from field ids to types and values.

Stored data may be hostile. Every length is compared with the bytes that are left, nesting is limited, and so
is the number of values, since a value takes more memory than the byte that it may be stored in. Only what
Parquet uses is supported: no maps, no UUIDs.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from lithify.parquet.errors import CannotMerge

BOOL: Final = 2
BYTE: Final = 3
I16: Final = 4
I32: Final = 5
I64: Final = 6
DOUBLE: Final = 7
BINARY: Final = 8
LIST: Final = 9
STRUCT: Final = 12
_TRUE, _FALSE, _SET = 1, 2, 10
MAX_VALUES: Final = 2_000_000
"""The most values of a struct, with those inside it."""
MAX_DEPTH: Final = 24
_MAX_VARINT_BITS = 63
_LONG_LIST = 15

Value = tuple[int, Any]
Struct = dict[int, Value]
"""A field's type and value by its id. The value of a list is a pair: its elements' type, and they."""


class Malformed(CannotMerge):
    """Bytes that are no such struct."""


def read_struct(data: bytes, start: int = 0) -> tuple[Struct, int]:
    """Return the struct that begins there, and where it ends. Raise `Malformed`."""
    try:
        return _StructReader(data).struct(start, 0)
    except (IndexError, struct.error):
        raise Malformed("a Thrift struct goes beyond the end of its bytes") from None


class _StructReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = MAX_VALUES

    def struct(self, at: int, depth: int) -> tuple[Struct, int]:
        if depth > MAX_DEPTH:
            raise Malformed("a Thrift struct is nested too deeply")
        data, field = self._data, 0
        found: Struct = {}
        while True:
            head = data[at]
            at += 1
            if not head:
                break
            kind, delta = head & 15, head >> 4
            if delta:
                field += delta
            else:
                number, at = self._varint(at)
                field = (number >> 1) ^ -(number & 1)
            if kind <= _FALSE:
                if not kind:
                    raise Malformed("a Thrift struct has a field without a type")
                found[field] = (BOOL, kind == _TRUE)
            elif BYTE < kind <= I64:
                number = data[at]  # most numbers have one byte
                at += 1
                if number > 127:
                    number, at = self._varint(at - 1)
                found[field] = (kind, (number >> 1) ^ -(number & 1))
            else:
                value, at = self._value(at, kind, depth)
                found[field] = (kind, value)
        self._left -= len(found) + 1
        if self._left < 0:
            raise Malformed(f"a Thrift struct has more than {MAX_VALUES:,} values")
        return found, at

    def _value(self, at: int, kind: int, depth: int) -> tuple[Any, int]:
        if kind == BINARY:
            size, at = self._varint(at)
            if size > len(self._data) - at:
                raise Malformed("a Thrift struct has a text beyond the end of its bytes")
            return self._data[at : at + size], at + size
        if kind == STRUCT:
            return self.struct(at, depth + 1)
        if kind in (LIST, _SET):
            return self._list(at, depth)
        if I16 <= kind <= I64:
            number, at = self._varint(at)
            return (number >> 1) ^ -(number & 1), at
        if kind == BYTE:
            return self._data[at], at + 1
        if kind == DOUBLE:
            return struct.unpack_from("<d", self._data, at)[0], at + 8
        raise Malformed(f"a Thrift struct has a field of type {kind}")

    def _list(self, at: int, depth: int) -> tuple[Value, int]:
        if depth > MAX_DEPTH:
            raise Malformed("a Thrift struct is nested too deeply")
        head = self._data[at]
        at += 1
        count, kind = head >> 4, head & 15
        if count == _LONG_LIST:
            count, at = self._varint(at)
        if count > len(self._data) - at:  # an element has at least a byte
            raise Malformed("a Thrift struct has a list beyond the end of its bytes")
        self._left -= count
        if self._left < 0:
            raise Malformed(f"a Thrift struct has more than {MAX_VALUES:,} values")
        elements: list[Any] = []
        for _ in range(count):
            if kind in (_TRUE, _FALSE):
                value, at = self._data[at] == _TRUE, at + 1
            else:
                value, at = self._value(at, kind, depth + 1)
            elements.append(value)
        return (BOOL if kind == _TRUE else kind, elements), at

    def _varint(self, at: int) -> tuple[int, int]:
        data, number, shift = self._data, 0, 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 127) << shift
            if byte < 128:
                return number, at
            shift += 7
            if shift > _MAX_VARINT_BITS:
                raise Malformed("a Thrift struct has a number of more than 64 bits")


def write_struct(fields: Struct) -> bytes:
    """Return a struct's bytes."""
    out = bytearray()
    _write_struct(out, fields)
    return bytes(out)


def _write_struct(out: bytearray, fields: Struct) -> None:
    before = 0
    for field in sorted(fields):
        kind, value = fields[field]
        shown = (_TRUE if value else _FALSE) if kind == BOOL else kind
        if 0 < field - before <= 15:
            out.append((field - before) << 4 | shown)
        else:
            out.append(shown)
            _write_zigzag(out, field)
        if kind != BOOL:
            _write_value(out, kind, value)
        before = field
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if I16 <= kind <= I64:
        _write_zigzag(out, value)
    elif kind == BINARY:
        _write_varint(out, len(value))
        out += value
    elif kind == STRUCT:
        _write_struct(out, value)
    elif kind in (LIST, _SET):
        element, values = value
        if len(values) < _LONG_LIST:
            out.append(len(values) << 4 | element)
        else:
            out.append(_LONG_LIST << 4 | element)
            _write_varint(out, len(values))
        for one in values:
            if element == BOOL:
                out.append(_TRUE if one else _FALSE)
            else:
                _write_value(out, element, one)
    elif kind == BYTE:
        out.append(value & 255)
    else:
        assert kind == DOUBLE
        out += struct.pack("<d", value)


def _write_zigzag(out: bytearray, number: int) -> None:
    _write_varint(out, number << 1 if number >= 0 else (-number << 1) - 1)


def _write_varint(out: bytearray, number: int) -> None:
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


def number_of(fields: Struct, field: int, default: int | None = None, *, most: int = (1 << 63) - 1) -> int:
    """Return a number from 0 to `most`. Raise `Malformed` if it is another, or missing without a default."""
    kind, value = fields.get(field, (I64, default))
    if not I16 <= kind <= I64 or value is None or not 0 <= value <= most:
        raise Malformed(
            f"field {field} of a Thrift struct is {str(value)[:40]}, which is no number that it can be"
        )
    return int(value)


def struct_of(fields: Struct, field: int) -> Struct:
    """Return a struct, empty if it is missing. Raise `Malformed` if it is something else."""
    kind, value = fields.get(field, (STRUCT, {}))
    if kind != STRUCT:
        raise Malformed(f"field {field} of a Thrift struct is no struct")
    found: Struct = value
    return found


def list_of(fields: Struct, field: int, element: int) -> list[Any]:
    """Return a list of elements of this type, empty if it is missing. Raise `Malformed` if it is something
    else."""
    kind, value = fields.get(field, (LIST, (element, [])))
    if kind != LIST or (value[0] != element and value[1]):
        raise Malformed(f"field {field} of a Thrift struct is no such list")
    found: list[Any] = value[1]
    return found


def bytes_at(fields: Struct, field: int) -> bytes | None:
    """Return bytes, or `None` if they are missing. Raise `Malformed` if it is something else."""
    kind, value = fields.get(field, (BINARY, None))
    if kind != BINARY:
        raise Malformed(f"field {field} of a Thrift struct is no text")
    found: bytes | None = value
    return found


def flag_of(fields: Struct, field: int, default: bool | None = None) -> bool | None:
    kind, value = fields.get(field, (BOOL, default))
    if kind != BOOL:
        raise Malformed(f"field {field} of a Thrift struct is no truth value")
    found: bool | None = value
    return found
