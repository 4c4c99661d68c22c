"""Iceberg's own compaction, `rewrite_data_files`, on Spark 3.5: run by a Python that has that Spark and
nothing of Lithify: `python -m benchmarks.iceberg_java TOOL FOLDER REST_URI`.

Iceberg's runtime for Spark comes from the package index too, as what another package depends on.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from tests.judge.iceberg_java_server import java_home, runtime_jar

from benchmarks.watch import TreeStopwatch

MASTER = "local[2]"
TARGET_FILE_BYTES = 16 << 20
TABLE = "db.events"
CATALOG = "bench"


def open_session(rest_uri: str) -> Any:
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = java_home()
    settings = {
        "spark.jars": str(runtime_jar()),
        "spark.ui.enabled": "false",
        "spark.driver.memory": "2g",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{CATALOG}.type": "rest",
        f"spark.sql.catalog.{CATALOG}.uri": rest_uri,
        f"spark.sql.catalog.{CATALOG}.io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
    }
    builder = SparkSession.builder.master(MASTER).appName("bench")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _main(tool: str, rest_uri: str) -> dict[str, object]:
    session = open_session(rest_uri)
    session.sparkContext.setLogLevel("ERROR")
    session.range(1000).selectExpr("sum(id)").collect()  # start everything
    strategy = "sort" if tool.endswith("sorted") else "binpack"
    watch = TreeStopwatch()
    session.sql(
        f"CALL {CATALOG}.system.rewrite_data_files(table => '{TABLE}', strategy => '{strategy}', "
        f"options => map('target-file-size-bytes', '{TARGET_FILE_BYTES}'))"
    ).collect()
    wall_s, cpu_s = watch.read()
    rows = session.sql(f"SELECT file_path FROM {CATALOG}.{TABLE}.files").collect()
    files = ["/" + row.file_path.removeprefix("file:").lstrip("/") for row in rows]
    session.stop()
    return {"wall_s": wall_s, "cpu_s": cpu_s, "files": files, "details": {}}


if __name__ == "__main__":
    document = _main(sys.argv[1], sys.argv[3])
    print(json.dumps(document), flush=True)
