"""What makes commands start quickly: they import only what they use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.compacting import compact, dataset_at
from tests.judge.official import open_db

HEAVY = {"numba", "numpy", "obstore", "prometheus_client", "pyarrow", "pydantic", "pyspark", "pyiceberg"}
RUN = """
import sys
from typer.testing import CliRunner
from lithify.cli.main import app
result = CliRunner().invoke(app, sys.argv[1:], catch_exceptions=False)
assert result.exit_code == 0, result.output
print(*{name.partition(".")[0] for name in sys.modules})
"""


def imported(*arguments: str | Path) -> set[str]:
    """The packages that are there after a command, of those that are slow to import."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split()) & HEAVY


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["--version"]])
def test_help_imports_nothing_that_works(arguments: list[str]) -> None:
    # Typer itself looks for pydantic when a command has options.
    assert imported(*arguments) <= {"pydantic"}


def test_nothing_to_do_needs_no_spark_and_no_compiler(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with open_db(path) as database:
        database.put(b"k", b"v")
        database.flush()
    compact(dataset_at(path))
    assert imported("compact", path) <= {"numpy", "obstore", "pydantic"}
