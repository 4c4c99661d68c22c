"""Reading only the fields of manifests that planning and expiry need. Slim entries are several times smaller
and faster to read than whole ones. They must never be written.

1. Compiled code finds each entry's fields in a block (`kernel.avro`). Its program is derived from the readers
   of whole entries (`manifests`), so both read the same values.
2. Each field is decoded for many entries together; shared values, such as partitions, are decoded once and
   are the same object.
3. Statistics are null, except the bounds and the null count of the time column.

A `ManifestScan` reads the manifests of a table that has too many entries to keep them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
from pyiceberg.avro.reader import (
    BinaryReader,
    BooleanReader,
    DecimalReader,
    DefaultReader,
    DoubleReader,
    FixedReader,
    FloatReader,
    IntegerReader,
    ListReader,
    MapReader,
    NoneReader,
    OptionReader,
    Reader,
    StringReader,
    StructReader,
    UnknownReader,
    UUIDReader,
)
from pyiceberg.avro.resolver import EnumReader
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField

from lithify.base.errors import CorruptObject
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.format.avro_file import BoundedDecoder
from lithify.datasets.iceberg.format.fetching import fetched_manifests
from lithify.datasets.iceberg.format.manifests import FILE_FIELDS, MAX_SCHEMAS, entries_in, entry_reader
from lithify.datasets.iceberg.kernel.layout import (
    ARGUMENT,
    BEGIN,
    BYTES,
    END,
    KEY,
    LIST,
    MISSING,
    NEXT,
    NO_SLOT,
    NULL,
    NUMBER,
    OPTION,
    TEXT,
)

AT_ONCE = 500
"""Entries that are decoded together."""
NO_COLUMN = 0
"""An id that no column has."""


def id_of(column: NestedField | None) -> int:
    """Return the column's id; `NO_COLUMN` without one."""
    return NO_COLUMN if column is None else column.field_id


_PLACES = {field_id: n for n, field_id in enumerate(FILE_FIELDS)}
_OF_COLUMN = {_PLACES[field_id] for field_id in (110, 125, 128)}
"""Null counts, lower and upper bounds: maps by column id."""
_PASSED_OVER = {_PLACES[field_id] for field_id in (108, 109, 137, 132)}
"""Sizes, value counts and NaN counts of columns, and split offsets."""
_DATA_FILE = 4
"""The position of the data file in an entry."""

_SET_FIELDS = Record._data.__set__  # type: ignore[attr-defined]  # a slot

WholeManifest = tuple[ManifestFile, Sequence[ManifestEntry]]
"""A manifest with its live entries, with all fields."""
Noted = list[int]
Values = Callable[[bytes, Noted, Noted], Sequence[Any]]
"""Decodes the values of a field from a block and the first and second noted numbers of each entry."""
Columns = dict[int, tuple[int, Values]]
"""The slot and the decoder of a field, by its position."""
Locate = Callable[[int, int, int, npt.NDArray[np.int64], npt.NDArray[np.int64]], int]


@dataclass(frozen=True)
class ManifestScan:
    """The live entries of manifests of data files, read slim at each iteration, one manifest after the
    other."""

    what: str
    """The purpose of the scan, for errors."""
    io: FileIO
    specs: Mapping[int, PartitionSpec]
    manifests: Sequence[ManifestFile]
    column: int = NO_COLUMN
    """The id of the column whose bounds and null counts are read."""

    def __iter__(self) -> Iterator[ManifestEntry]:
        slim = partial(slim_reader, column=self.column)
        with translated(self.what):
            for manifest, fetched in fetched_manifests(self.io, self.manifests):
                spec = self.specs[manifest.partition_spec_id]
                for entry in entries_in(manifest, fetched(), spec, reader_of=slim):
                    if entry.data_file.content != DataFileContent.DATA:
                        says = "is listed as a manifest of data files, but contains delete files"
                        raise CorruptObject(manifest.manifest_path, says)
                    yield entry

    def decode(self, paths: Set[str]) -> tuple[Sequence[WholeManifest], ManifestScan]:
        """Return the manifests that list one of these paths, with whole entries, and a scan of the other
        manifests, without a column."""
        slim = partial(slim_reader, column=NO_COLUMN)
        whole: list[WholeManifest] = []
        others: list[ManifestFile] = []
        with translated(self.what):
            for manifest, fetched in fetched_manifests(self.io, self.manifests):
                data = fetched()
                found = entries_in(manifest, data, reader_of=slim)
                # Read all entries, not only up to the first match: later ones may be damaged.
                if sum(entry.data_file.file_path in paths for entry in found):
                    spec = self.specs[manifest.partition_spec_id]
                    whole.append((manifest, list(entries_in(manifest, data, spec))))
                else:
                    others.append(manifest)
        return whole, replace(self, manifests=others, column=NO_COLUMN)


