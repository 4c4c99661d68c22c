"""`lithify inspect`: what a SlateDB database consists of."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from lithify.cli.options import AsJson, ConfigFile, Sets, StoreOptions, Url
from lithify.cli.running import errors, print_json
from lithify.cli.settings import settings
from lithify.errors import Refused

inspect_app = typer.Typer(help="Show what a SlateDB database consists of.", no_args_is_help=True)


@inspect_app.command("manifest")
def inspect_manifest(
    url: Url,
    manifest_id: Annotated[int | None, typer.Option("--id", help="A version; default: the latest.")] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Show a manifest: every tree, run and SST, checkpoints and clones."""
    with errors(as_json):
        effective = settings(config, sets, store_option=store_option)
        from lithify.cli import render, wiring

        dataset = wiring.open_dataset(url, effective)
        if manifest_id is None:
            manifest_id, manifest = dataset.latest_manifest()
        else:
            manifest = dataset.manifest(manifest_id)
        if as_json:
            print_json(render.manifest_json(manifest_id, manifest))
        else:
            render.print_manifest(Console(), manifest_id, manifest)


@inspect_app.command("compactions")
def inspect_compactions(
    url: Url,
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Show the ledger: every compaction, its state, its worker and its progress."""
    with errors(as_json):
        effective = settings(config, sets, store_option=store_option)
        from lithify.cli import render, wiring

        ledger = wiring.open_dataset(url, effective).ledger()
        if ledger is None:
            raise Refused(f"{url} has no compactions file: no coordinator has ever run on it")
        if as_json:
            print_json(render.ledger_json(ledger))
        else:
            render.print_ledger(Console(), ledger)


@inspect_app.command("sst")
def inspect_sst(
    url: Annotated[str, typer.Argument(help="The SST itself: …/compacted/<ULID>.sst", show_default=False)],
    as_json: AsJson = False,
    config: ConfigFile = None,
    sets: Sets = None,
    store_option: StoreOptions = None,
) -> None:
    """Show one SST: its descriptor, blocks and statistics."""
    with errors(as_json):
        effective = settings(config, sets, store_option=store_option)
        from lithify.cli import render
        from lithify.datasets.slatedb.inspect import inspect_sst as facts_of
        from lithify.store.urls import open_store

        store, key = open_store(url, effective.store_options)
        facts = facts_of(store, key)
        if as_json:
            print_json(render.plain(facts))
        else:
            render.print_facts(Console(), key, facts)
