"""Metadata blocks and tails of SSTs, against those of the official client."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import lz4.block
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.base.errors import CorruptObject, ObjectNotFound, Unsupported
from lithify.datasets.slatedb.compaction.task import DEFAULT_FILTER
from lithify.datasets.slatedb.format import sst
from lithify.datasets.slatedb.format.filter import NamedFilter, build_bloom, encode_filters
from lithify.datasets.slatedb.format.index import decode_index, encode_index
from lithify.datasets.slatedb.format.manifest import decode_manifest, encode_manifest
from lithify.datasets.slatedb.format.sst import decode_info, encode_info, encode_tail, read_info, seal, unseal
from lithify.datasets.slatedb.format.stats import decode_stats, encode_stats
from lithify.datasets.slatedb.model import Codec, FilterFormat, SstInfo
from lithify.testing.memory import MemoryStore
from tests.datasets.slatedb.official_ssts import varied_rows, written_sst
from tests.datasets.slatedb.values import infos, keys
from tests.judge.client import concat, open_db
from tests.judge.sst import read_sst, siphash13

KEY = "db/compacted/01M7XX0DYH21RD4ETECS3XV00P.sst"

WHOLE_FILE = bytes.fromhex(
    "000501 6170706c65 31 0000000000000001 04 000001a1fbeab360"
    "040102 79 3232 0000000000000002 06 000001ba60d33800 000001a1fbeab361"
    "000100 62 0000000000000003 05 000001a1fbeab361"
    "000100 63 0000000000000004 04 000001a1fbeab361"
    "0000 0001 71381ec6"
    "0001 0003 5f6266 0000000000000007 0006 1528497fb1 416d3a26"
)
"""Data block and filter of an SST the official client wrote."""


def placed(data: bytes) -> MemoryStore:
    store = MemoryStore()
    store.put(KEY, data)
    return store


# -------------------------------------------------------------------- files of the official client


@pytest.mark.parametrize("block_size", [4096, 16384, 65536])
@pytest.mark.parametrize("codec", [None, "Snappy", "Zlib", "Lz4", "Zstd"])
def test_metadata_is_byte_identical(tmp_path: Path, codec: str | None, block_size: int) -> None:
    data = written_sst(tmp_path, varied_rows(2500), codec=codec, block_size=block_size)
    info, version = read_info(placed(data), KEY)
    assert version == 2
    assert info.compression.name == (codec or "none").upper()
    rows = read_sst(data).rows

    def raw(offset: int, length: int) -> bytes:
        return bytes(unseal(data[offset : offset + length], info.compression, KEY))

    index = decode_index(raw(info.index_offset, info.index_len), info, KEY)
    stats = decode_stats(raw(info.stats_offset, info.stats_len), KEY)
    bloom = build_bloom(np.array([siphash13(row.key) for row in rows], np.uint64), 10)
    assert encode_index(index) == raw(info.index_offset, info.index_len)
    assert encode_stats(stats) == raw(info.stats_offset, info.stats_len)
    assert encode_filters([NamedFilter(DEFAULT_FILTER, bloom)]) == raw(info.filter_offset, info.filter_len)
    assert len(index) == len(read_sst(data).blocks)
    assert info.data_end == index.offsets[-1]
    info_offset = info.stats_offset + info.stats_len
    assert data[info_offset:] == encode_tail(info, info_offset)


@pytest.mark.parametrize("codec", ["Snappy", "Zstd"])
def test_sealed_blocks_are_byte_identical(tmp_path: Path, codec: str) -> None:
    """For the codecs whose library is the one the official client uses."""
    data = written_sst(tmp_path, varied_rows(2500), codec=codec)
    info, _ = read_info(placed(data), KEY)
    for offset, length in (
        (info.filter_offset, info.filter_len),
        (info.index_offset, info.index_len),
        (info.stats_offset, info.stats_len),
    ):
        stored = data[offset : offset + length]
        assert seal(bytes(unseal(stored, info.compression, KEY)), info.compression) == stored


def rewritten(data: bytes, info: SstInfo) -> tuple[bytes, SstInfo]:
    """The same SST with filter, index, stats and tail sealed and placed by us."""
    file = data[: info.data_end]
    places: dict[str, Any] = {}
    for name, offset, length in (
        ("filter", info.filter_offset, info.filter_len),
        ("index", info.index_offset, info.index_len),
        ("stats", info.stats_offset, info.stats_len),
    ):
        stored = seal(bytes(unseal(data[offset : offset + length], info.compression, KEY)), info.compression)
        places |= {f"{name}_offset": len(file), f"{name}_len": len(stored)}
        file += stored
    new_info = replace(info, **places)
    return file + encode_tail(new_info, len(file)), new_info


@pytest.mark.parametrize("codec", ["Zlib", "Lz4", "Zstd"])
def test_the_official_client_reads_our_metadata(tmp_path: Path, codec: str) -> None:
    data = written_sst(tmp_path, varied_rows(300), codec=codec)
    info, _ = read_info(placed(data), KEY)
    file, new_info = rewritten(data, info)
    assert read_sst(file).rows == read_sst(data).rows
    (path,) = (tmp_path / "compacted").iterdir()
    path.write_bytes(file)
    latest = max((tmp_path / "manifest").iterdir())
    manifest = decode_manifest(latest.read_bytes(), latest.name)
    (view,) = manifest.root.l0
    moved = replace(view, sst=replace(view.sst, info=new_info))
    latest.write_bytes(encode_manifest(replace(manifest, root=replace(manifest.root, l0=(moved,)))))
    with open_db(tmp_path, merge_operator=concat) as db:
        assert len(db.scan()) > 200
        assert db.get(b"key000007") == b"value 1 "
        assert db.get(b"key000021") is None
        assert db.get(b"key000022") is None


def test_the_blocks_of_a_known_file() -> None:
    assert len(WHOLE_FILE) == 0x85
    assert sst.check_seal(WHOLE_FILE[:0x6B], KEY) == WHOLE_FILE[:0x67]
    hashes = np.array([siphash13(key) for key in (b"apple", b"apply", b"b", b"c")], np.uint64)
    filters = encode_filters([NamedFilter("_bf", build_bloom(hashes, 10))])
    assert unseal(WHOLE_FILE[0x6B:], Codec.NONE, KEY) == filters


# ------------------------------------------------------------------------------------------- sealing


@settings(deadline=None)
@given(st.binary(max_size=4000), st.sampled_from(Codec))
def test_a_block_unseals_to_what_was_sealed(raw: bytes, codec: Codec) -> None:
    assert unseal(seal(raw, codec), codec, KEY) == raw


def checked(body: bytes) -> bytes:
    return body + struct.pack(">I", zlib.crc32(body))


@pytest.mark.parametrize("codec", Codec)
def test_a_flipped_bit_is_noticed(codec: Codec) -> None:
    stored = bytearray(seal(b"some raw bytes" * 20, codec))
    stored[len(stored) // 2] ^= 4
    with pytest.raises(CorruptObject, match="checksum mismatch"):
        unseal(bytes(stored), codec, KEY)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_bytes_that_do_not_decompress(codec: Codec) -> None:
    with pytest.raises(CorruptObject):
        unseal(checked(b"\x0f\xf0 nothing any codec wrote"), codec, KEY)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_a_stream_cut_short(codec: Codec) -> None:
    whole = seal(bytes(range(256)) * 40, codec)[:-4]
    with pytest.raises(CorruptObject):
        unseal(checked(whole[: len(whole) // 2]), codec, KEY)


@pytest.mark.parametrize("length", range(4))
def test_a_block_shorter_than_its_checksum(length: int) -> None:
    with pytest.raises(CorruptObject, match="too few for a checksum"):
        unseal(bytes(length), Codec.NONE, KEY)


def test_an_empty_block_is_empty() -> None:
    assert unseal(checked(b""), Codec.NONE, KEY) == b""


@pytest.mark.parametrize(
    ("codec", "bomb"),
    [
        (Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"x" * 100),
        (Codec.LZ4, struct.pack("<I", 0x7FFFFFFF) + b"x" * 100),
        (Codec.ZLIB, zlib.compress(bytes(5000))),
        (Codec.ZSTD, zstandard.ZstdCompressor().compress(bytes(5000))),
        (Codec.LZ4, lz4.block.compress(bytes(5000))),
    ],
)
def test_a_bomb_is_refused(codec: Codec, bomb: bytes) -> None:
    with pytest.raises(CorruptObject, match="claims to unpack to more"):
        unseal(checked(bomb), codec, KEY, limit=4096)


def test_several_zstd_frames_are_one_block() -> None:
    compressor = zstandard.ZstdCompressor()
    frames = compressor.compress(b"one ") + compressor.compress(b"two")
    assert unseal(checked(frames), Codec.ZSTD, KEY) == b"one two"


def test_a_zstd_frame_without_its_size() -> None:
    stream = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    frame = stream.compress(b"abc" * 1000) + stream.flush()
    assert unseal(checked(frame), Codec.ZSTD, KEY) == b"abc" * 1000


# ---------------------------------------------------------------------------------------------- info


@settings(deadline=None)
@given(st.none() | keys, st.none() | keys, st.data())
def test_an_info_reads_back(first: bytes | None, last: bytes | None, data: st.DataObject) -> None:
    info = data.draw(infos(first, last))
    assert decode_info(encode_info(info), KEY) == info


INFO = SstInfo(b"a", b"z", 10, 10, 0, 0, 20, 10, Codec.ZSTD, filter_format=FilterFormat.LEGACY)


@pytest.mark.parametrize("key_bytes", [1, 2000, 70_000])
def test_the_tail_of_a_file(key_bytes: int) -> None:
    """Also one that is longer than what is read at first."""
    info = SstInfo(b"a" * key_bytes, b"z" * key_bytes, 10, 10, 0, 0, 20, 10)
    assert read_info(placed(bytes(30) + encode_tail(info, 30)), KEY) == (info, 2)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ObjectNotFound):
        read_info(MemoryStore(), KEY)


GOOD = bytes(30) + encode_tail(INFO, 30)


def with_tail(offset: int, version: int) -> bytes:
    return GOOD[:-10] + struct.pack(">QH", offset, version)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "too few for an SST"),
        (GOOD[-9:], "too few for an SST"),
        (with_tail(1 << 63, 2), "cannot start at"),
        (with_tail(len(GOOD) - 9, 2), "cannot start at"),
        (with_tail(len(GOOD) - 10, 2), "too few for a checksum"),
        (with_tail(29, 2), "checksum mismatch"),
        (with_tail(0, 1), "checksum mismatch"),
        (GOOD[:40] + b"\xff" + GOOD[41:], "checksum mismatch"),
        (bytes(30) + encode_tail(SstInfo(b"a", b"z", 31, 0, 0, 0, 0, 0), 30), "its index at 31"),
        (bytes(30) + encode_tail(SstInfo(b"a", b"z", 1, 1, 20, 11, 0, 0), 30), "its filter at 20"),
        (bytes(30) + encode_tail(SstInfo(b"a", b"z", 1, 1, 0, 0, 1 << 63, 1), 30), "its stats at"),
        (bytes(30) + checked(b"no info") + struct.pack(">QH", 30, 2), "outside|aligned|vtable"),
    ],
)
def test_a_damaged_tail(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptObject, match=reason) as caught:
        read_info(placed(data), KEY)
    assert KEY in str(caught.value)


def test_a_huge_info_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sst, "MAX_INFO_BYTES", 50)
    with pytest.raises(CorruptObject, match="cannot start at"):
        read_info(placed(GOOD), KEY)


@pytest.mark.parametrize("version", [0, 3, 9])
def test_an_unknown_format_version(version: int) -> None:
    with pytest.raises(Unsupported, match=f"SST format version {version}"):
        read_info(placed(with_tail(30, version)), KEY)
