"""Options that several commands share: name, type and help in one place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def complete_setting(begun: str) -> list[str]:
    """Return the settings that begin with `begun`, for completion in shells."""
    from lithify.config.model import options
    from lithify.datasets.registry import config_type

    return [f"{option.name}=" for option in options(config_type()) if option.name.startswith(begun)]


Url = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="The database: a path, file:///path, s3://bucket/prefix, gs://…, az://…; "
        "a table: iceberg://catalog/namespace.table; or a log: kafka+ and the URL of its folder",
        show_default=False,
    ),
]
Urls = Annotated[
    list[str],
    typer.Argument(metavar="URL", help="Databases, tables and logs to work on.", show_default=False),
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
Png = Annotated[
    Path | None,
    typer.Option("--png", metavar="FILE", help="Draw the timeline to this file."),
]
Full = Annotated[
    bool,
    typer.Option(
        "--full",
        help="Merge everything into one sorted run per segment; of a table, every chunk that is not compact, "
        "also those that would wait; of a log, every partition that has changed.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        help="Spark master: local[N], spark://…, yarn, k8s://…, or sc://… for Connect; default: as "
        "spark-submit or spark-defaults.conf say, else local[*].",
        show_default=False,
    ),
]
SparkConf = Annotated[
    list[str] | None, typer.Option("--spark-conf", metavar="KEY=VALUE", help="Setting of Spark.")
]
TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Replace a coordinator that may still be alive. "
        "A SlateDB process that has one inside is closed by this.",
    ),
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
        help="Any setting, for example service.poll_interval=1s. "
        "`lithify config show` lists all. Wins over the environment and the file.",
        autocompletion=complete_setting,
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
WebPort = Annotated[
    int | None,
    typer.Option(
        help="Serve the dashboard on this port of the loopback address (web.host changes that); "
        "it needs the extra `web`.",
        show_default=False,
    ),
]
CompactionIds = Annotated[
    list[str], typer.Argument(metavar="COMPACTION", help="Ids, whole or as `lithify status` shows them.")
]
