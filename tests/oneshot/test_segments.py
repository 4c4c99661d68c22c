"""Real databases whose segments are days, written and read by the official client."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.planning.shape import TreeShape, shape_of
from lithify.datasets.slatedb.planning.timeline import SegmentTimes
from tests.compacting import check_state_files, compact, dataset_at
from tests.judge.official import Delete, Put, Write, open_db

PREFIX_LEN = len("2024-05-01")
TODAY = datetime.now(UTC).date()
TIMES = SegmentTimes("%Y-%m-%d")


def day(age: int) -> bytes:
    return (TODAY - timedelta(days=age)).isoformat().encode()


def write(path: Path, *batches: list[Write]) -> None:
    """One L0 SST in each segment that a batch touches."""
    with open_db(path, segment_prefix_len=PREFIX_LEN) as database:
        for batch in batches:
            database.write_batch(batch)
            database.flush()


def rows_of(path: Path) -> list[tuple[bytes, bytes]]:
    with open_db(path, segment_prefix_len=PREFIX_LEN) as database:
        return database.scan()


def trees(dataset: SlateDataset) -> dict[bytes, TreeShape]:
    return {tree.prefix: tree for tree in shape_of(dataset.snapshot()).trees if tree.prefix}


def compacted(path: Path) -> tuple[SlateDataset, int]:
    """Run Lithify once by time; the dataset, and how many compactions it took."""
    dataset = dataset_at(path, segment_times=TIMES)
    result = compact(dataset, full=False)
    assert result.failures == ()
    assert result.refused == ()
    check_state_files(dataset, path)
    return dataset, len(result.committed)


def test_days_that_are_over_become_one_run_and_stay_untouched(tmp_path: Path) -> None:
    path = tmp_path / "db"
    days = [day(age) for age in (3, 2, 1, 0)]
    puts: list[list[Write]] = [
        [Put(d + b"/%d" % n, b"%d" % batch) for d in days for n in range(batch, 9)] for batch in range(3)
    ]
    write(path, *puts, [Delete(day(2) + b"/8")])
    before = rows_of(path)

    dataset, count = compacted(path)
    assert count == 3
    found = trees(dataset)
    assert [(found[d].l0_ssts, len(found[d].runs)) for d in days[:3]] == [(0, 1)] * 3
    assert found[day(0)].l0_ssts == 3, "today waits until there is enough, or it is over"
    assert rows_of(path) == before

    settled = {d: found[d].runs for d in days[:3]}
    write(path, [Put(day(0) + b"/new", b"x")])
    dataset, count = compacted(path)
    assert count == 1, "today alone, by size"
    assert {d: trees(dataset)[d].runs for d in days[:3]} == settled
    assert rows_of(path) == sorted([*before, (day(0) + b"/new", b"x")])

    write(path, [Put(day(3) + b"/late", b"y" * 5000)])
    dataset, count = compacted(path)
    assert count == 1, "what came late is merged"
    assert (trees(dataset)[day(3)].l0_ssts, len(trees(dataset)[day(3)].runs)) == (0, 1)
    assert {d: trees(dataset)[d].runs for d in days[1:3]} == {d: settled[d] for d in days[1:3]}
    assert len(rows_of(path)) == len(before) + 2
