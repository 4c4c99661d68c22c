"""One output column chunk, made of the chunks of many row groups.

1. The dictionaries of the chunks are merged while they fit into one, and indexes are renumbered. Others, and
   all if they do not pay, are replaced by their values. No page of indexes follows one of values, as in files
   of all writers: Spark's reader then takes the values for indexes.
2. A page is copied as it is stored if its codec is the wanted one, its indexes stay the same, and it is not
   tiny. Tiny pages of plain values and of indexes are joined: their levels and values are written to new
   pages, as large as the table wants. Pages of other encodings are copied, or compressed again.
3. Every page is noted for the indexes of pages. They are left out where a page begins inside a row, or where
   bounds of a page are not known.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, Final

import numpy as np
import pyarrow as pa

from lithify.kernel.buffers import bytes_of, new_bytes
from lithify.parquet.errors import Uncopyable
from lithify.parquet.footer import Leaf
from lithify.parquet.kernel.pages import encode_hybrid, find_ends, gather, hybrid_bytes
from lithify.parquet.pages import (
    DATA_PAGE,
    DICTIONARY_PAGE,
    MAX_PAGE_BYTES,
    PLAIN,
    RLE,
    RLE_DICTIONARY,
    UNCOMPRESSED,
    ColumnChunkReader,
    DataPage,
    Dictionary,
    Levels,
)
from lithify.parquet.statistics import (
    BOOLEAN,
    BYTE_ARRAY,
    DOUBLE,
    FLOAT,
    WIDTHS,
    ValueBounds,
    merged,
    statistics_struct,
    with_signed_zeros,
)
from lithify.parquet.thrift import (
    BINARY,
    BOOL,
    I32,
    I64,
    LIST,
    STRUCT,
    Struct,
    number_of,
    struct_of,
    write_struct,
)

TINY_BYTES: Final = 64 << 10
"""Uncompressed pages below this size are joined."""
MAX_HELD_BYTES: Final = 64 << 20
"""The dictionaries that are kept between finding out what is in them, and copying the pages."""
CODECS: Final = {
    "uncompressed": 0,
    "snappy": 1,
    "gzip": 2,
    "brotli": 4,
    "zstd": 6,
    "lz4_raw": 7,
}
_NAMES = {number: name for name, number in CODECS.items()}


@dataclass(frozen=True, slots=True)
class PageOptions:
    """How columns are written."""

    codec: str | None = None
    """One of `CODECS`; `None` keeps each column's."""
    level: int | None = None
    """The compression level; one that is given is that of all pages, so that none is copied compressed."""
    page_bytes: int = 1 << 20
    page_rows: int = 20_000
    dictionary_bytes: int = 2 << 20
    """0 writes no dictionaries."""


@dataclass(slots=True)
class ColumnFacts:
    """Facts about a written column chunk."""

    values: int = 0
    nulls: int = 0
    nans: int = 0
    bounds: ValueBounds | None = None
    """Without NaN."""
    copied_bytes: int = 0
    """Size of the pages that were copied as they are stored."""
    repacked_bytes: int = 0
    """Size of the pages made of the levels, indexes and values of others."""
    decoded_bytes: int = 0
    """Size of the pages that Arrow encoded."""

    @property
    def numbers(self) -> tuple[float, float] | None:
        """Return the bounds of floating-point numbers."""
        if self.bounds is None:
            return None
        code = "<f" if len(self.bounds.low) == WIDTHS[FLOAT] else "<d"
        return struct.unpack(code, self.bounds.low)[0], struct.unpack(code, self.bounds.high)[0]


@dataclass(slots=True)
class WrittenChunk:
    """A column chunk in the output."""

    column: Struct
    """The footer's `ColumnChunk`."""
    stored_bytes: int
    plain_bytes: int
    facts: ColumnFacts
    offset_index: bytes | None = None
    column_index: bytes | None = None
    bloom_filter: bytes | None = None


@dataclass(slots=True)
class _PageNote:
    offset: int
    size_bytes: int
    rows: int
    begins_row: bool
    nulls: int
    is_null: bool
    bounds: ValueBounds | None


class PageOutput:
    """A stream that is written, with its position."""

    def __init__(self, stream: IO[bytes], position: int = 0) -> None:
        self._stream = stream
        self.position = position

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        self._stream.write(data)
        self.position += len(data)


@dataclass(slots=True)
class _Part:
    """Values that wait for their page."""

    repetition: Levels | None
    definition: Levels | None
    values: int
    filled: int
    rows: int
    begins_row: bool
    bounds: ValueBounds | None
    payload: bytes | Levels


