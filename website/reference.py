"""The pages of reference, made from the code whenever the site is built: they cannot be out of date.

Each function gives a page in Markdown. Nothing here knows the site generator.
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer.main
from prometheus_client.metrics import MetricWrapperBase

import lithify
from lithify.base import errors
from lithify.base.clock import SystemClock
from lithify.cli.main import app
from lithify.config.model import Option, options
from lithify.config.sizes import Bytes, format_size
from lithify.datasets.registry import all_registered, config_type
from lithify.observe.metrics import Metrics
from lithify.web.api import description

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "cli" / "golden"
SETTINGS_SCHEMA = "reference/settings.schema.json"


def pages() -> dict[str, str]:
    """All pages, by their path in the site."""
    return {
        "reference/commands.md": commands(),
        "reference/settings.md": settings(),
        SETTINGS_SCHEMA: json.dumps(settings_schema(), indent=1, ensure_ascii=False),
        "reference/metrics.md": metrics(),
        "reference/json.md": documents(),
        "reference/http.md": http(),
        "reference/python.md": python(),
        "reference/errors.md": exit_codes(),
    }


# Commands


def commands() -> str:
    """Every command: what it does, its arguments and options."""
    root: Any = typer.main.get_command(app)
    parts = ["# Commands", "", "As `lithify COMMAND --help` says it.", ""]
    for path, command in _all_commands(root, ("lithify",)):
        parts += [f"{'#' * len(path)} {' '.join(path)}", "", *_command(path, command)]
    return "\n".join(parts)


def _all_commands(group: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if hasattr(command, "commands"):
            yield from _all_commands(command, (*path, name))


def _command(path: tuple[str, ...], command: Any) -> list[str]:
    parts = [_prose(command.help or ""), ""]
    if hasattr(command, "commands"):
        return parts
    context = command.make_context(path[-1], [], resilient_parsing=True)
    usage = " ".join(command.collect_usage_pieces(context))
    records = [parameter.get_help_record(context) for parameter in command.params]
    rows = [(_code(names), _cell(says)) for names, says in filter(None, records)]
    return [f"    {' '.join(path)} {usage}", "", *parts, *_table(("argument or option", "what"), rows), ""]


def _prose(text: str) -> str:
    """The help of a command: paragraphs and, indented, examples."""
    return inspect.cleandoc(text)


# Settings


def settings() -> str:
    """Every setting, with its default, section by section."""
    parts = [
        "# Settings",
        "",
        "In a TOML file, as an environment variable, or as `--set NAME=VALUE`:",
        "[how](../settings.md). An editor that knows JSON Schema checks and completes the file",
        "with [this schema](settings.schema.json).",
        "",
    ]
    sections: dict[str, list[tuple[str, ...]]] = {}
    for option in options(config_type()):
        section, _, name = option.name.rpartition(".")
        variable = "LITHIFY_" + option.name.replace(".", "__").upper()
        row = (_code(name), _default(option.default), _cell(option.description), _code(variable))
        sections.setdefault(section, []).append(row)
    for section, rows in sections.items():
        parts += [f"## {section or 'At the top'}", ""]
        parts += [*_table(("setting", "default", "what", "variable"), rows), ""]
    return "\n".join(parts)


def _default(value: object) -> str:
    if value is None:
        return "not set"
    written = format_size(value) if isinstance(value, Bytes) else value
    return _code(
        json.dumps(written, ensure_ascii=False) if isinstance(written, str) else str(written).lower()
    )


def settings_schema() -> dict[str, Any]:
    """The JSON schema of the file of settings: every name, and what its value may be in TOML. A table whose
    keys are the user's takes any."""
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of Lithify",
        **_section(),
    }
    for option in options(config_type()):
        *sections, name = option.name.split(".")
        at = schema
        for section in sections:
            at = at["properties"].setdefault(section, _section())
        at["properties"][name] = _value_schema(option)
    return schema


def _section() -> dict[str, Any]:
    in_ms = {"type": "integer", "minimum": 0}  # any duration may be given so
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {},
        "patternProperties": {"_ms$": in_ms},
    }


def _value_schema(option: Option) -> dict[str, Any]:
    said = {"description": option.description}
    match option.default:
        case None:
            return said
        case bool():
            kind: object = "boolean"
        case Bytes():
            kind = ["integer", "string"]
        case int():
            kind = "integer"
        case float():
            kind = "number"
        case dict():
            kind = "object"
        case _:
            kind = "string"
    return said | {"type": kind, "default": option.default}


