"""The API on sessions of somebody else's: of this machine, of a cluster, and over Connect."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

import lithify
from tests.client.notebook import write
from tests.cluster import cluster_conf, connect_server, standalone_cluster
from tests.engine.waiting import child_environment


def served(kind: str, folder: Path) -> AbstractContextManager[str]:
    match kind:
        case "cluster":
            return standalone_cluster(folder)
        case "connect":
            return connect_server(folder, {})
        case _:
            return nullcontext("local[2]")


def conf_of(kind: str) -> Mapping[str, str]:
    own = {"spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
    return {"cluster": own | cluster_conf(), "local": own}.get(kind, {})


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["local", pytest.param("cluster", marks=pytest.mark.whole), "connect"])
def test_a_notebook(kind: str, tmp_path: Path) -> None:
    servers = tmp_path / "servers"
    servers.mkdir()
    with served(kind, servers) as master:
        options = [f"{name}={value}" for name, value in conf_of(kind).items()]
        done = subprocess.run(
            [sys.executable, "-m", "tests.client.notebook", master, str(tmp_path), *options],
            capture_output=True,
            text=True,
            env=child_environment() | {"PYSPARK_PYTHON": sys.executable},
            check=False,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    planned, compacted, told = done.stdout.splitlines()
    assert planned.startswith("root ")
    assert compacted.startswith("1 ")
    assert compacted.endswith(" 500")
    assert "has been stopped" in told


def test_what_is_no_session_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    write(tmp_path / "db")
    before = sorted(tmp_path.rglob("*"))
    with (
        lithify.open(str(tmp_path / "db"), spark="local[2]") as opened,
        pytest.raises(lithify.Refused, match=r"spark is of type str; give a pyspark\.sql\.SparkSession"),
    ):
        opened.compact(full=True)
    assert sorted(tmp_path.rglob("*")) == before
