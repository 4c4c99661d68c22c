"""What commands print on a narrow terminal, on a wide one and to a pipe, beside golden files (`test_golden`
says how they are written anew)."""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lithify.api import client
from lithify.base.clock import SystemClock
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Leadership
from lithify.doctor import setup
from lithify.protocol.finding import Finding, ok
from tests.cli.invoking import COMMAND, invoke
from tests.cli.test_golden import CHANGING, GOLDEN, compare, make_database, make_table, steady
from tests.compacting import dataset_at
from tests.datasets.kafka.test_commands import make_log
from tests.fuzz.running import run
from tests.ledgers import take_epoch

WIDTHS = (80, 120, None)
"""Columns; `None` for a pipe."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """One whose name is as long in every run: where lines are wrapped depends on it."""
    with tempfile.TemporaryDirectory(prefix="lithify-golden-", dir="/tmp") as made:
        yield Path(made)


@pytest.fixture(autouse=True)
def any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What commands say of this one is not for golden files."""
    monkeypatch.setattr(client, "_owner", lambda: "somebody@host")

    def well(check: str) -> Finding:
        return ok(check, "is well")

    monkeypatch.setattr(setup, "check_java", lambda _: well("java"))
    monkeypatch.setattr(setup, "check_cache", lambda _: well("cache"))


