"""Reading of manifests only what planning and expiry look at: faster than whole entries, which are several
times as large. They are never to be written.

An entry is read by the readers of `manifests`, field by field, but statistics are passed over, and are null
then, except the bounds and the number of nulls of one column, the time column.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from pyiceberg.avro.reader import MapReader, OptionReader, Reader, StructReader
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, ManifestEntry

from lithify.datasets.iceberg.avro_file import BoundedDecoder
from lithify.datasets.iceberg.manifests import ENTRY_VERSION, MAX_SCHEMAS, entry_reader

_PLACES = {field.field_id: n for n, field in enumerate(DATA_FILE_TYPE[ENTRY_VERSION].fields)}
_OF_COLUMN = {_PLACES[field_id] for field_id in (110, 125, 128)}
"""Numbers of nulls, lower and upper bounds: maps by the id of a column."""
_PASSED_OVER = {_PLACES[field_id] for field_id in (108, 109, 137, 132)}
"""Sizes, numbers of values and of not-a-number of each column, and places where a file can be split."""
NO_COLUMN = 0
"""No column has this id."""
_DATA_FILE = 4
"""The place of the file in an entry."""

Read = Callable[[BoundedDecoder], Any]


class SlimReader:
    """Reads entries."""

    def __init__(self, fields: list[tuple[int | None, Read]]) -> None:
        self._fields = fields

    def read(self, decoder: BoundedDecoder) -> ManifestEntry:
        return ManifestEntry(*_values(self._fields, _DATA_FILE + 1, decoder))


@lru_cache(MAX_SCHEMAS)
def slim_reader(schema: str, column: int) -> SlimReader:
    """How entries are read that were written with this Avro schema. `column` is the id of the time column."""
    whole = entry_reader(schema)
    assert isinstance(whole, StructReader)
    of_file: list[tuple[int | None, Read]] = []
    fields: list[tuple[int | None, Read]] = []

    def read_file(decoder: BoundedDecoder) -> DataFile:
        return DataFile(*_values(of_file, len(_PLACES), decoder))

    for place, field in whole.field_readers:
        if place == _DATA_FILE:
            assert isinstance(field, StructReader)
            of_file += (_part(place_in_file, part, column) for place_in_file, part in field.field_readers)
            fields.append((place, read_file))
        else:
            fields.append((place, field.read if place is not None else field.skip))
    return SlimReader(fields)


def _values(fields: list[tuple[int | None, Read]], count: int, decoder: BoundedDecoder) -> list[Any]:
    values: list[Any] = [None] * count
    for place, read in fields:
        value = read(decoder)
        if place is not None:
            values[place] = value
    return values


def _part(place: int | None, field: Reader, column: int) -> tuple[int | None, Read]:
    if place is None:
        return None, field.skip
    if place in _PASSED_OVER:
        return None, _pass_over_ints if _is_map(field, of_ints=True) else field.skip
    if place in _OF_COLUMN and _is_map(field, of_ints=False):
        return place, lambda decoder: _bytes_of(decoder, column)
    if place in _OF_COLUMN and _is_map(field, of_ints=True):
        return place, lambda decoder: _number_of(decoder, column)
    return place, field.read


def _pass_over_ints(decoder: BoundedDecoder) -> None:
    if decoder.read_int() > 0:
        while count := _count(decoder):
            decoder.skip_ints(2 * count)


def _bytes_of(decoder: BoundedDecoder, column: int) -> dict[int, bytes] | None:
    """Of an optional map, the part of one column."""
    if decoder.read_int() <= 0:
        return None
    found = {}
    while count := _count(decoder):
        value = decoder.read_bytes_of(column, count)
        if value is not None:
            found[column] = value
    return found


def _number_of(decoder: BoundedDecoder, column: int) -> dict[int, int] | None:
    """The same of a map to numbers."""
    if decoder.read_int() <= 0:
        return None
    found = {}
    while count := _count(decoder):
        numbers = decoder.read_ints(2 * count)
        if column in (columns := numbers[::2]):
            found[column] = numbers[2 * columns.index(column) + 1]
    return found


def _count(decoder: BoundedDecoder) -> int:
    """How many pairs the next block of a map has; 0 behind the last one."""
    count = decoder.read_int()
    if count < 0:
        decoder.read_int()  # its bytes
    return abs(count)


def _is_map(field: Reader, *, of_ints: bool) -> bool:
    """Whether it is an optional map of numbers to numbers, or to bytes."""
    found = field.option if isinstance(field, OptionReader) else None
    return isinstance(found, MapReader) and (found._is_int_int if of_ints else found._is_int_bytes)
