"""Garbage collection over S3 on HTTP: conditional boundaries, deletes, and turns with the official
collector."""

from __future__ import annotations

import time

from lithify.base.clock import SystemClock
from lithify.datasets.slatedb.format.paths import DatabasePaths
from lithify.datasets.slatedb.garbage.collection import GarbageKind, collect
from lithify.store.urls import open_store
from tests.compacting import compact, dataset_at
from tests.datasets.slatedb.collecting import AT_ONCE, Model, write
from tests.judge.official import Admin, open_db
from tests.s3 import S3

LIFETIME_S = 1


def test_two_collectors_take_turns_beside_an_open_database(s3: S3) -> None:
    url = f"s3://{s3.bucket()}/some/db"
    store, root = open_store(url, s3.options)
    paths = DatabasePaths(root)
    model: Model = {}
    boundaries = []
    with open_db(url, store_options=s3.options) as database:
        for tag in (b"a", b"b", b"c", b"d"):
            for _ in range(2):
                model |= write(database, 3, tag)
                assert compact(
                    dataset_at(url, store_options=s3.options, checkpoint_lifetime_s=LIFETIME_S)
                ).committed
            time.sleep(LIFETIME_S + 0.5)  # the commits pin what they replaced for so long
            if tag in (b"a", b"c"):
                report = collect(store, paths, SystemClock(), AT_ONCE)
                assert report.counts[GarbageKind.MANIFEST].deletable
                assert report.counts[GarbageKind.COMPACTIONS].deletable
            else:
                Admin(url, store_options=s3.options).run_gc()
            boundaries.append(int(store.get(paths.manifest_boundary)))
            assert dict(database.scan()) == model
    assert boundaries == sorted(set(boundaries))
    assert len(list(store.list(paths.manifest_folder))) < 20
    with open_db(url, store_options=s3.options) as database:
        assert dict(database.scan()) == model
