"""The pages of a column chunk, decompressed and checked.

Each page's levels and values are walked in compiled code, so that a copied page is known to have the rows
that its header says, each inside its bytes: a damaged page is not carried on. Checksums are verified where
there are any. Nulls and NaN are counted on the way. Values themselves are not built.

A page that the walk does not know, or finds strange, raises `Uncopyable`: Arrow then reads the column, or
refuses it.
Memory is bounded by a window of the chunk, one page, and its levels.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Final

import cramjam
import numpy as np
import numpy.typing as npt

from lithify.kernel.buffers import Bytes, new_bytes
from lithify.kernel.memory import SLACK
from lithify.parquet.errors import CannotMerge, Uncopyable
from lithify.parquet.footer import ColumnChunk, Leaf, read_at
from lithify.parquet.kernel.pages import INVALID, are_prefixes, decode_delta, decode_hybrid, find_ends
from lithify.parquet.statistics import (
    BOOLEAN,
    BYTE_ARRAY,
    DOUBLE,
    FIXED,
    FLOAT,
    INT32,
    INT64,
    ValueBounds,
    bounds_of,
    valid_bounds,
)
from lithify.parquet.thrift import (
    BINARY,
    BOOL,
    Malformed,
    Struct,
    flag_of,
    list_of,
    number_of,
    read_struct,
    struct_of,
)

MAX_PAGE_BYTES: Final = 256 << 20
MAX_PAGE_VALUES: Final = 1 << 24
MAX_DICTIONARY_BYTES: Final = 16 << 20
WINDOW_BYTES: Final = 8 << 20
_HEADER_GUESS = 16 << 10

DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3
PLAIN, PLAIN_DICTIONARY, RLE, DELTA, DELTA_LENGTH, DELTA_TEXT, RLE_DICTIONARY, SPLIT = 0, 2, 3, 5, 6, 7, 8, 9
DICTIONARY_ENCODINGS: Final = (PLAIN_DICTIONARY, RLE_DICTIONARY)
UNCOMPRESSED: Final = 0

_DECOMPRESSORS: Final[dict[int, Callable[..., int]]] = {
    1: cramjam.snappy.decompress_raw_into,
    2: cramjam.gzip.decompress_into,
    4: cramjam.brotli.decompress_into,
    6: cramjam.zstd.decompress_into,
    7: cramjam.lz4.decompress_block_into,
}
"""Functions that write to given memory and return how much, by the number of the codec."""

Levels = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating]


@dataclass(slots=True)
class Dictionary:
    count: int
    data: Bytes
    size_bytes: int
    ends: Numbers | None
    """Where each text ends; `None` for values of a fixed length."""

    def parts(self, width: int) -> list[bytes]:
        """Return the values as they are stored, texts with their lengths."""
        stored = self.data[: self.size_bytes].tobytes()
        if self.ends is None:
            return [stored[n : n + width] for n in range(0, self.size_bytes, width)]
        ends = self.ends.tolist()
        return [stored[start:end] for start, end in zip([0, *ends], ends, strict=False)]


class PageMemory:
    """Memory that each page uses again."""

    def __init__(self) -> None:
        self._bytes = new_bytes(0)
        self._numbers = np.empty(0, np.int64)

    def bytes(self, size: int) -> Bytes:
        """Return memory for so many bytes, with slack after them."""
        if len(self._bytes) < size + SLACK:
            self._bytes = new_bytes(2 * size)
        return self._bytes

    def numbers(self, count: int) -> Numbers:
        if len(self._numbers) < count:
            self._numbers = np.empty(2 * count, np.int64)
        return self._numbers[:count]


@dataclass(slots=True)
class DataPage:
    """A data page. Its data lasts until the next page is read."""

    header: bytes
    """As it is stored."""
    body: memoryview
    """As it is stored."""
    fields: Struct
    """The header's."""
    encoding: int
    values: int
    """With nulls, and places of empty lists."""
    filled: int
    """Values that are none of these."""
    rows: int
    """Rows that begin here."""
    begins_row: bool
    repetition: Levels | None
    definition: Levels | None
    data: Bytes
    start: int
    """Where the values begin in `data`."""
    end: int
    indexes: Levels | None
    """Of values in the dictionary; `None` if the page does not use it."""
    bounds: ValueBounds | None
    """Of floating-point numbers, those of all but NaN."""
    nans: int

    @property
    def is_v2(self) -> bool:
        return number_of(self.fields, 1) == DATA_PAGE_V2


