"""`lithify config`: the settings with their values and origins."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from lithify.cli.options.command import CommandContext, command
from lithify.cli.options.common import CONFIG, JSON, SET, STORE_OPTION
from lithify.cli.running import print_json
from lithify.config.sizes import Bytes, format_size
from lithify.views.consoles import print_text, standard_error, write_document

if TYPE_CHECKING:
    from lithify.config.loading import Setting

config_app = typer.Typer(help="Show the settings.", no_args_is_help=True)


@config_app.callback()
def _group() -> None:
    """Show the settings."""


@config_app.command("show")
@command(before={"changed": [CONFIG, SET, STORE_OPTION, JSON]})
def config_show(
    context: CommandContext,
    changed: Annotated[bool, typer.Option("--changed", help="Only settings that are not defaults.")] = False,
) -> None:
    """Show every setting, its effective value, and where it came from, as a TOML file with comments.

    Secrets are masked. Before you use the output as a file, replace each "********" with the secret, or leave
    the setting out and give it in the environment.

    Examples:

        lithify config show

        lithify config show --config lithify.toml --changed

        lithify config show > lithify.toml
    """
    loaded = context.loaded
    from lithify.config.model import options

    for warning in loaded.warnings:
        print_text(standard_error(), warning, lead="Warning: ")
    shown = [s for s in loaded.settings() if not changed or s.name in loaded.origins]
    if context.as_json:
        print_json([{"name": s.name, "value": s.value, "from": s.origin} for s in shown])
        return
    write_document(
        as_toml(shown, {option.name: option.description for option in options(type(loaded.config))})
    )


def as_toml(settings: Iterable[Setting], help_of: Mapping[str, str]) -> str:
    """Return the settings as a file that `--config` reads, with help and origin as comments."""
    sections: dict[tuple[str, ...], list[Setting]] = {}
    for setting in settings:
        for length in range(len(setting.path)):  # TOML needs a section's own values before its subsections
            sections.setdefault(setting.path[:length], [])
        sections[setting.path[:-1]].append(setting)
    lines: list[str] = []
    for section, members in sections.items():
        if section and members:
            lines += ["", f"[{'.'.join(map(_key, section))}]"]
        for setting in members:
            said = help_of.get(setting.name, "")
            origin = "" if setting.origin == "default" else f"from {setting.origin}"
            lines.append(_assignment(setting) + "".join(f"  # {note}" for note in (said, origin) if note))
    return "\n".join(lines)


def _assignment(setting: Setting) -> str:
    if setting.value is None:
        return f"# {_key(setting.path[-1])} is not set"
    written = format_size(setting.value) if isinstance(setting.value, Bytes) else setting.value
    value = "{}" if written == {} else json.dumps(written, ensure_ascii=False)
    return f"{_key(setting.path[-1])} = {value}"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)