@pytest.fixture(autouse=True)
def snapshots_of_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of nine has an id of fewer digits, and lines are wrapped elsewhere then."""
    ids = itertools.count(10**18)
    monkeypatch.setattr("pyiceberg.table.metadata._generate_snapshot_id", lambda: next(ids))


def at_width(width: int | None, *arguments: str) -> str:
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("COLUMNS", raising=False)
        if width is not None:
            patched.setenv("COLUMNS", str(width))
        patched.setattr("typer.rich_utils.MAX_WIDTH", width)
        result = invoke(*arguments)
    if "--help" not in arguments:
        assert "…" not in result.output, "something is cut off"
    return f"$ lithify {' '.join(arguments)}  # {width or 'piped'}\n{result.output}"


def at_each_width(*arguments: str) -> str:
    return "\n".join(at_width(width, *arguments) for width in WIDTHS)


def uncounted(text: str) -> str:
    """Without numbers that chance decides: of versions and of files of the log."""
    return re.sub(r"\b\d+\b", "<n>", re.sub(dict(CHANGING)["time"], "<time>", text))


def test_of_a_database(folder: Path, request: pytest.FixtureRequest) -> None:
    url = str(make_database(folder / "db"))
    limit = ("--set", "slatedb.l0_max_ssts=1000")
    texts = [
        at_each_width("plan", url),
        at_each_width("plan", "--full", url),
        at_each_width("status", url),
        at_each_width("inspect", "manifest", url),
        uncounted(at_each_width("gc", "--min-age", "1h", url)),
        uncounted(at_each_width("doctor", "--read-only", *limit, url)),
        at_each_width("compact", "--dry-run", url),
        at_each_width("config", "show", "--changed", "--set", "slatedb.max_sst_size=64MB"),
    ]
    assert run(["compact", url]).exit_code == 0
    texts += [at_each_width("history", url), at_each_width("inspect", "compactions", url)]
    largest = max((folder / "db" / "compacted").glob("*.sst"), key=lambda file: file.stat().st_size)
    shown = at_each_width("inspect", "sst", str(largest))
    texts.append(shown.replace(str(folder).strip("/"), "<folder>").replace(largest.stem, "<sst>"))
    compare(request, "widths-database", steady("\n".join(texts), folder))


def test_of_single_compactions(folder: Path, request: pytest.FixtureRequest) -> None:
    url = str(make_database(folder / "db"))
    take_epoch(dataset_at(url))
    with Leadership(dataset_at(url), SystemClock(), RandomIds()).acquire(take_over=True):
        pass
    submitted = at_width(80, "submit", "--full", url)
    short = re.findall(r"^[0-9A-Z]{26}$", submitted, re.MULTILINE)[0][-6:]
    texts = [
        submitted,
        at_each_width("status", url),
        at_each_width("inspect", "compactions", url),
        at_each_width("submit", "--full", url),
        at_width(80, "wait", "--timeout", "1ms", url, short),
        at_width(80, "cancel", url, short),
        at_each_width("cancel", url, short),
        at_each_width("status", url),
        at_width(80, "retry", url, short),
        at_each_width("wait", "--timeout", "1ms", url),
    ]
    compare(request, "widths-single", steady("\n".join(texts), folder))


def test_of_a_table(folder: Path, request: pytest.FixtureRequest) -> None:
    make_table(folder)
    lake = ("iceberg://lake/db.events", "--store-option", f"uri=sqlite:///{folder}/catalog.db")
    (folder / "checkpoint").mkdir()
    texts = [
        at_each_width(*command, *lake)
        for command in (
            ["plan"],
            ["status"],
            ["gc"],
            ["doctor", "--read-only"],
            ["expire", "--dry-run", "--retain-last", "1", "--older-than", "2999-01-01"],
            ["rewrite-equality-deletes", "--dry-run"],
            ["rewrite-position-delete-files", "--dry-run"],
            ["rewrite-manifests", "--dry-run"],
            ["hold", "--list"],
            ["readers", "list"],
        )
    ]
    texts.append(uncounted(at_each_width("remove-orphans", *lake)))
    texts.append(at_width(80, "hold", "--name", "training", *lake))
    texts.append(at_each_width("hold", "--list", *lake))
    reader = str(folder / "checkpoint")
    texts.append(at_each_width("readers", "add", "--name", "stream", lake[0], reader, *lake[1:]))
    texts.append(at_each_width("readers", "drop", lake[0], "stream", *lake[1:]))
    texts.append(at_each_width("maintain", "--skip", "data", "--skip", "files", *lake))
    compare(request, "widths-table", steady("\n".join(texts), folder))


def test_of_a_log(folder: Path, request: pytest.FixtureRequest) -> None:
    url = f"kafka+file://{make_log(folder / 'backup' / 'orders-0')}"
    texts = [
        at_each_width(*command, url)
        for command in (
            ["plan"],
            ["plan", "--full"],
            ["status"],
            ["inspect", "segments"],
            ["gc"],
            ["doctor", "--read-only"],
        )
    ]
    group = str(folder / "group")
    texts += [
        at_width(80, "group", "init", "--members", "eu,us", group),
        at_each_width("group", "show", group),
        at_each_width("group", "join", "--at", "0=81240", "--at", "1=79113", group, "warehouse"),
        at_each_width("group", "show", group),
        at_each_width("group", "leave", group, "nobody"),
        at_width(80, "group", "leave", group, "warehouse"),
    ]
    compare(request, "widths-log", steady("\n".join(texts), folder))


def test_of_a_fleet(folder: Path, request: pytest.FixtureRequest) -> None:
    databases = [str(make_database(folder / "tenants" / name / "db")) for name in ("green", "red")]
    fleet = str(folder / "fleet")
    texts = [
        at_width(80, "fleet", "init", fleet),
        at_each_width("fleet", "add", "--tenant", "*", fleet, f"{folder}/tenants/*/db"),
        at_each_width("queue", "create", "--largest", "1GB", "--reserved-slots", "1", fleet, "small"),
        at_width(80, "queue", "set", "--largest", "2GB", fleet, "small"),
        at_each_width("fleet", "tenant", "set", "--weight", "2", "--most-running", "8", fleet, "red"),
        *(
            at_each_width(*command.split(), fleet)
            for command in (
                "fleet list",
                "fleet status",
                "fleet workers",
                "fleet running",
                "fleet doctor",
                "fleet tenant list",
                "queue list",
            )
        ),
        at_each_width("queue", "info", fleet, "small"),
        at_each_width("fleet", "wake", fleet, databases[0]),
        *(at_width(80, "queue", does, fleet, "small") for does in ("pause", "resume", "drain")),
        at_each_width("queue", "list", fleet),
        at_width(80, "queue", "delete", fleet, "small"),
        at_width(80, "fleet", "tenant", "remove", fleet, "red"),
        at_each_width("fleet", "remove", fleet, f"{folder}/tenants/*/db"),
    ]
    compare(request, "widths-fleet", steady("\n".join(texts), folder))


def test_every_command_is_there() -> None:
    """If only its help."""
    written = "".join(file.read_text() for file in GOLDEN.glob("widths-*.txt"))
    for command in commands(COMMAND, "lithify"):
        assert f"$ {command} " in written, command


def commands(group: Any, path: str) -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}"


def test_help(request: pytest.FixtureRequest, folder: Path) -> None:
    groups = [[], *([name] for name in COMMAND.commands)]
    nested = [name for command in commands(COMMAND, "lithify") if len(name := command.split()[1:]) > 1]
    texts = [at_width(80, *name, "--help") for name in (*groups, *nested)]
    compare(request, "widths-help", steady("\n".join(texts), folder))
