"""Command options that only Iceberg tables have."""

from __future__ import annotations

from lithify.datasets.options import CommandOptions, KindOption

OPTIONS = CommandOptions(
    options=(
        KindOption(
            "chunk",
            frozenset({"submit"}),
            "Of a table: rewrite this time chunk, such as 2025-01-31, or null. May be repeated.",
            type=list[str],
            metavar="NAME",
        ),
        KindOption(
            "max_percent",
            frozenset({"gc"}),
            "Of a table: delete nothing if it is more than this share of all files beside the table; "
            "default: 50.",
            type=int,
            metavar="PERCENT",
        ),
        KindOption(
            "continuous",
            frozenset({"readers add"}),
            "Of a table: the reader never runs with Trigger.AvailableNow, which needs all since it began.",
            type=bool,
        ),
    ),
    environment=("PYICEBERG_",),
)
