"""Clients beside which Lithify would do harm: refused before anything is written. What each came to was seen
with the client itself; the archives are of databases that they made."""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path

import pytest

from lithify.base.errors import Refused, StoreError
from lithify.base.ids import RandomIds
from lithify.datasets.slatedb.checks import check_database
from lithify.datasets.slatedb.garbage.collection import GarbageOptions, collect
from lithify.datasets.slatedb.planning.plan import FullRequest, propose_full
from lithify.protocol.finding import Severity
from lithify.protocol.model import Compaction, Ledger
from lithify.service.status import status
from lithify.testing import ManualClock
from tests.compacting import compact, dataset_at
from tests.judge.official import open_db
from tests.judge.old import OLD_DATABASES, old_database_content, unpack_old_database

SILENT_ABOUT_KEYS = "slatedb-0.12.1"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", OLD_DATABASES)
def test_a_database_of_an_old_client_is_left_as_it_is(tmp_path: Path, name: str) -> None:
    path = unpack_old_database(name, tmp_path / "db")
    before = files(path)
    dataset = dataset_at(path)
    with pytest.raises(Refused, match=r"manifest has format 1, which SlateDB wrote before 0\.16"):
        compact(dataset, take_over=True)
    snapshot = dataset.snapshot()
    assert any(
        "open the database with SlateDB 0.16" in note for note in dataset.propose(snapshot, Ledger()).notes
    )
    clock = ManualClock(1_900_000_000_000)
    with pytest.raises(Refused, match=r"before 0\.16"):
        collect(dataset.store, dataset.paths, clock, GarbageOptions(0, dry_run=False))
    assert files(path) == before
    findings = list(check_database(dataset, lambda one: status(one, clock, 30_000), clock.now_ms()))
    (found,) = (one for one in findings if one.check == "clients")
    assert found.severity is Severity.PROBLEM


def test_nothing_is_committed_once_an_old_client_has_written(tmp_path: Path) -> None:
    """A coordinator may have begun before it came."""
    path = unpack_old_database(SILENT_ABOUT_KEYS, tmp_path / "db")
    dataset = dataset_at(path)
    snapshot = dataset.snapshot()
    request = FullRequest.of(snapshot, None)
    (proposal, *_) = propose_full(snapshot, Ledger(), dataset.options.policy, request).proposals
    compaction = Compaction(RandomIds().ulid(1_900_000_000_000), proposal.spec)
    reason = dataset.validate(compaction, snapshot, Ledger())
    assert reason is not None
    assert "before 0.16" in reason
    with pytest.raises(Refused, match=r"before 0\.16"):
        dataset.prepare(compaction, snapshot)


@pytest.mark.parametrize("name", OLD_DATABASES)
def test_a_database_that_a_newer_client_has_taken_on_is_compacted(tmp_path: Path, name: str) -> None:
    path = unpack_old_database(name, tmp_path / "db")
    with open_db(path) as database:
        database.put(b"new", b"row")
        if name != "slatedb-0.15.0":  # with nothing flushed, the newest L0 SST is still an old client's
            with pytest.raises(Refused, match=r"0\.12 or older"):
                compact(dataset_at(path), take_over=True)
        database.flush()
    content = {**old_database_content(), b"new": b"row"}
    result = compact(dataset_at(path), take_over=True)
    assert (len(result.committed), result.failures) == (1, ())
    with open_db(path) as database:
        assert dict(database.scan()) == content
        assert database.get_many(content) == content


def transform(path: Path, *, spared: int = 0) -> None:
    """Do to the metadata of SSTs what a block transformer does: the checksum is that of changed bytes."""
    ssts = [view.sst for view in dataset_at(path).snapshot().root.views()]
    for sst in ssts[spared:]:
        file = path / "compacted" / f"{sst.id}.sst"
        data = bytearray(file.read_bytes())
        info = sst.info
        for start, length in (
            (info.filter_offset, info.filter_len),
            (info.index_offset, info.index_len),
            (info.stats_offset, info.stats_len),
        ):
            if length:
                body = bytes(byte ^ 0x5A for byte in data[start : start + length - 4])
                data[start : start + length] = body + zlib.crc32(body).to_bytes(4, "big")
        file.write_bytes(data)


@pytest.mark.parametrize("codec", [None, "Zstd", "Lz4"])
def test_a_database_with_transformed_blocks_is_told_before_an_epoch_is_taken(
    tmp_path: Path, codec: str | None
) -> None:
    path = tmp_path / "db"
    with open_db(path, settings={"compression_codec": codec, "min_filter_keys": 1}) as database:
        for n in range(3):
            database.put(b"k%d" % n, b"v" * 100)
            database.flush()
    transform(path)
    before = files(path)
    dataset = dataset_at(path)
    with pytest.raises(Refused, match=r"blocks are transformed, for example encrypted.*same transformer"):
        compact(dataset)
    assert {name: data for name, data in files(path).items() if not name.startswith("lithify/")} == before
    clock = ManualClock(1_900_000_000_000)
    findings = list(check_database(dataset, lambda one: status(one, clock, 30_000), clock.now_ms()))
    assert [one.severity for one in findings if one.check == "blocks"] == [Severity.PROBLEM]


def test_one_damaged_sst_does_not_make_a_database_a_transformed_one(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with open_db(path, settings={"min_filter_keys": 1}) as database:
        for n in range(3):
            database.put(b"k%d" % n, b"v" * 100)
            database.flush()
    transform(path, spared=2)
    result = compact(dataset_at(path))
    assert "compacted" in result.failures[0].reason


def test_a_compactions_folder_that_has_vanished(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with open_db(path) as database:
        for n in range(3):
            database.put(b"k%d" % n, b"v")
            database.flush()
    compact(dataset_at(path))
    (path / "gc").mkdir(exist_ok=True)
    boundary = path / "gc" / "compactions.boundary"
    boundary.write_text("1")
    shutil.rmtree(path / "compactions")
    with pytest.raises(StoreError, match=r"all its files are gone.* up to number 1.*delete .*boundary"):
        compact(dataset_at(path))
    boundary.unlink()
    with open_db(path) as database:
        database.put(b"new", b"row")
        database.flush()
    assert len(compact(dataset_at(path)).committed) == 1
