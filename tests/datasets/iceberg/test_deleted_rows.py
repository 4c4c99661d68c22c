"""Rows deleted by position: which they are, however delete files and data files belong together, and how
often a delete file is read."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import orc
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from lithify.base.errors import CorruptObject, LithifyError
from lithify.datasets.iceberg.compaction.task import SourceFile
from lithify.datasets.iceberg.deletes.deleted_rows import DeletedRows
from lithify.datasets.iceberg.deletes.live_rows import LiveRows, RowCount
from lithify.datasets.iceberg.deletes.vectors import DeletionVector, NewVector, VectorReader, write_vectors
from lithify.datasets.iceberg.format.listing import ManifestCache, read_listing
from tests.datasets.iceberg.faults import IO_PROPERTY, Faults, install
from tests.datasets.iceberg.running import compact, dataset_of
from tests.datasets.iceberg.tables import (
    DAY,
    START,
    append,
    check,
    delete_equal,
    delete_files_of,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    new_table,
    s3_catalog,
)
from tests.s3 import S3

PATHS = tuple(f"s3://lake/{name}.parquet" for name in ("a", "b", "ä", "ñ", "z z", "😀"))
WRITE = {FileFormat.PARQUET: pq.write_table, FileFormat.ORC: orc.write_table}
TEXT = pa.string()
KINDS = (TEXT, pa.binary())
"""What delete files say that paths are: not all writers say that they are texts."""
Rows = list[tuple[str, int]]


def written(path: Path, rows: Rows, file_format: FileFormat, kind: pa.DataType = TEXT) -> DataFile:
    """A delete file with these rows; `kind` is what it says that paths are."""
    names = pa.array([name.encode() for name, _ in rows], pa.binary()).cast(kind)
    positions = pa.array([position for _, position in rows], pa.int64())
    WRITE[file_format](pa.table({"file_path": names, "pos": positions}), str(path))
    return DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=str(path),
        file_format=file_format,
        record_count=len(rows),
        file_size_in_bytes=path.stat().st_size,
    )


def sources_of(deletes: list[DataFile], applied: list[set[int]]) -> list[SourceFile]:
    """A data file for each of `applied`, which says which delete files are for it."""
    return [
        SourceFile(
            position=n,
            file=DataFile.from_args(file_path=PATHS[n], record_count=1000, file_size_in_bytes=1),
            delete_files=tuple(deletes[m] for m in sorted(chosen)),
            is_inside=True,
            number=0,
        )
        for n, chosen in enumerate(applied)
    ]


rows_of_a_file = st.lists(st.tuples(st.sampled_from((*PATHS, "s3://lake/other")), st.integers(0, 20)))


@given(
    files=st.lists(
        st.tuples(rows_of_a_file, st.sampled_from(list(WRITE)), st.sampled_from(KINDS)),
        min_size=1,
        max_size=4,
    ),
    data=st.data(),
)
def test_of_each_data_file_those_rows_are_deleted_that_its_delete_files_name(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[tuple[Rows, FileFormat, pa.DataType]],
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("deletes")
    deletes = [
        written(folder / f"{n}", sorted(rows), file_format, kind)
        for n, (rows, file_format, kind) in enumerate(files)
    ]
    some = st.sets(st.integers(0, len(files) - 1))
    applied = data.draw(st.lists(some, min_size=1, max_size=len(PATHS)))
    sources = sources_of(deletes, applied)
    deleted = DeletedRows(PyArrowFileIO(), sources)
    for source, chosen in zip(sources, applied, strict=True):
        path = source.file.file_path
        expected = sorted({position for n in chosen for name, position in files[n][0] if name == path})
        found = deleted.of(source).between(0, 1000)
        assert found.dtype == np.int64
        assert found.tolist() == expected


def test_a_delete_file_that_is_damaged_is_named(tmp_path: Path) -> None:
    (delete,) = [written(tmp_path / "d", [(PATHS[0], 1)], FileFormat.PARQUET)]
    (tmp_path / "d").write_bytes(b"PAR1 no more")
    (source,) = sources_of([delete], [{0}])
    with pytest.raises(LithifyError, match=f"{tmp_path}/d"):
        DeletedRows(PyArrowFileIO(), [source]).of(source)


def test_a_delete_file_for_many_data_files_is_read_once_by_a_task_and_once_for_its_commit(
    catalog: Catalog,
) -> None:
    table = new_table(catalog, properties=IO_PROPERTY)
    rows = [row for n in range(6) for row in append(table, make_rows(20, START + n * DAY / 8, DAY / 8))]
    delete = delete_positions(table, {file.file_path: [0, 3] for file in files_of(table)})
    calls = install(Faults()).calls
    assert compact(dataset_of(table)).committed
    assert Counter(calls)[f"read {delete}"] == 2
    assert len(files_of(table)) == 1
    kept = [row for n in range(6) for k, row in enumerate(rows[20 * n : 20 * n + 20]) if k not in (0, 3)]
    check(table, kept)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("file_format", list(WRITE))
def test_deletes_of_every_format_are_applied(
    catalog: Catalog, file_format: FileFormat, kind: pa.DataType
) -> None:
    table = new_table(catalog)
    rows = append(table, make_rows(20)) + append(table, make_rows(20))
    first = files_of(table)[0].file_path
    written_as(table, delete_positions(table, {first: [1, 2]}, file_format=file_format), file_format, kind)
    assert compact(dataset_of(table)).committed
    assert not delete_files_of(table)
    (file,) = files_of(table)
    assert file.record_count == len(rows) - 2


def written_as(table: Table, path: str, file_format: FileFormat, kind: pa.DataType = TEXT) -> None:
    """Write a delete file anew, in another form."""
    with table.io.new_input(path).open() as stream:
        content = pq.read_table(stream)
    content = content.set_column(0, "file_path", content.column("file_path").cast(kind))
    with table.io.new_output(path).create(overwrite=True) as output:
        WRITE[file_format](content, output)


def test_deletes_in_orc_are_read_though_few_threads_read_from_a_store(s3: S3, tmp_path: Path) -> None:
    """Arrow's pool of threads for reading belongs to the process."""
    table = new_table(s3_catalog(s3, tmp_path))
    rows = append(table, make_rows(20)) + append(table, make_rows(20))
    first = files_of(table)[0].file_path
    for position in range(3):
        delete = delete_positions(table, {first: [position]}, file_format=FileFormat.ORC)
        written_as(table, delete, FileFormat.ORC)
    threads = pa.io_thread_count()
    pa.set_io_thread_count(1)
    try:
        assert compact(dataset_of(table)).committed
    finally:
        pa.set_io_thread_count(threads)
    (file,) = files_of(table)
    assert file.record_count == len(rows) - 3


