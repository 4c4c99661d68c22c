"""Manifests as other programs write and compress them, cut off, damaged, and much too large."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestEntry, ManifestFile

from lithify.base.errors import CorruptObject
from lithify.datasets.iceberg.format import avro_file
from lithify.datasets.iceberg.format.avro_file import BoundedDecoder
from lithify.datasets.iceberg.format.manifests import live_entries, manifests_of
from tests.datasets.iceberg.avro import read_avro, write_avro
from tests.datasets.iceberg.tables import append, fresh, make_rows, new_catalog, new_table

IO = PyArrowFileIO()
FILES = 12
LARGE_BYTES = 16 * 1024 * 1024
"""Instead of what makes packing take long."""
CODECS = ("null", "deflate", "bzip2", "zstandard", "snappy")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[ManifestFile, bytes]:
    """A manifest with several files as an entry in a list, and its content."""
    table = new_table(
        new_catalog(tmp_path_factory.mktemp("manifests")),
        properties={"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"},
    )
    for _ in range(FILES):
        append(table, make_rows(2))
    head = fresh(table).current_snapshot()
    assert head is not None
    manifest = max(manifests_of(IO, head), key=lambda found: found.existing_files_count or 0)
    assert len(live_entries(IO, manifest)) > 2
    return manifest, path_of(manifest).read_bytes()


@pytest.fixture
def manifest(written: tuple[ManifestFile, bytes]) -> ManifestFile:
    """As it was written, whatever was done to it."""
    manifest, content = written
    path_of(manifest).write_bytes(content)
    return manifest


def path_of(manifest: ManifestFile) -> Path:
    return Path(manifest.manifest_path.removeprefix("file://"))


def rewrite(path: Path, codec: str) -> None:
    """Write a file anew with another codec, in blocks of a few records."""
    write_avro(path, replace(read_avro(path), codec=codec), block_bytes=300)


def shown(entries: Sequence[ManifestEntry]) -> list[tuple[object, ...]]:
    files = [entry.data_file for entry in entries]
    return [(f.file_path, f.record_count, dict(f.value_counts), dict(f.lower_bounds)) for f in files]


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(manifest: ManifestFile, codec: str) -> None:
    before = shown(live_entries(IO, manifest))
    rewrite(path_of(manifest), codec)
    assert shown(live_entries(IO, manifest)) == before


@pytest.mark.parametrize("codec", CODECS)
def test_a_file_that_is_cut_off_anywhere_is_damaged(manifest: ManifestFile, codec: str) -> None:
    """Between two blocks too: then it has fewer files than its list says."""
    path = path_of(manifest)
    rewrite(path, codec)
    whole = path.read_bytes()
    for size in range(0, len(whole), 7 if len(whole) < 7000 else 31):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptObject):
            live_entries(IO, manifest)


def test_a_file_that_does_not_begin_as_one_is_damaged(manifest: ManifestFile) -> None:
    """Java does not read it either."""
    path = path_of(manifest)
    path.write_bytes(b"obj" + path.read_bytes()[3:])
    with pytest.raises(CorruptObject, match="Avro"):
        live_entries(IO, manifest)


def test_lists_that_are_cut_off_within_a_block(catalog: Catalog) -> None:
    table = new_table(catalog)
    append(table, make_rows(2))
    head = fresh(table).current_snapshot()
    assert head is not None
    path = Path(head.manifest_list.removeprefix("file://"))
    whole = path.read_bytes()
    for size in (*range(0, len(whole) - 200, 29), *range(len(whole) - 200, len(whole))):
        path.write_bytes(whole[:size])
        try:
            found = manifests_of(IO, head)
        except CorruptObject:
            continue
        assert found == [], size  # exactly behind the header: a list of nothing
    path.write_bytes(whole)
    assert len(manifests_of(IO, head)) == 1


@pytest.mark.parametrize("seed", range(4))
def test_damage_ends_in_a_value_or_a_clear_error(manifest: ManifestFile, seed: int) -> None:
    """With PyIceberg's own decoder some of these end the process."""
    rng, path = random.Random(seed), path_of(manifest)
    rewrite(path, CODECS[seed])
    whole = path.read_bytes()
    errors = 0
    for _ in range(250):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 1, 4))):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        path.write_bytes(data)
        try:
            live_entries(IO, manifest)
        except CorruptObject:
            errors += 1
    assert errors > 100


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_bomb_takes_no_more_memory_than_a_large_block(
    manifest: ManifestFile, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(avro_file, "MAX_BLOCK_BYTES", LARGE_BYTES)
    path = path_of(manifest)
    content = read_avro(path)
    content.records[0]["data_file"]["file_path"] = "x" * (LARGE_BYTES + 1000)
    write_avro(path, replace(content, codec=codec))
    content.records.clear()
    assert path.stat().st_size < LARGE_BYTES / 10
    tracemalloc.start()
    try:
        with pytest.raises(CorruptObject, match="unpacks to more than"):
            live_entries(IO, manifest)
        assert tracemalloc.get_traced_memory()[1] < 2.5 * LARGE_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x80" * 9, b"\x80" * 9 + b"\x02", b"\xff" * 40], ids=len)
def test_numbers_that_are_none(data: bytes) -> None:
    with pytest.raises(ValueError, match="a number at 0"):
        BoundedDecoder(data).read_int()


def test_numbers() -> None:
    decoder = BoundedDecoder(b"\x00\x01\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\xfe\xff\xff\xff\x0f")
    assert [decoder.read_int() for _ in range(5)] == [0, -1, 1, -(1 << 63), (1 << 31) - 1]
    assert decoder.is_at_end
    for length in (-1, 1, 1 << 62):
        with pytest.raises(ValueError, match="bytes at"):
            decoder.read(length)
