"""Whole runs on real databases, judged by the official client: every way in which a compactor is
known to lose, resurrect or hide rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from lithify.base import events
from lithify.base.events import Event
from lithify.datasets.slatedb.model import Codec
from lithify.datasets.slatedb.planning.tiered import TieredPolicy
from tests.compacting import check_state_files, compact, compact_cleanly, dataset_at
from tests.judge.official import (
    Admin,
    CloneSource,
    Database,
    Delete,
    Put,
    Write,
    compact_officially,
    concat,
    copy_database,
    open_db,
    open_reader,
)
from tests.judge.rows import read_database
from tests.ledgers import take_epoch

SECOND_MS = 1000
CONCAT = "tests.judge.official:concat"
L0_ONLY = TieredPolicy(min_compaction_sources=2, include_size_threshold=0.0)
"""Two L0 SSTs are enough, and no run is ever as small as another."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"


def flush_each(database: Database, *batches: Sequence[Write]) -> None:
    """One L0 SST for each batch."""
    for batch in batches:
        database.write_batch(batch)
        database.flush()


def rows_of(path: Path, prefix: bytes = b"") -> list[object]:
    """All row versions of one tree, sources in read order, by the independent reader."""
    tree = read_database(path)[prefix]
    return [row for source in (*tree.l0, *(rows for _, rows in tree.runs)) for row in source]


def test_a_newest_l0_without_the_oldest_is_refused_and_loses_nothing(path: Path) -> None:
    with open_db(path) as database:
        flush_each(database, *([Put(b"k%d" % n, b"v")] for n in range(3)))
    dataset = dataset_at(path)
    take_epoch(dataset)
    newest = Admin(path).trees()[0].l0[0].id
    Admin(path).submit_compaction([newest], [], 0)

    result = compact(dataset, full=False, take_over=True)

    assert ["would be lost" in refusal.reason for refusal in result.refused] == [True]
    with open_db(path) as database:
        assert len(database.scan()) == 3


def test_an_open_writer_keeps_exactly_its_new_l0s(path: Path) -> None:
    with open_db(path) as database:
        flush_each(database, *([Put(b"k%d" % n, b"v")] for n in range(5)))
        compact_cleanly(path)
        flush_each(database, [Put(b"new", b"v")])
        tree = Admin(path).trees()[0]
        assert (len(tree.l0), len(tree.runs)) == (1, 1)
        assert len(database.scan()) == 6
    with open_db(path) as database:
        assert len(database.scan()) == 6


def test_what_others_publish_between_execution_and_commit_survives(path: Path) -> None:
    with open_db(path) as database:
        flush_each(database, *([Put(b"k%d" % n, b"v")] for n in range(5)))

        def interfere(event: Event) -> None:
            if isinstance(event, events.Compacted):
                flush_each(database, [Put(b"late", b"v")])
                Admin(path).create_checkpoint(name="late")

        dataset = dataset_at(path)
        assert len(compact(dataset, observer=interfere).committed) == 1
        assert len(Admin(path).trees()[0].l0) == 1
        assert [c.name for c in Admin(path).list_checkpoints() if c.name] == ["late"]
    with open_db(path) as database:
        assert len(database.scan()) == 6


def test_get_returns_the_newest_version_across_l0_and_runs(path: Path) -> None:
    for value in (b"1", b"2", b"3"):
        with open_db(path) as database:
            flush_each(database, [Put(b"k", value)], [Put(b"other", value)])
        if value != b"3":
            dataset = dataset_at(path, policy=L0_ONLY)
            compact(dataset, full=False)
    with open_db(path) as database:
        assert database.get(b"k") == b"3"
        assert database.scan() == [(b"k", b"3"), (b"other", b"3")]


def test_tombstones_stay_above_a_lower_run_and_go_in_the_last(path: Path) -> None:
    with open_db(path) as database:
        flush_each(database, [Put(b"k", b"v")])
    compact_cleanly(path)
    with open_db(path) as database:
        flush_each(database, [Delete(b"k")], [Delete(b"k2")])
    compact(dataset_at(path, policy=L0_ONLY), full=False)
    assert len(Admin(path).trees()[0].runs) == 2
    assert len(rows_of(path)) == 3
    with open_db(path) as database:
        assert database.get(b"k") is None

    compact_cleanly(path)

    assert rows_of(path) == []
    with open_db(path) as database:
        assert database.get(b"k") is None
        assert database.scan() == []


