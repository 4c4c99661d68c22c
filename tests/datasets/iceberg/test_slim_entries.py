"""Slim entries are what PyIceberg reads, of any manifest, and damaged bytes are refused as they are by it."""

from __future__ import annotations

import tracemalloc
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.avro.file import AvroFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
)

from lithify.base.errors import CorruptObject
from lithify.datasets.iceberg.format.avro_file import read_records
from lithify.datasets.iceberg.format.manifest_scan import AT_ONCE, NO_COLUMN, slim_reader
from lithify.datasets.iceberg.format.manifests import ENTRY_VERSION, decoding, entry_reader
from tests.datasets.iceberg.made_manifests import Drawn, avro_file, long

COLUMN = 2
PASSED_OVER = ("column_sizes", "value_counts", "nan_value_counts", "split_offsets")
OF_COLUMN = ("null_value_counts", "lower_bounds", "upper_bounds")
NAMES = [field.name for field in DATA_FILE_TYPE[ENTRY_VERSION].fields]


def shown(entry: ManifestEntry, column: int | None) -> tuple[object, ...]:
    """All that is in an entry. `column`: without what a slim one for this column does not have."""
    file = dict(zip(NAMES, entry.data_file._data, strict=True))
    for name in PASSED_OVER:
        file[name] = None
    for name in OF_COLUMN:
        if file[name] is not None:
            file[name] = {key: value for key, value in file[name].items() if column in (None, key)}
    return (*entry._data[:-1], repr(file))


def by_pyiceberg(path: Path) -> list[ManifestEntry]:
    """As it reads them itself, with its own decoder."""
    read_types: dict[int, Any] = {-1: ManifestEntry, 2: DataFile}
    enums: dict[int, Any] = {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent}
    schema = MANIFEST_ENTRY_SCHEMAS[ENTRY_VERSION]
    file: AvroFile[ManifestEntry]
    with AvroFile(PyArrowFileIO().new_input(str(path)), schema, read_types, enums) as file:
        return list(file)


def slim(data: bytes, column: int = COLUMN) -> list[ManifestEntry]:
    with decoding("a manifest"):
        return list(read_records(data, partial(slim_reader, column=column)))


def whole(data: bytes) -> list[ManifestEntry]:
    with decoding("a manifest"):
        return list(read_records(data, entry_reader))


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 1 << 32), entries=st.integers(1, 12), column=st.sampled_from([NO_COLUMN, 1, COLUMN])
)
def test_any_manifest(tmp_path_factory: pytest.TempPathFactory, seed: int, entries: int, column: int) -> None:
    """Of any version, with fields missing, under other names, in another order, and unknown ones."""
    _, data = Drawn(Random(seed)).file(entries)
    path = tmp_path_factory.mktemp("made") / "manifest.avro"
    path.write_bytes(data)
    expected = [shown(entry, column) for entry in by_pyiceberg(path)]
    assert len(expected) == entries
    assert [shown(entry, None) for entry in slim(data, column)] == expected


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_what_is_damaged(seed: int) -> None:
    """Bytes are changed, added or taken away: it is refused where whole entries are, and else the same."""
    rng = Random(seed)
    _, data = Drawn(rng, unknown=False).file(rng.randint(1, 4))
    begin = data.index(bytes(range(16)))
    for _ in range(20):
        damaged = bytearray(data)
        for _ in range(rng.choice((1, 1, 3))):
            place = rng.randrange(begin, len(damaged))
            change = rng.randrange(4)
            if change < 2:
                damaged[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            elif change == 2:
                del damaged[place : place + rng.randint(1, 9)]
            else:
                damaged[place:place] = rng.choice((b"\x80", b"\xff" * 9 + b"\x01", rng.randbytes(3)))
        try:
            expected = [shown(entry, COLUMN) for entry in whole(bytes(damaged))]
        except CorruptObject:
            with pytest.raises(CorruptObject):
                slim(bytes(damaged))
        else:
            assert [shown(entry, None) for entry in slim(bytes(damaged))] == expected


def test_more_entries_than_are_decoded_at_once() -> None:
    drawn = Drawn(Random(3))
    schema, count = drawn.schema(), 2 * AT_ONCE + 1
    data = avro_file(schema, [(count, b"".join(drawn.value(schema) for _ in range(count)))])
    assert [shown(e, None) for e in slim(data)] == [shown(e, COLUMN) for e in whole(data)]


@pytest.mark.parametrize("count", [-1, 0, 1, 4, 1 << 40, -(1 << 63), (1 << 63) - 1])
def test_a_block_has_the_entries_it_says(count: int) -> None:
    drawn = Drawn(Random(5))
    schema = drawn.schema()
    data = avro_file(schema, [(count, b"".join(drawn.value(schema) for _ in range(3)))])
    tracemalloc.start()
    try:
        with pytest.raises(CorruptObject, match="a block"):
            slim(data)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("number", [100, 108, 110, 125, 128, 131, 132, 135])
@pytest.mark.parametrize("lie", [100, 1 << 20, 1 << 40, (1 << 63) - 1, -1, -100, -(1 << 63)])
def test_lengths_that_lie(number: int, lie: int) -> None:
    """Of texts, bytes, lists and maps: neither memory nor time is spent on what is not there."""
    drawn = Drawn(Random(7), unknown=False, is_whole=True)
    schema, content = drawn.schema(), b""
    for part in schema["fields"]:
        if part["field-id"] != 2:
            content += drawn.value(part["type"], part["hints"])
            continue
        for inner in part["type"]["fields"]:
            if inner["field-id"] == number:
                content += long(1) * isinstance(inner["type"], list) + long(lie)
            else:
                content += drawn.value(inner["type"], inner["hints"])
    tracemalloc.start()
    try:
        with pytest.raises(CorruptObject, match="a block"):
            slim(avro_file(schema, [(1, content)]))
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()


def test_a_list_of_nothing() -> None:
    """It would have any number of elements in no bytes."""
    drawn = Drawn(Random(7), unknown=False, is_whole=True)
    schema = drawn.schema()
    (record,) = [part["type"] for part in schema["fields"] if part["field-id"] == 2]
    (found,) = [part for part in record["fields"] if part["field-id"] == 135]
    found["type"][1]["items"] = "null"
    with pytest.raises(CorruptObject):
        slim(avro_file(schema, [(1, bytes(100))]))
