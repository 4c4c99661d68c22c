"""Deletion vectors: each reads back as it was written, by us and by PyIceberg; those of Java are read; of a
damaged one no row is deleted."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.typedef import Record
from pyroaring import BitMap

from lithify.base.errors import CorruptObject
from lithify.datasets.iceberg.deletes.vectors import (
    DeletionVector,
    NewVector,
    VectorReader,
    decoded,
    write_vectors,
)
from lithify.datasets.iceberg.format.manifests import ENTRY_VERSION
from tests.datasets.iceberg.java_table import JavaTable
from tests.datasets.iceberg.tables import duckdb_with_iceberg
from tests.judge.iceberg_java import IcebergJava

VECTORS = Path(__file__).with_name("vectors")
"""Puffin files of Java Iceberg 1.10.2: `DELETE` from a table with the ids from 0 in order."""
ROWS = 1 << 34
DATA = "s3://lake/data.parquet"
MAGIC = b"\xd1\xd3\x39\x64"

some_positions = st.sets(st.integers(0, 200) | st.integers(0, ROWS - 1), min_size=1, max_size=40)
runs = st.lists(st.tuples(st.integers(0, 1 << 33), st.integers(1, 100_000)), max_size=3)


def positions_of(some: set[int], added: Sequence[tuple[int, int]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Positions one by one, and runs of them."""
    parts = [np.array(sorted(some), np.int64), *(np.arange(a, a + n, dtype=np.int64) for a, n in added)]
    return np.unique(np.concatenate(parts))


def stored(folder: Path, *vectors: np.ndarray[Any, np.dtype[np.int64]]) -> list[DataFile]:
    """A Puffin file with these vectors."""
    path = str(folder / "deletes.puffin")
    new = [
        NewVector(f"{DATA}{n}" if n else DATA, DeletionVector.of(one), 0, Record())
        for n, one in enumerate(vectors)
    ]
    return write_vectors(PyArrowFileIO(), path, new)


def read(entry: DataFile, rows: int = ROWS, data: str = DATA) -> DeletionVector:
    """The vector of an entry, from its file."""
    with PyArrowFileIO().new_input(entry.file_path).open() as stream:
        return VectorReader(stream, entry.file_path).read(entry, data, rows)


def entry_of(path: Path, place: tuple[int, int], rows: int, data: str = DATA) -> DataFile:
    """An entry for a vector at this place."""
    return DataFile.from_args(
        ENTRY_VERSION,
        content=DataFileContent.POSITION_DELETES,
        file_path=str(path),
        file_format=FileFormat.PUFFIN,
        record_count=rows,
        file_size_in_bytes=path.stat().st_size,
        referenced_data_file=data,
        content_offset=place[0],
        content_size_in_bytes=place[1],
    )


@given(some_positions, runs, st.integers(0, ROWS), st.integers(0, 200_000))
@settings(deadline=None)
def test_a_vector_has_the_positions_that_were_written(
    tmp_path_factory: pytest.TempPathFactory,
    some: set[int],
    added: list[tuple[int, int]],
    start: int,
    count: int,
) -> None:
    positions = positions_of(some, added)
    (entry,) = stored(tmp_path_factory.mktemp("vectors"), positions)
    found = read(entry)
    assert len(found) == entry.record_count == len(positions)
    assert found.last == positions[-1]
    ends = [(start, start + count), (int(positions[0]), int(positions[-1]) + 1)]
    for first, end in [*ends[:1], *(pair for pair in ends[1:] if pair[1] - pair[0] < 1 << 20)]:
        expected = positions[(positions >= first) & (positions < end)]
        between = found.between(first, end)
        assert between.dtype == np.int64
        assert between.tolist() == expected.tolist()