class ColumnChunkReader:
    """A reader of one column chunk."""

    def __init__(
        self,
        stream: IO[bytes],
        chunk: ColumnChunk,
        leaf: Leaf,
        rows: int,
        *,
        has_order: bool,
        scratch: PageMemory,
    ) -> None:
        if chunk.codec != UNCOMPRESSED and chunk.codec not in _DECOMPRESSORS:
            raise Uncopyable(f"is compressed with codec {chunk.codec}")
        self.chunk = chunk
        self.leaf = leaf
        self._rows = rows
        self._has_order = has_order
        self._bytes = _Window(stream, chunk.start, chunk.size_bytes)
        self._page_bounds = _page_bounds(stream, chunk)
        self.is_page_bounds_right = True
        """Whether the pages were those of the column index, known after the last."""
        self._scratch = scratch
        self._floats: Floats | None = None
        self.dictionary = self._read_dictionary() if chunk.size_bytes else None

    def bounds(self) -> ValueBounds | None:
        """Return the bounds of the chunk that the footer has."""
        leaf = self.leaf
        return bounds_of(
            self.chunk.statistics,
            leaf.order,
            is_deprecated_right=leaf.is_deprecated_right,
            has_order=self._has_order,
        )

    def _read_dictionary(self) -> Dictionary | None:
        fields, header_bytes = self._bytes.header()
        if number_of(fields, 1) != DICTIONARY_PAGE:
            return None
        described = struct_of(fields, 7)
        count = number_of(described, 1, most=MAX_PAGE_VALUES)
        if number_of(described, 2) not in (PLAIN, PLAIN_DICTIONARY):
            raise Uncopyable("has a dictionary of an unknown encoding")
        size = _size(fields, 2)
        if size > MAX_DICTIONARY_BYTES:
            raise Uncopyable(f"has a dictionary of {size:,} bytes")
        _, body = self._bytes.take(header_bytes, _size(fields, 3))
        _check_crc(fields, body)
        data = new_bytes(size)
        self._decompress(body, data, 0, size)
        width, ends = self.leaf.width, None
        if self.leaf.physical == BYTE_ARRAY:
            ends = np.empty(count, np.int64)
            used = find_ends(data.ctypes.data, size, ends)
        elif not width:
            raise Uncopyable("has a dictionary of truth values")
        else:
            used = count * width
        if used != size:
            raise Uncopyable("has a dictionary of another size than it says")
        if self.leaf.physical in (FLOAT, DOUBLE):
            self._floats = _floats(data[:size], self.leaf.physical)
        return Dictionary(count, data, size, ends)

    def pages(self) -> Iterator[DataPage]:
        """Yield all data pages."""
        values = rows = number = 0
        while self._bytes.left:
            fields, header_bytes = self._bytes.header()
            kind = number_of(fields, 1)
            if kind not in (DATA_PAGE, DATA_PAGE_V2):
                raise Uncopyable(f"has a page of type {kind} among those of data")
            header, body = self._bytes.take(header_bytes, _size(fields, 3))
            _check_crc(fields, body)
            page = self._page(fields, header, body)
            if page.bounds is None and page.filled and not page.nans:
                page.bounds = self._stored_bounds(fields, number)
            if not values and not page.begins_row and page.values:
                raise Uncopyable("begins in the middle of a row")
            values, rows, number = values + page.values, rows + page.rows, number + 1
            yield page
        if values != self.chunk.values or rows != self._rows:
            raise Uncopyable(
                f"has {values:,} values in {rows:,} rows in its pages, and {self.chunk.values:,} in "
                f"{self._rows:,} by the footer"
            )
        self.is_page_bounds_right = self._page_bounds is None or len(self._page_bounds) == number

    def _stored_bounds(self, fields: Struct, number: int) -> ValueBounds | None:
        leaf = self.leaf
        if leaf.order is None:
            return None
        if self._page_bounds is not None:
            found = self._page_bounds[number] if number < len(self._page_bounds) else None
            return None if found is None or not self._has_order else valid_bounds(found, leaf.order)
        kind = number_of(fields, 1)
        stored = struct_of(
            struct_of(fields, 8 if kind == DATA_PAGE_V2 else 5), 8 if kind == DATA_PAGE_V2 else 5
        )
        return bounds_of(
            stored, leaf.order, is_deprecated_right=leaf.is_deprecated_right, has_order=self._has_order
        )

    def _page(self, fields: Struct, header: bytes, body: memoryview) -> DataPage:
        size = _size(fields, 2)
        data = self._scratch.bytes(size)
        base = data.ctypes.data
        leaf = self.leaf
        is_v2 = number_of(fields, 1) == DATA_PAGE_V2
        described = struct_of(fields, 8 if is_v2 else 5)
        values = number_of(described, 1, most=MAX_PAGE_VALUES)
        encoding = number_of(described, 4 if is_v2 else 2)
        at = 0
        if is_v2:
            sizes = number_of(described, 6), number_of(described, 5)
            levels = sum(sizes)
            if levels > min(len(body), size):
                raise Uncopyable("has levels longer than their page")
            data[:levels] = np.frombuffer(body[:levels], np.uint8)
            if flag_of(described, 7, True) and size > levels:
                self._decompress(body[levels:], data, levels, size)
            elif len(body) == size:
                data[levels:size] = np.frombuffer(body[levels:], np.uint8)
            elif size > levels:
                raise Uncopyable("has a page of another size than it says")
            repetition = _levels(base, sizes[0], leaf.max_repetition, values)
            definition = _levels(base + sizes[0], sizes[1], leaf.max_definition, values)
            at = levels
        else:
            self._decompress(body, data, 0, size)
            repetition, at = _levels_v1(data, at, size, leaf.max_repetition, values, number_of(described, 4))
            definition, at = _levels_v1(data, at, size, leaf.max_definition, values, number_of(described, 3))
        filled = values if definition is None else int(np.count_nonzero(definition == leaf.max_definition))
        rows = values if repetition is None else int(np.count_nonzero(repetition == 0))
        page = DataPage(
            header,
            body,
            fields,
            encoding,
            values,
            filled,
            rows,
            repetition is None or not len(repetition) or not repetition[0],
            repetition,
            definition,
            data,
            at,
            size,
            None,
            None,
            0,
        )
        self._check(page)
        return page

    def _check(self, page: DataPage) -> None:
        """Raise `Uncopyable` if the values do not take exactly the rest of the page; note indexes, and what
        is known of floating-point numbers."""
        leaf, count = self.leaf, page.filled
        width, physical = leaf.width, leaf.physical
        size = page.end - page.start
        base = page.data.ctypes.data + page.start
        encoding = page.encoding
        if encoding in DICTIONARY_ENCODINGS:
            page.indexes = self._indexes(page, base, size)
            if self._floats is not None:
                _note_floats(page, self._floats[page.indexes], physical)
            return
        used = INVALID
        if encoding == PLAIN:
            if physical == BYTE_ARRAY:
                used = find_ends(base, size, self._scratch.numbers(count))
            else:
                used = (count + 7) // 8 if physical == BOOLEAN else count * width
        elif encoding == RLE and physical == BOOLEAN:
            used = self._truth_values(page, base, size)
        elif encoding == SPLIT and width and physical != BYTE_ARRAY:
            used = count * width
        elif encoding == DELTA and physical in (INT32, INT64):
            used = decode_delta(base, size, self._scratch.numbers(count))
        elif encoding == DELTA_LENGTH and physical == BYTE_ARRAY:
            used = _delta_texts(base, size, count)
        elif encoding == DELTA_TEXT and physical in (BYTE_ARRAY, FIXED):
            used = _prefixed_texts(base, size, count, width)
        else:
            raise Uncopyable(f"has pages of encoding {encoding}")
        if used != size:
            raise Uncopyable("has a page whose values are not what it says")
        if physical in (FLOAT, DOUBLE) and count:
            stored = page.data[page.start : page.end]
            if encoding == SPLIT:
                stored = np.ascontiguousarray(stored.reshape(width, count).T).reshape(-1)
            _note_floats(page, _floats(stored, physical), physical)

    def _indexes(self, page: DataPage, base: int, size: int) -> Levels:
        if self.dictionary is None:
            raise Uncopyable("has indexes without a dictionary")
        indexes = np.empty(page.filled, np.int32)
        if not size:
            if page.filled:
                raise Uncopyable("has a page without indexes")
            return indexes
        width = int(page.data[page.start])
        if width > 32 or decode_hybrid(base + 1, size - 1, width, self.dictionary.count, indexes) == INVALID:
            raise Uncopyable("has a page whose indexes are not what it says")
        return indexes

    def _truth_values(self, page: DataPage, base: int, size: int) -> int:
        """Note truth values as indexes. Return the bytes that they take."""
        if size < 4 or int(page.data[page.start : page.start + 4].view("<u4")[0]) != size - 4:
            return INVALID
        found = np.empty(page.filled, np.int32)
        return INVALID if decode_hybrid(base + 4, size - 4, 1, 2, found) == INVALID else size

    def _decompress(self, body: memoryview, data: Bytes, start: int, end: int) -> None:
        if self.chunk.codec == UNCOMPRESSED:
            if len(body) != end - start:
                raise Uncopyable("has a page of another size than it says")
            data[start:end] = np.frombuffer(body, np.uint8)
            return
        if start == end:
            return
        try:
            written = _DECOMPRESSORS[self.chunk.codec](body, data[start:end])
        except (cramjam.DecompressionError, ValueError, OverflowError) as error:
            raise Uncopyable(f"has a page that cannot be decompressed: {str(error)[:100]}") from None
        if written != end - start:
            raise Uncopyable("has a page that is not as long as it says")


