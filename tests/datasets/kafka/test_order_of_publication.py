"""In which order a publication writes, so that no data of an aborted transaction is ever left without its
marker, nor committed data: whatever the producer ends next would decide it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

import pytest

from lithify.datasets.kafka.buckets import publishing
from lithify.datasets.kafka.format.kernel.layout import ABORT, COMMIT, CONTROL, TRANSACTIONAL
from lithify.datasets.kafka.format.record_batches import decode, rebased
from lithify.datasets.kafka.layouts import objects
from lithify.store.wrapped import Call
from lithify.testing.faulty import Crash, StoreFault
from tests.datasets.kafka import logs
from tests.datasets.kafka.buckets import Bucket, a_bucket
from tests.datasets.kafka.folders import Row, latest
from tests.datasets.kafka.logs import Batch
from tests.datasets.kafka.test_live import compact as live
from tests.datasets.kafka.test_live import during
from tests.datasets.kafka.test_windows import replayed, soon
from tests.parts import in_parts

BOTH_WAYS = pytest.mark.parametrize("is_live", [False, True], ids=["window", "live"])


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what goes together goes in the worst order."""

    def backwards(actions: Iterable[Callable[[], object]], most: int) -> list[object]:
        return [action() for action in reversed(list(actions))][::-1]

    monkeypatch.setattr(objects, "CHUNK_OBJECTS", 3)
    monkeypatch.setattr(publishing, "all_of", backwards)


def history() -> list[Batch]:
    """A large transaction that aborted: whole chunks have nothing else but markers, of one that committed and
    began before, and of a small one that aborted."""
    aborted = [logs.in_transaction(n, ("a", f"aborted {n}"), id=9) for n in range(3, 18)]
    aborted[8 - 3] = logs.marker(8, id=1, commit=True)
    aborted[10 - 3] = logs.in_transaction(10, ("d", "aborted"), id=5)
    aborted[11 - 3] = logs.marker(11, id=5, commit=False)
    return [
        logs.data(0, ("first", "1")),
        logs.in_transaction(1, ("c", "committed"), id=1),
        logs.data(2, ("a", "1")),
        *aborted,
        *[logs.data(n, (f"e{n}", "1")) for n in (18, 19)],
        logs.marker(20, id=9, commit=False),
        *[logs.data(n, (f"e{n}", "1")) for n in range(21, 32)],
    ]


def compacted(bucket: Bucket, is_live: bool) -> None:
    if is_live:
        live(bucket)
    else:
        bucket.compact(bucket.opened(soon()))


def rows_if(bucket: Bucket, *, all_commit: bool) -> list[Row]:
    """What counts as the next round reads it, if all transactions without a marker are decided so."""
    found: list[Row] = []
    waiting: dict[int, list[Row]] = {}
    after = -1
    for base in bucket.bases():
        log = decode(rebased(bucket.store.get(bucket.key(base)), base), str(base))
        (batch,) = log.batches
        if base <= after:
            continue
        after, producer = int(batch["last_offset"]), int(batch["producer_id"])
        if batch["attributes"] & CONTROL:
            assert batch["marker"] in (ABORT, COMMIT)
            rows = waiting.pop(producer, [])
            found += rows if batch["marker"] == COMMIT else []
        elif batch["attributes"] & TRANSACTIONAL:
            waiting.setdefault(producer, []).extend(logs.rows(log))
        else:
            found += logs.rows(log)
    return sorted(found + [row for rows in waiting.values() for row in rows if all_commit])


@BOTH_WAYS
@in_parts(3)
def test_nothing_of_a_transaction_is_left_without_its_marker_wherever_a_run_dies(
    monkeypatch: pytest.MonkeyPatch, is_live: bool, part: int
) -> None:
    calls: list[Call] = []
    expected = replayed(history())
    whole = a_bucket(history())
    during(monkeypatch, lambda n, call: calls.append(call), lambda: compacted(whole, is_live))
    writes = [n for n, call in enumerate(calls, 1) if call.method in ("replace", "delete")]
    assert sum(call.method == "delete" for call in calls) > 12
    for at in writes[part::3]:
        bucket = a_bucket(history())

        def dies(bucket: Bucket = bucket) -> None:
            with suppress(Crash):  # whether the last object is put once or twice depends on times
                compacted(bucket, is_live)

        during(monkeypatch, lambda n, _, at=at: StoreFault.CRASH_AFTER if n == at else None, dies)  # type: ignore[misc]
        for all_commit in (False, True):
            assert latest(rows_if(bucket, all_commit=all_commit)) == expected, (at, all_commit)
        compacted(bucket, is_live)
        assert bucket.bases() == whole.bases()
        assert bucket.rows() == whole.rows()


@BOTH_WAYS
def test_what_aborted_stays_so_though_a_run_that_died_cannot_go_on(
    monkeypatch: pytest.MonkeyPatch, is_live: bool
) -> None:
    """It died once the marker was merged away; an object is another one when the next run goes on, so the
    round is forgotten. The producer commits its next transaction."""
    changed = logs.data(24, ("e24", "someone else's"))
    expected = replayed([changed if batch.first == 24 else batch for batch in history()])
    bucket = a_bucket(history())
    merged_away = [bucket.key(base) for base in (18, 19, 20)]

    def decide(_: int, call: Call) -> StoreFault | None:
        return StoreFault.CRASH_AFTER if call.method == "replace" and call.key in merged_away else None

    def dies() -> None:
        with pytest.raises(Crash):
            compacted(bucket, is_live)

    during(monkeypatch, decide, dies)
    bucket.produce(changed)
    compacted(bucket, is_live)
    bucket.produce(
        logs.data(32, ("e32", "1")),
        logs.in_transaction(33, ("f", "1"), id=9),
        logs.marker(34, id=9, commit=True),
        *[logs.data(n, (f"e{n}", "1")) for n in range(35, 45)],
    )
    for _ in range(2):
        compacted(bucket, is_live)
        rows = latest(bucket.rows())
        assert {key: rows.get(key) for key in expected} == expected
        assert b"d" not in rows