@given(st.lists(st.sets(st.integers(0, 300_000), min_size=1), min_size=1, max_size=4), runs)
@settings(deadline=None, max_examples=30)
def test_pyiceberg_reads_the_same_positions(
    tmp_path_factory: pytest.TempPathFactory, files: list[set[int]], added: list[tuple[int, int]]
) -> None:
    vectors = [positions_of(some, [(a % 300_000, n) for a, n in added]) for some in files]
    entries = stored(tmp_path_factory.mktemp("vectors"), *vectors)
    puffin = PuffinFile(Path(entries[0].file_path).read_bytes())
    found = {one.referenced_data_file: one.to_vector() for one in deletion_vectors_from_puffin_file(puffin)}
    assert [found[f"{DATA}{n or ''}"].to_pylist() for n in range(len(files))] == [v.tolist() for v in vectors]
    assert all(blob.snapshot_id == blob.sequence_number == -1 for blob in puffin.footer.blobs)
    assert [blob.offset for blob in puffin.footer.blobs] == [entry[18] for entry in entries]


JAVA: dict[str, tuple[int, set[int]]] = {
    "few": (100, {0, 3, 4, 99}),
    "runs": (200_000, {*range(10, 70_001), *range(150_000, 150_005)}),
    "dense": (140_000, {*range(0, 140_000, 3), *range(70_000, 131_072)}),
}
"""The rows of a table, and those that were deleted: an array, runs, and bitmaps."""


@pytest.mark.parametrize("name", JAVA)
def test_vectors_of_java_are_read_and_ours_are_the_same_bytes(name: str) -> None:
    path, (rows, deleted) = VECTORS / f"{name}.puffin", JAVA[name]
    puffin = PuffinFile(path.read_bytes())
    (blob,) = puffin.footer.blobs
    data_path = blob.properties["referenced-data-file"]
    entry = entry_of(path, (blob.offset, blob.length), len(deleted), data_path)
    assert read(entry, rows, data_path).between(0, rows).tolist() == sorted(deleted)
    ours = DeletionVector.of(np.array(sorted(deleted), np.int64)).encoded()
    assert ours == puffin.get_blob_payload(blob)


def test_java_duckdb_and_pyiceberg_apply_vectors_that_we_wrote(java: IcebergJava, tmp_path: Path) -> None:
    """Ours in the place of Java's, with the same entries in manifests."""
    table = JavaTable(java, tmp_path)
    table.create("id bigint")
    for first in (0, 1000, 70_000):
        table.sql(f"INSERT INTO events SELECT id FROM range({first}, {first * 2 + 1000})")
    table.sql("DELETE FROM events WHERE id % 3 = 0 OR id BETWEEN 80000 AND 120000")
    expected = table.sql("SELECT count(*) AS rows, sum(id) AS total FROM events")
    rows = f"SELECT count(*) AS rows, sum(id) AS total FROM iceberg_scan('{table.metadata_file}')"
    entries = sorted(table.vectors(), key=lambda entry: int(entry[18]))
    assert len({entry.file_path for entry in entries}) < len(entries) == 3
    path = Path(entries[0].file_path.removeprefix("file:"))
    vectors = [of_java(entry, path) for entry in entries]
    path.unlink()
    path.with_name(f".{path.name}.crc").unlink()
    new = [
        NewVector(str(entry[17]), vector, 0, Record()) for entry, vector in zip(entries, vectors, strict=True)
    ]
    ours = write_vectors(PyArrowFileIO(), str(path), new)
    assert [one._data[17:20] for one in ours] == [entry._data[17:20] for entry in entries]
    assert table.sql("SELECT count(*) AS rows, sum(id) AS total FROM events") == expected
    assert duckdb_with_iceberg().execute(rows).fetchall() == [tuple(expected[0].values())]
    by_pyiceberg = table.table.scan().to_arrow()
    assert [by_pyiceberg.num_rows, sum(by_pyiceberg["id"].to_pylist())] == list(expected[0].values())


def of_java(entry: DataFile, path: Path) -> DeletionVector:
    """A vector of Java's file, as if it were decoded position by position."""
    with path.open("rb") as stream:
        vector = VectorReader(stream, str(path)).read(entry, str(entry[17]), 1 << 20)
    return DeletionVector.of(vector.between(0, 1 << 20))


# Damage