def test_expiry_counts_by_the_recorded_clock_as_in_the_official_compactor(path: Path, tmp_path: Path) -> None:
    with open_db(path) as database:
        for batch in range(4):
            for n in range(40):
                ttl_ms = (None, 1, 300, 60_000)[n % 4]
                database.put(b"k%02d" % n, b"%d" % batch, ttl_ms=ttl_ms)
            database.flush()
            time.sleep(0.15)
    time.sleep(0.4)  # by the wall clock more has expired than by the clock of the last flush
    judge = copy_database(path, tmp_path / "judge")
    compact_cleanly(path)
    compact_officially(judge)
    assert rows_of(path) == rows_of(judge)
    with open_db(path) as ours, open_db(judge) as official:
        assert ours.scan() == official.scan()


def test_an_open_snapshot_still_reads_the_old_rows(path: Path) -> None:
    with open_db(path) as database:
        flush_each(database, [Put(b"k", b"old"), Put(b"gone", b"x")])
        snapshot = database.snapshot()
        flush_each(
            database, [Put(b"k", b"new"), Delete(b"gone")], *([Put(b"o%d" % n, b"v")] for n in range(4))
        )
        compact_cleanly(path)
        time.sleep(0.3)  # let the writer see the new manifest
        assert snapshot.get(b"k") == b"old"
        assert snapshot.get(b"gone") == b"x"
        assert database.get(b"k") == b"new"
        assert database.get(b"gone") is None
        snapshot.release()


@pytest.mark.parametrize("operator", [None, CONCAT], ids=["carried through", "folded"])
def test_merges_read_the_same_before_and_after(path: Path, tmp_path: Path, operator: str | None) -> None:
    options = {"merge_operator": concat}
    with open_db(path, merge_operator=concat) as database:
        snapshot = None
        for batch in range(6):
            for n in range(30):
                key = b"k%02d" % n
                if (n + batch) % 7 == 0:
                    database.put(key, b"[base%d]" % batch)
                elif (n + batch) % 11 == 0:
                    database.delete(key)
                else:
                    database.merge(
                        key, b"(%d)" % batch, ttl_ms=None if n % 3 else 3_600_000 * (1 + batch % 2)
                    )
            if batch == 2:
                snapshot = database.snapshot()
            database.flush()
        copy = copy_database(path, tmp_path / "copy")
        compact_cleanly(path, merge_operator=operator)
        assert snapshot is not None
        snapshot.release()
    keys = [b"k%02d" % n for n in range(30)]
    with open_db(path, **options) as ours, open_db(copy, **options) as untouched:  # type: ignore[arg-type]
        assert ours.get_many(keys) == untouched.get_many(keys)
        assert ours.scan() == untouched.scan()


def test_clone_projection_checkpoint_and_segments_survive(path: Path, tmp_path: Path) -> None:
    # The client clones no projection of a database that has a write-ahead log.
    with open_db(path, segment_prefix_len=2, settings={"wal_enabled": False}) as database:
        flush_each(
            database,
            *(
                [Put(b"%s-%02d" % (s, n), b"%d" % b) for s in (b"aa", b"bb") for n in range(20)]
                for b in range(4)
            ),
        )
    Admin(path).create_checkpoint(name="keep")
    clone = tmp_path / "clone"
    Admin(clone).clone_from(CloneSource(path, start=b"aa-05", end=b"bb-10"))
    with open_db(clone, segment_prefix_len=2) as database:
        expected = database.scan()
        flush_each(database, [Put(b"aa-06", b"clone")])
    before = Admin(clone).read_manifest()

    compact_cleanly(clone)

    after = Admin(clone).read_manifest()
    assert [db.path for db in after.external_dbs] == [db.path for db in before.external_dbs]
    assert len(after.segments) == len(before.segments) == 2
    with open_db(clone, segment_prefix_len=2) as database:
        assert database.scan() == [(k, b"clone" if k == b"aa-06" else v) for k, v in expected]
    compact_cleanly(path)
    assert [c.name for c in Admin(path).list_checkpoints() if c.name] == ["keep"]
    with open_db(path, segment_prefix_len=2) as database:
        assert len(database.scan()) == 40


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())
def test_every_key_is_found_by_get_and_by_scan(path: Path, codec: Codec) -> None:
    name = None if codec is Codec.NONE else codec.name.capitalize()
    model: dict[bytes, bytes] = {}
    with open_db(
        path, settings={"compression_codec": name, "min_filter_keys": 10}, block_size=1024
    ) as database:
        for batch in range(4):
            rows = {b"k%06d" % (n * 7): b"%d-%d" % (batch, n) * 5 for n in range(batch, 4000, 3)}
            model |= rows
            database.write_batch([Put(k, v) for k, v in rows.items()])
            database.flush()
    compact_cleanly(path, min_filter_keys=10)
    with open_db(path) as database:
        assert dict(database.scan()) == model
        assert database.get_many(model) == model
        absent = [b"k%06d" % (n * 7 + 1) for n in range(2000)]
        assert set(database.get_many(absent).values()) == {None}