class ColumnWriter:
    """A writer of one column chunk."""

    def __init__(self, output: PageOutput, leaf: Leaf, codec: int, options: PageOptions) -> None:
        self._output = output
        self._leaf = leaf
        self.codec = codec
        self._options = options
        self._compressor = None if codec == UNCOMPRESSED else _compressor(codec, options.level)
        self._start = output.position
        self._dictionary_at: int | None = None
        self._data_at: int | None = None
        self._plain_bytes = 0
        self._encodings: dict[tuple[int, int], int] = {}
        self._notes: list[_PageNote] = []
        self._parts: list[_Part] = []
        self._parts_bytes = 0
        self._index_width = 0
        self.has_values = False
        """Whether a page of values, not of indexes, was written or waits."""
        self.facts = ColumnFacts()

    def write_dictionary(self, values: Sequence[bytes]) -> None:
        """Write the dictionary page, before all others."""
        self._dictionary_at = self._output.position
        self._index_width = max(1, (len(values) - 1).bit_length())
        described: Struct = {1: (I32, len(values)), 2: (I32, PLAIN)}
        self._put(DICTIONARY_PAGE, b"".join(values), {7: (STRUCT, described)}, PLAIN)

    @property
    def has_dictionary(self) -> bool:
        return self._dictionary_at is not None

    def copy(self, page: DataPage, body: bytes | None = None) -> None:
        """Write a page as it is stored, or with this body compressed again."""
        self._flush()
        self.has_values |= page.indexes is None
        kind = number_of(page.fields, 1)
        if self._data_at is None:
            self._data_at = self._output.position
        before = self._output.position
        if body is None:
            header: bytes = page.header
            self._output.write(header)
            self._output.write(page.body)
            self.facts.copied_bytes += self._output.position - before
        else:
            fields = {**page.fields, 3: (I32, len(body)), 4: (I32, _signed(zlib.crc32(body)))}
            if page.is_v2:
                described = {**struct_of(fields, 8), 7: (BOOL, self.codec != UNCOMPRESSED)}
                fields[8] = (STRUCT, described)
            header = write_struct(fields)
            self._output.write(header)
            self._output.write(body)
            self.facts.repacked_bytes += self._output.position - before
        self._plain_bytes += len(header) + page.end
        self._count(kind, page.encoding)
        self._note(before, page.values, page.filled, page.rows, page.begins_row, page.bounds)

    def compress_again(self, page: DataPage) -> None:
        """Write a page with its levels and values compressed by this writer."""
        if not page.is_v2:
            self.copy(page, self._compressed(page.data[: page.end].tobytes()))
            return
        levels, values = page.data[: page.start].tobytes(), page.data[page.start : page.end].tobytes()
        self.copy(page, levels + self._compressed(values))

    def add(self, page: DataPage, payload: bytes | Levels) -> None:
        """Write a page's levels with these plain values, or indexes, to new pages."""
        self.has_values |= isinstance(payload, bytes)
        for part in _cut(page, payload, self._leaf, self._options.page_rows):
            size = len(part.payload)
            if not isinstance(part.payload, bytes):
                size = size * self._index_width // 8
            elif self._leaf.physical == BOOLEAN:
                size //= 8
            rows = sum(one.rows for one in self._parts)
            if self._parts and (
                isinstance(part.payload, bytes) != isinstance(self._parts[0].payload, bytes)
                or self._parts_bytes + size > self._options.page_bytes
                or rows + part.rows > self._options.page_rows
            ):
                self._flush()
            self._parts.append(part)
            self._parts_bytes += size

    def _flush(self) -> None:
        parts, self._parts, self._parts_bytes = self._parts, [], 0
        if not parts:
            return
        leaf = self._leaf
        values = sum(part.values for part in parts)
        filled = sum(part.filled for part in parts)
        levels = _encode_levels([part.repetition for part in parts], leaf.max_repetition)
        levels += _encode_levels([part.definition for part in parts], leaf.max_definition)
        encoding = PLAIN
        if isinstance(parts[0].payload, bytes):
            body = b"".join(part.payload for part in parts if isinstance(part.payload, bytes))
            if leaf.physical == BOOLEAN:
                body = np.packbits(np.frombuffer(body, np.uint8), bitorder="little").tobytes()
        else:
            encoding = RLE_DICTIONARY
            indexes = np.concatenate([part.payload for part in parts if not isinstance(part.payload, bytes)])
            body = bytes([self._index_width]) + encoded(indexes, self._index_width)
        described: Struct = {1: (I32, values), 2: (I32, encoding), 3: (I32, RLE), 4: (I32, RLE)}
        if self._data_at is None:
            self._data_at = self._output.position
        before = self._output.position
        self._put(DATA_PAGE, levels + body, {5: (STRUCT, described)}, encoding)
        bounds = merged((part.bounds for part in parts if part.filled), leaf.order)
        rows = sum(part.rows for part in parts)
        self._note(before, values, filled, rows, parts[0].begins_row, bounds)

    def _put(self, kind: int, body: bytes, described: Struct, encoding: int) -> None:
        before = self._output.position
        stored = self._compressed(body)
        header = write_struct(
            {
                1: (I32, kind),
                2: (I32, len(body)),
                3: (I32, len(stored)),
                4: (I32, _signed(zlib.crc32(stored))),
                **described,
            }
        )
        self._output.write(header)
        self._output.write(stored)
        self._plain_bytes += len(header) + len(body)
        self.facts.repacked_bytes += self._output.position - before
        self._count(kind, encoding)

    def _compressed(self, body: bytes) -> bytes:
        if self._compressor is None:
            return body
        compressed: bytes = self._compressor.compress(body, asbytes=True)
        return compressed

    def _count(self, kind: int, encoding: int) -> None:
        self._encodings[kind, encoding] = self._encodings.get((kind, encoding), 0) + 1

    def _note(
        self, offset: int, values: int, filled: int, rows: int, begins_row: bool, bounds: ValueBounds | None
    ) -> None:
        self.facts.values += values
        self.facts.nulls += values - filled
        size = self._output.position - offset
        self._notes.append(_PageNote(offset, size, rows, begins_row, values - filled, not filled, bounds))

    def end(self, *, are_page_bounds_right: bool, with_bounds: bool) -> WrittenChunk:
        """Return the chunk. `facts` must have its bounds by now."""
        self._flush()
        leaf, facts, output = self._leaf, self.facts, self._output
        bounds = facts.bounds if with_bounds and not facts.nans else None
        if bounds is not None:
            bounds = with_signed_zeros(bounds, leaf.physical)
        pairs = sorted(self._encodings.items())
        encodings = sorted({encoding for (_, encoding), _ in pairs} | {RLE})
        stats = [{1: (I32, kind), 2: (I32, one), 3: (I32, count)} for (kind, one), count in pairs]
        meta: Struct = {
            1: (I32, leaf.physical),
            2: (LIST, (I32, encodings)),
            3: (LIST, (BINARY, list(leaf.path))),
            4: (I32, self.codec),
            5: (I64, facts.values),
            6: (I64, self._plain_bytes),
            7: (I64, output.position - self._start),
            9: (I64, self._start if self._data_at is None else self._data_at),
            12: (
                STRUCT,
                statistics_struct(bounds, facts.nulls, with_deprecated=leaf.is_deprecated_right),
            ),
            13: (LIST, (STRUCT, stats)),
        }
        if self._dictionary_at is not None:
            meta[11] = (I64, self._dictionary_at)
        written = WrittenChunk(
            {2: (I64, 0), 3: (STRUCT, meta)}, output.position - self._start, self._plain_bytes, facts
        )
        if self._notes and all(note.begins_row for note in self._notes):
            written.offset_index = self._offset_index()
            if bounds is not None and are_page_bounds_right:
                written.column_index = self._column_index()
        return written

    def _offset_index(self) -> bytes:
        locations, row = [], 0
        for note in self._notes:
            locations.append({1: (I64, note.offset), 2: (I32, note.size_bytes), 3: (I64, row)})
            row += note.rows
        return write_struct({1: (LIST, (STRUCT, locations))})

    def _column_index(self) -> bytes | None:
        notes, physical = self._notes, self._leaf.physical
        found = [note.bounds for note in notes if not note.is_null]
        if any(bounds is None for bounds in found):
            return None
        known = [with_signed_zeros(bounds, physical) for bounds in found if bounds is not None]
        following = iter(known)
        in_place = [ValueBounds(b"", b"") if note.is_null else next(following) for note in notes]
        return write_struct(
            {
                1: (LIST, (BOOL, [note.is_null for note in notes])),
                2: (LIST, (BINARY, [bounds.low for bounds in in_place])),
                3: (LIST, (BINARY, [bounds.high for bounds in in_place])),
                4: (I32, _boundary_order(known, self._leaf)),
                5: (LIST, (I64, [note.nulls for note in notes])),
            }
        )


