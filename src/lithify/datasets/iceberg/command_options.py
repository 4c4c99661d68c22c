"""Command options that only Iceberg tables have."""

from __future__ import annotations

from lithify.datasets.options import CommandOptions, KindOption

OPTIONS = CommandOptions(
    options=(
        KindOption(
            "chunk",
            frozenset({"submit"}),
            "Tables: rewrite this time chunk, such as 2025-01-31, or null. May be repeated.",
            type=list[str],
            metavar="NAME",
        ),
        KindOption(
            "max_percent",
            frozenset({"gc"}),
            "Tables: delete nothing if more than this share of all files in the table's folders would be "
            "deleted; default: 50.",
            type=int,
            metavar="PERCENT",
        ),
        KindOption(
            "continuous",
            frozenset({"readers add"}),
            "Tables: the reader never runs with Trigger.AvailableNow, which needs the whole history since "
            "the reader's start.",
            type=bool,
        ),
    ),
    environment=("PYICEBERG_",),
)
