"""What the commands build for the datasets they are given."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from lithify.api import wiring
from lithify.config.loading import load
from lithify.datasets.registry import config_type

DATABASE, TABLE = "s3://bucket/db", "iceberg://lake/db.events"
KERNEL, REWRITING = "slatedb.kernel.warm_up:warm_up", "iceberg.compaction.preload:preload"


@pytest.mark.parametrize(
    ("urls", "modules"),
    [
        ([DATABASE], [KERNEL]),
        ([TABLE], [REWRITING]),
        ([TABLE, DATABASE, TABLE], [KERNEL, REWRITING]),
    ],
)
def test_workers_begin_with_what_their_datasets_need(urls: list[str], modules: list[str]) -> None:
    hooks = wiring.preload(urls).split(",")
    assert hooks == [f"lithify.datasets.{module}" for module in modules]


def test_both_kinds_can_be_preloaded_before_a_fork() -> None:
    """Neither starts a thread, with which a process must not be forked."""
    hooks = wiring.preload([DATABASE, TABLE])
    code = f"from lithify.engine.daemon import preload; import sys; sys.exit(not preload({hooks!r}))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")


@pytest.mark.parametrize(
    ("urls", "what", "name"),
    [
        ([DATABASE], None, "lithify s3://bucket/db"),
        ([DATABASE, TABLE, "/data/db"], None, "lithify s3://bucket/db and 2 more"),
        (["s3://bucket/tenants/*/db"], "fleet s3://bucket/fleet", "lithify fleet s3://bucket/fleet"),
        (["s3://me:hunter22@bucket/db"], None, "lithify s3://********@bucket/db"),
        ([""], None, "lithify"),
    ],
)
def test_applications_are_named_after_what_they_work_on(
    urls: list[str], what: str | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Any] = {}
    monkeypatch.setattr("lithify.engine.spark.SparkEngine", lambda master, **options: told.update(options))
    monkeypatch.setattr(wiring, "preload", lambda urls: "")
    wiring.spark_engine(load(model=config_type()).config, urls, None, what)
    assert told["app_name"] == name