# Metrics


def metrics() -> str:
    """Every metric, with its labels, and what SlateDB calls it."""
    found = Metrics(SystemClock(), coordinates=True)
    labels = {
        value._name: value._labelnames
        for value in vars(found).values()
        if isinstance(value, MetricWrapperBase)
    }
    others: dict[str, str] = {}
    for kind in all_registered():
        others |= kind.load_options().metric_names
    rows = []
    for family in sorted(found.registry.collect(), key=lambda family: family.name):
        if family.name.startswith("lithify_"):
            name = family.name + ("_total" if family.type == "counter" else "")
            other = next((others[n] for n in (family.name, name) if n in others), "")
            known = ", ".join(map(_code, labels.get(family.name, ())))
            rows.append((_code(name), family.type, known, _cell(family.documentation), _code(other)))
    return "\n".join(
        [
            "# Metrics",
            "",
            "With `--metrics-port` at `/metrics`; [which are worth an alarm](../operations.md#monitor).",
            "",
            *_table(("metric", "type", "labels", "what", "SlateDB's name"), rows),
        ]
    )


# Documents


def documents() -> str:
    """What commands print with `--json`, as the tests have seen it."""
    parts = [
        "# JSON documents",
        "",
        "Which command has which fields, and what they mean: [JSON](../json.md). These are",
        "documents as the test suite has seen them, with `<…>` for what is another each time.",
        "",
    ]
    for path in sorted(GOLDEN.glob("*-json.txt")):
        kind, *words = path.stem.removesuffix("-json").split("-")
        what = " ".join(words).replace(" full", " --full")
        parts += [
            f"## lithify {what} --json, of a {kind}",
            "",
            "```json",
            _indented(path.read_text()),
            "```",
            "",
        ]
    return "\n".join(parts)


def _indented(text: str) -> str:
    """A golden document as it is easy to read; `<…>`, which changes each time, may stand for a number."""
    quoted = re.sub(r"(?m)(?<=: )((?:0\.)?<[^<>\"\n]+>)(?=,?$)", r'"\1"', text)
    return json.dumps(json.loads(quoted), indent=2, ensure_ascii=False)


# HTTP


def http() -> str:
    """What the dashboard answers to programs."""
    rows = [
        (_code(f"{verb.upper()} {path}"), _cell(operation["summary"]))
        for path, operations in description(has_fleet=True)["paths"].items()
        for verb, operation in operations.items()
    ]
    return "\n".join(
        [
            "# HTTP API",
            "",
            "Of `lithify web`, and of services with `--web-port`: [who may ask](../dashboard.md). A running",
            "one describes it in full, in OpenAPI's terms, at `/api/openapi.json`.",
            "",
            *_table(("request", "what"), rows),
        ]
    )


# Python


def python() -> str:
    """The public names of the package; the site generator puts in what their docstrings say."""
    public = [getattr(lithify, name) for name in lithify.__all__]
    errors_of = [value for value in public if isinstance(value, type) and issubclass(value, Exception)]
    parts = ["# Python API", "", "How to use it: [Python API](../api.md). What is not here may change.", ""]
    for value in [*(v for v in public if v not in errors_of), *errors_of]:
        parts += [f"::: {value.__module__}.{value.__qualname__}", ""]
    return "\n".join(parts)


def exit_codes() -> str:
    """The tree of errors, with the code that a command ends with."""
    rows = [
        (
            f"{'&nbsp;' * 4 * depth}`{cls.__name__}`",
            str(cls.exit_code),
            _cell((cls.__doc__ or "").split("\n\n")[0]),
        )
        for depth, cls in _tree(errors.LithifyError, 0)
    ]
    return "\n".join(
        [
            "# Errors",
            "",
            "What Lithify raises, and what its commands exit with; [what each code asks of you]"
            "(../operations.md#exit-codes).",
            "",
            *_table(("error", "exit code", "what"), rows),
        ]
    )


def _tree(cls: type[errors.LithifyError], depth: int) -> Iterator[tuple[int, type[errors.LithifyError]]]:
    yield depth, cls
    for sub in cls.__subclasses__():
        if sub.__module__ == errors.__name__:
            yield from _tree(sub, depth + 1)


# Markdown


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [head, ("---",) * len(head), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _cell(text: str) -> str:
    return (
        " ".join(textwrap.dedent(text).split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
    )


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""
