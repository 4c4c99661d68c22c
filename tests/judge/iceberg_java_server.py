"""The other half of `iceberg_java.py`: Java Iceberg on Spark 3.5, asked over stdin and stdout.

Runs in an environment of its own (`spark35.txt`) that has pyspark 3.5, Iceberg's runtime for it, a Java that
both run on, and nothing of Lithify. With `s3` as its second argument it is the runtime that has a client
for S3 (`iceberg_runtimes`).

1. Standard output is kept for answers; whatever Spark prints goes to standard error.
2. One session is started: one core, one gigabyte, UTC. `IcebergJudge.java` is compiled into it by the
   Janino that Spark brings.
3. Each line of standard input is a request `{"operation": …, "arguments": {…}}`, answered by one line,
   `{"result": …}` or `{"error": …}`. The end of standard input ends the process.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from tests.judge.iceberg_runtimes import Runtime, java_home, newest, with_s3

SOURCE = Path(__file__).with_name("IcebergJudge.java")
TABLES = SOURCE.with_name("IcebergTables.java")
_FRAMES = 16
"""Of a stack that are told."""
JVM_OPTIONS = (
    "-Duser.timezone=UTC",
    "-Diceberg.worker.num-threads=1",
    "-Diceberg.scan.plan-in-worker-pool=false",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
)


class Server:
    """Answers requests, one at a time."""

    def __init__(self, folder: Path, runtime: Runtime) -> None:
        settings = {
            "spark.driver.extraClassPath": runtime.class_path,
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": " ".join(JVM_OPTIONS),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(folder),
            "spark.log.level": "ERROR",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.extensions": f"{runtime.iceberg}.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        }
        builder = SparkSession.builder.master("local[1]").appName("judge")
        for key, value in settings.items():
            builder = builder.config(key, value)
        self._session = builder.getOrCreate()
        self._jvm: Any = self._session.sparkContext._jvm
        self._runtime = runtime
        self._judge = self._compile(SOURCE)
        self._tables: Any = None
        self._catalogs: dict[str, str] = {}
        self._operations: dict[str, Callable[..., Any]] = {
            "rows": self._rows,
            "rows_in_s3": self._rows_in_s3,
            "snapshots": self._snapshots,
            "serve": self._serve,
            "tables": self._of_tables,
            "sql": self._sql,
            "catalog": self._catalog,
            "delete_equal": self._delete_equal,
            "delete_positions": self._delete_positions,
            "append_file": self._append_file,
            "metrics": self._metrics,
            "planned": self._planned,
            "allowed_by_blooms": self._allowed_by_blooms,
            "parquet": self._parquet,
            "write_parquet": self._write_parquet,
            "stream": self._stream,
        }

    def answer(self, line: str) -> str:
        """The answer to a request."""
        request = json.loads(line)
        try:
            result = self._operations[request["operation"]](**request["arguments"])
        except Py4JJavaError as error:
            return json.dumps({"error": _message(error.java_exception)})
        except CapturedException as error:  # the same, as Spark's Python wraps it
            java = error._origin
            return json.dumps({"error": _message(java) if java is not None else str(error)})
        except Exception as error:
            return json.dumps({"error": f"{type(error).__name__}: {error}"})
        return json.dumps({"result": result})

    def _compile(self, source: Path) -> Any:
        compiler = self._jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(self._jvm.Thread.currentThread().getContextClassLoader())
        compiler.cook(self._runtime.in_source(source.read_text()))
        return compiler.getClassLoader().loadClass(source.stem).newInstance()

    def _rows(
        self,
        metadata_location: str,
        *,
        part: str | None = None,
        options: dict[str, str] | None = None,
        reader: str = "generic",
        moved: tuple[str, str] = ("", ""),
    ) -> Any:
        """Rows of a table or of one of its metadata tables (`part`). `options` are those of a Spark
        read; the generic reader knows `snapshot-id` alone."""
        options = options or {}
        if reader == "generic":
            table = self._judge.table(metadata_location, moved[0] or None, moved[1] or None)
            return json.loads(self._judge.genericRows(table, int(options.get("snapshot-id", -1))))
        path = metadata_location if part is None else f"{metadata_location}#{part}"
        return self._collect(self._session.read.format("iceberg").options(**options).load(path))

    def _snapshots(self, metadata_location: str, ids: list[int], lineage: bool, current: bool) -> Any:
        """See `IcebergJudge.genericSnapshots`."""
        table = self._judge.table(metadata_location, None, None)
        return json.loads(self._judge.genericSnapshots(table, self._list(ids), lineage, current))

    def _serve(self, warehouse: str) -> str:
        """See `IcebergTables.serve`."""
        if self._tables is None:
            self._tables = self._compile(TABLES)
        return str(self._tables.serve(warehouse))

    def _of_tables(self, method: str, arguments: list[Any]) -> Any:
        """Call a writer of `IcebergTables`."""
        given = [self._list(one) if isinstance(one, list) else one for one in arguments]
        return getattr(self._tables, method)(*given)

    def _rows_in_s3(self, metadata_location: str, properties: dict[str, str]) -> Any:
        """Rows as Iceberg's own reader finds them through its own client of S3."""
        given = self._jvm.java.util.HashMap()
        for name, value in properties.items():
            given.put(name, value)
        return json.loads(self._judge.genericRows(self._judge.tableInS3(metadata_location, given), -1))

    def _sql(self, statement: str) -> Any:
        return self._collect(self._session.sql(statement))

    def _collect(self, frame: Any) -> Any:
        return json.loads(self._judge.sparkRows(frame._jdf))

    def _catalog(self, uri: str) -> str:
        """The name by which SQL knows a REST catalog."""
        if uri not in self._catalogs:
            name = f"rest{len(self._catalogs)}"
            prefix = f"spark.sql.catalog.{name}"
            for key, value in {
                "": "org.apache.iceberg.spark.SparkCatalog",
                ".type": "rest",
                ".uri": uri,
                ".io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
                ".cache-enabled": "false",
            }.items():
                self._session.conf.set(prefix + key, value)
            self._catalogs[uri] = name
        return self._catalogs[uri]

    def _delete_equal(
        self, table: str, columns: list[str], values: list[list[str | None]], partition: str | None, path: str
    ) -> None:
        """See `IcebergJudge.deleteEqual`."""
        rows = self._list([self._list(row) for row in values])
        self._judge.deleteEqual(self._load(table), self._list(columns), rows, partition, path)

    def _delete_positions(
        self, table: str, data_file: str, positions: list[int], partition: str | None, path: str
    ) -> None:
        """See `IcebergJudge.deletePositions`."""
        loaded, found = self._load(table), self._list(positions)
        self._judge.deletePositions(loaded, data_file, found, partition, path)

    def _append_file(self, table: str, path: str, partition: str | None) -> None:
        """See `IcebergJudge.appendFile`."""
        self._judge.appendFile(self._load(table), path, partition)

    def _metrics(self, metadata_location: str, path: str) -> Any:
        """See `IcebergJudge.metrics`."""
        return json.loads(self._judge.metrics(self._judge.table(metadata_location, None, None), path))

    def _planned(self, metadata_location: str, where: dict[str, Any]) -> Any:
        """See `IcebergJudge.planned`."""
        table = self._judge.table(metadata_location, None, None)
        return json.loads(self._judge.planned(table, json.dumps(where)))

    def _allowed_by_blooms(self, metadata_location: str, path: str, where: dict[str, Any]) -> Any:
        """See `IcebergJudge.allowedByBlooms`."""
        table = self._judge.table(metadata_location, None, None)
        return json.loads(self._judge.allowedByBlooms(table, path, json.dumps(where)))

    def _parquet(self, path: str) -> Any:
        """See `IcebergJudge.parquet`."""
        return json.loads(self._judge.parquet(path))

    def _write_parquet(self, path: str, schema: str, rows: list[dict[str, Any]]) -> None:
        """See `IcebergJudge.writeParquet`."""
        self._judge.writeParquet(path, schema, json.dumps(rows))

    def _stream(
        self, table: str, checkpoint: str, output: str, trigger: dict[str, Any], options: dict[str, str]
    ) -> None:
        """Stream what there is of a table into files of JSON, then stop."""
        source = self._session.readStream.format("iceberg").options(**options).load(table)
        sink = source.writeStream.format("json").option("checkpointLocation", checkpoint)
        query = sink.trigger(**trigger).start(output)
        try:
            if "availableNow" in trigger:
                query.awaitTermination()
            else:
                query.processAllAvailable()
        finally:
            query.stop()

    def _load(self, table: str) -> Any:
        spark = self._jvm.org.apache.iceberg.spark.Spark3Util
        return spark.loadIcebergTable(self._session._jsparkSession, table)

    def _list(self, items: list[Any]) -> Any:
        made = self._jvm.java.util.ArrayList()
        for item in items:
            made.add(item)
        return made


def _message(error: Any) -> str:
    """An exception of Java's, what caused it, and where."""
    message = _told(error)
    while error.getCause() is not None:
        error = error.getCause()
        message += f"; caused by {_told(error)}"
    return "\n  at ".join([message, *(str(frame) for frame in error.getStackTrace()[:_FRAMES])])


def _told(error: Any) -> str:
    """What an exception says, without the stack that Spark puts into it."""
    return str(error.toString()).partition("\n\tat ")[0].strip()


def _main(folder: Path, which: str) -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    os.environ["JAVA_HOME"] = java_home()
    server = Server(folder, with_s3(folder) if which == "s3" else newest())
    print(json.dumps({"result": "ready"}), file=answers, flush=True)
    for line in sys.stdin:
        print(server.answer(line), file=answers, flush=True)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2])
