"""A small block that unpacks to a gigabyte is refused before it has taken much memory."""

from __future__ import annotations

import subprocess
import sys

import cramjam
import lz4.block
import pytest
import zstandard

from tests.datasets.slatedb.bombs import lz4_bomb, snappy_bomb, zstd_bomb

MB = 1 << 20


@pytest.mark.parametrize(
    ("what", "limit_bytes"),
    [
        pytest.param("metadata", 150 * MB, id="of metadata, of which 64 MiB are believed"),
        pytest.param("rows", 400 * MB, id="of rows, of which 256 MiB are believed", marks=pytest.mark.whole),
    ],
)
def test_a_bomb_takes_no_more_memory_than_a_large_block(what: str, limit_bytes: int) -> None:
    command = [sys.executable, "-m", "tests.datasets.slatedb.bombs", what]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < limit_bytes


def test_the_bombs_are_what_they_say() -> None:
    """Else they would be refused for another reason."""
    assert lz4.block.decompress(lz4_bomb(1 << 12)) == bytes(1 << 12)
    assert bytes(cramjam.snappy.decompress_raw(snappy_bomb(1 << 12))) == bytes((1 << 12) + 1)
    for declared in (True, False):
        frame = zstd_bomb(1 << 20, declared=declared)
        assert zstandard.ZstdDecompressor().decompressobj().decompress(frame) == bytes(1 << 20)
