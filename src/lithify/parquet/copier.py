"""Many Parquet files to one, by copying pages.

1. All files must have the same columns. Their row groups, in order, become larger ones of the wanted size.
2. A column of an output row group is copied by its pages (`columns`). If it cannot be, Arrow decodes that
   column alone (`decoding`); if that cannot be either, `CannotMerge` says why, and the caller decides.
3. Each column is finished in memory before it is written, so memory is that of a column of a row group.
4. Bloom filters are made for the columns for which they are wanted, which are decoded. Indexes of pages are
   written anew. Metadata of the files is kept where they agree, with the field ids of the schema.

Inputs are never changed. The output counts only when this returns.
"""

from __future__ import annotations

import io
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import IO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from lithify.parquet.columns import CODECS, ColumnFacts, PageOptions, PageOutput, WrittenChunk, merge_column
from lithify.parquet.decoding import BloomFilters, encoded_anew
from lithify.parquet.errors import CannotMerge, Uncopyable
from lithify.parquet.footer import MAGIC, Leaf, ParquetFooter, read_at, read_footer
from lithify.parquet.pages import ColumnChunkReader, PageMemory
from lithify.parquet.statistics import TYPE_ORDER
from lithify.parquet.thrift import BINARY, I16, I32, I64, LIST, STRUCT, Struct, bytes_at, write_struct

ARROW_SCHEMA: Final = b"ARROW:schema"
_MAX_ORDINAL = (1 << 15) - 1


@dataclass(frozen=True, slots=True)
class ParquetInput:
    """A file to read, by one thread."""

    name: str
    stream: IO[bytes]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MergeOptions:
    pages: PageOptions = PageOptions()  # noqa: RUF009
    row_group_bytes: int = 128 << 20
    row_group_rows: int = 1 << 20
    bloom_filters: BloomFilters = field(default_factory=dict)
    without_bounds: frozenset[str] = frozenset()
    """The paths of columns whose bounds are not written."""
    notes: Mapping[str, str] | None = None
    """The key-value metadata; by default that of the inputs."""
    created_by: str = "lithify version 0 (build unknown)"
    """The writer, in the form that readers expect."""


@dataclass(frozen=True, slots=True)
class MergedColumn:
    """Facts about a column of the output."""

    name: str
    groups: tuple[ColumnFacts, ...]
    """By row group."""
    reason: str | None
    """Why it was decoded; `None` if it was not."""


@dataclass(frozen=True, slots=True)
class MergedFile:
    """The output of a merge."""

    rows: int
    size_bytes: int
    footer: bytes
    """A file without data, from which a reader takes the footer."""
    columns: tuple[MergedColumn, ...]

    @property
    def copied_share(self) -> float:
        """Return the share of the pages' bytes that were copied as they are stored."""
        facts = [one for column in self.columns for one in column.groups]
        copied = sum(one.copied_bytes for one in facts)
        written = copied + sum(one.repacked_bytes + one.decoded_bytes for one in facts)
        return copied / written if written else 1.0


def merge_files(inputs: Iterable[ParquetInput], stream: IO[bytes], options: MergeOptions) -> MergedFile:
    """Write one file of all rows, in order. An input is taken from `inputs` when it is needed, and its stream
    is closed after its last row. Raise `CannotMerge`, which names the file; what was written then is no
    file."""
    return _FileMerge(stream, options).run(inputs)


def _common_schema(stored: Iterable[bytes | None], notes: Iterable[Struct]) -> bytes:
    """Return the Arrow schema that files have, with the metadata in which they agree."""
    try:
        schemas = [
            pa.ipc.read_schema(pa.py_buffer(b64decode(one or b""))).remove_metadata() for one in stored
        ]
    except (pa.ArrowException, ValueError, OSError) as error:
        raise CannotMerge(f"a schema of Arrow cannot be read: {str(error)[:100]}") from None
    if not schemas or any(not one.equals(schemas[0], check_metadata=True) for one in schemas):
        raise CannotMerge("the files have different schemas of Arrow")
    common = {bytes_at(note, 1) or b"": bytes_at(note, 2) or b"" for note in notes}
    return b64encode(schemas[0].with_metadata(common or None).serialize().to_pybytes())


def _check_footer(footer: bytes) -> None:
    """Raise `CannotMerge` if Arrow cannot read the output's footer, since something in those of the inputs
    is damaged."""
    try:
        _ = pq.ParquetFile(io.BytesIO(footer)).schema_arrow
    except (pa.ArrowException, ValueError, OSError) as error:
        raise CannotMerge(f"the footers cannot be used: {str(error)[:100]}") from None


