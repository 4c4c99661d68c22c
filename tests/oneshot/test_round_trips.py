"""Which requests of a run wait for which: on a far store each round trip is time that the user waits.

Why none of them can be left out is said in docs/protocol.md.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from unittest import mock

import pytest

from lithify.datasets.slatedb.compaction import execute, split
from lithify.store.objects import ObjectStore
from lithify.store.urls import open_store
from lithify.testing import ManualClock
from tests.compacting import compact, dataset_at
from tests.judge.official import Put, open_db
from tests.roundtrips import round_trips
from tests.s3 import S3

L0S = 8


def fill(url: str, s3: S3) -> None:
    """Flush `L0S` times, by the official client without a coordinator."""
    with open_db(url, store_options=s3.options) as database:
        for batch in range(L0S):
            database.write_batch([Put(b"k%05d" % n, b"%d" % batch * 50) for n in range(batch, 500, 2)])
            database.flush()


def trips_of(url: str, s3: S3) -> list[list[str]]:
    """What a run asks for, by round trip; tasks included."""
    with round_trips() as trips:

        def open_watched(url: str, options: Mapping[str, str]) -> tuple[ObjectStore, str]:
            store, root = open_store(url, options)
            return trips.watching(store), root

        # By this clock nothing takes long, on whatever else the machine is busy with.
        clock = ManualClock(int(time.time() * 1000))
        dataset = dataset_at(url, store_options=s3.options, wrap=trips.watching, clock=clock)
        with mock.patch.object(execute, "open_store", open_watched):
            summary = compact(dataset, clock=clock)
    assert len(summary.committed) == 1
    assert not summary.failures
    return trips.all


def shown(trips: list[list[str]]) -> list[str]:
    """One line for each round trip; `3 × GET rows` is three of them."""
    return [", ".join(_shown(what, count) for what, count in sorted(Counter(trip).items())) for trip in trips]


def _shown(what: str, count: int) -> str:
    return what if count == 1 else f"{count} × {what}"


@pytest.fixture
def url(s3: S3) -> str:
    return f"s3://{s3.bucket()}/some/db"


def test_round_trips_of_a_first_run(url: str, s3: S3) -> None:
    fill(url, s3)
    assert shown(trips_of(url, s3)) == [
        "GET compactions.boundary, GET manifest.boundary, HEAD lease, LIST compactions, LIST manifest",
        "GET manifest",  # now it is planned
        "9 × GET rows",  # they will travel with the task; the index of one shows that blocks are readable
        "PUT lease",  # the epoch is announced
        "HEAD lease, PUT manifest",  # and taken; the store says what time it is
        "GET manifest.boundary, HEAD manifest",
        "PUT compactions, PUT lease",  # claimed; said that it was taken
        "GET compactions.boundary, HEAD manifest, PUT rows",
        "PUT manifest",  # committed
        "GET manifest.boundary, HEAD manifest",
        "PUT compactions",  # completed
        "GET compactions.boundary, HEAD compactions, PUT lease",  # resigned
    ]


def test_round_trips_of_a_later_run(url: str, s3: S3) -> None:
    fill(url, s3)
    compact(dataset_at(url, store_options=s3.options))
    fill(url, s3)
    assert shown(trips_of(url, s3)) == [
        "GET compactions.boundary, GET manifest.boundary, HEAD lease, LIST compactions, LIST manifest",
        "GET compactions, GET lease, GET manifest",
        "9 × GET rows, PUT lease",
        "HEAD lease, PUT manifest",
        "GET manifest.boundary, HEAD manifest",
        "PUT compactions, PUT lease",
        "GET compactions.boundary, HEAD compactions, PUT rows",
        "PUT manifest",
        "GET manifest.boundary, HEAD manifest",
        "PUT compactions",
        "GET compactions.boundary, HEAD compactions, PUT lease",
    ]


def test_what_is_too_much_to_travel_with_a_task_is_read_by_it(
    url: str, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split, "SENT_BYTES", 1_000)
    fill(url, s3)
    assert shown(trips_of(url, s3))[2:9] == [
        "GET rows",
        "PUT lease",
        "HEAD lease, PUT manifest",
        "GET manifest.boundary, HEAD manifest",
        "PUT compactions, PUT lease",
        "GET compactions.boundary, 8 × GET rows, HEAD manifest",
        "PUT rows",
    ]


def test_what_goes_wrong_when_a_compaction_is_foreseen_ends_no_run(
    url: str, s3: S3, defects: list[str]
) -> None:
    fill(url, s3)
    dataset = dataset_at(url, store_options=s3.options)
    with mock.patch.object(dataset, "prefetch", side_effect=ValueError("odd")) as foreseen:
        summary = compact(dataset)
    assert foreseen.called
    assert len(summary.committed) == 1
    assert "ValueError: odd" in defects.pop()


def test_what_is_to_be_cut_is_read_while_the_epoch_is_taken(
    url: str, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (split, execute):
        monkeypatch.setattr(module, "SMALL_BYTES", 0)
    fill(url, s3)
    assert shown(trips_of(url, s3))[2:8] == [
        "10 × GET rows",  # all indexes, one of them twice, and the stats of the largest SST
        "PUT lease",
        "HEAD lease, PUT manifest",
        "GET manifest.boundary, HEAD manifest",
        "PUT compactions, PUT lease",
        "GET compactions.boundary, 8 × GET rows, HEAD manifest",
    ]
