"""`lithify rewrite-manifests`: merges and sorts a table's manifests."""

from __future__ import annotations

from typing import Annotated

import typer

from lithify.cli.options.common import AsJson, ConfigFile, Sets, StoreOptions, Url
from lithify.cli.options.settings import settings
from lithify.cli.running import errors, print_shown


def rewrite_manifests(
    url: Url,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Merge small manifests of a table, and sort their entries, so that a query opens few of them.

    Manifests that are small, badly clustered or full of deleted entries are rewritten, by partition and time,
    to the table's commit.manifest.target-size-bytes. Rows, files and their sequence numbers stay. Counts are
    those of Iceberg's procedure rewrite_manifests. Exit code 1 when others commit all the time.

    Examples:

        lithify rewrite-manifests --dry-run iceberg://catalog/namespace.table

        lithify rewrite-manifests iceberg://catalog/namespace.table
    """
    with errors(as_json):
        effective = settings(config, sets, store_option=store_option)
        from lithify.api import client

        with client.open(url, settings=effective) as dataset:
            found = dataset.rewrite_manifests(dry_run=dry_run)
        print_shown(found.shown, as_json)
        if not found.is_done:
            raise typer.Exit(1)
