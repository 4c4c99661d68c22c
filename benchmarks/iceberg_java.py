"""Iceberg's own compaction, `rewrite_data_files`, on Spark 3.5: run by a Python that has that Spark and
nothing of Lithify: `python -m benchmarks.iceberg_java TOOL FOLDER REST_URI`. What is called is the action,
which the SQL procedure calls too: that works in both of Iceberg's runtimes (`iceberg_runtimes`).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.judge.iceberg_runtimes import Runtime, java_home, newest, with_s3

from benchmarks.watch import TreeStopwatch

MASTER = "local[2]"
TARGET_FILE_BYTES = 16 << 20
TABLE = "db.events"
CATALOG = "bench"
REACHED = "catalog.json"
"""As in `iceberg_data`, which this Python cannot import."""
HADOOP = {"io-impl": "hadoop.HadoopFileIO"}


def files_of(folder: Path) -> dict[str, str]:
    """How the files of a folder's table are reached: properties of a catalog, names of classes in Iceberg."""
    reached = folder / REACHED
    if not reached.exists():
        return HADOOP
    properties: dict[str, str] = json.loads(reached.read_text())
    return {"io-impl": "aws.s3.S3FileIO", "client.region": properties["s3.region"], **properties}


def open_session(rest_uri: str, runtime: Runtime, files: Mapping[str, str] = HADOOP) -> Any:
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = java_home()
    catalog = f"spark.sql.catalog.{CATALOG}"
    settings = {
        "spark.driver.extraClassPath": runtime.class_path,
        "spark.ui.enabled": "false",
        "spark.driver.memory": "2g",
        "spark.sql.extensions": f"{runtime.iceberg}.spark.extensions.IcebergSparkSessionExtensions",
        catalog: f"{runtime.iceberg}.spark.SparkCatalog",
        f"{catalog}.type": "rest",
        f"{catalog}.uri": rest_uri,
        **{f"{catalog}.{name}": value for name, value in files.items()},
        f"{catalog}.io-impl": f"{runtime.iceberg}.{files['io-impl']}",
    }
    builder = SparkSession.builder.master(MASTER).appName("bench")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _spark_package(session: Any, runtime: Runtime) -> Any:
    """Iceberg's Java package for Spark."""
    package = session._jvm
    for name in f"{runtime.iceberg}.spark".split("."):
        package = getattr(package, name)
    return package


def _main(tool: str, folder: Path, rest_uri: str, scratch: Path) -> dict[str, object]:
    found = with_s3(scratch) if "with S3" in tool else newest()
    session = open_session(rest_uri, found, files_of(folder))
    session.sparkContext.setLogLevel("ERROR")
    session.range(1000).selectExpr("sum(id)").collect()  # start everything
    java_session = session._jsparkSession
    spark = _spark_package(session, found)
    table = spark.Spark3Util.loadIcebergTable(java_session, f"{CATALOG}.{TABLE}")
    action = spark.actions.SparkActions.get(java_session).rewriteDataFiles(table)
    action = action.sort() if tool.endswith("sorted") else action.binPack()
    action = action.option("target-file-size-bytes", str(TARGET_FILE_BYTES))
    began_s, watch = time.time(), TreeStopwatch()
    action.execute()
    wall_s, cpu_s = watch.read()
    rows = session.sql(f"SELECT file_path FROM {CATALOG}.{TABLE}.files").collect()
    files = [_as_others_tell(row.file_path) for row in rows]
    session.stop()
    return {"began_s": began_s, "wall_s": wall_s, "cpu_s": cpu_s, "files": files, "details": {}}


def _as_others_tell(location: str) -> str:
    return location if location.startswith("s3:") else "/" + location.removeprefix("file:").lstrip("/")


if __name__ == "__main__":
    with TemporaryDirectory(prefix="iceberg-java-") as made:
        document = _main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], Path(made))
    print(json.dumps(document), flush=True)
