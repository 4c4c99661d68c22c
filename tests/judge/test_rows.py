"""The plain reader of SSTs agrees with the client and notices damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.judge.official import Admin, CloneSource, Database, Delete, Put, Write, concat, open_db
from tests.judge.rows import TreeRows, read_database, visible_rows
from tests.judge.sst import Row, read_sst, siphash13


@pytest.mark.parametrize("block_size", [1024, 4096, 65536])
@pytest.mark.parametrize("codec", [None, "Snappy", "Zlib", "Lz4", "Zstd"])
def test_rows_are_those_the_client_shows(tmp_path: Path, codec: str | None, block_size: int) -> None:
    settings = {"compression_codec": codec, "wal_enabled": False, "min_filter_keys": 10}
    with open_db(tmp_path, settings=settings, block_size=block_size) as database:
        for flush in range(2):
            database.write_batch(_some_writes(flush))
            database.flush()
        shown = dict(database.scan())
    trees = read_database(tmp_path)
    assert visible_rows(trees) == shown
    assert len(trees[b""].l0) == 2
    assert sum(len(rows) for rows in trees[b""].l0) == 2 * len(_some_writes(0))


def _some_writes(flush: int) -> list[Write]:
    value = b"value %d " % flush * 20
    writes: list[Write] = [Put(b"key%05d" % n, value[: n % 200], ttl_ms=None) for n in range(500)]
    writes += [Delete(b"key%05d" % n) for n in range(500, 510)]
    return [*writes, Put(b"L" * 3000 + b"x", b"v" * 70_000), Put(b"L" * 3000 + b"y", b"")]


def test_every_field_of_a_row(tmp_path: Path) -> None:
    with open_db(tmp_path, merge_operator=concat) as database:
        database.put(b"a", b"1")
        old = database.snapshot()
        database.put(b"a", b"2", ttl_ms=3_600_000)
        database.delete(b"b")
        database.merge(b"c", b"x")
        database.put(b"d", b"")
        database.flush()
        old.release()
    (rows,) = read_database(tmp_path)[b""].l0
    assert [(row.key, row.seq, row.kind, row.value) for row in rows] == [
        (b"a", 2, "put", b"2"),
        (b"a", 1, "put", b"1"),
        (b"b", 3, "delete", b""),
        (b"c", 4, "merge", b"x"),
        (b"d", 5, "put", b""),
    ]
    created = rows[0].create_ts
    assert created is not None
    assert [row.expire_ts for row in rows] == [created + 3_600_000, None, None, None, None]


def test_a_projection_hides_rows_of_the_parent(tmp_path: Path) -> None:
    with open_db(tmp_path / "parent", settings={"wal_enabled": False}) as database:
        database.write_batch([Put(b"%d" % n, b"") for n in range(10)])
    Admin(tmp_path / "clone").clone_from(CloneSource(tmp_path / "parent", start=b"3", end=b"5"))
    (rows,) = read_database(tmp_path / "clone")[b""].l0
    assert [row.key for row in rows] == [b"3", b"4"]


@pytest.fixture(scope="module")
def sst_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("database")
    database: Database
    with open_db(folder, settings={"min_filter_keys": 1}) as database:
        database.write_batch([Put(b"key%03d" % n, b"value") for n in range(300)])
    (path,) = (folder / "compacted").glob("*.sst")
    return path


def test_a_changed_byte_anywhere_is_noticed(sst_path: Path) -> None:
    data = sst_path.read_bytes()
    assert len(read_sst(data).rows) == 300
    for at in range(0, len(data), 37):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        with pytest.raises(AssertionError):
            read_sst(bytes(damaged))


def test_known_hashes() -> None:
    known = {b"": 0xD1FBA762150C532C, b"a": 0x407448D2B89B1813, b"key000000": 0xADD38E997335CD23}
    assert {key: siphash13(key) for key in known} == known


def test_merge_rows_are_not_guessed() -> None:
    row = Row(b"k", 1, "merge", b"x", None, None)
    with pytest.raises(AssertionError, match="merge rows need the client"):
        visible_rows({b"": TreeRows(((row,),), ())})