def framed(content: bytes, length: int | None = None, checksum: int | None = None) -> bytes:
    """A blob as the specification frames it."""
    stated = len(content) if length is None else length
    crc = zlib.crc32(content) if checksum is None else checksum
    return struct.pack(">I", stated) + content + struct.pack(">I", crc)


def bitmaps(*of_keys: tuple[int, bytes], count: int | None = None) -> bytes:
    """A 64-bit bitmap of 32-bit ones."""
    parts = b"".join(struct.pack("<I", key) + bitmap for key, bitmap in of_keys)
    return struct.pack("<Q", len(of_keys) if count is None else count) + parts


def array_of(*values: int) -> bytes:
    """A 32-bit bitmap of one array, of any values in any order."""
    head = struct.pack("<IIHHI", 12346, 1, 0, len(values) - 1, 16)
    return head + struct.pack(f"<{len(values)}H", *values)


ONE = BitMap([5]).serialize()
DAMAGED: dict[str, bytes] = {
    "nothing": b"",
    "shorter than its frame": b"\0" * 11,
    "a length that is too high": framed(MAGIC + bitmaps((0, ONE)), length=1 << 31),
    "a length that is too low": framed(MAGIC + bitmaps((0, ONE)), length=4),
    "another magic number": framed(b"\x64\x39\xd3\xd1" + bitmaps((0, ONE))),
    "a wrong checksum": framed(MAGIC + bitmaps((0, ONE)), checksum=1),
    "no bitmap": framed(MAGIC),
    "more bitmaps stated than there are": framed(MAGIC + bitmaps((0, ONE), count=2)),
    "very many bitmaps stated": framed(MAGIC + bitmaps((0, ONE), count=1 << 63)),
    "a bitmap that is cut off": framed(MAGIC + bitmaps((0, ONE[:-1]))),
    "keys in descending order": framed(MAGIC + bitmaps((1, ONE), (0, ONE))),
    "a key twice": framed(MAGIC + bitmaps((0, ONE), (0, ONE))),
    "positions in no order": framed(MAGIC + bitmaps((0, array_of(9, 3, 5)))),
    "a position twice": framed(MAGIC + bitmaps((0, array_of(3, 3)))),
    "an unknown cookie": framed(MAGIC + bitmaps((0, b"\0" * len(ONE)))),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_vector_deletes_nothing(what: str) -> None:
    with pytest.raises(CorruptObject, match=r"^lake/x\.puffin: (has|states) "):
        decoded(DAMAGED[what], "lake/x.puffin")


def test_bitmaps_without_positions_between_others_are_read() -> None:
    """As Java writes keys that have none."""
    blob = framed(MAGIC + bitmaps((0, BitMap().serialize()), (1, ONE)))
    found = decoded(blob, "x")
    assert found.between(0, 1 << 32).tolist() == []
    assert found.between(1 << 32, (1 << 32) + 10).tolist() == [(1 << 32) + 5]


@given(st.data())
@settings(deadline=None)
def test_a_changed_file_is_refused_or_deletes_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("vectors")
    positions = np.arange(0, 5000, 3, dtype=np.int64)
    entry, _ = stored(folder, positions, np.arange(7, dtype=np.int64))
    path = Path(entry.file_path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)) | st.just(len(content)))
    path.write_bytes(content[:cut])
    try:
        found = read(entry)
    except CorruptObject:
        return
    assert found.between(0, 10_000).tolist() == positions.tolist()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"record_count": 3}, "states '2' rows in a deletion vector, but its manifest 3"),
        ({"content_offset": 5}, "has no blob of"),
        ({"content_offset": -1}, "has no blob of"),
        ({"content_size_in_bytes": 1 << 40}, "more than"),
        ({"content_size_in_bytes": -1}, "has no blob of"),
        ({"content_offset": None}, "has a deletion vector of .* bytes at None"),
        ({"content_size_in_bytes": None}, "has a deletion vector of None bytes"),
        ({"referenced_data_file": "s3://lake/other"}, "its manifest assigns to 's3://lake/other'"),
        ({"referenced_data_file": None}, "its manifest assigns to None"),
    ],
)
def test_an_entry_that_differs_from_its_file_is_refused(
    tmp_path: Path, change: Mapping[str, Any], reason: str
) -> None:
    (entry,) = stored(tmp_path, np.array([1, 2], np.int64))
    correct = {
        "content": DataFileContent.POSITION_DELETES,
        "file_path": entry.file_path,
        "file_format": FileFormat.PUFFIN,
        "record_count": 2,
        "file_size_in_bytes": entry.file_size_in_bytes,
        "referenced_data_file": DATA,
        "content_offset": 4,
        "content_size_in_bytes": entry[19],
    }
    with pytest.raises(CorruptObject, match=reason):
        read(DataFile.from_args(ENTRY_VERSION, **{**correct, **change}))


