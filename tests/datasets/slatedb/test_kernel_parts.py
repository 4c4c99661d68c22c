"""The small parts of the kernel: checksums, codecs and their fallbacks, folding compiled code on disk."""

from __future__ import annotations

import ctypes
import os
import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import cramjam
import lz4.block
import numpy as np
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lithify.datasets.slatedb.kernel import codecs, libraries, snappy, varint, zstd_frame
from lithify.datasets.slatedb.kernel.inputs import BELIEVED_BYTES
from lithify.datasets.slatedb.kernel.key_hashes import PLACE_BYTES, hash_keys
from lithify.datasets.slatedb.kernel.layout import SOURCE, KernelStatus
from lithify.datasets.slatedb.kernel.libraries import Codecs
from lithify.datasets.slatedb.kernel.rows_v1 import transcode_block, transcoded_size
from lithify.datasets.slatedb.model import Codec
from lithify.kernel.buffers import Bound, bytes_of, new_bytes
from lithify.kernel.crc32 import checksum
from lithify.kernel.siphash import siphash
from tests.datasets.slatedb.merging import delete, merge, put
from tests.datasets.slatedb.reference_model import COMPRESS, encode_block_v1, encode_row, encode_row_v1
from tests.datasets.slatedb.reference_model import varint as plain_varint
from tests.judge.sst import siphash13

WORDS = b"the quick brown fox jumps over the lazy dog ".split()


@pytest.mark.parametrize("method", [0, 1, 2])
def test_checksums_equal_zlib(method: int) -> None:
    rng = random.Random(5)
    data = rng.randbytes(9000)
    memory = bytes_of(data)
    for length in (*range(600), 4092, 4096, 8999):
        for start in (0, 1):
            part = data[start : start + length]
            assert checksum(memory.ctypes.data + start, len(part), method) == zlib.crc32(part)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (70000, "f0a204"), ((1 << 32) - 1, "ffffffff0f")],
)
def test_varints(value: int, encoded: str) -> None:
    memory = new_bytes(8)
    start = memory.ctypes.data
    end = varint.write_varint(start, value)
    assert memory[: end - start].tobytes().hex() == encoded == plain_varint(value).hex()
    assert varint.varint_len(value) == end - start
    assert varint.read_varint(start, end) == (value, end)
    assert varint.read_varint(start, end - 1)[0] == varint.INVALID


