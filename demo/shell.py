"""What a demonstration says and runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping


def say(line: str) -> None:
    print(line, flush=True)


def lithify(*arguments: str, environment: Mapping[str, str] | None = None) -> None:
    """Run the command in a process of its own."""
    say(f"$ lithify {' '.join(arguments)}")
    command = [sys.executable, "-m", "lithify.cli.main", *arguments]
    subprocess.run(command, check=True, env={**os.environ, **(environment or {})})