class _Window:
    """The bytes of a chunk, read in parts."""

    def __init__(self, stream: IO[bytes], start: int, size: int) -> None:
        self._stream = stream
        self._next = start
        self._end = start + size
        self._held = b""
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._held) - self._at + self._end - self._next

    def _hold(self, size: int) -> None:
        """Hold at least so many bytes, or all that are left."""
        held = len(self._held) - self._at
        if held < size and self._next < self._end:
            more = min(max(size - held, WINDOW_BYTES), self._end - self._next)
            self._held = self._held[self._at :] + read_at(self._stream, self._next, more)
            self._at = 0
            self._next += more

    def header(self) -> tuple[Struct, int]:
        """Return the header that begins here, and its size."""
        self._hold(_HEADER_GUESS)
        try:
            fields, end = read_struct(self._held, self._at)
        except Malformed:
            if self._next == self._end or len(self._held) - self._at >= WINDOW_BYTES:
                raise
            self._hold(WINDOW_BYTES)
            fields, end = read_struct(self._held, self._at)
        return fields, end - self._at

    def take(self, header_bytes: int, body_bytes: int) -> tuple[bytes, memoryview]:
        """Return a page's header and body, and go on after them."""
        size = header_bytes + body_bytes
        if size > self.left:
            raise Uncopyable("has a page beyond its end")
        self._hold(size)
        start = self._at
        self._at += size
        return (
            self._held[start : start + header_bytes],
            memoryview(self._held)[start + header_bytes : start + size],
        )


