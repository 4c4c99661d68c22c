"""Columns that cannot be copied: Arrow decodes and encodes them. Their pages are then copied like all others.

Arrow must write what the column is: of another physical type or nesting, it is refused. So are timestamps of
12 bytes, since Arrow's overflow. Memory is that of one column of one output row group.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from lithify.parquet.columns import PageOptions
from lithify.parquet.errors import CannotMerge
from lithify.parquet.footer import Leaf, ParquetFooter, read_footer
from lithify.parquet.statistics import FIXED, INT32, INT64, INT96

BloomFilters = Mapping[str, Mapping[str, float]]
"""Arrow's options of a column's filter, by its path."""


def encoded_anew(
    groups: Sequence[tuple[IO[bytes], int]],
    leaves: Sequence[Leaf],
    numbers: Sequence[int],
    options: PageOptions,
    filters: BloomFilters,
) -> tuple[IO[bytes], ParquetFooter]:
    """Return a Parquet file with one top-level column, whose rows are those of these row groups of files.
    `leaves` are the column's, and `numbers` their places in the files. Raise `CannotMerge`."""
    name = leaves[0].name
    if any(leaf.physical == INT96 for leaf in leaves):
        raise CannotMerge(f"column {name} has timestamps of 12 bytes, which Arrow cannot hold")
    try:
        tables = [
            pq.ParquetFile(stream).reader.read_row_group(
                group, column_indices=list(numbers), use_threads=False
            )
            for stream, group in groups
        ]
        file = io.BytesIO()
        table = pa.concat_tables(tables)
        pq.write_table(table, file, **_arrow_options(table, leaves, options, filters))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CannotMerge(f"column {name} cannot be read: {str(error)[:200]}") from None
    footer = read_footer(file, file.tell())
    if [_form(leaf) for leaf in footer.leaves] != [_form(leaf) for leaf in leaves]:
        raise CannotMerge(f"column {name} is of a type that Arrow writes as another one")
    if footer.rows != table.num_rows:
        raise CannotMerge(f"column {name} has another number of rows when it is decoded")
    return file, footer


def _form(leaf: Leaf) -> tuple[int, int, int, int]:
    return leaf.physical, leaf.width, leaf.max_definition, leaf.max_repetition


def _arrow_options(
    table: pa.Table, leaves: Sequence[Leaf], options: PageOptions, filters: BloomFilters
) -> dict[str, Any]:
    codec = {None: "zstd", "uncompressed": "none", "lz4_raw": "lz4"}.get(options.codec, options.codec)
    has_level = codec not in (None, "none") and pa.Codec.supports_compression_level(codec)
    names = {leaf.name: filters[leaf.name] for leaf in leaves if leaf.name in filters}
    return {
        "compression": codec,
        "compression_level": options.level if has_level else None,
        "use_dictionary": options.dictionary_bytes > 0,
        "dictionary_pagesize_limit": max(options.dictionary_bytes, 1),
        "data_page_size": options.page_bytes,
        "max_rows_per_page": options.page_rows,
        "row_group_size": max(table.num_rows, 1),
        "store_schema": False,
        "store_decimal_as_integer": any(leaf.physical in (INT32, INT64) for leaf in leaves)
        and all(leaf.physical != FIXED for leaf in leaves),
        "write_page_index": True,
        "bloom_filter_options": names or None,
    }
