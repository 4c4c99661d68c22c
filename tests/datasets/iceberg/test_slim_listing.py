"""A table of more entries than are kept is planned the same as a small one, and expired the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFileContent, ManifestFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from lithify.base.errors import CorruptObject
from lithify.datasets.iceberg.compaction.state import draw_state
from lithify.datasets.iceberg.format.avro_file import BoundedDecoder, RememberingReader
from lithify.datasets.iceberg.format.footers import Footers
from lithify.datasets.iceberg.format.listing import ManifestCache, read_listing
from lithify.datasets.iceberg.format.manifest_scan import NO_COLUMN, slim_reader
from lithify.datasets.iceberg.format.manifests import entries_in, live_entries, manifests_of
from lithify.datasets.iceberg.model import TableState
from lithify.datasets.iceberg.policy import parse_policy
from lithify.planning.timeline.state import ChunkStates
from tests.datasets.iceberg.tables import (
    append,
    delete_equal,
    delete_positions,
    files_of,
    fresh,
    make_rows,
    new_table,
    rewrite_without,
)

COLUMN = 1


def drawn(table: Table, cache: ManifestCache) -> TableState:
    """The state that is planned."""
    table = fresh(table)
    column = table.schema().find_field(COLUMN)
    policy = parse_policy(table.metadata.properties, "test", {})
    listing = read_listing(table, "main", cache, column.field_id)
    assert listing is not None
    assert (listing.scan is not None) == (cache.max_entries == 0)
    return draw_state(table, listing, policy, column, Footers(), ChunkStates())


def plain(table: Table) -> None:
    """Files of several commits, one of which was written anew."""
    rows = append(table, make_rows(3)) + append(table, make_rows(3, device="b"))
    rewrite_without(table, rows[0][1])


def with_position_deletes(table: Table) -> None:
    append(table, make_rows(5))
    append(table, make_rows(5, device="b"))
    delete_positions(table, {files_of(table)[0].file_path: [1, 2]})


def with_equality_deletes(table: Table) -> None:
    rows = append(table, make_rows(5))
    partition = Record("a") if table.spec().fields else None
    delete_equal(table, [rows[0][1]], partition=partition)
    append(table, make_rows(2))


def listed_twice(table: Table) -> None:
    plain(table)
    file = files_of(table)[0]
    with fresh(table).transaction() as transaction:
        transaction.add_files([file.file_path], check_duplicate_files=False)


def without_bounds(table: Table) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({"write.metadata.metrics.default": "none"})
    append(fresh(table), make_rows(3))


@pytest.mark.parametrize("is_partitioned", [False, True])
@pytest.mark.parametrize(
    "fill", [plain, with_position_deletes, with_equality_deletes, listed_twice, without_bounds]
)
def test_the_state_is_the_same(catalog: Catalog, fill: Callable[[Table], None], is_partitioned: bool) -> None:
    by_device = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "device"))
    table = new_table(catalog, spec=by_device if is_partitioned else UNPARTITIONED_PARTITION_SPEC)
    fill(table)
    whole, slim = drawn(table, ManifestCache()), drawn(table, ManifestCache(0))
    assert slim.files
    assert slim == whole


def first_manifest(table: Table) -> tuple[ManifestFile, bytes]:
    head = fresh(table).current_snapshot()
    assert head is not None
    (manifest, *_) = manifests_of(PyArrowFileIO(), head)
    with PyArrowFileIO().new_input(manifest.manifest_path).open() as stream:
        return manifest, stream.read()


@pytest.fixture
def manifest(catalog: Catalog) -> tuple[ManifestFile, bytes]:
    table = new_table(catalog)
    append(table, make_rows(4))
    return first_manifest(table)


def test_a_slim_entry_has_the_bounds_of_one_column(manifest: tuple[ManifestFile, bytes]) -> None:
    (whole,) = live_entries(PyArrowFileIO(), manifest[0])
    (slim,) = entries_in(*manifest, reader_of=partial(slim_reader, column=COLUMN))
    (least,) = entries_in(*manifest, reader_of=partial(slim_reader, column=NO_COLUMN))
    assert len(whole.data_file.lower_bounds) > 1
    for bounds in ("lower_bounds", "upper_bounds", "null_value_counts"):
        assert getattr(slim.data_file, bounds) == {COLUMN: getattr(whole.data_file, bounds)[COLUMN]}
        assert not getattr(least.data_file, bounds)
    for name in ("file_path", "file_size_in_bytes", "record_count", "partition", "spec_id", "file_format"):
        assert getattr(slim.data_file, name) == getattr(whole.data_file, name)
    assert slim.sequence_number == whole.sequence_number
    assert slim.data_file.content is DataFileContent.DATA


def test_damaged_manifests_do_no_harm(manifest: tuple[ManifestFile, bytes]) -> None:
    found, data = manifest
    rng, errors = random.Random(5), 0
    for _ in range(300):
        damaged = bytearray(data)
        damaged[rng.randrange(len(data))] = rng.randrange(256)
        try:
            list(
                entries_in(
                    found,
                    bytes(damaged[: rng.randrange(len(data) * 2)]),
                    reader_of=partial(slim_reader, column=1),
                )
            )
        except CorruptObject:
            errors += 1
    assert errors > 100


def test_what_is_the_same_byte_for_byte_is_decoded_once() -> None:
    class Pairs:
        """Records of a name and a number."""

        def __init__(self) -> None:
            self.decoded = 0

        def read(self, decoder: BoundedDecoder) -> tuple[bytes, int]:
            self.decoded += 1
            return decoder.read_bytes(), decoder.read_int()

    pairs = Pairs()
    remembering = RememberingReader(pairs)
    data = b"\x02a\x02\x02b\x04\x02a\x02\x02a\x06\x02b\x04\x02a\x06"
    decoder, found = BoundedDecoder(data), []
    while not decoder.is_at_end:
        found.append(remembering.read(decoder))
    assert found == [(b"a", 1), (b"b", 2), (b"a", 1), (b"a", 3), (b"b", 2), (b"a", 3)]
    assert pairs.decoded == 3