@pytest.mark.parametrize("encoded", ["ffffffff1f", "ffffffffff01", "808080808000", "80"])
def test_varints_beyond_32_bits_or_five_bytes_are_invalid(encoded: str) -> None:
    memory = bytes_of(bytes.fromhex(encoded))
    start = memory.ctypes.data
    assert varint.read_varint(start, start + len(encoded) // 2)[0] == varint.INVALID


@pytest.mark.parametrize(
    "lengths",
    [
        *([length] * 8 for length in (1, 7, 8, 9, 16, 63, 64, 127)),
        [8, 9, 10, 11, 12, 13, 14, 15],  # as many words, other remainders
        [1, 16, 7, 8, 120, 3, 9, 127],
        [16, 16, 16],
        [],
    ],
)
def test_keys_that_are_hashed_together_have_the_hashes_of_the_paper(lengths: list[int]) -> None:
    rng = random.Random(str(lengths))
    keys = [rng.randbytes(length) for length in lengths]
    places = new_bytes(8 * PLACE_BYTES)
    places[:] = 0xA5
    for number, key in enumerate(keys):
        places[number * PLACE_BYTES :][: len(key)] = np.frombuffer(key, np.uint8)
    sizes, hashes = np.array([*lengths, 0], np.int64), np.zeros(8, np.uint64)
    hash_keys(places.ctypes.data, sizes.ctypes.data, len(keys), hashes.ctypes.data)
    assert hashes[: len(keys)].tolist() == [siphash13(key) for key in keys]
    assert not hashes[len(keys) :].any()


@settings(deadline=None)
@given(st.binary(max_size=80))
@example(b"")
def test_hashes_are_those_of_the_paper(key: bytes) -> None:
    assert siphash(bytes_of(key).ctypes.data, len(key)) == siphash13(key)


def text(seed: int, size: int) -> bytes:
    rng = random.Random(seed)
    return b" ".join(rng.choices(WORDS, k=size // 4 + 1))[:size]


SAMPLES = [
    b"x",
    b"abcabcabcabcabc" * 3,
    bytes(5000),
    text(1, 16),
    text(2, 4096),
    text(3, 65536),
    text(4, 200_000),
    random.Random(6).randbytes(70_000),
    text(7, 66_000) + random.Random(8).randbytes(100) + text(7, 66_000),
]


@pytest.mark.parametrize("sample", range(len(SAMPLES)))
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_codecs_agree_with_the_libraries(codec: Codec, native: bool, sample: int) -> None:
    raw = SAMPLES[sample]
    tools = Codecs({codec}, codec, native=native)
    packed = new_bytes(2 * len(raw) + 200)
    tools.bound.attach("packed", packed)
    tools.bound["packed_capacity"] = 2 * len(raw) + 200
    memory = bytes_of(raw)
    size = codecs.pack_block(codec, tools.bound.record, memory.ctypes.data, len(raw))
    stored = packed[:size].tobytes()
    assert unpacked(codec, tools, stored) == raw
    assert unpacked(codec, tools, COMPRESS[codec](raw)) == raw
    if codec is not Codec.LZ4 or not native:
        assert stored == COMPRESS[codec](raw)
    else:
        assert lz4.block.decompress(stored) == raw
    tools.close()


def unpacked(codec: Codec, tools: Codecs, stored: bytes) -> bytes | int:
    """The stored bytes decompressed by the kernel, or the status that refused them."""
    source = Bound(np.zeros(1, SOURCE)[0])
    source["unpacked_limit"] = BELIEVED_BYTES
    source["codec"] = codec
    memory = bytes_of(stored)
    for _ in range(30):
        status, address, size = codecs.unpack_block(
            source.record, tools.bound.record, memory.ctypes.data, len(stored)
        )
        if status == KernelStatus.OK:
            return ctypes.string_at(address, size)
        if status != KernelStatus.NEED_UNPACK_SPACE:
            return status
        source.attach("unpacked", new_bytes(source["needed"]))
        source["unpacked_capacity"] = source["needed"]
    raise AssertionError("the kernel asks for ever more memory")


@given(st.binary(max_size=300), st.sampled_from([Codec.SNAPPY, Codec.LZ4]))
@settings(deadline=None)
def test_random_bytes_do_not_decompress_to_nonsense(data: bytes, codec: Codec) -> None:
    tools = Codecs({codec}, Codec.NONE)
    result = unpacked(codec, tools, data)
    if isinstance(result, bytes):
        judge = cramjam.snappy.decompress_raw if codec is Codec.SNAPPY else lz4.block.decompress
        assert result == bytes(judge(data))


@pytest.mark.parametrize(
    ("codec", "stored"),
    [
        (Codec.SNAPPY, plain_varint(1 << 31) + b"\0" * 15),
        (Codec.LZ4, b"\xff\xff\xff\xff" + b"\0" * 16),
        (Codec.ZSTD, bytes.fromhex("28b52ffd") + b"\x84\x00" + b"\xff\xff\xff\xff" + b"\0" * 10),
    ],
)
def test_a_tiny_block_cannot_claim_gigabytes(codec: Codec, stored: bytes) -> None:
    tools = Codecs({codec}, Codec.NONE)
    assert unpacked(codec, tools, stored) == KernelStatus.BAD_SIZE
    tools.close()


def test_a_block_of_the_old_format_cannot_grow_to_gigabytes() -> None:
    """Thousands of rows that share a long first key; a writer cannot say where they start."""
    first, other = encode_row_v1(put(b"k" * 60_000, 1), 0), encode_row_v1(put(b"k" * 60_000, 1), 60_000)
    rows = first + other * 30_000
    block = rows + bytes(2 * 30_001) + struct.pack(">H", 30_001)
    memory = bytes_of(block)
    assert transcoded_size(memory.ctypes.data, len(block)) == -KernelStatus.BAD_RESTARTS


def test_zstd_frames_without_a_size_are_read() -> None:
    raw = text(9, 500_000)
    stream = zstandard.ZstdCompressor().compressobj()
    stored = stream.compress(raw) + stream.flush()
    memory = bytes_of(stored)
    assert zstd_frame.declared_size(memory.ctypes.data, len(stored)) == zstd_frame.UNKNOWN
    tools = Codecs({Codec.ZSTD}, Codec.NONE)
    assert unpacked(Codec.ZSTD, tools, stored) == raw
    tools.close()


@pytest.mark.parametrize("size", [1, 255, 256, 65_791, 65_792, 300_000])
def test_zstd_sizes(size: int) -> None:
    stored = zstandard.ZstdCompressor(level=3).compress(random.Random(1).randbytes(size))
    memory = bytes_of(stored)
    declared = zstd_frame.declared_size(memory.ctypes.data, len(stored))
    assert declared == (size if len(stored) >= 18 else zstd_frame.UNKNOWN)


def test_snappy_equals_the_reference_on_many_sizes() -> None:
    rng = random.Random(11)
    table = np.zeros(snappy.TABLE_BYTES, np.uint8)
    for size in (*range(1, 80), *(rng.randrange(70_000) for _ in range(40))):
        raw = text(size, size)
        memory, target = bytes_of(raw), new_bytes(72 + size + size // 6)
        length = snappy.compress(memory.ctypes.data, size, target.ctypes.data, table.ctypes.data)
        assert target[:length].tobytes() == bytes(cramjam.snappy.compress_raw(raw))


def test_libraries_that_lack_symbols_are_not_used() -> None:
    assert libraries.find_library(["zstandard._cffi"], ["no_such_symbol"]) is None
    assert libraries.find_library(["no_such_module.at_all"], []) is None
    assert libraries.find_library(["json"], ["ZSTD_createCCtx"]) is None


def test_blocks_of_format_1_become_blocks_of_format_2() -> None:
    rows = [
        put(b"aaa", 9, b"v", expire=3),
        delete(b"aab", 8),
        merge(b"b", 7, b"m", create=None),
        put(b"c", 1),
    ]
    block = bytes_of(encode_block_v1(rows))
    size = transcoded_size(block.ctypes.data, len(encode_block_v1(rows)))
    target = new_bytes(size)
    transcode_block(block.ctypes.data, len(encode_block_v1(rows)), target.ctypes.data)
    expected = b"".join(encode_row(row, 0) for row in rows) + b"\0\0\0\1"
    assert target[:size].tobytes() == expected


USE_KERNEL = """
from lithify.kernel.crc32 import checksum
from lithify.kernel.buffers import bytes_of
assert checksum(bytes_of(b"123456789").ctypes.data, 9, 2) == 0xCBF43926
print(len(checksum.stats.cache_hits) if checksum._cache.cache_path else -1)
"""


def use_kernel(folder: Path) -> int:
    """How often a fresh process found machine code in the cache; -1 without a cache."""
    environment = os.environ | {"LITHIFY_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", USE_KERNEL],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return int(done.stdout)


def test_machine_code_is_kept_for_the_next_process(tmp_path: Path) -> None:
    assert use_kernel(tmp_path) == 0
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("kernel-")
    outdated = tmp_path / "kernel-of-an-old-version"
    outdated.mkdir()
    for unused in (outdated, folder):
        os.utime(unused, (1, 1))
    assert use_kernel(tmp_path) == 1
    assert list(tmp_path.iterdir()) == [folder]


def test_without_a_writable_folder_the_kernel_works_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert use_kernel(tmp_path / "file" / "below") == -1
