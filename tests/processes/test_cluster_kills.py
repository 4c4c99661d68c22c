"""The master of a cluster is killed while a worker compacts on it; `make chaos` kills the executors, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster, cluster_conf
from tests.processes import accidents
from tests.processes.accidents import Stage
from tests.processes.databases import check_rows, make_database
from tests.processes.nodes import nodes_in

ENOUGH = 3
TIMEOUT_MS = 6_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.mark.whole
@pytest.mark.timeout(600)  # mostly waiting for servers
def test_what_a_killed_master_costs(tmp_path: Path, cluster: Cluster) -> None:
    path = tmp_path / "db"
    model = make_database(path, keys=6_000, value_bytes=1000)
    with nodes_in(tmp_path / "logs") as nodes:
        stage = Stage(path, nodes, ENOUGH, TIMEOUT_MS, 128 * 1024, cluster.url, cluster_conf())
        print(accidents.kill_master(stage, cluster))
    check_rows(path, model)
