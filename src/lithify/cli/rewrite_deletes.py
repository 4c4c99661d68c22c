"""`lithify rewrite-position-delete-files`: drops and merges a table's delete files."""

from __future__ import annotations

from typing import Annotated

import typer

from lithify.cli.options.common import AsJson, ConfigFile, Sets, StoreOptions, Url
from lithify.cli.options.settings import settings
from lithify.cli.running import errors, print_shown


def rewrite_position_delete_files(
    url: Url,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Drop delete files of a table that apply to nothing any more, and merge small ones by position.

    Rows stay as they are. Deletes that a compaction under way applies are left to it. Counts are those of
    Iceberg's procedure rewrite_position_delete_files. Exit code 1 when others commit all the time.

    Examples:

        lithify rewrite-position-delete-files --dry-run iceberg://catalog/namespace.table

        lithify rewrite-position-delete-files iceberg://catalog/namespace.table
    """
    with errors(as_json):
        effective = settings(config, sets, store_option=store_option)
        from lithify.api import client

        with client.open(url, settings=effective) as dataset:
            found = dataset.rewrite_position_delete_files(dry_run=dry_run)
        print_shown(found.shown, as_json)
        if not found.is_done:
            raise typer.Exit(1)
