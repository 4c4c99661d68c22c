"""The `lithify` command: all commands in one place. Each parses its options, calls the library and renders
the result.

Exit codes: 0 done (also if there was nothing to do), 1 unexpected failure or failed compaction, otherwise the
`exit_code` of the error's class in `lithify.base.errors`.

Modules of commands import the libraries that do the work only when a command runs, so that help is quick.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import takewhile
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from lithify import __version__
from lithify.cli.compact import compact, plan
from lithify.cli.config import config_app
from lithify.cli.control import cancel, retry, submit, wait
from lithify.cli.demo import demo
from lithify.cli.doctor import doctor
from lithify.cli.expire import expire
from lithify.cli.fleet import fleet_app
from lithify.cli.gc import gc
from lithify.cli.group import group_app
from lithify.cli.history import history
from lithify.cli.hold import hold
from lithify.cli.inspecting import inspect_app
from lithify.cli.maintain import maintain
from lithify.cli.mirroring import mirror, restore
from lithify.cli.queue import queue_app
from lithify.cli.readers import readers_app
from lithify.cli.remove_orphans import remove_orphans
from lithify.cli.rewrite_deletes import rewrite_position_delete_files
from lithify.cli.rewrite_equality_deletes import rewrite_equality_deletes
from lithify.cli.rewrite_manifests import rewrite_manifests
from lithify.cli.running import print_error
from lithify.cli.serving import coordinator, run, worker
from lithify.cli.status import status
from lithify.cli.warming_up import warm_up
from lithify.cli.web import web
from lithify.observe.logs import set_up_logs
from lithify.observe.secrets import concealed
from lithify.views.consoles import write_line

_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__base__)
"""Typer has no public name for it."""


class _Commands(TyperGroup):
    """A group that reports usage errors as a document too, if `--json` was given."""

    def make_context(self, info_name: str | None, args: list[str], *given: Any, **more: Any) -> Any:
        wants_json = "--json" in takewhile(lambda word: word != "--", args)
        with _usage_errors(wants_json):
            context = super().make_context(info_name, args, *given, **more)
        context.meta[_WANTS_JSON] = wants_json
        return context

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse arguments. Without any, show the first screen of help."""
        words = list(takewhile(lambda word: word != "--", args))
        if not ctx.resilient_parsing and ("--help" in words or len(words) < 2):
            from lithify.cli import help as help_screens

            help_screens.prepare(self, ctx, args)
            ctx.meta[_FIRST] = () if args else help_screens.FIRST
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(ctx.meta.get(_FIRST) or super().list_commands(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        if ctx.meta.get(_FIRST):
            from lithify.cli.help import MORE

            write_line(MORE)

    def invoke(self, ctx: Any) -> Any:
        with _usage_errors(ctx.meta[_WANTS_JSON]):
            return super().invoke(ctx)


@contextmanager
def _usage_errors(as_json: bool) -> Iterator[None]:
    try:
        yield
    except _UsageError as error:
        print_error("UsageError", concealed(error.format_message()), as_json)
        raise


app = typer.Typer(
    cls=_Commands,
    help="Compact data in object storage on Spark, while its readers and writers continue.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
_WANTS_JSON = "lithify.wants_json"
_FIRST = "lithify.first_commands"
START = "First steps"
SERVICE = "Compact continuously, in several processes"
FLEETS = "Many databases and tables"
SINGLE = "Single compactions"
HISTORY = "History of tables"
COPIES = "Copies of databases and logs"
LOOK = "Inspect and repair"
app.command(rich_help_panel=START)(demo)
app.command(rich_help_panel=START)(plan)
app.command(rich_help_panel=START)(compact)
app.command(rich_help_panel=START)(run)
app.command(rich_help_panel=START)(status)
app.command(rich_help_panel=START)(web)
app.command(rich_help_panel=START)(doctor)
app.command(rich_help_panel=SERVICE)(coordinator)
app.command(rich_help_panel=SERVICE)(worker)
app.add_typer(fleet_app, name="fleet", rich_help_panel=FLEETS)
app.add_typer(queue_app, name="queue", rich_help_panel=FLEETS)
app.command(rich_help_panel=SINGLE)(submit)
app.command(rich_help_panel=SINGLE)(wait)
app.command(rich_help_panel=SINGLE)(cancel)
app.command(rich_help_panel=SINGLE)(retry)
app.command(rich_help_panel=HISTORY)(maintain)
app.command(rich_help_panel=HISTORY)(expire)
app.command(rich_help_panel=HISTORY)(rewrite_equality_deletes)
app.command(rich_help_panel=HISTORY)(rewrite_position_delete_files)
app.command(rich_help_panel=HISTORY)(rewrite_manifests)
app.command(rich_help_panel=HISTORY)(hold)
app.add_typer(readers_app, name="readers", rich_help_panel=HISTORY)
app.command("remove-orphans", rich_help_panel=HISTORY)(remove_orphans)
app.command(rich_help_panel=COPIES)(mirror)
app.command(rich_help_panel=COPIES)(restore)
app.add_typer(group_app, name="group", rich_help_panel=COPIES)
app.command(rich_help_panel=LOOK)(history)
app.command(rich_help_panel=LOOK)(gc)
app.command("warm-up", rich_help_panel=LOOK)(warm_up)
app.add_typer(inspect_app, name="inspect", rich_help_panel=LOOK)
app.add_typer(config_app, name="config", rich_help_panel=LOOK)


def _version(value: bool) -> None:
    if value:
        write_line(f"lithify {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    _show: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every event to stderr.")] = False,
) -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # print undecodable paths, also on ASCII terminals
            stream.reconfigure(errors="replace")
    set_up_logs("text", "debug" if verbose else "warning")


if __name__ == "__main__":
    app()
