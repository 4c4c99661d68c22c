"""What a run asks of the store besides data: all of it is time that the user waits for a far store."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from lithify.store.metered import VERBS
from lithify.store.objects import ObjectStore
from lithify.store.urls import open_store
from lithify.store.wrapped import Call, WrappedStore
from lithify.testing import ManualClock
from tests.compacting import compact, dataset_at
from tests.oneshot.test_crash import make_database
from tests.s3 import S3

ResultT = TypeVar("ResultT")


class ControlRequests(WrappedStore):
    """Counts requests for everything but SSTs, by verb and by what they are about. (Tasks have a store of
    their own.)"""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.requests: Counter[str] = Counter()
        self._lock = threading.Lock()

    def around(self, call: Call, action: Callable[[], ResultT]) -> ResultT:
        verb = VERBS.get(call.method)
        parts = call.key.removeprefix("db/").split("/")
        if verb is not None and parts[0] != "compacted":
            what = parts[1] if parts[0] in ("lithify", "gc") else parts[0]
            with self._lock:
                self.requests[f"{verb} {what}"] += 1
        return action()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    make_database(tmp_path / "db")
    return tmp_path / "db"


def requests_of(database: Path, s3: S3) -> Counter[str]:
    """What a run asks of a copy in a bucket. On a disk, where it costs nothing, more is looked at again."""
    stores: list[ControlRequests] = []

    def counting(store: ObjectStore) -> ObjectStore:
        stores.append(ControlRequests(store))
        return stores[0]

    url = f"s3://{s3.bucket()}/db"
    store, root = open_store(url, s3.options)
    disk, folder = open_store(str(database))
    for meta in disk.list(folder):
        store.put(f"{root}{meta.key.removeprefix(folder)}", disk.get(meta.key))
    # By this clock nothing takes long, on whatever else the machine is busy with.
    clock = ManualClock(int(time.time() * 1000))
    summary = compact(dataset_at(url, store_options=s3.options, wrap=counting, clock=clock), clock=clock)
    assert len(summary.committed) == 1
    assert not summary.failures
    return stores[0].requests


LEASE = "coordinator.json"


def besides_the_lease(requests: Counter[str]) -> dict[str, int]:
    return {what: count for what, count in requests.items() if LEASE not in what}


def test_control_requests_of_a_first_run(database: Path, s3: S3) -> None:
    assert besides_the_lease(requests_of(database, s3)) == {
        "GET compactions.boundary": 3,
        "GET manifest": 1,
        "GET manifest.boundary": 3,
        "HEAD compactions": 1,
        "HEAD manifest": 3,
        "LIST compactions": 1,
        "LIST manifest": 1,
        "PUT compactions": 2,
        "PUT manifest": 2,
    }


def test_control_requests_of_a_later_run(database: Path, s3: S3) -> None:
    compact(dataset_at(database))
    make_database(database)
    assert besides_the_lease(requests_of(database, s3)) == {
        "GET compactions": 1,
        "GET compactions.boundary": 3,
        "GET manifest": 1,
        "GET manifest.boundary": 3,
        "HEAD compactions": 2,
        "HEAD manifest": 2,
        "LIST compactions": 1,
        "LIST manifest": 1,
        "PUT compactions": 2,
        "PUT manifest": 2,
    }