def _size(fields: Struct, field: int) -> int:
    size = number_of(fields, field)
    if size > MAX_PAGE_BYTES:
        raise Uncopyable(f"has a page of {size:,} bytes")
    return size


def _check_crc(fields: Struct, body: memoryview) -> None:
    stored = fields.get(4)
    if stored is not None and int(stored[1]) & 0xFFFFFFFF != zlib.crc32(body):
        raise CannotMerge("a page has another checksum than its header says")


def _levels(base: int, size: int, most: int, count: int) -> Levels | None:
    if not most:
        if size:
            raise Uncopyable("has levels that its type does not have")
        return None
    levels = np.empty(count, np.int32)
    if count and decode_hybrid(base, size, most.bit_length(), most + 1, levels) == INVALID:
        raise Uncopyable("has a page whose levels are not what it says")
    return levels


def _levels_v1(
    data: Bytes, at: int, end: int, most: int, count: int, encoding: int
) -> tuple[Levels | None, int]:
    if not most:
        return None, at
    if encoding != RLE:
        raise Uncopyable(f"has levels of encoding {encoding}")
    if end - at < 4:
        raise Uncopyable("has levels longer than their page")
    size = int.from_bytes(data[at : at + 4].tobytes(), "little")
    if size > end - at - 4:
        raise Uncopyable("has levels longer than their page")
    return _levels(data.ctypes.data + at + 4, size, most, count), at + 4 + size


