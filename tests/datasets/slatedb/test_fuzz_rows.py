"""Damaged data blocks with valid checksums: each ends in a clear error or a correct result.

1. A random SST is made, of any codec, format and block size.
2. One of its blocks is damaged, before or after compression: bits flipped, bytes replaced, cut out,
   put in or repeated, the block cut short or replaced by random bytes. Its checksum is made anew, so that
   the damage reaches the parser.
3. The SST is merged with an undamaged one. If that succeeds, and the plain reader of the judge takes
   the damaged SST as well, both must have seen the same rows.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterator

import cramjam
import lz4.block
import pytest
import zstandard

from lithify.base.errors import CorruptObject
from lithify.datasets.slatedb.compaction.task import SstOptions, TaskResult
from lithify.datasets.slatedb.model import Codec
from tests.datasets.slatedb.merging import KEEP_ALL, Bench, put
from tests.datasets.slatedb.reference_model import (
    COMPRESS,
    BlockBuilder,
    assemble,
    cut_into_blocks,
    encode_block_v1,
    index_key,
)
from tests.judge.sst import Row, read_sst

CASES = 4000
BATCHES = 8
JUDGE_ERRORS = (
    AssertionError,
    IndexError,
    ValueError,
    struct.error,
    zlib.error,
    cramjam.DecompressionError,
    lz4.block.LZ4BlockError,
    zstandard.ZstdError,
)


def random_rows(rng: random.Random) -> list[Row]:
    """Rows in order, of all kinds, with and without times, some large."""
    rows = []
    for number in range(rng.choice((1, 3, 20, 60))):
        key = b"key" + b"x" * rng.choice((0, 0, 1, 130)) + b"%04d" % (number // rng.choice((1, 1, 2)))
        kind = rng.choice(("put", "put", "delete", "merge"))
        value = b"" if kind == "delete" else rng.randbytes(rng.choice((0, 5, 100, 300)))
        create, expire = rng.choice((None, number)), rng.choice((None, None, 1 << 40))
        rows.append(Row(key, 1000 - number, kind, value, create, None if kind == "delete" else expire))
    return sorted(rows, key=lambda row: (row.key, -row.seq))


def damage(rng: random.Random, data: bytes) -> bytes:
    """`data` with something wrong."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(changed) + 1)
        size = rng.choice((1, 1, 2, 8, 40))
        match rng.randrange(8):
            case 0 | 1:
                at = min(at, len(changed) - 1)
                if changed:
                    changed[at] ^= 1 << rng.randrange(8)
            case 2:
                changed[at : at + size] = rng.randbytes(size)
            case 3:
                del changed[at : at + size]
            case 4:
                changed[at:at] = rng.randbytes(size)
            case 5:
                changed[at:at] = changed[max(0, at - size) : at]
            case 6:
                extreme = rng.choice((b"\xff" * 5, b"\x80" * 6, b"\0" * 4, b"\xff\xff\xff\xff\x0f"))
                changed[at : at + len(extreme)] = extreme
            case 7:
                del changed[at:]
    return rng.randbytes(rng.randrange(80)) if rng.random() < 0.05 else bytes(changed)


def checked(stored: bytes) -> bytes:
    """Stored bytes with their checksum."""
    return stored + struct.pack(">I", zlib.crc32(stored))


def damaged_ssts(rng: random.Random, bench: Bench) -> Iterator[None]:
    """Give the bench a source with one damaged block, again and again."""
    while True:
        rows = random_rows(rng)
        codec = rng.choice((Codec.NONE, Codec.NONE, *Codec))
        version = rng.choice((1, 2, 2))
        blocks = cut_into_blocks(rows, rng.choice((1024, 4096)))
        raws = []
        for block in blocks:
            builder = BlockBuilder(1 << 40, [])
            for row in block:
                builder.add(row)
            raws.append(builder.raw() if version == 2 else encode_block_v1(block))
        lasts = [None, *(block[-1].key for block in blocks)]
        keys = [index_key(last, block[0].key) for last, block in zip(lasts, blocks, strict=False)]
        for _ in range(10):
            stored = [COMPRESS[codec](raw) for raw in raws]
            victim = rng.randrange(len(stored))
            if codec is Codec.NONE or rng.random() < 0.5:
                stored[victim] = damage(rng, stored[victim])
            else:
                stored[victim] = COMPRESS[codec](damage(rng, raws[victim]))
            if not stored[victim]:
                continue
            data, sst = assemble([*map(checked, stored)], keys, rows, bench.ids.ulid(1), codec, version)
            bench.sources = [(bench.store_sst(data, sst),), bench.sources[-1]]
            yield
            bench.store.delete(bench.sources[0][0].key)


def merge_or_error(bench: Bench) -> TaskResult | CorruptObject:
    """The result of merging the sources, or why they were refused."""
    try:
        return bench.run(bench.task(KEEP_ALL, SstOptions(block_size=1024)))
    except CorruptObject as error:
        return error


def fuzz_rows(seed: int, cases: int) -> tuple[int, int]:
    """How many damaged SSTs were refused, and how many merged correctly."""
    rng = random.Random(seed)
    bench = Bench(seed)
    intact = [put(b"key%04d" % number, 5000 + number) for number in range(0, 60, 7)]
    bench.add(intact)
    refused = merged = 0
    for _, _ in zip(range(cases), damaged_ssts(rng, bench), strict=False):
        result = merge_or_error(bench)
        if isinstance(result, CorruptObject):
            assert result.name == bench.sources[0][0].key
            assert "block" in result.reason
            refused += 1
            continue
        merged += 1
        rows = bench.rows(result)
        try:
            read = read_sst(bench.store.get(bench.sources[0][0].key)).rows
        except JUDGE_ERRORS:
            continue  # the judge looks at more than is needed to read the rows
        assert rows == sorted({*read, *intact}, key=lambda row: (row.key, -row.seq))
    return refused, merged


@pytest.mark.parametrize("seed", range(BATCHES))
def test_damaged_blocks_end_in_an_error_or_a_correct_result(seed: int) -> None:
    refused, merged = fuzz_rows(seed, CASES // BATCHES)
    # Damage to a value goes unnoticed behind a valid checksum; damage to a length should not.
    assert refused > merged > 0
