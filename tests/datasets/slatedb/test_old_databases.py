"""Databases of old clients: manifest version 1, compactions version 1, SST format 1."""

from __future__ import annotations

from pathlib import Path

import pytest

from lithify.datasets.slatedb.format.index import decode_index
from lithify.datasets.slatedb.format.ledger import decode_ledger, encode_ledger
from lithify.datasets.slatedb.format.manifest import decode_manifest, encode_manifest
from lithify.datasets.slatedb.format.sst import read_info, unseal
from lithify.datasets.slatedb.format.stats import decode_stats
from lithify.datasets.slatedb.model import Manifest
from lithify.protocol.model import CompactionState
from lithify.store.local import LocalStore
from tests.datasets.slatedb.judging import official_compactions, official_manifest, same
from tests.datasets.slatedb.test_manifest import assert_reported
from tests.judge.client import copy_database, open_db, open_reader
from tests.judge.old import OLD_DATABASES, kept_old_database, old_database_content
from tests.judge.sst import read_sst


def latest_manifest(database: Path) -> tuple[Path, Manifest]:
    path = max((database / "manifest").iterdir())
    return path, decode_manifest(path.read_bytes(), path.name)


@pytest.mark.parametrize("version", OLD_DATABASES)
def test_manifests_mean_what_the_official_client_says(version: str) -> None:
    for path in sorted((kept_old_database(version) / "manifest").iterdir()):
        data = path.read_bytes()
        assert data[:2] == b"\0\1"
        value = decode_manifest(data, path.name)
        again = encode_manifest(value)
        assert again[:2] == b"\0\2"
        assert decode_manifest(again, path.name) == value
        assert_reported(official_manifest(data), value)
        assert same(official_manifest(again), official_manifest(data))


@pytest.mark.parametrize(("version", "sst_format"), [("slatedb-0.10.0", 1), ("slatedb-0.15.0", 2)])
def test_the_shape_of_the_latest_manifest(version: str, sst_format: int) -> None:
    _, value = latest_manifest(kept_old_database(version))
    root = value.root
    assert len(root.runs) == 1
    assert len(root.l0) == 3
    assert root.last_compacted_l0 is not None
    assert all(view.id == view.sst.id for view in root.views())
    assert {view.sst.format_version for view in root.views()} == {sst_format}
    assert {view.sst.info.last_entry is None for view in root.views()} == {sst_format == 1}


@pytest.mark.parametrize(
    ("version", "state"),
    [("slatedb-0.10.0", CompactionState.SUBMITTED), ("slatedb-0.15.0", CompactionState.COMPLETED)],
)
def test_compactions(version: str, state: CompactionState) -> None:
    """The client of 0.10.0 kept no state in the file."""
    path = max((kept_old_database(version) / "compactions").iterdir())
    data = path.read_bytes()
    value = decode_ledger(data, path.name)
    (only,) = value.compactions
    assert only.state is state
    assert len(only.spec.l0_view_ids) == 4
    again = encode_ledger(value)
    assert decode_ledger(again, path.name) == value
    assert same(official_compactions(again), official_compactions(data))


@pytest.mark.parametrize("version", OLD_DATABASES)
def test_metadata_of_every_sst(version: str) -> None:
    database = kept_old_database(version)
    store = LocalStore(str(database))
    _, manifest = latest_manifest(database)
    for view in manifest.root.views():
        key = f"compacted/{view.sst.id}.sst"
        data = store.get(key)
        info, format_version = read_info(store, key)
        assert (info, format_version) == (view.sst.info, view.sst.format_version)
        judged = read_sst(data)
        index = decode_index(
            unseal(data[info.index_offset :][: info.index_len], info.compression, key), info, key
        )
        assert [index.key(i) for i in range(len(index))] == [block.index_key for block in judged.blocks]
        if info.stats_len:
            stats = decode_stats(
                unseal(data[info.stats_offset :][: info.stats_len], info.compression, key), key
            )
            assert stats.num_puts + stats.num_deletes == len(judged.rows)


@pytest.mark.parametrize("version", OLD_DATABASES)
def test_the_official_client_goes_on_from_our_manifest(version: str, tmp_path: Path) -> None:
    """As a commit would leave it: the next manifest, in version 2."""
    database = copy_database(kept_old_database(version), tmp_path / "db")
    path, value = latest_manifest(database)
    path.with_name(f"{int(path.stem) + 1:020}.manifest").write_bytes(encode_manifest(value))
    rows = old_database_content()
    with open_reader(database) as reader:
        assert dict(reader.scan()) == rows
    with open_db(database) as db:
        db.put(b"new", b"row")
        db.flush()
        assert dict(db.scan()) == {**rows, b"new": b"row"}
    _, after = latest_manifest(database)
    assert after.root.l0[1:] == value.root.l0
    assert after.root.runs == value.root.runs
    assert after.root.last_compacted_l0 == value.root.last_compacted_l0
