"""Where people read, when there is nowhere to write."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lithify

SOURCE = Path(lithify.__file__).parent


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
@pytest.mark.parametrize(
    ("arguments", "code"), [("status", 2), ("config show", 0), ("config show --set x=1", 2)]
)
def test_closed_streams_change_no_exit_code(tmp_path: Path, closed: str, arguments: str, code: int) -> None:
    url = f" {tmp_path}" if arguments == "status" else ""
    command = f"{sys.executable} -m lithify {arguments}{url} {closed}"
    assert subprocess.run(["sh", "-c", command], check=False).returncode == code


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("config show --json", "No space left on device"),
        ("config show", "No space left on device"),
        ("status --json {place}", "no SlateDB database"),
        ("--help", "No space left on device"),
        ("--version", "No space left on device"),
        ("fleet tenant list --json {fleet}", "No space left on device"),
    ],
)
def test_a_full_disk_behind_standard_output_is_told_in_a_line(
    tmp_path: Path, arguments: str, says: str
) -> None:
    lithify.Fleet(str(tmp_path / "fleet")).init()
    given = arguments.format(place=tmp_path / "nothing", fleet=tmp_path / "fleet").split()
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "lithify", *given], stdout=full, stderr=subprocess.PIPE, check=False
        )
    (line,) = done.stderr.decode().splitlines()
    assert says in line
    assert done.returncode in (1, 2)


def test_what_is_wrong_with_the_words_of_a_command_is_told_whatever_standard_output_takes() -> None:
    command = f"{sys.executable} -m lithify plan --json"
    for output in (">/dev/full", "| true"):
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", f"{command} {output}"], stderr=subprocess.PIPE, check=False
        )
        assert b"Missing argument" in done.stderr
        assert done.returncode == 2


def test_who_reads_only_the_beginning_hears_of_no_error() -> None:
    command = f"{sys.executable} -m lithify --version | true"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, check=False)
    assert done.stderr == b""


def test_nothing_is_printed_except_through_consoles() -> None:
    """Which shows foreign text as text, whoever prints it; `print` itself is the linter's to find."""
    makers = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if "Console(" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Console"
    }
    assert makers == set()
