"""The index block: against the official FlatBuffers builder, and damaged ones."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import flatbuffers
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.base.errors import CorruptObject, Unsupported
from lithify.datasets.slatedb.format.flatbuffer import BYTES, U8, U64, TableType, required, tables, write
from lithify.datasets.slatedb.format.index import BlockIndex, decode_blocks, decode_index, encode_index
from lithify.datasets.slatedb.model import SstInfo

NAME = "db/compacted/01M7XX0DYH21RD4ETECS3XV00P.sst (index)"


class Meta(NamedTuple):
    offset: int
    first_key: bytes | None


class Root(NamedTuple):
    block_meta: tuple[Meta, ...] | None


META = TableType("BlockMeta", Meta, (U64, BYTES))
ROOT = TableType("SsTableIndex", Root, (tables(META),))
"""Nothing is required, so that damaged ones can be made."""


def index_of(metas: Sequence[Meta], data_end: int) -> BlockIndex:
    keys = [meta.first_key or b"" for meta in metas]
    return BlockIndex(
        np.array([meta.offset for meta in metas] + [data_end], np.int64),
        np.frombuffer(b"".join(keys), np.uint8),
        np.cumsum([0, *map(len, keys)], dtype=np.int64),
    )


def info_of(data_end: int) -> SstInfo:
    return SstInfo(b"", None, data_end, 10, data_end, 0, 0, 0)


@st.composite
def block_metas(draw: st.DrawFn) -> list[Meta]:
    keys = sorted(draw(st.lists(st.binary(max_size=20), min_size=1, max_size=30)))
    offsets = sorted(draw(st.sets(st.integers(0, 1 << 40), min_size=len(keys), max_size=len(keys))))
    if draw(st.booleans()):
        offsets[0] = 0
    return [Meta(offset, key) for offset, key in zip(offsets, keys, strict=True)]


@settings(deadline=None)
@given(block_metas())
def test_the_bytes_are_those_of_the_official_builder(metas: list[Meta]) -> None:
    data_end = metas[-1].offset + 1
    index = index_of(metas, data_end)
    raw = write(ROOT, Root(tuple(metas)))
    assert encode_index(index) == raw
    decoded = decode_index(raw, info_of(data_end), NAME)
    assert decoded == index
    assert len(decoded) == len(metas)
    assert [decoded.key(i) for i in range(len(decoded))] == [meta.first_key for meta in metas]


def test_an_index_of_a_real_size() -> None:
    metas = [Meta(i * 4090, b"user%012d" % (i * 60) if i else b"") for i in range(66_000)]
    index = index_of(metas, 66_000 * 4090)
    raw = encode_index(index)
    assert raw == write(ROOT, Root(tuple(metas)))
    assert decode_index(raw, info_of(66_000 * 4090), NAME) == index


@settings(deadline=None)
@given(block_metas(), st.none() | st.binary(max_size=3), st.none() | st.binary(max_size=3))
def test_a_part_has_all_blocks_that_may_hold_the_keys(
    metas: list[Meta], start: bytes | None, end: bytes | None
) -> None:
    raw, info = write(ROOT, Root(tuple(metas))), info_of(metas[-1].offset + 1)
    first, part = decode_blocks(raw, info, NAME, start, end)
    keys = [meta.first_key or b"" for meta in metas]
    # The last versions of a key may be in front of the block that begins with it.
    needed = [
        i
        for i, key in enumerate(keys)
        if (start is None or i + 1 == len(keys) or keys[i + 1] >= start) and (end is None or key < end)
    ]
    got = range(first, first + len(part))
    assert set(needed) <= set(got)
    assert len(got) <= max(1, len(needed) + 1)
    whole = decode_index(raw, info, NAME)
    assert [part.key(i) for i in range(len(part))] == keys[got.start : got.stop]
    assert np.array_equal(part.offsets, whole.offsets[got.start : got.stop + 1])


GOOD_METAS = (Meta(0, b""), Meta(10, b"b"), Meta(20, b"bc"), Meta(30, b"bc"))
GOOD = write(ROOT, Root(GOOD_METAS))


def changed(block: int, **fields: object) -> bytes:
    metas = list(GOOD_METAS)
    metas[block] = metas[block]._replace(**fields)  # type: ignore[arg-type]  # all fields are tried
    return write(ROOT, Root(tuple(metas)))


def shared_keys() -> bytes:
    """A thousand blocks that share one key of 10,000 bytes: 10 MB from 30 KB."""
    builder = flatbuffers.Builder(64)
    key = builder.CreateByteVector(bytes(10_000))
    metas = []
    for i in range(1000):
        builder.StartObject(2)
        builder.PrependUint64Slot(0, i, 0)
        builder.PrependUOffsetTRelativeSlot(1, key, 0)
        metas.append(builder.EndObject())
    builder.StartVector(4, len(metas), 4)
    for meta in reversed(metas):
        builder.PrependUOffsetTRelative(meta)
    vector = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, vector, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def patched(position: int, layout: str, value: int) -> bytes:
    data = bytearray(GOOD)
    struct.pack_into(layout, data, position, value)
    return bytes(data)


TABLE = struct.unpack_from("<I", GOOD)[0]
VTABLE = TABLE - struct.unpack_from("<i", GOOD, TABLE)[0]
REFERENCE = TABLE + struct.unpack_from("<H", GOOD, VTABLE + 4)[0]
VECTOR = REFERENCE + struct.unpack_from("<I", GOOD, REFERENCE)[0]


def test_the_undamaged_index_reads() -> None:
    assert decode_index(GOOD, info_of(40), NAME) == index_of(GOOD_METAS, 40)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"", "lies outside", id="empty"),
        pytest.param(patched(0, "<I", len(GOOD)), "the index lies outside", id="root"),
        pytest.param(patched(0, "<I", TABLE + 1), "the index", id="unaligned root"),
        pytest.param(patched(TABLE, "<i", TABLE + 4), "the index lies outside", id="vtable before"),
        pytest.param(patched(TABLE, "<i", -len(GOOD)), "the index lies outside", id="vtable behind"),
        pytest.param(patched(VTABLE, "<H", 0xFFFE), "the index lies outside", id="vtable size"),
        pytest.param(patched(VTABLE, "<H", 5), "the index lies outside", id="odd vtable"),
        pytest.param(patched(VTABLE + 2, "<H", 0xFFFF), "the index lies outside", id="table size"),
        pytest.param(
            patched(VTABLE + 4, "<H", 2), "the index lies outside", id="field in the vtable's place"
        ),
        pytest.param(patched(VTABLE + 4, "<H", 0xFFFC), "the index lies outside", id="field outside"),
        pytest.param(patched(VTABLE + 4, "<H", 0), "the index lacks a required field", id="no vector"),
        pytest.param(patched(REFERENCE, "<I", 0xFFFFFFF0), "the index lies outside", id="vector outside"),
        pytest.param(patched(VECTOR, "<I", 0x3FFFFFFF), "the index lies outside", id="vector too long"),
        pytest.param(
            patched(VECTOR + 4, "<I", 0xFFFFFFF0), "block 0 of the index lies outside", id="block outside"
        ),
        pytest.param(write(ROOT, Root(())), "no blocks", id="no blocks"),
        pytest.param(changed(1, first_key=None), "block 1 of the index lacks a required field", id="no key"),
        pytest.param(changed(1, offset=0), "block 1 of the index does not start after", id="offset repeated"),
        pytest.param(changed(2, offset=5), "block 2 of the index does not start after", id="offset descends"),
        pytest.param(
            changed(3, offset=40), "block 3 of the index does not start after", id="offset at the end"
        ),
        pytest.param(
            changed(3, offset=1 << 63), "block 3 of the index does not start after", id="offset of 64 bits"
        ),
        pytest.param(changed(1, first_key=b"bd"), "block 2 of the index has a key below", id="key descends"),
        pytest.param(
            changed(3, first_key=b"b"), "block 3 of the index has a key below", id="key gets shorter"
        ),
        pytest.param(shared_keys(), "shares bytes with others", id="shared keys"),
    ],
)
def test_damage_is_named(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptObject, match=reason) as caught:
        decode_index(data, info_of(1000 if "shares" in reason else 40), NAME)
    assert caught.value.name == NAME


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(changed(2, first_key=None), "block 2 of the index lacks", id="bisected"),
        pytest.param(changed(1, first_key=b"bd"), "block 1 of the index has a key", id="bisected disorder"),
        pytest.param(changed(1, offset=0), "block 1 of the index does not start after", id="inside"),
        pytest.param(changed(2, offset=5), "block 2 of the index does not start after", id="behind it"),
    ],
)
def test_damage_of_what_a_part_needs_is_named(data: bytes, reason: str) -> None:
    assert decode_blocks(GOOD, info_of(40), NAME, b"a", b"b")[1] == index_of(GOOD_METAS[:2], 20)
    with pytest.raises(CorruptObject, match=reason):
        decode_blocks(data, info_of(40), NAME, b"a", b"b")


@pytest.mark.parametrize("length", range(len(GOOD)))
def test_a_truncated_index_is_refused(length: int) -> None:
    if GOOD[length:].strip(b"\0"):
        with pytest.raises(CorruptObject):
            decode_index(GOOD[:length], info_of(40), NAME)


def test_a_newer_writers_field_is_refused() -> None:
    class Newer(NamedTuple):
        offset: int
        first_key: bytes | None
        novelty: int

    newer = TableType("BlockMeta", Newer, (U64, BYTES, U8))
    root = TableType("SsTableIndex", Root, (required(tables(newer)),))
    blocks = (Newer(0, b"", 0), Newer(1, b"a", 1))
    with pytest.raises(Unsupported, match="block 1 of the index has a field"):
        decode_index(write(root, Root(blocks)), info_of(40), NAME)  # type: ignore[arg-type]  # on purpose