def merge_column(
    readers: Sequence[Callable[[], ColumnChunkReader]],
    output: PageOutput,
    options: PageOptions,
    *,
    with_bounds: bool,
) -> WrittenChunk:
    """Write one chunk of the chunks that `readers` open. Raise `Uncopyable`."""
    merge = _MergedDictionary(options.dictionary_bytes)
    held: list[ColumnChunkReader | None] = []
    tables: list[Levels | None] = []
    held_bytes = 0
    codec = CODECS[options.codec] if options.codec is not None else None
    leaf: Leaf | None = None
    for opened in readers:
        reader = opened()
        leaf = reader.leaf
        codec = reader.chunk.codec if codec is None else codec
        dictionary = reader.dictionary
        tables.append(merge.table(dictionary, reader))
        held_bytes += 0 if dictionary is None else dictionary.size_bytes
        held.append(reader if held_bytes <= MAX_HELD_BYTES else None)
    assert leaf is not None
    assert codec is not None
    if codec not in _NAMES:
        raise Uncopyable(f"is compressed with codec {codec}")
    writer = ColumnWriter(output, leaf, codec, options)
    if merge.pays:
        writer.write_dictionary(merge.values)
    else:
        tables = [None] * len(tables)
    bounds: list[ValueBounds | None] = []
    are_page_bounds_right = True
    for n, table in enumerate(tables):
        reader, held[n] = held[n] or readers[n](), None
        bounds += _copy_pages(reader, writer, table, options)
        are_page_bounds_right &= reader.is_page_bounds_right
    writer.facts.bounds = merged(bounds, leaf.order)
    return writer.end(are_page_bounds_right=are_page_bounds_right, with_bounds=with_bounds)


