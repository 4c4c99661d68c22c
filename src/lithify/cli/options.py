"""Options that several commands share: name, type and help in one place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="The database: a path, file:///path, s3://bucket/prefix, gs://…, az://…; "
        "or a table: iceberg://catalog/namespace.table",
        show_default=False,
    ),
]
Urls = Annotated[
    list[str],
    typer.Argument(metavar="URL", help="Databases and tables to work on.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document for scripts.")]
StoreOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--store-option",
        metavar="KEY=VALUE",
        help="Setting of the object store, for example aws_endpoint=http://127.0.0.1:9000; of a table, "
        "property of its catalog. The usual environment variables (AWS_…, GOOGLE_…, AZURE_…) are read too.",
    ),
]
SchedulerOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--scheduler-option",
        metavar="KEY=VALUE",
        help="Option of the size-tiered scheduler by SlateDB's name: min_compaction_sources (4), "
        "max_compaction_sources (8), include_size_threshold (4.0), "
        "sorted_run_consolidation_threshold (0).",
    ),
]
Png = Annotated[
    Path | None,
    typer.Option("--png", metavar="FILE", help="Draw the timeline to this file."),
]
Full = Annotated[
    bool,
    typer.Option(
        "--full",
        help="Merge everything into one sorted run per segment; of a table, every chunk that is not compact, "
        "also those that would wait.",
    ),
]
Segment = Annotated[
    str | None,
    typer.Option("--segment", metavar="HEX", help="Only this segment, by its prefix in hexadecimal."),
]
Master = Annotated[
    str | None,
    typer.Option(
        help="Spark master: local[*] (default), local[N], spark://…, yarn, k8s://…, or sc://… for Connect.",
        show_default=False,
    ),
]
SparkConf = Annotated[
    list[str] | None, typer.Option("--spark-conf", metavar="KEY=VALUE", help="Setting of Spark.")
]
MergeOperator = Annotated[
    str | None,
    typer.Option(
        metavar="PKG.MODULE:FUNCTION",
        help="Your associative merge operator (key, existing or None, operand) -> value. "
        "Without it, merge rows are carried through unfolded.",
    ),
]
TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Replace a coordinator that may still be alive. "
        "A SlateDB process that has one inside is closed by this.",
    ),
]
CompactionFilter = Annotated[
    str | None,
    typer.Option(metavar="PKG.MODULE:FUNCTION", help="Decides for each surviving row: keep, drop or modify."),
]
BlockSize = Annotated[
    int | None, typer.Option(help="Bytes of a data block; default: as in the inputs.", show_default=False)
]
Compression = Annotated[
    str | None,
    typer.Option(
        help="none, snappy, zlib, lz4 or zstd; default: as in the newest input.", show_default=False
    ),
]
MaxSstSize = Annotated[
    int | None, typer.Option(help="Bytes of data in one output SST; default: 268435456.", show_default=False)
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Settings in TOML; default: the file LITHIFY_CONFIG names, if any."
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any setting, for example compactor_options.poll_interval=1s. "
        "`lithify config show` lists all. Wins over the environment and the file.",
    ),
]
LogFormat = Annotated[
    str | None, typer.Option(help="text (default) for people, json for machines.", show_default=False)
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        help="Serve Prometheus metrics on this port of the loopback address (metrics.host changes that).",
        show_default=False,
    ),
]
CompactionIds = Annotated[
    list[str], typer.Argument(metavar="COMPACTION", help="Ids, as `lithify status` shows them.")
]