def test_a_vector_of_another_data_file_is_refused(tmp_path: Path) -> None:
    """Though the manifest says so: readers that choose by the footer would delete other rows."""
    entries = stored(tmp_path, np.array([1], np.int64), np.array([2], np.int64))
    wrong = entry_of(Path(entries[0].file_path), (entries[1][18], entries[1][19]), 1)
    with pytest.raises(CorruptObject, match="but its manifest states"):
        read(wrong)


def test_a_position_beyond_the_rows_of_the_file_is_refused(tmp_path: Path) -> None:
    (entry,) = stored(tmp_path, np.array([1, 99], np.int64))
    assert len(read(entry, rows=100)) == 2
    with pytest.raises(CorruptObject, match="deletes row 99 of a file of 99 rows"):
        read(entry, rows=99)


def test_a_cardinality_that_the_vector_does_not_have_is_refused(tmp_path: Path) -> None:
    blob = DeletionVector.of(np.array([1, 2], np.int64)).encoded()
    path = tmp_path / "x.puffin"
    path.write_bytes(puffin([(4, blob, {"cardinality": "3"})]))
    with pytest.raises(CorruptObject, match="has a deletion vector of 2 rows, but its manifest states 3"):
        read(entry_of(path, (4, len(blob)), 3))


# Footers


def puffin(
    blobs: Sequence[tuple[int, bytes, Mapping[str, str]]],
    *,
    text: bytes | None = None,
    flags: int = 0,
    stated: int | None = None,
    kind: str = "deletion-vector-v1",
    more: Mapping[str, Any] | None = None,
) -> bytes:
    """A Puffin file of blobs, each with the offset that the footer states."""
    described = [
        {
            "type": kind,
            "fields": [2147483645],
            "snapshot-id": -1,
            "sequence-number": -1,
            "offset": offset,
            "length": len(blob),
            "properties": {"referenced-data-file": DATA, **properties},
            **(more or {}),
        }
        for offset, blob, properties in blobs
    ]
    footer = json.dumps({"blobs": described}).encode() if text is None else text
    end = struct.pack("<iI", len(footer) if stated is None else stated, flags) + b"PFA1"
    return b"PFA1" + b"".join(blob for _, blob, _ in blobs) + b"PFA1" + footer + end


BLOB = DeletionVector.of(np.array([1, 2], np.int64)).encoded()
FOOTERS: dict[str, tuple[bytes, str]] = {
    "no file": (b"", "fewer than any Puffin file"),
    "no Puffin file": (b"PAR1" * 20, "does not end as a Puffin file"),
    "no JSON": (puffin([(4, BLOB, {})], text=b"{"), "does not decode"),
    "JSON of another kind": (puffin([(4, BLOB, {})], text=b"[1]"), "does not decode"),
    "deep JSON": (puffin([(4, BLOB, {})], text=b"[" * 100_000), "does not decode"),
    "a size below zero": (puffin([(4, BLOB, {})], stated=-1), "states a footer of -1 bytes"),
    "a size beyond the file": (puffin([(4, BLOB, {})], stated=1 << 30), "states a footer of"),
    "another size": (puffin([(4, BLOB, {})], stated=5), "does not begin as one"),
    "unknown flags": (puffin([(4, BLOB, {})], flags=2), "has unknown flags"),
    "blobs over each other": (puffin([(4, BLOB, {}), (5, BLOB, {})]), "over another blob"),
    "a blob twice": (puffin([(4, BLOB, {}), (4, BLOB, {})]), "over another blob"),
    "a blob over the magic number": (puffin([(0, BLOB, {})]), "outside the file"),
    "a blob over the footer": (puffin([(40, BLOB, {})]), "outside the file"),
    "a negative length": (puffin([(4, BLOB, {})], more={"length": -5}), "outside the file"),
    "a blob far away": (puffin([(4, BLOB, {})], more={"offset": 1 << 62}), "outside the file"),
    "no frame of LZ4": (puffin([(4, BLOB, {})], flags=1), "does not decode"),
    "another kind of blob": (puffin([(4, BLOB, {})], kind="sketch"), "has 'sketch' with no compression"),
    "a compressed blob": (puffin([(4, BLOB, {})], more={"compression-codec": "zstd"}), "with zstd"),
}