class SlimReader:
    def __init__(self, locate: Locate, layout: _ProgramBuilder, of_entry: Columns, of_file: Columns) -> None:
        self._locate = locate
        self._program = np.array(layout.steps, np.int64)
        self._slots = layout.slots
        self._of_entry = of_entry
        self._of_file = of_file

    def read_block(self, data: bytes, count: int) -> Iterator[ManifestEntry]:
        """Yield the `count` entries of a block; `ValueError` if they do not fill it exactly."""
        base = np.frombuffer(data, np.uint8).ctypes.data
        start = read = 0
        while read < count:
            found = np.empty((self._slots, min(AT_ONCE, count - read)), np.int64)
            start = self._locate(base, start, len(data), self._program, found)
            if start < 0:
                raise ValueError(f"a block ends in or before its entry {read - start} of {count}")
            read += found.shape[1]
            noted = found.tolist()
            files = map(_file, *_decoded(self._of_file, len(_PLACES), data, noted))
            entries = _decoded(self._of_entry, _DATA_FILE, data, noted)
            yield from map(ManifestEntry, *entries, files)
        if count < 0 or start != len(data):
            raise ValueError(f"a block continues after its {count} entries")


@lru_cache(MAX_SCHEMAS)
def slim_reader(schema: str, column: int) -> SlimReader:
    """Return the reader of entries written with this Avro schema. `column` is the id of the time column."""
    # Not at the top: it imports the compiler, which most processes do not need.
    from lithify.datasets.iceberg.kernel.avro import locate

    whole = entry_reader(schema)
    assert isinstance(whole, StructReader)
    of_entry: Columns = {}
    of_file: Columns = {}
    layout = _ProgramBuilder()
    for place, field in whole.field_readers:
        if place != _DATA_FILE:
            layout.add(field, place, of_entry)
            continue
        assert isinstance(field, StructReader)
        for place_in_file, part in field.field_readers:
            if place_in_file in _OF_COLUMN:
                layout.add_of_column(part, column, place_in_file, of_file)
            else:
                layout.add(part, None if place_in_file in _PASSED_OVER else place_in_file, of_file)
    return SlimReader(locate, layout, of_entry, of_file)


def _file(*values: Any) -> DataFile:
    """Return a data file with these fields. The constructor is several times slower: it compares each
    attribute's name with the format's."""
    file = DataFile.__new__(DataFile)
    _SET_FIELDS(file, list(values))
    return file


def _decoded(columns: Columns, places: int, data: bytes, noted: list[Noted]) -> Iterator[Iterable[Any]]:
    for place in range(places):
        if place in columns:
            slot, values = columns[place]
            yield values(data, noted[slot], noted[slot + 1])
        else:
            yield repeat(None)