def _copy_pages(
    reader: ColumnChunkReader, writer: ColumnWriter, table: Levels | None, options: PageOptions
) -> list[ValueBounds | None]:
    """Write a chunk's pages. Return the bounds of the chunk, or of its pages, if it has values."""
    leaf = reader.leaf
    is_same = table is not None and bool((table == np.arange(len(table))).all())
    is_kept = reader.chunk.codec == writer.codec and options.level is None
    by_values = leaf.physical in (FLOAT, DOUBLE)
    bounds: list[ValueBounds | None] = []
    has_values = False
    for page in reader.pages():
        has_values |= page.filled > 0
        writer.facts.nans += page.nans
        if by_values and page.filled > page.nans:
            bounds.append(page.bounds)
        is_tiny = page.end < TINY_BYTES and page.rows * 2 < options.page_rows
        if writer.has_dictionary and not writer.has_values and not page.filled:
            writer.add(page, np.empty(0, np.int32))
        elif page.indexes is not None:
            if table is None or writer.has_values:
                assert reader.dictionary is not None
                writer.add(page, _values_of(reader.dictionary, page.indexes, leaf))
            elif is_same and is_kept and not is_tiny:
                writer.copy(page)
            else:
                writer.add(page, table[page.indexes])
        elif page.encoding == PLAIN and (is_tiny or not is_kept):
            writer.add(page, _plain(page, leaf))
        elif is_kept:
            writer.copy(page)
        else:
            writer.compress_again(page)
    if by_values:
        return bounds
    return [reader.bounds()] if has_values else []


class _MergedDictionary:
    """The dictionaries of chunks, merged while they fit."""

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes
        self._is_full = False
        self._values = 0
        self._places: dict[bytes, int] = {}
        self.values: list[bytes] = []

    @property
    def pays(self) -> bool:
        """Return whether values are repeated enough for a dictionary."""
        return 0 < 2 * len(self.values) <= self._values

    def table(self, dictionary: Dictionary | None, reader: ColumnChunkReader) -> Levels | None:
        """Return the new index of each value; `None` if a chunk's values are to be written instead, as are
        those of all later chunks."""
        chunk = reader.chunk
        if dictionary is None and number_of(chunk.statistics, 3, 0) < chunk.values:
            self._is_full = True
        if dictionary is None or self._is_full:
            return None
        parts = dictionary.parts(reader.leaf.width)
        places = self._places
        new = [part for part in dict.fromkeys(parts) if part not in places]
        size = sum(map(len, new))
        if size > self._left:
            self._is_full = True
            return None
        self._left -= size
        self._values += chunk.values
        for part in new:
            places[part] = len(places)
        self.values += new
        return np.fromiter((places[part] for part in parts), np.int32, len(parts))


