"""Stores behind HTTP that do not do what they are asked: refused before the first write of ours, or served.

Each is opened as every command opens it, so that the proof is part of what is tested.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import lithify
from lithify.api import wiring
from lithify.api.fleets import Fleet
from lithify.api.groups import Group
from lithify.base.clock import SystemClock
from lithify.base.errors import Refused, UnfitStore
from lithify.config.model import Config
from lithify.protocol.presence import Presence
from lithify.service import status as statuses
from lithify.store.urls import open_store
from lithify.testing.engine import InlineEngine
from lithify.testing.s3 import Quirk
from tests.cli.invoking import invoke, invoke_json
from tests.compacting import compact
from tests.datasets.iceberg.tables import NAME, START, append, fresh, make_rows, new_table, s3_catalog
from tests.datasets.kafka import logs
from tests.datasets.kafka.folders import put_segments
from tests.judge.official import Put, open_db
from tests.s3 import S3

DATABASES = 6
UNFIT = {
    Quirk.IGNORES_IF_NONE_MATCH: (
        "overwrote an object that should be created only if absent",
        "If-None-Match",
    ),
    Quirk.NO_IF_NONE_MATCH: ("creating an object only if absent does not work here", "If-None-Match"),
    Quirk.IGNORES_IF_MATCH: ("overwrote an object despite a wrong etag", "If-Match"),
    Quirk.NO_IF_MATCH: ("conditional overwrites do not work here", "If-Match"),
    Quirk.WEAK_ETAGS: ("refuses an overwrite with the etag that it returned", "strong etags"),
}


@contextmanager
def quirky(s3: S3, quirk: Quirk) -> Iterator[None]:
    s3.server.quirks = {quirk}
    try:
        yield
    finally:
        s3.server.quirks = frozenset()


def database(s3: S3) -> str:
    """A database that is worth a compaction."""
    url = f"s3://{s3.bucket()}/some/db"
    fill(url, s3)
    return url


def fill(url: str, s3: S3) -> None:
    with open_db(url, store_options=s3.options) as client:
        for batch in range(4):
            client.write_batch([Put(b"k%03d" % n, b"%d" % batch) for n in range(100)])
            client.flush()


def rows(url: str, s3: S3) -> dict[bytes, bytes]:
    with open_db(url, store_options=s3.options) as client:
        return dict(client.scan())


def opened(url: str, s3: S3) -> Any:
    return wiring.open_dataset(url, Config(store_options=s3.options))


def objects(url: str, s3: S3) -> dict[str, tuple[str, datetime]]:
    bucket = url.split("/")[2]
    listed = s3.client().list_objects_v2(Bucket=bucket).get("Contents", [])
    return {one["Key"]: (one["ETag"], one["LastModified"]) for one in listed}


@pytest.mark.parametrize("quirk", UNFIT)
def test_six_databases_on_an_unfit_store_stay_as_they_are(s3: S3, quirk: Quirk) -> None:
    urls = [database(s3) for _ in range(DATABASES)]
    before = [objects(url, s3) for url in urls]
    says, do = UNFIT[quirk]
    with quirky(s3, quirk):
        for url in urls:
            for take_over in (False, True, False):
                with pytest.raises(UnfitStore) as refused:
                    compact(opened(url, s3), take_over=take_over)
                assert str(refused.value).startswith(f"{url}/lithify: ")
                assert says in str(refused.value)
                assert do in str(refused.value)
        assert [objects(url, s3) for url in urls] == before
    for url in urls:  # the store was repaired: what was refused is not remembered
        assert compact(opened(url, s3)).committed


@pytest.mark.parametrize("quirk", UNFIT)
def test_what_only_reads_needs_no_proof(s3: S3, quirk: Quirk) -> None:
    url = database(s3)
    before = objects(url, s3)
    options = [
        option for name, value in s3.options.items() for option in ("--store-option", f"{name}={value}")
    ]
    with quirky(s3, quirk):
        assert invoke_json("plan", url, "--full", *options)["proposals"]
        assert invoke("status", url, *options).exit_code == 0
        dataset = opened(url, s3)
        found = statuses.status(dataset, clock=SystemClock(), heartbeat_timeout_ms=30_000)
        assert found.coordinator.presence is Presence.NEVER
        result = invoke("compact", url, "--full", "--take-over", *options)
        assert result.exit_code == Refused.exit_code
        assert UNFIT[quirk][0] in " ".join(result.stderr.split())
        findings = json.loads(invoke("doctor", url, "--json", *options).stdout)
        assert UNFIT[quirk][0] in json.dumps(findings)
    assert objects(url, s3) == before


def test_a_proxy_that_makes_etags_weak_is_served(s3: S3) -> None:
    url = database(s3)
    before = rows(url, s3)
    with quirky(s3, Quirk.WEAKENED_ETAGS):
        assert compact(opened(url, s3)).committed
        fill(url, s3)
        assert compact(opened(url, s3)).committed
    assert rows(url, s3) == before


def test_later_runs_pay_one_read(s3: S3) -> None:
    url = database(s3)
    s3.server.forget()
    compact(opened(url, s3))
    about = [r for r in s3.server.log if "/probes/" in r.key or r.key.endswith("proof.json")]
    assert len(about) <= 12
    fill(url, s3)
    s3.server.forget()
    assert compact(opened(url, s3)).committed
    about = [r for r in s3.server.log if "/probes" in r.key or r.key.endswith("proof.json")]
    assert [(r.operation.name, r.key) for r in about] == [("GET", "some/db/lithify/proof.json")]


def test_a_bucket_that_was_moved_to_an_unfit_store(s3: S3) -> None:
    """The memory says when it was proved; a copy of it was written later than that."""
    url = database(s3)
    compact(opened(url, s3))
    fill(url, s3)
    s3.server.age(url.split("/")[2], -3600)
    before = objects(url, s3)
    with quirky(s3, Quirk.IGNORES_IF_NONE_MATCH):
        with pytest.raises(UnfitStore):
            compact(opened(url, s3))
        assert objects(url, s3) == before


@pytest.mark.parametrize("quirk", UNFIT)
def test_fleets_groups_and_logs_are_refused_too(
    s3: S3, quirk: Quirk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    root = f"s3://{s3.bucket()}"
    store, _ = open_store(root)
    put_segments(store, "orders-0", [[logs.data(n, ("a", f"{n}"))] for n in range(0, 30, 10)])
    before = objects(root, s3)
    with quirky(s3, quirk):
        for place, write in (
            ("fleet", lambda: Fleet(f"{root}/fleet").init()),
            ("group", lambda: Group(f"{root}/group").init(["eu"])),
            ("orders-0.compacted/_lithify", lambda: compact(opened(f"kafka+{root}/orders-0", s3))),
        ):
            with pytest.raises(UnfitStore) as refused:
                write()
            assert str(refused.value).startswith(f"{root}/{place}: ")
        assert objects(root, s3) == before
    Fleet(f"{root}/fleet").init()
    Group(f"{root}/group").init(["eu"])
    proofs = {key for key in objects(root, s3) if key.endswith("proof.json")}
    assert proofs == {"fleet/proof.json", "group/proof.json"}


@pytest.mark.parametrize("quirk", UNFIT)
def test_tables_are_refused_too(s3: S3, quirk: Quirk, tmp_path: Path) -> None:
    catalog = s3_catalog(s3, tmp_path)
    table = new_table(catalog)
    for hour in range(4):
        append(table, make_rows(10, START + timedelta(hours=hour)))
    url = f"iceberg://test/{'.'.join(NAME)}"
    settings = {f"store_options.{name}": value for name, value in catalog.properties.items()}
    root = "/".join(catalog.properties["warehouse"].split("/")[:3])
    now = fresh(table).metadata_location
    before = objects(root, s3)
    with quirky(s3, quirk), lithify.open(url, settings=settings, engine=InlineEngine()) as opened_table:
        assert opened_table.status()
        for write in (
            opened_table.compact,
            lambda: opened_table.compact(take_over=True),
            lambda: opened_table.hold(lease_s=60),
            opened_table.expire,
        ):
            with pytest.raises(UnfitStore, match="/_lithify/"):
                write()
        assert objects(root, s3) == before
    assert fresh(table).metadata_location == now
    with lithify.open(url, settings=settings, engine=InlineEngine()) as opened_table:
        opened_table.hold(lease_s=60)
    assert any(key.endswith("proof.json") for key in objects(root, s3))


def test_a_table_whose_state_is_elsewhere_proves_that_place(s3: S3, tmp_path: Path) -> None:
    catalog = s3_catalog(s3, tmp_path)
    append(new_table(catalog), make_rows(10, START))
    url, place = f"iceberg://test/{'.'.join(NAME)}", f"s3://{s3.bucket()}/state"
    settings = {f"store_options.{name}": value for name, value in catalog.properties.items()}
    settings["iceberg.state_location"] = place
    root = "/".join(catalog.properties["warehouse"].split("/")[:3])
    with lithify.open(url, settings=settings, engine=InlineEngine()) as table:
        with quirky(s3, Quirk.NO_IF_MATCH), pytest.raises(UnfitStore, match="/state/_lithify-state: "):
            table.hold(lease_s=60)
        assert not objects(place, s3)
        table.hold(lease_s=60)
    assert "state/_lithify-state/proof.json" in objects(place, s3)
    assert not [key for key in objects(root, s3) if "_lithify" in key]
