"""The stats block: against the official FlatBuffers builder, and damaged ones."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.base.errors import CorruptObject, Unsupported
from lithify.datasets.slatedb.format.flatbuffer import U8, U64, Scalar, TableType, tables, write
from lithify.datasets.slatedb.format.stats import SstStats, decode_stats, encode_stats
from tests.datasets.slatedb.values import u16s

NAME = "db/compacted/01M7XX0DYH21RD4ETECS3XV00P.sst (stats)"


class Block(NamedTuple):
    num_puts: int
    num_deletes: int
    num_merges: int


class Root(NamedTuple):
    num_puts: int
    num_deletes: int
    num_merges: int
    raw_key_size: int
    raw_val_size: int
    block_stats: tuple[Block, ...] | None


U16 = Scalar("H", 2, 0, (1 << 16) - 1)
BLOCK = TableType("BlockStats", Block, (U16, U16, U16))
ROOT = TableType("SstStats", Root, (U64, U64, U64, U64, U64, tables(BLOCK)))

totals = st.sampled_from((0, 1, 1 << 32)) | st.integers(0, (1 << 63) - 1)
counts = st.sampled_from((0, 0, 1)) | u16s
blocks = st.lists(st.builds(Block, counts, counts, counts), max_size=30).map(tuple)
roots = st.builds(Root, totals, totals, totals, totals, totals, blocks)


def stats_of(root: Root) -> SstStats:
    columns = np.array(root.block_stats or (), np.int64).reshape(-1, 3)
    return SstStats(*root[:5], columns[:, 0], columns[:, 1], columns[:, 2])


@settings(deadline=None)
@given(roots)
def test_the_bytes_are_those_of_the_official_builder(root: Root) -> None:
    written = root if root.block_stats else root._replace(block_stats=None)
    raw = write(ROOT, written)
    stats = stats_of(root)
    assert encode_stats(stats) == raw
    assert decode_stats(raw, NAME) == stats


def test_an_empty_vector_of_blocks_is_none() -> None:
    root = Root(1, 2, 3, 4, 5, ())
    assert decode_stats(write(ROOT, root), NAME) == stats_of(root)


GOOD = write(ROOT, Root(7, 0, 1, 90, 80, (Block(3, 0, 0), Block(4, 0, 1))))
TABLE = struct.unpack_from("<I", GOOD)[0]
VTABLE = TABLE - struct.unpack_from("<i", GOOD, TABLE)[0]
REFERENCE = TABLE + struct.unpack_from("<H", GOOD, VTABLE + 4 + 2 * 5)[0]
VECTOR = REFERENCE + struct.unpack_from("<I", GOOD, REFERENCE)[0]


def patched(position: int, layout: str, value: int) -> bytes:
    data = bytearray(GOOD)
    struct.pack_into(layout, data, position, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the stats lies outside"),
        (patched(0, "<I", 0xFFFFFFFF), "the stats lies outside"),
        (patched(0, "<I", TABLE + 2), "the stats"),
        (patched(VTABLE, "<H", 0xFFFF), "the stats lies outside"),
        (patched(VTABLE + 4, "<H", 0x7FF8), "the stats lies outside"),
        (patched(REFERENCE, "<I", 0xFFFFFFF0), "the stats lies outside"),
        (patched(VECTOR, "<I", 0xFFFFFFFF), "the stats lies outside"),
        (patched(VECTOR + 8, "<I", 0xFFFFFFF0), "block 1 of the stats lies outside"),
        (write(ROOT, Root(1 << 63, 0, 0, 0, 0, None)), "beyond 63 bits"),
    ],
)
def test_damage_is_named(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptObject, match=reason) as caught:
        decode_stats(data, NAME)
    assert caught.value.name == NAME


def test_a_newer_writers_field_is_refused() -> None:
    class Newer(NamedTuple):
        num_puts: int
        num_deletes: int
        num_merges: int
        novelty: int

    newer = TableType("BlockStats", Newer, (U16, U16, U16, U8))
    root = TableType("SstStats", Root, (*ROOT.slots[:5], tables(newer)))
    data = write(root, Root(1, 1, 1, 1, 1, (Newer(1, 1, 1, 9),)))  # type: ignore[arg-type]  # on purpose
    with pytest.raises(Unsupported, match="block 0 of the stats has a field"):
        decode_stats(data, NAME)


@pytest.mark.parametrize(
    "root",
    [Root(-1, 0, 0, 0, 0, ()), Root(0, 0, 0, 1 << 63, 0, ()), Root(0, 0, 0, 0, 0, (Block(0, 1 << 16, 0),))],
)
def test_counts_out_of_range_are_not_written(root: Root) -> None:
    with pytest.raises(ValueError, match="out of range"):
        encode_stats(stats_of(root))
