"""Small blocks that unpack to a gigabyte, for tests of what refusing them costs.

As a program, `python -m tests.datasets.slatedb.bombs metadata|rows`, it has every bomb refused and prints how
many bytes of memory the process took for that at most.
"""

from __future__ import annotations

import struct
import sys
import zlib

from lithify.base.errors import CorruptObject
from lithify.base.peak_memory import peak_memory_bytes
from lithify.datasets.slatedb.format.sst import unseal
from lithify.datasets.slatedb.model import Codec
from tests.datasets.slatedb.merging import KEEP_ALL, Bench, put
from tests.datasets.slatedb.reference_model import assemble, varint

BOMB_BYTES = 1 << 30
_ZSTD_BLOCK_BYTES = 128 << 10
_ZSTD_RUN = 1 << 1
_ZSTD_LAST = 1


def zstd_bomb(size: int = BOMB_BYTES, *, declared: bool) -> bytes:
    """One frame of 33 kB: each block of four bytes is 128 KiB of zeros."""
    frame = bytes.fromhex("28b52ffd") + (
        b"\xa0" + struct.pack("<I", size) if declared else b"\x00" + bytes([14 << 3])
    )
    count = size // _ZSTD_BLOCK_BYTES
    for number in range(count):
        head = _ZSTD_BLOCK_BYTES << 3 | _ZSTD_RUN | (_ZSTD_LAST if number == count - 1 else 0)
        frame += head.to_bytes(3, "little") + b"\0"
    return frame


def zlib_bomb() -> bytes:
    """A megabyte of zlib."""
    stream = zlib.compressobj(9)
    piece = bytes(1 << 20)
    return b"".join([*(stream.compress(piece) for _ in range(BOMB_BYTES >> 20)), stream.flush()])


def lz4_bomb(size: int = BOMB_BYTES) -> bytes:
    """Four megabytes of LZ4: one run of zeros."""
    long = size - 1 - 12 - 4 - 15
    run = b"\x1f\0\1\0" + b"\xff" * (long // 255) + bytes([long % 255])
    return struct.pack("<I", size) + run + b"\xc0" + bytes(12)


def snappy_bomb(size: int = BOMB_BYTES) -> bytes:
    """Fifty megabytes of snappy: copies of 64 bytes behind the first one."""
    copies = size // 64
    return varint(64 * copies + 1) + b"\0\0" + b"\xfe\1\0" * copies


def bombs() -> list[tuple[Codec, bytes]]:
    return [
        (Codec.ZSTD, zstd_bomb(declared=True)),
        (Codec.ZSTD, zstd_bomb(declared=False)),
        (Codec.ZLIB, zlib_bomb()),
        (Codec.LZ4, lz4_bomb()),
        (Codec.SNAPPY, snappy_bomb()),
    ]


def sealed(stored: bytes) -> bytes:
    return stored + struct.pack(">I", zlib.crc32(stored))


def refuse_as_metadata(codec: Codec, bomb: bytes) -> None:
    try:
        unseal(sealed(bomb), codec, "bomb")
    except CorruptObject as error:
        assert "claims to unpack to more" in str(error) or "too much memory" in str(error), error  # noqa: PT017
        return
    raise AssertionError(f"{codec.name} was unpacked")


def refuse_as_rows(codec: Codec, bomb: bytes) -> None:
    """A task that reads an SST whose first block is the bomb."""
    bench, row = Bench(), put(b"k", 1)
    data, sst = assemble([sealed(bomb)], [b""], [row], bench.ids.ulid(1), codec)
    bench.sources = [(bench.store_sst(data, sst),)]
    try:
        bench.run(bench.task(KEEP_ALL))
    except CorruptObject as error:
        assert "unpacks to more" in str(error), error  # noqa: PT017
        return
    raise AssertionError(f"{codec.name} was unpacked")


def main(what: str) -> None:
    if what == "rows":
        bench = Bench().add([put(b"k", 1)], codec=Codec.ZSTD)
        bench.run(bench.task(KEEP_ALL))  # so that the compiler's memory is not counted
    made = bombs()
    before = peak_memory_bytes()
    for codec, bomb in made:
        (refuse_as_metadata if what == "metadata" else refuse_as_rows)(codec, bomb)
    print(peak_memory_bytes() - before)


if __name__ == "__main__":
    main(sys.argv[1])