@pytest.mark.parametrize("what", FOOTERS)
def test_a_damaged_footer_is_refused(tmp_path: Path, what: str) -> None:
    content, reason = FOOTERS[what]
    path = tmp_path / "x.puffin"
    path.write_bytes(content)
    with pytest.raises(CorruptObject, match=reason) as refused:
        read(entry_of(path, (4, len(BLOB)), 2))
    assert str(refused.value).startswith(f"{path}: ")


def test_footers_may_be_compressed_and_lack_properties(tmp_path: Path) -> None:
    described = {"type": "deletion-vector-v1", "fields": [], "snapshot-id": -1, "sequence-number": -1}
    text = json.dumps({"blobs": [{**described, "offset": 4, "length": len(BLOB)}]}).encode()
    path = tmp_path / "x.puffin"
    path.write_bytes(puffin([(4, BLOB, {})], text=lz4.frame.compress(text), flags=1))
    assert read(entry_of(path, (4, len(BLOB)), 2)).between(0, 9).tolist() == [1, 2]


def test_a_bomb_of_a_footer_is_refused(tmp_path: Path) -> None:
    text = lz4.frame.compress(b" " * (1 << 28))
    path = tmp_path / "x.puffin"
    path.write_bytes(puffin([(4, BLOB, {})], text=text, flags=1))
    with pytest.raises(CorruptObject, match="cut off, or too long"):
        read(entry_of(path, (4, len(BLOB)), 2))


# Large vectors

LARGE = """
import io, resource, struct, sys, zlib
import numpy as np
from lithify.datasets.iceberg.deletes.vectors import decoded

rows = 200_000_000
containers = -(-rows // 65536)
cards = np.full(containers, 32768)
cards[-1] = (rows - (containers - 1) * 65536) // 2
head = np.empty((containers, 2), "<u2")
head[:, 0], head[:, 1] = np.arange(containers), cards - 1
starts = np.arange(containers, dtype="<u4") * 8192 + 8 + containers * 8
body = np.full((containers, 8192), 0x55, np.uint8)
body[-1, int(cards[-1]) // 4 :] = 0
bitmap = struct.pack("<QIII", 1, 0, 12346, containers) + head.tobytes() + starts.tobytes() + body.tobytes()
del body
content = b"\\xd1\\xd3\\x39\\x64" + bitmap
blob = struct.pack(">I", len(content)) + content + struct.pack(">I", zlib.crc32(content))
del bitmap, content
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
vector = decoded(blob, "x")
found = sum(len(vector.between(start, start + 131072)) for start in range(0, rows, 131072))
print(len(blob), len(vector), found, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) * 1024)
"""


def test_a_vector_of_a_hundred_million_positions_takes_about_twice_its_size() -> None:
    result = subprocess.run(
        [sys.executable, "-c", LARGE], capture_output=True, text=True, timeout=120, check=True
    )
    size_bytes, cardinality, found, grown_bytes = map(int, result.stdout.split())
    assert cardinality == found == 100_000_000
    assert size_bytes < 26 << 20
    assert grown_bytes < 40 << 20
