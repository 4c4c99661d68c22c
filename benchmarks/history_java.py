"""Iceberg's own procedures on Spark 3.5: run by a Python that has that Spark and nothing of Lithify:
`python -m benchmarks.history_java JOB REST_URI KEPT`. Jobs are those of `history_tools`."""

from __future__ import annotations

import json
import sys

from tests.judge.iceberg_runtimes import newest

from benchmarks.iceberg_java import CATALOG, TABLE, open_session
from benchmarks.watch import TreeStopwatch


def _statements(job: str, kept: int) -> list[str]:
    if job == "manifests":
        return [f"CALL {CATALOG}.system.rewrite_manifests('{TABLE}')"]
    return [
        f"CALL {CATALOG}.system.expire_snapshots(table => '{TABLE}', retain_last => {kept})",
        f"CALL {CATALOG}.system.remove_orphan_files(table => '{TABLE}')",
    ]


def _main(job: str, rest_uri: str, kept: int) -> dict[str, object]:
    session = open_session(rest_uri, newest())
    session.sparkContext.setLogLevel("ERROR")
    session.range(1000).selectExpr("sum(id)").collect()  # start everything
    watch = TreeStopwatch()
    for statement in _statements(job, kept):
        session.sql(statement).collect()
    wall_s, cpu_s = watch.read()
    session.stop()
    return {"wall_s": wall_s, "cpu_s": cpu_s}


if __name__ == "__main__":
    print(json.dumps(_main(sys.argv[1], sys.argv[2], int(sys.argv[3]))), flush=True)