class _ProgramBuilder:
    def __init__(self) -> None:
        self.steps: list[list[int]] = []
        self.slots = 0

    def add(self, reader: Reader, place: int | None, columns: Columns) -> None:
        """Add a field, to `columns` too if it has a position."""
        if place is None or isinstance(reader, NoneReader):
            self._pass_over(reader)
        else:
            columns[place] = self._note(reader), _values(reader)

    def add_of_column(self, reader: Reader, column: int, place: int, columns: Columns) -> None:
        """Add a field that is a map by column id, for the value of one column."""
        of_columns = _option(reader)
        if not isinstance(of_columns, MapReader):
            self.add(reader, place, columns)
            return
        slot = self._new_slot()

        def add_pair() -> None:
            self._step(KEY, column)
            self._plain(of_columns.value, slot)

        self._add_option(reader, lambda _: self._add_list(add_pair, slot))
        columns[place] = slot, partial(_of_column, column, _values(of_columns.value))

    def _note(self, reader: Reader) -> int:
        """Add steps that note a value. Return its slot."""
        slot = self._new_slot()
        if isinstance(reader, EnumReader):
            reader = reader.reader
        if _is_plain(_option(reader)):
            self._add_option(reader, lambda plain: self._plain(plain, slot))
        else:
            self._step(BEGIN, slot=slot)
            self._pass_over(reader)
            self._step(END, slot=slot)
        return slot

    def _pass_over(self, reader: Reader) -> None:
        """Add steps that skip a value."""
        if isinstance(reader, EnumReader):
            reader = reader.reader
        if (size := _size(reader)) is not None:
            self._step(BYTES, size)
        elif isinstance(reader, OptionReader):
            self._add_option(reader, self._pass_over)
        elif isinstance(reader, StructReader):
            for _, field in reader.field_readers:
                self._pass_over(field)
        elif isinstance(reader, ListReader):
            self._add_list(lambda: self._add_option(reader.element, self._plain))
        elif isinstance(reader, MapReader):

            def add_pair() -> None:
                self._plain(reader.key)
                self._plain(reader.value)

            self._add_list(add_pair)
        else:
            self._plain(reader)

    def _plain(self, reader: Reader, slot: int = NO_SLOT) -> None:
        if not _is_plain(reader):
            raise TypeError(f"it has values that are read by {reader}")
        self._step(NUMBER if isinstance(reader, IntegerReader) else TEXT, slot=slot)

    def _add_option(self, reader: Reader, add: Callable[[Reader], object]) -> None:
        """Add the steps of an optional value, and a jump around them if it is null."""
        step = self._step(OPTION) if isinstance(reader, OptionReader) else None
        add(_option(reader))
        if step is not None:
            self.steps[step][ARGUMENT] = len(self.steps)

    def _add_list(self, add_element: Callable[[], object], slot: int = NO_SLOT) -> None:
        step = self._step(LIST, slot=slot)
        add_element()
        self.steps[step][ARGUMENT] = self._step(NEXT, step + 1)

    def _step(self, op: int, argument: int = 0, slot: int = NO_SLOT) -> int:
        self.steps.append([op, argument, slot])
        return len(self.steps) - 1

    def _new_slot(self) -> int:
        self.slots += 2
        return self.slots - 2


def _size(reader: Reader) -> int | None:
    """Return the size of each value in bytes, if it is fixed."""
    match reader:
        case NoneReader() | DefaultReader() | UnknownReader():
            return 0
        case BooleanReader():
            return 1
        case FloatReader():
            return 4
        case DoubleReader():
            return 8
        case UUIDReader():
            return 16
        case FixedReader():
            return len(reader)
        case DecimalReader():
            return reader._length
        case _:
            return None


def _is_plain(reader: Reader) -> bool:
    """Return whether the kernel notes the value, or the bytes' position without their length prefix."""
    return isinstance(reader, IntegerReader | StringReader | BinaryReader)


def _option(reader: Reader) -> Reader:
    return reader.option if isinstance(reader, OptionReader) else reader


def _values(reader: Reader) -> Values:
    """Return the decoder of the noted numbers."""
    if isinstance(reader, EnumReader):
        return partial(_of_enum, reader.enum, _values(reader.reader))
    plain = _option(reader)
    if isinstance(plain, IntegerReader):
        return _numbers
    if isinstance(plain, StringReader):
        return _texts
    if isinstance(plain, BinaryReader):
        return _contents
    return partial(_wholes, reader)


def _numbers(_: bytes, nulls: Noted, numbers: Noted) -> Sequence[int | None]:
    if not any(nulls):
        return numbers
    return [None if null else number for null, number in zip(nulls, numbers, strict=True)]


def _texts(data: bytes, starts: Noted, ends: Noted) -> list[str | None]:
    parts = zip(starts, ends, strict=True)
    return [data[start:end].decode() if start >= 0 else None for start, end in parts]


def _contents(data: bytes, starts: Noted, ends: Noted) -> list[bytes | None]:
    return [data[start:end] if start >= 0 else None for start, end in zip(starts, ends, strict=True)]


def _wholes(reader: Reader, data: bytes, starts: Noted, ends: Noted) -> list[Any]:
    known: dict[bytes, Any] = {}
    found = []
    for start, end in zip(starts, ends, strict=True):
        part = data[start:end]
        if part not in known:
            known[part] = reader.read(BoundedDecoder(part))
        found.append(known[part])
    return found


def _of_enum(
    enum: Callable[[Any], Any], values: Values, data: bytes, first: Noted, second: Noted
) -> list[Any]:
    known: dict[Any, Any] = {}
    for value in (found := values(data, first, second)):
        if value not in known:
            known[value] = enum(value)
    return [known[value] for value in found]


def _of_column(column: int, values: Values, data: bytes, first: Noted, second: Noted) -> list[Any]:
    found = zip(first, values(data, first, second), strict=True)
    return [None if null == NULL else {} if null == MISSING else {column: value} for null, value in found]