# Deletion vectors


def vector_of(path: Path, positions: list[int], data_path: str) -> DataFile:
    """A deletion vector."""
    vector = DeletionVector.of(np.array(positions, np.int64))
    (entry,) = write_vectors(PyArrowFileIO(), str(path), [NewVector(data_path, vector, 0, Record())])
    return entry


def test_only_its_vector_applies_to_a_data_file_that_has_one(tmp_path: Path) -> None:
    positions = written(tmp_path / "d", [(PATHS[0], 1), (PATHS[1], 2)], FileFormat.PARQUET)
    vector = vector_of(tmp_path / "v", [5, 999], PATHS[0])
    sources = sources_of([positions, vector], [{0, 1}, {0}])
    deleted = DeletedRows(PyArrowFileIO(), sources)
    assert [deleted.of(one).between(0, 1000).tolist() for one in sources] == [[5, 999], [2]]


def test_two_vectors_of_one_data_file_are_refused(tmp_path: Path) -> None:
    vectors = [vector_of(tmp_path / name, [n], PATHS[0]) for n, name in enumerate("vw")]
    (one,) = sources_of(vectors, [{0, 1}])
    with pytest.raises(CorruptObject, match="has 2 deletion vectors"):
        DeletedRows(PyArrowFileIO(), [one])


def test_the_footer_of_many_vectors_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = [
        NewVector(path, DeletionVector.of(np.array([n], np.int64)), 0, Record())
        for n, path in enumerate(PATHS)
    ]
    entries = write_vectors(PyArrowFileIO(), str(tmp_path / "v"), new)
    sources = sources_of(entries, [{n} for n in range(len(PATHS))])
    opened: list[str] = []

    class Counted(VectorReader):
        def __init__(self, stream: Any, path: str) -> None:
            opened.append(path)
            super().__init__(stream, path)

    monkeypatch.setattr("lithify.datasets.iceberg.deletes.deleted_rows.VectorReader", Counted)
    deleted = DeletedRows(PyArrowFileIO(), sources)
    assert [deleted.of(one).between(0, 99).tolist() for one in sources] == [[n] for n in range(len(PATHS))]
    assert len(opened) == 1


@pytest.mark.parametrize("equal", [False, True])
def test_a_commit_counts_the_rows_of_a_vector(catalog: Catalog, tmp_path: Path, equal: bool) -> None:
    table = new_table(catalog)
    rows = append(table, make_rows(20))
    path = files_of(table)[0].file_path
    if equal:
        delete_equal(table, [rows[n][1] for n in (3, 4, 5)])
    listing = read_listing(fresh(table), "main", ManifestCache())
    assert listing is not None
    vector = vector_of(tmp_path / "v", [0, 4, 19], path)
    added = ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED, snapshot_id=1, sequence_number=1, data_file=vector
    )
    listing = replace(listing, manifests=[*listing.manifests, (listing.manifests[0][0], [added])])
    expected = 20 - 3 - (2 if equal else 0)
    found = LiveRows().of(PyArrowFileIO(), listing, [path])
    assert found == {path: RowCount(expected, expected)}