def test_seeks_around_every_block_boundary(path: Path) -> None:
    keys = [b"key-%08d" % (n * 3) for n in range(20_000)]
    with open_db(path, block_size=1024) as database:
        for part in range(4):
            database.write_batch([Put(k, b"v" * 40) for k in keys[part::4]])
            database.flush()
    compact_cleanly(path, block_size=1024)
    with open_db(path) as database:
        assert [k for k, _ in database.scan()] == keys
        for at in range(0, len(keys), 97):
            for start in (keys[at], keys[at] + b"\0", b"key-%08d" % (at * 3 - 1) if at else b""):
                expected = [k for k in keys[max(at - 2, 0) : at + 4] if k >= start][:2]
                end = keys[at + 3] if at + 3 < len(keys) else None
                assert [k for k, _ in database.scan(start, end)][:2] == expected[:2]


def test_big_blocks_long_prefixes_huge_keys_and_many_versions(path: Path) -> None:
    prefix = b"p" * 300
    with open_db(path, block_size=65536) as database:
        snapshot = database.snapshot()
        for batch in range(4):
            database.write_batch([Put(prefix + b"%05d" % n, b"%d" % batch) for n in range(3000)])
            database.write_batch([Put(bytes([65 + batch]) * 70_000, b"huge"), Put(b"empty", b"")])
            for version in range(100):
                database.put(b"versions", b"%d-%d" % (batch, version))
            database.flush()
        expected = database.scan()
        compact_cleanly(path)
        snapshot.release()
    with open_db(path) as database:
        assert database.scan() == expected
        assert database.get(b"D" * 70_000) == b"huge"
        assert database.get(b"versions") == b"3-99"


def test_versions_of_one_key_straddle_blocks_and_ssts(path: Path) -> None:
    with open_db(path) as database:
        database.put(b"k", b"first")
        snapshot = database.snapshot()
        for batch in range(5):
            database.write_each([Put(b"k", b"%d-%d" % (batch, n) + b"x" * 30) for n in range(1000)])
            database.flush()
        compact_cleanly(path, max_sst_size=65536)
        time.sleep(0.3)
        assert len(Admin(path).trees()[0].runs[0].views) > 1
        assert database.get(b"k") == b"4-999" + b"x" * 30
        assert snapshot.get(b"k") == b"first"
        assert len(database.scan()) == 1
        snapshot.release()


def test_deletes_alone_leave_an_empty_run(path: Path) -> None:
    with open_db(path) as database:
        flush_each(database, *([Delete(b"k%d" % n)] for n in range(4)))
    compact_cleanly(path)
    tree = Admin(path).trees()[0]
    assert (len(tree.l0), [len(run.views) for run in tree.runs]) == (0, [0])
    with open_db(path) as database:
        assert database.scan() == []
        flush_each(database, *([Put(b"k%d" % n, b"v")] for n in range(4)))
    compact_cleanly(path)
    with open_db(path) as database:
        assert len(database.scan()) == 4


def test_two_segments_in_one_tick_get_different_runs(path: Path) -> None:
    with open_db(path, segment_prefix_len=1) as database:
        for n in range(5):
            flush_each(database, [Put(b"a%d" % n, b"v"), Put(b"b%d" % n, b"v"), Put(b"c%d" % n, b"v")])
    dataset = dataset_at(path)
    result = compact(dataset, full=False)
    check_state_files(dataset, path)
    assert len(result.committed) == 3
    ids = [run.id for tree in Admin(path).trees() for run in tree.runs]
    assert len(ids) == len(set(ids)) == 3
    with open_db(path, segment_prefix_len=1) as database:
        assert len(database.scan()) == 15


def test_a_slow_scan_goes_on_while_compactions_commit_and_garbage_is_collected(path: Path) -> None:
    with open_db(path) as database:
        flush_each(database, *([Put(b"k%04d" % n, b"%d" % batch) for n in range(2000)] for batch in range(5)))
    with open_reader(path) as reader:
        rows = reader.iterate()
        seen = [next(rows) for _ in range(10)]
        compact_cleanly(path)
        Admin(path).run_gc(min_age_ms=0)
        seen += rows
    assert seen == [(b"k%04d" % n, b"4") for n in range(2000)]


def test_a_second_run_finds_nothing_to_do_and_writes_nothing(path: Path) -> None:
    with open_db(path) as database:
        flush_each(database, *([Put(b"k%d" % n, b"v")] for n in range(8)))
    compact(dataset_at(path), full=False)
    before = sorted(str(p) for p in path.rglob("*"))
    result = compact(dataset_at(path), full=False)
    assert not result.started
    assert sorted(str(p) for p in path.rglob("*")) == before