def _close(done: Iterable[ParquetInput], current: ParquetInput | None) -> None:
    """Close the inputs except the one whose next row group follows."""
    for one in done:
        if one is not current:
            one.stream.close()


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group of an input."""

    source: ParquetInput
    footer: ParquetFooter
    number: int

    @property
    def rows(self) -> int:
        return self.footer.groups[self.number].rows


class _FileMerge:
    def __init__(self, stream: IO[bytes], options: MergeOptions) -> None:
        self._output = PageOutput(stream)
        self._options = options
        self._scratch = PageMemory()
        self._first: tuple[str, ParquetFooter] | None = None
        self._leaves: tuple[Leaf, ...] = ()
        self._version = 1
        self._notes: list[tuple[Struct, ...]] = []
        """The key-value metadata of each input."""
        self._reasons: dict[int, str] = {}
        self._written: list[list[WrittenChunk]] = []

    def run(self, inputs: Iterable[ParquetInput]) -> MergedFile:
        self._output.write(MAGIC)
        rows = []
        for groups in self._planned(inputs):
            rows.append(sum(one.rows for one in groups))
            self._written.append(list(self._columns(groups)))
        footer = MAGIC + self._end(rows)
        _check_footer(footer)
        columns = (
            MergedColumn(leaf.name, tuple(chunks[n].facts for chunks in self._written), self._reasons.get(n))
            for n, leaf in enumerate(self._leaves)
        )
        return MergedFile(sum(rows), self._output.position, footer, tuple(columns))

    def _planned(self, inputs: Iterable[ParquetInput]) -> Iterator[list[_Group]]:
        """Yield the row groups that become one."""
        taken: list[_Group] = []
        taken_bytes = taken_rows = 0
        for one in inputs:
            footer = self._opened(one)
            for number, group in enumerate(footer.groups):
                if not group.rows:
                    continue
                if taken and (
                    taken_bytes + group.size_bytes > self._options.row_group_bytes
                    or taken_rows + group.rows > self._options.row_group_rows
                ):
                    yield taken
                    _close([group.source for group in taken], one)
                    taken, taken_bytes, taken_rows = [], 0, 0
                taken.append(_Group(one, footer, number))
                taken_bytes += group.size_bytes
                taken_rows += group.rows
            if not taken or taken[-1].source is not one:
                one.stream.close()
        if taken:
            yield taken
            _close([group.source for group in taken], None)

    def _opened(self, one: ParquetInput) -> ParquetFooter:
        try:
            footer = read_footer(one.stream, one.size_bytes)
        except CannotMerge as error:
            raise CannotMerge(f"{one.name}: {error}") from error
        if self._first is None:
            self._first, self._leaves = (one.name, footer), footer.leaves
        elif footer.shape != self._first[1].shape:
            raise CannotMerge(f"{one.name}: its columns are not those of {self._first[0]}")
        self._notes.append(footer.notes)
        self._version = max(self._version, footer.version)
        return footer

    def _columns(self, groups: Sequence[_Group]) -> Iterator[WrittenChunk]:
        """Write all columns of a row group."""
        decoded: dict[int, tuple[IO[bytes], ParquetFooter]] = {}
        for n, leaf in enumerate(self._leaves):
            buffer = io.BytesIO()
            output = PageOutput(buffer, self._output.position)
            with_bounds = leaf.name not in self._options.without_bounds
            try:
                if leaf.name in self._options.bloom_filters:
                    raise Uncopyable("gets a Bloom filter")
                readers = [partial(self._reader, one, n) for one in groups]
                chunk = merge_column(readers, output, self._options.pages, with_bounds=with_bounds)
            except Uncopyable as error:
                self._reasons.setdefault(n, str(error))
                buffer = io.BytesIO()
                output = PageOutput(buffer, self._output.position)
                if leaf.top not in decoded:
                    decoded[leaf.top] = self._decoded(groups, leaf.top)
                chunk = self._merge_decoded(decoded[leaf.top], n, output, with_bounds=with_bounds)
            if chunk.facts.values < sum(one.rows for one in groups):
                raise CannotMerge(f"column {leaf.name} has fewer values than rows")
            self._output.write(buffer.getbuffer())
            yield chunk

    def _reader(self, one: _Group, n: int) -> ColumnChunkReader:
        chunk, has_order = one.footer.groups[one.number].chunks[n], one.footer.has_order[n]
        stream, leaf = one.source.stream, self._leaves[n]
        try:
            return ColumnChunkReader(
                stream, chunk, leaf, one.rows, has_order=has_order, scratch=self._scratch
            )
        except CannotMerge as error:
            raise CannotMerge(f"{one.source.name}: {error}") from error

    def _decoded(self, groups: Sequence[_Group], top: int) -> tuple[IO[bytes], ParquetFooter]:
        numbers = [n for n, leaf in enumerate(self._leaves) if leaf.top == top]
        leaves = [self._leaves[n] for n in numbers]
        sources = [(one.source.stream, one.number) for one in groups]
        options = self._options.pages
        if options.codec is None:
            codec = groups[0].footer.groups[groups[0].number].chunks[numbers[0]].codec
            options = replace(options, codec=next((name for name, n in CODECS.items() if n == codec), "zstd"))
        return encoded_anew(sources, leaves, numbers, options, self._options.bloom_filters)

    def _merge_decoded(
        self, decoded: tuple[IO[bytes], ParquetFooter], n: int, output: PageOutput, *, with_bounds: bool
    ) -> WrittenChunk:
        stream, footer = decoded
        leaf: Leaf = self._leaves[n]
        place = n - next(k for k, one in enumerate(self._leaves) if one.top == leaf.top)
        readers = [
            partial(
                ColumnChunkReader,
                stream,
                group.chunks[place],
                leaf,
                group.rows,
                has_order=True,
                scratch=self._scratch,
            )
            for group in footer.groups
        ]
        options = PageOptions(dictionary_bytes=self._options.pages.dictionary_bytes)
        try:
            chunk = merge_column(readers, output, options, with_bounds=with_bounds)
        except Uncopyable as error:
            raise CannotMerge(f"column {leaf.name} {error}") from error
        facts = chunk.facts
        facts.decoded_bytes, facts.copied_bytes, facts.repacked_bytes = chunk.stored_bytes, 0, 0
        offset, size = footer.groups[0].chunks[place].bloom_filter
        if size and len(footer.groups) == 1:
            chunk.bloom_filter = read_at(stream, offset, size)
        return chunk

    def _kept_notes(self) -> list[Struct]:
        if self._options.notes is not None:
            return [
                {1: (BINARY, key.encode()), 2: (BINARY, text.encode())}
                for key, text in self._options.notes.items()
            ]
        notes = self._notes
        kept = [note for note in notes[0] if all(note in one for one in notes)]
        stored = {bytes_at(note, 2) for one in notes for note in one if bytes_at(note, 1) == ARROW_SCHEMA}
        if stored and not any(bytes_at(note, 1) == ARROW_SCHEMA for note in kept):
            has_all = all(any(bytes_at(note, 1) == ARROW_SCHEMA for note in one) for one in notes)
            common = _common_schema(stored if has_all else (), kept)
            kept.append({1: (BINARY, ARROW_SCHEMA), 2: (BINARY, common)})
        return kept

    def _end(self, rows: Sequence[int]) -> bytes:
        """Write what follows the pages. Return the footer, with its length."""
        for chunks in self._written:
            for chunk in chunks:
                meta = chunk.column[3][1]
                for place, owner, data in (
                    (14, meta, chunk.bloom_filter),
                    (6, chunk.column, chunk.column_index),
                    (4, chunk.column, chunk.offset_index),
                ):
                    if data is not None:
                        owner[place] = (I64, self._output.position)
                        owner[place + 1] = (I32, len(data))
                        self._output.write(data)
        if self._first is None:
            raise CannotMerge("there are no files")
        fields: Struct = {
            1: (I32, self._version),
            2: (LIST, (STRUCT, list(self._first[1].schema))),
            3: (I64, sum(rows)),
            4: (LIST, (STRUCT, [self._group(n, count) for n, count in enumerate(rows)])),
            6: (BINARY, self._options.created_by.encode()),
            7: (LIST, (STRUCT, [TYPE_ORDER] * len(self._leaves))),
        }
        notes = self._kept_notes()
        if notes:
            fields[5] = (LIST, (STRUCT, notes))
        data = write_struct(fields)
        tail = data + len(data).to_bytes(4, "little") + MAGIC
        self._output.write(tail)
        return tail

    def _group(self, n: int, rows: int) -> Struct:
        chunks = self._written[n]
        meta = chunks[0].column[3][1] if chunks else {9: (I64, len(MAGIC))}
        group: Struct = {
            1: (LIST, (STRUCT, [chunk.column for chunk in chunks])),
            2: (I64, sum(chunk.plain_bytes for chunk in chunks)),
            3: (I64, rows),
            5: (I64, meta.get(11, meta[9])[1]),
            6: (I64, sum(chunk.stored_bytes for chunk in chunks)),
        }
        if n <= _MAX_ORDINAL:
            group[7] = (I16, n)
        return group