def _delta_texts(base: int, size: int, count: int) -> int:
    lengths = np.empty(count, np.int64)
    used = decode_delta(base, size, lengths)
    if used == INVALID or (count and not 0 <= lengths.min() <= lengths.max() <= size):
        return INVALID
    return used + int(lengths.sum())


def _prefixed_texts(base: int, size: int, count: int, width: int) -> int:
    prefixes = np.empty(count, np.int64)
    used = decode_delta(base, size, prefixes)
    if used == INVALID:
        return INVALID
    suffixes = np.empty(count, np.int64)
    suffix_bytes = decode_delta(base + used, size - used, suffixes)
    if suffix_bytes == INVALID or not are_prefixes(prefixes, suffixes, MAX_PAGE_BYTES):
        return INVALID
    if width and (prefixes + suffixes != width).any():
        return INVALID
    return used + suffix_bytes + int(suffixes.sum())


def _floats(stored: Bytes, physical: int) -> Floats:
    return stored.view("<f4" if physical == FLOAT else "<f8")


def _note_floats(page: DataPage, values: Floats, physical: int) -> None:
    if not len(values):
        return
    low, high = values.min(), values.max()
    if np.isnan(low):
        is_nan = np.isnan(values)
        page.nans = int(np.count_nonzero(is_nan))
        if page.nans == len(values):
            return
        values = values[~is_nan]
        low, high = values.min(), values.max()
    kind = "<f4" if physical == FLOAT else "<f8"
    page.bounds = ValueBounds(low.astype(kind).tobytes(), high.astype(kind).tobytes(), True, True)


def _page_bounds(stream: IO[bytes], chunk: ColumnChunk) -> list[ValueBounds | None] | None:
    """Return the bounds of pages that the column index has; `None` if there is no such index."""
    offset, size = chunk.column_index
    if not size or size > MAX_DICTIONARY_BYTES:
        return None
    try:
        fields, _ = read_struct(read_at(stream, offset, size))
        are_null = list_of(fields, 1, BOOL)
        lows, highs = list_of(fields, 2, BINARY), list_of(fields, 3, BINARY)
    except Malformed:
        return None
    if not len(are_null) == len(lows) == len(highs):
        return None
    return [
        None if is_null else ValueBounds(low, high)
        for is_null, low, high in zip(are_null, lows, highs, strict=True)
    ]
