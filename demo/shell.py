"""What a demonstration says and runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping


def say(line: str) -> None:
    print(line, flush=True)


def lithify(*arguments: str, environment: Mapping[str, str] | None = None, quietly: bool = False) -> None:
    """Run the command in a process of its own. `quietly`: what it prints is not shown."""
    say(f"$ lithify {' '.join(arguments)}")
    command = [sys.executable, "-m", "lithify.cli.main", *arguments]
    output = subprocess.DEVNULL if quietly else None
    subprocess.run(command, check=True, stdout=output, env={**os.environ, **(environment or {})})
