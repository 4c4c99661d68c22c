"""The shell completes commands and options; nothing is looked up for that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = str(Path(sys.executable).parent / "lithify")


def answer(**variables: str) -> str:
    done = subprocess.run(
        [PROGRAM], env=os.environ | variables, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("lithify his", ["history"]),
        ("lithify status --wat", ["--watch"]),
        ("lithify fleet coo", ["coordinator"]),
        ("lithify nothing", []),
    ],
)
def test_bash_is_told_what_fits(typed: str, completed: list[str]) -> None:
    at = str(len(typed.split()) - 1)
    found = answer(_LITHIFY_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=at)
    assert found.split() == completed


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_is_installed_for_a_shell_asks_the_program(shell: str) -> None:
    script = answer(_LITHIFY_COMPLETE=f"source_{shell}")
    assert f"complete_{shell}" in script
    assert "lithify" in script
