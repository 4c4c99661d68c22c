"""The facade over the official client does what tests rely on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.judge.client import run
from tests.judge.official import (
    Admin,
    CloneSource,
    Delete,
    Error,
    JudgeTimeout,
    Merge,
    Put,
    compact_officially,
    concat,
    copy_database,
    open_db,
    open_reader,
    run_officially_until_quiet,
)


def test_a_hang_is_a_failure() -> None:
    with pytest.raises(JudgeTimeout, match="did not finish 'wait forever'"):
        run(asyncio.sleep(3600), "wait forever", timeout_s=0.05)


def test_damage_is_an_error_and_no_hang(tmp_path: Path) -> None:
    with open_db(tmp_path / "db", settings={"wal_enabled": False}) as database:
        database.put(b"k", b"v")
    (sst,) = (tmp_path / "db" / "compacted").glob("*.sst")
    sst.write_bytes(b"")
    with pytest.raises(Error), open_db(tmp_path / "db") as database:
        database.get(b"k")


def test_a_flush_makes_one_l0_and_closing_adds_none(tmp_path: Path) -> None:
    with open_db(tmp_path / "db") as database:
        for _ in range(3):
            database.write_each([Put(b"k", b"v"), Delete(b"d")])
            database.flush()
    (root,) = Admin(tmp_path / "db").trees()
    assert (len(root.l0), root.runs) == (3, ())


def test_reads_of_database_snapshot_and_reader(tmp_path: Path) -> None:
    with open_db(tmp_path / "db", merge_operator=concat) as database:
        database.write_batch([Put(b"a", b"1"), Merge(b"m", b"x"), Put(b"c", b"")])
        before = database.snapshot()
        database.put(b"a", b"2")
        database.merge(b"m", b"y")
        database.delete(b"c")
        database.flush()
        assert before.scan() == [(b"a", b"1"), (b"c", b""), (b"m", b"x")]
        assert list(database.iterate()) == database.scan() == [(b"a", b"2"), (b"m", b"xy")]
        assert database.scan(b"b", b"m") == []
        assert database.get_many([b"a", b"c"]) == {b"a": b"2", b"c": None}
        manifest = Admin(tmp_path / "db").read_manifest()
        assert manifest.recent_snapshot_min_seq < manifest.last_l0_seq
    with open_reader(tmp_path / "db", merge_operator=concat) as reader:
        assert reader.get(b"m") == b"xy"


def test_a_full_compaction_leaves_one_run_per_segment(tmp_path: Path) -> None:
    with open_db(tmp_path / "db", segment_prefix_len=1) as database:
        for _ in range(2):
            database.write_batch([Put(b"a1", b""), Put(b"b1", b"")])
            database.flush()
    copy_database(tmp_path / "db", tmp_path / "copy")
    report = compact_officially(tmp_path / "copy", poll_ms=5, segment_prefix_len=1)
    assert len(report.compaction_ids) == 2
    assert [(t.prefix, len(t.l0), len(t.runs)) for t in Admin(tmp_path / "copy").trees()] == [
        (b"", 0, 0),
        (b"a", 0, 1),
        (b"b", 0, 1),
    ]
    assert [(t.prefix, len(t.l0), len(t.runs)) for t in Admin(tmp_path / "db").trees()] == [
        (b"", 0, 0),
        (b"a", 2, 0),
        (b"b", 2, 0),
    ]


def test_the_official_scheduler_runs_until_quiet(tmp_path: Path) -> None:
    with open_db(tmp_path / "db") as database:
        for _ in range(5):
            database.put(b"k", b"v")
            database.flush()
    run_officially_until_quiet(tmp_path / "db", poll_ms=5)
    (root,) = Admin(tmp_path / "db").trees()
    assert (len(root.l0), len(root.runs)) == (0, 1)


def test_a_clone_shows_its_projections(tmp_path: Path) -> None:
    for name in ("left", "right"):
        with open_db(tmp_path / name, settings={"wal_enabled": False}) as database:
            database.write_batch([Put(b"%d" % i, name.encode()) for i in range(10)])
    clone = Admin(tmp_path / "clone")
    clone.clone_from(CloneSource(tmp_path / "left", end=b"2"), CloneSource(tmp_path / "right", start=b"8"))
    with open_db(tmp_path / "clone", settings={"wal_enabled": False}) as database:
        assert database.scan() == [(b"0", b"left"), (b"1", b"left"), (b"8", b"right"), (b"9", b"right")]


def test_checkpoints_show_the_past(tmp_path: Path) -> None:
    with open_db(tmp_path / "db") as database:
        database.put(b"k", b"old")
        database.flush()
        checkpoint = Admin(tmp_path / "db").create_checkpoint(name="then")
        database.put(b"k", b"new")
        database.flush()
    assert [c.name for c in Admin(tmp_path / "db").list_checkpoints()] == ["then"]
    with open_reader(tmp_path / "db", checkpoint=checkpoint) as reader:
        assert reader.get(b"k") == b"old"
