"""What the commands build for the datasets they are given."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lithify import wiring

DATABASE, TABLE = "s3://bucket/db", "iceberg://lake/db.events"
KERNEL, REWRITING = "slatedb.kernel.warm_up", "iceberg.warm_up"


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
    assert hooks == [f"lithify.datasets.{module}:warm_up" for module in modules]


def test_both_kinds_can_be_preloaded_before_a_fork() -> None:
    """Neither starts a thread, with which a process must not be forked."""
    hooks = wiring.preload([DATABASE, TABLE])
    code = f"from lithify.engine.daemon import preload; import sys; sys.exit(not preload({hooks!r}))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")
