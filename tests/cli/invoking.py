"""The command in this process: for what needs no process of its own, and so is quick."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from typer.main import get_command

from lithify.cli.main import app

COMMAND: Any = get_command(app)
"""Made once: Typer's own runner makes it anew for each call, which takes longer than most commands."""


def invoke(*arguments: str | Path) -> Result:
    """Run `lithify` with these arguments. What it does not foresee is raised."""
    with logging_as_before():
        return CliRunner().invoke(COMMAND, [str(a) for a in arguments], catch_exceptions=False)


def invoke_json(*arguments: str | Path, exit_code: int = 0) -> Any:
    """The document it prints."""
    result = invoke(*arguments, "--json")
    assert result.exit_code == exit_code, result.stderr
    return json.loads(result.stdout)


@contextmanager
def logging_as_before() -> Iterator[None]:
    """Undo what a command does to the logs of this process."""
    root, logger = logging.getLogger(), logging.getLogger("lithify")
    handlers, levels = root.handlers[:], (root.level, logger.level)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        logger.setLevel(levels[1])
