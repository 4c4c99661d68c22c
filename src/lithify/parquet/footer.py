"""The footer of a Parquet file (Parquet: format), read and checked, and written.

All that later code relies on is checked here: columns are those of the schema, column chunks are inside the
file and do not take more of it than it has, numbers are in range. An encrypted file is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

from lithify.parquet.errors import CannotMerge
from lithify.parquet.statistics import FIXED, INT32, INT64, WIDTHS, Order, order_of
from lithify.parquet.thrift import (
    BINARY,
    I32,
    STRUCT,
    Malformed,
    Struct,
    bytes_at,
    flag_of,
    list_of,
    number_of,
    read_struct,
    struct_of,
)

MAGIC: Final = b"PAR1"
TAIL_BYTES: Final = 8
_ENCRYPTED: Final = b"PARE"
MAX_FOOTER_BYTES: Final = 32 << 20
MAX_COLUMNS: Final = 100_000
_MAX_LEVEL: Final = 255
_REQUIRED, _OPTIONAL, _REPEATED = 0, 1, 2
_TAIL_GUESS = 64 << 10

# Logical types by the deprecated converted types that say the same.
_CONVERTED: Final[dict[int, tuple[Any, ...]]] = {
    0: (1,),
    1: (2,),
    3: (3,),
    4: (4,),
    6: (6,),
    7: (7, True, 1),
    8: (7, True, 2),
    9: (8, True, 1),
    10: (8, True, 2),
    **{11 + n: (10, 8 << n, False) for n in range(4)},
    **{15 + n: (10, 8 << n, True) for n in range(4)},
    19: (12,),
    20: (13,),
}
_CONVERTED_DECIMAL, _LOGICAL_DECIMAL, _LOGICAL_INTEGER = 5, 5, 10


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column of values."""

    path: tuple[bytes, ...]
    physical: int
    width: int
    """The bytes of a value; 0 for texts and booleans."""
    max_definition: int
    max_repetition: int
    top: int
    """The number of the top-level field that it belongs to."""
    order: Order | None
    is_deprecated_right: bool

    @property
    def name(self) -> str:
        """Return the path as text."""
        return ".".join(step.decode(errors="replace") for step in self.path)


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """The pages of one column in one row group."""

    codec: int
    start: int
    size_bytes: int
    values: int
    statistics: Struct
    column_index: tuple[int, int]
    offset_index: tuple[int, int]
    bloom_filter: tuple[int, int]
    """Where they begin, and their sizes; 0 if there are none."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    rows: int
    chunks: tuple[ColumnChunk, ...]

    @property
    def size_bytes(self) -> int:
        return sum(chunk.size_bytes for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class ParquetFooter:
    version: int
    schema: tuple[Struct, ...]
    leaves: tuple[Leaf, ...]
    shape: tuple[object, ...]
    """Equal if, and only if, files have the same columns."""
    rows: int
    groups: tuple[RowGroup, ...]
    notes: tuple[Struct, ...]
    """The key-value metadata."""
    created_by: bytes
    has_order: tuple[bool, ...]
    """Whether the order of a column's bounds is its type's."""


def read_at(stream: IO[bytes], offset: int, size: int) -> bytes:
    """Return these bytes. Raise `CannotMerge` if there are fewer."""
    stream.seek(offset)
    parts, left = [], size
    while left:
        part = stream.read(left)
        if not part:
            raise CannotMerge("the file is shorter than it should be")
        parts.append(part)
        left -= len(part)
    return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)


def read_footer(stream: IO[bytes], size: int) -> ParquetFooter:
    """Read the footer of a file of this size. Raise `CannotMerge`."""
    if size < TAIL_BYTES + len(MAGIC):
        raise CannotMerge("the file is too short for Parquet")
    tail = read_at(stream, size - min(size, _TAIL_GUESS), min(size, _TAIL_GUESS))
    if tail[-4:] == _ENCRYPTED:
        raise CannotMerge("the file is encrypted")
    length = int.from_bytes(tail[-TAIL_BYTES:-4], "little")
    if tail[-4:] != MAGIC or length > size - TAIL_BYTES - len(MAGIC):
        raise CannotMerge("the file has no footer of Parquet")
    if length > MAX_FOOTER_BYTES:
        raise CannotMerge(f"the footer has {length:,} bytes, more than {MAX_FOOTER_BYTES:,}")
    missing = length + TAIL_BYTES - len(tail)
    if missing > 0:
        tail = read_at(stream, size - len(tail) - missing, missing) + tail
    fields, _ = read_struct(tail[len(tail) - TAIL_BYTES - length : len(tail) - TAIL_BYTES])
    return _footer(fields, size - TAIL_BYTES - length)


def _footer(fields: Struct, data_end: int) -> ParquetFooter:
    if 8 in fields:
        raise CannotMerge("the file is encrypted")
    schema = list_of(fields, 2, STRUCT)
    leaves, shape = _Tree(schema).read()
    groups = tuple(_group(group, leaves, data_end) for group in list_of(fields, 4, STRUCT))
    if sum(group.size_bytes for group in groups) > data_end:
        raise CannotMerge("the column chunks overlap")
    rows = number_of(fields, 3)
    if rows != sum(group.rows for group in groups):
        raise CannotMerge("the file has another number of rows than its row groups")
    orders = [struct_of({0: (STRUCT, order)}, 0) for order in list_of(fields, 7, STRUCT)]
    has_order = tuple(n < len(orders) and 1 in orders[n] for n in range(len(leaves)))
    return ParquetFooter(
        version=number_of(fields, 1, most=1 << 31),
        schema=tuple(schema),
        leaves=leaves,
        shape=shape,
        rows=rows,
        groups=groups,
        notes=tuple(list_of(fields, 5, STRUCT)),
        created_by=bytes_at(fields, 6) or b"",
        has_order=has_order,
    )


def _group(fields: Struct, leaves: Sequence[Leaf], data_end: int) -> RowGroup:
    columns = list_of(fields, 1, STRUCT)
    if len(columns) != len(leaves):
        raise CannotMerge("a row group has another number of columns than the schema")
    chunks = (_chunk(column, leaf, data_end) for column, leaf in zip(columns, leaves, strict=True))
    return RowGroup(number_of(fields, 3), tuple(chunks))


def _chunk(column: Struct, leaf: Leaf, data_end: int) -> ColumnChunk:
    if 8 in column or 9 in column:
        raise CannotMerge("the file is encrypted")
    if 1 in column:
        raise CannotMerge(f"column {leaf.name} is in another file")
    meta = struct_of(column, 3)
    if number_of(meta, 1) != leaf.physical or tuple(list_of(meta, 3, BINARY)) != leaf.path:
        raise CannotMerge(f"column {leaf.name} is another one in a row group than in the schema")
    size = number_of(meta, 7)
    # Writers leave out the dictionary's offset, or that of data if there is none.
    start = min(filter(None, (number_of(meta, 9), number_of(meta, 11, 0))), default=0)
    if size and (not len(MAGIC) <= start <= data_end or size > data_end - start):
        raise CannotMerge(f"column {leaf.name} is not inside the file")
    return ColumnChunk(
        codec=number_of(meta, 4),
        start=start,
        size_bytes=size,
        values=number_of(meta, 5),
        statistics=struct_of(meta, 12),
        column_index=_index(column, 6, 7, data_end),
        offset_index=_index(column, 4, 5, data_end),
        bloom_filter=_index(meta, 14, 15, data_end),
    )


def _index(column: Struct, offset_field: int, length_field: int, data_end: int) -> tuple[int, int]:
    offset, length = number_of(column, offset_field, 0), number_of(column, length_field, 0)
    return (offset, length) if length and 0 < offset <= data_end and length <= data_end - offset else (0, 0)


class _Tree:
    """The schema, a tree that is stored as a list."""

    def __init__(self, elements: Sequence[Struct]) -> None:
        self._elements = elements
        self._at = 0
        self._leaves: list[Leaf] = []
        self._shape: list[object] = []

    def read(self) -> tuple[tuple[Leaf, ...], tuple[object, ...]]:
        if not self._elements or len(self._elements) > MAX_COLUMNS:
            raise CannotMerge(f"the schema has {len(self._elements):,} elements")
        children = number_of(self._elements[0], 5, 0, most=MAX_COLUMNS)
        self._at = 1
        for top in range(children):
            self._element((), 0, 0, top)
        if self._at != len(self._elements):
            raise CannotMerge("the schema is no tree")
        return tuple(self._leaves), tuple(self._shape)

    def _element(self, path: tuple[bytes, ...], definition: int, repetition: int, top: int) -> None:
        if self._at >= len(self._elements) or len(path) > _MAX_LEVEL:
            raise CannotMerge("the schema is no tree")
        element = self._elements[self._at]
        self._at += 1
        path = (*path, bytes_at(element, 4) or b"")
        kind = number_of(element, 3, most=2)
        definition += kind != _REQUIRED
        repetition += kind == _REPEATED
        children = number_of(element, 5, 0, most=MAX_COLUMNS)
        physical = number_of(element, 1, most=7) if 1 in element else None
        annotation = _annotation(element, physical)
        width = (
            number_of(element, 2, most=1 << 30)
            if physical == FIXED
            else WIDTHS.get(-1 if physical is None else physical, 0)
        )
        field_id = element.get(9, (I32, None))[1]
        self._shape.append((path[-1], kind, children, physical, width, annotation, field_id))
        if children:
            if physical is not None:
                raise CannotMerge("the schema is no tree")
            if len(path) > 64:
                raise Malformed("the schema is nested too deeply")
            for _ in range(children):
                self._element(path, definition, repetition, top)
        elif physical is not None:
            order, is_deprecated_right = order_of(physical, annotation)
            self._leaves.append(
                Leaf(path, physical, width, definition, repetition, top, order, is_deprecated_right)
            )
            if physical == FIXED and not width:
                raise CannotMerge(f"column {self._leaves[-1].name} has values of no length")
        else:
            raise CannotMerge("the schema has a group without fields")


def _annotation(element: Struct, physical: int | None) -> tuple[Any, ...] | None:
    """Return the number of the logical type and its attributes, also of a deprecated one; `None` if it adds
    nothing to the physical type."""
    found: tuple[Any, ...] | None = None
    logical = struct_of(element, 10)
    if logical:
        number, (kind, attributes) = next(iter(logical.items()))
        if kind != STRUCT:
            raise Malformed("a logical type is no struct")
        found = (number, *_attributes(number, attributes))
    elif 6 in element:
        converted = number_of(element, 6)
        if converted == _CONVERTED_DECIMAL:
            found = (_LOGICAL_DECIMAL, number_of(element, 7, 0), number_of(element, 8, 0))
        else:
            found = _CONVERTED.get(converted, (-1 - converted,))
    natural = {INT32: 32, INT64: 64}.get(-1 if physical is None else physical)
    return None if found == (_LOGICAL_INTEGER, natural, True) else found


def _attributes(number: int, attributes: Struct) -> tuple[Any, ...]:
    if number == _LOGICAL_DECIMAL:
        return number_of(attributes, 1), number_of(attributes, 2)
    if number == _LOGICAL_INTEGER:
        bits = attributes.get(1, (0, 0))[1]
        return bits, flag_of(attributes, 2, False)
    if number in (7, 8):
        unit = struct_of(attributes, 2)
        return flag_of(attributes, 1, False), next(iter(unit), 0)
    return tuple((field, str(value)) for field, (_, value) in sorted(attributes.items()))
