"""What becomes another one while a topic is copied, right before a call of who copies: nothing half is shown,
nothing of others is written over, and the next run copies what is there then, or says why not."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from lithify.datasets.kafka.buckets import copying
from lithify.protocol.run_summary import RunSummary
from lithify.testing.faulty import FaultyStore
from tests.datasets.kafka import logs
from tests.datasets.kafka.buckets import Bucket, Once, a_bucket
from tests.datasets.kafka.copies import (
    NEW,
    commit,
    committed,
    copied,
    copy_of,
    same_log,
)
from tests.datasets.kafka.test_windows import some


def meanwhile(
    monkeypatch: pytest.MonkeyPatch, bucket: Bucket, before: str, of: str, change: Callable[[], object]
) -> RunSummary:
    """Copy, and do something right before the first such call about an object whose key has this in it."""
    make, decide = copying._Copying, Once(before, change, of)

    def attempt(task, store, own, movements, clock):  # type: ignore[no-untyped-def]
        return make(task, FaultyStore(store, decide), own, movements, clock)

    with monkeypatch.context() as patched:
        patched.setattr(copying, "_Copying", attempt)
        summary = copied(bucket)
    assert decide.is_done
    return summary


def grown() -> Bucket:
    """Twenty objects are copied, ten more are not."""
    bucket = a_bucket(some(20))
    commit(bucket, "readers", 7)
    copied(bucket)
    bucket.produce(*some()[20:])
    commit(bucket, "readers", 41)
    return bucket


@pytest.mark.parametrize("is_grown", [False, True])
@pytest.mark.parametrize("before", ["list", "get_with_meta"])
def test_an_object_of_the_old_topic_that_another_has_changed(
    monkeypatch: pytest.MonkeyPatch, before: str, is_grown: bool
) -> None:
    """As large as it was. It is told by its etag, also where its time is the same."""
    bucket = grown() if is_grown else a_bucket(some())
    other = logs.data(87, ("k2", "v99"), ("only 29", "x"), ("k0", "w99"))
    there = bucket.store.head(bucket.key(87)).size
    summary = meanwhile(
        monkeypatch, bucket, before, "topics/orders/partitions", lambda: bucket.produce(other)
    )
    assert bucket.store.head(bucket.key(87)).size == there
    said = [one.reason for one in (*summary.failures, *summary.refused, *summary.dropped)]
    assert any("has changed" in reason for reason in said), said
    copied(bucket)
    same_log(bucket)
    assert b"w99" in [row[3] for row in copy_of(bucket).rows()]


@pytest.mark.parametrize(
    ("before", "of"), [("list", "topics/orders/"), ("list", NEW), ("create", NEW), ("head", "meta.json")]
)
def test_a_topic_deleted_and_made_again_meanwhile(
    monkeypatch: pytest.MonkeyPatch, before: str, of: str
) -> None:
    """Nothing of the old one is shown under the new name, nor anything of the new one touched."""
    bucket = a_bucket(some())
    new = [logs.data(n, ("new", f"{n}")) for n in range(40)]

    def change() -> None:
        for meta in bucket.listed():
            bucket.store.delete(meta.key)
        document = json.loads(bucket.store.get(f"{bucket.root}/clusters/c/meta.json"))
        document["topics"]["orders"]["id"] = bucket.id = "two"
        bucket.store.put(f"{bucket.root}/clusters/c/meta.json", json.dumps(document).encode())
        bucket.produce(*new)

    meanwhile(monkeypatch, bucket, before, of, change)
    assert [row[0] for row in bucket.rows()] == list(range(40))
    copied(bucket)
    same_log(bucket)
    assert {row[2] for row in copy_of(bucket).rows()} == {b"new"}


def produced(bucket: Bucket) -> None:
    copy_of(bucket).produce(logs.data(60, ("k0", "somebody else's")))


@pytest.mark.parametrize(
    ("before", "of"), [("replace", "watermark.json"), ("create", ".batch"), ("get_with_meta", "watermark")]
)
def test_who_produces_into_the_new_topic_meanwhile_keeps_what_was_written(
    monkeypatch: pytest.MonkeyPatch, before: str, of: str
) -> None:
    bucket = grown()
    (failure,) = meanwhile(monkeypatch, bucket, before, f"{NEW}/", lambda: produced(bucket)).failures
    assert "a producer already writes to orders.v2" in failure.reason
    assert b"somebody else's" in [row[3] for row in copy_of(bucket).rows()]
    with pytest.raises(AssertionError):
        same_log(bucket)


def test_a_group_that_goes_on_in_the_new_topic_meanwhile_keeps_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket = grown()
    offsets = f"readers/offsets/{NEW}"
    meanwhile(monkeypatch, bucket, "replace", offsets, lambda: commit(copy_of(bucket), "readers", 33))
    assert committed(copy_of(bucket), "readers") == 33
    same_log(bucket)
    assert not copied(bucket).started
