"""Options that several commands share: name, type and help in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="The database: a path, file:///path, s3://bucket/prefix, gs://…, az://…; "
        "a table: iceberg://catalog/namespace.table; or a log: kafka+ and its folder's URL",
        show_default=False,
    ),
]
Urls = Annotated[
    list[str],
    typer.Argument(metavar="URL", help="Databases, tables and logs to work on.", show_default=False),
]
Png = Annotated[
    Path | None,
    typer.Option(
        "--picture",
        "--png",
        metavar="FILE",
        help="Draw the timeline to this file: SVG, or PNG with matplotlib.",
    ),
]
All = Annotated[bool, typer.Option("--all", help="Show all parts, not only the twenty most urgent ones.")]
Full = Annotated[
    bool,
    typer.Option(
        "--full",
        help="Merge everything into one sorted run per segment; for a table, compact every chunk that is not "
        "compact, including those that would wait; for a log, every partition that has changed.",
    ),
]
TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Replace a coordinator that may still be alive. "
        "This closes a SlateDB process that coordinates the database.",
    ),
]
CompactionIds = Annotated[
    list[str], typer.Argument(metavar="COMPACTION", help="Ids, whole or as `lithify status` shows them.")
]


@dataclass(frozen=True, slots=True, eq=False)
class CommonOption:
    """The description of an option that `command` adds to commands."""

    name: str
    """The parameter's name, from which the flag is derived."""
    help: str
    type: Any = str
    """`bool` for a flag, `list[…]` for an option that may be repeated."""
    metavar: str | None = None
    setting: str | None = None
    """The setting that the option overrides. If that is a table, the values are KEY=VALUE."""
    complete: Callable[[str], list[str]] | None = None
    """Returns the values that begin with a text, for completion in shells."""

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


def complete_setting(begun: str) -> list[str]:
    """Return the settings that begin with `begun`, for completion in shells."""
    from lithify.config.model import options
    from lithify.datasets.registry import config_type

    return [f"{option.name}=" for option in options(config_type()) if option.name.startswith(begun)]


MASTER = CommonOption(
    "master",
    "Spark master: local[N], spark://…, yarn, k8s://…, or sc://… for Connect; default: from "
    "spark-submit or spark-defaults.conf, else local[*].",
    setting="spark.master",
)
METRICS_PORT = CommonOption(
    "metrics_port",
    "Serve Prometheus metrics on this port of the loopback address (metrics.host: another address).",
    int,
    setting="metrics.port",
)
WEB_PORT = CommonOption(
    "web_port",
    "Serve the dashboard on this port of the loopback address (web.host: another address); "
    "needs the extra `web`.",
    int,
    setting="web.port",
)
PORT = CommonOption(
    "port",
    "Port of the loopback address (web.host: another address); default: 8090.",
    int,
    setting="web.port",
)
LOG_FORMAT = CommonOption("log_format", "text (default) for people, json for machines.", setting="log.format")
JSON = CommonOption("json", "Print one JSON document for scripts.", bool)
CONFIG = CommonOption(
    "config", "TOML file with settings; default: the file named in LITHIFY_CONFIG, if any.", Path, "FILE"
)
SET = CommonOption(
    "set",
    "Any setting, for example service.poll_interval=1s. "
    "`lithify config show` lists all. Overrides the environment and the file.",
    list[str],
    "NAME=VALUE",
    complete=complete_setting,
)
STORE_OPTION = CommonOption(
    "store_option",
    "Option of the object store, for example aws_endpoint=http://127.0.0.1:9000; for a table, "
    "property of its catalog. The usual environment variables (AWS_…, GOOGLE_…, AZURE_…) are read too.",
    list[str],
    "KEY=VALUE",
    "store_options",
)
SPARK_CONF = CommonOption("spark_conf", "Spark setting.", list[str], "KEY=VALUE", "spark.conf")
COMMON_OPTIONS = (
    MASTER,
    METRICS_PORT,
    WEB_PORT,
    PORT,
    LOG_FORMAT,
    JSON,
    CONFIG,
    SET,
    STORE_OPTION,
    SPARK_CONF,
)
"""All of them, in the order of help."""