def _values_of(dictionary: Dictionary, indexes: Levels, leaf: Leaf) -> bytes:
    """Return the plain values of indexes."""
    if dictionary.ends is None:
        if len(indexes) * leaf.width > MAX_PAGE_BYTES:
            raise Uncopyable("has a page that is too large without its dictionary")
        stored = dictionary.data[: dictionary.size_bytes].reshape(dictionary.count, leaf.width)
        return stored.view(f"V{leaf.width}").reshape(-1).take(indexes).tobytes()
    sizes = np.diff(dictionary.ends, prepend=0)
    size = int(sizes[indexes].sum()) if len(indexes) else 0
    if size > MAX_PAGE_BYTES:
        raise Uncopyable("has a page that is too large without its dictionary")
    target = new_bytes(size)
    gather(dictionary.data.ctypes.data, dictionary.ends, indexes, target.ctypes.data)
    return target[:size].tobytes()


def _plain(page: DataPage, leaf: Leaf) -> bytes:
    """Return a page's plain values; of truth values one byte for each."""
    stored = page.data[page.start : page.end]
    if leaf.physical != BOOLEAN:
        return stored.tobytes()
    return np.unpackbits(stored, count=page.filled, bitorder="little").tobytes()


def _cut(page: DataPage, payload: bytes | Levels, leaf: Leaf, most_rows: int) -> Iterator[_Part]:
    """Yield a page's levels and values in parts of at most so many rows."""
    if page.rows <= most_rows:
        yield _Part(
            page.repetition,
            page.definition,
            page.values,
            page.filled,
            page.rows,
            page.begins_row,
            page.bounds,
            payload,
        )
        return
    starts = np.arange(page.values) if page.repetition is None else np.flatnonzero(page.repetition == 0)
    cuts = [0, *starts[most_rows::most_rows].tolist(), page.values]
    is_filled = None if page.definition is None else page.definition == leaf.max_definition
    ends = _ends_of_plain(payload, page.filled, leaf) if isinstance(payload, bytes) else None
    done = 0
    for n, (start, end) in enumerate(pairwise(cuts)):
        filled = end - start if is_filled is None else int(np.count_nonzero(is_filled[start:end]))
        if ends is None:
            part: bytes | Levels = payload[done : done + filled]
        else:
            part = payload[ends[done] : ends[done + filled]]
        repetition = None if page.repetition is None else page.repetition[start:end]
        definition = None if page.definition is None else page.definition[start:end]
        rows = end - start if repetition is None else int(np.count_nonzero(repetition == 0))
        begins_row = page.begins_row or n > 0
        yield _Part(repetition, definition, end - start, filled, rows, begins_row, page.bounds, part)
        done += filled


def _ends_of_plain(payload: bytes, count: int, leaf: Leaf) -> list[int] | range:
    """Return where the values begin, and where the last one ends."""
    if leaf.physical != BYTE_ARRAY:
        width = leaf.width or 1
        return range(0, (count + 1) * width, width)
    ends = np.empty(count, np.int64)
    data = bytes_of(payload)
    find_ends(data.ctypes.data, len(payload), ends)
    return [0, *ends.tolist()]


def _encode_levels(parts: Sequence[Levels | None], most: int) -> bytes:
    if not most:
        return b""
    levels = np.concatenate([part for part in parts if part is not None])
    body = encoded(levels, most.bit_length())
    return len(body).to_bytes(4, "little") + body


def encoded(numbers: Levels, width: int) -> bytes:
    """Return numbers in Parquet's hybrid of runs and bits."""
    target = new_bytes(hybrid_bytes(len(numbers), width))
    used = encode_hybrid(np.ascontiguousarray(numbers), width, target.ctypes.data)
    return target[:used].tobytes()


def _compressor(codec: int, level: int | None) -> pa.Codec:
    name = _NAMES[codec]
    if level is None or not pa.Codec.supports_compression_level(name):
        return pa.Codec(name)
    return pa.Codec(name, level)


def _boundary_order(bounds: Sequence[ValueBounds], leaf: Leaf) -> int:
    """Return 1 if pages ascend, 2 if they descend, else 0."""
    assert leaf.order is not None
    lows, highs = [leaf.order(one.low) for one in bounds], [leaf.order(one.high) for one in bounds]
    pairs = [(lows[n], lows[n + 1], highs[n], highs[n + 1]) for n in range(len(bounds) - 1)]
    if all(low <= next_low and high <= next_high for low, next_low, high, next_high in pairs):
        return 1
    if all(low >= next_low and high >= next_high for low, next_low, high, next_high in pairs):
        return 2
    return 0


def _signed(number: int) -> int:
    return number - (1 << 32) if number >= 1 << 31 else number
