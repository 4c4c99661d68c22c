"""Where people read, when there is nowhere to write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
@pytest.mark.parametrize(
    ("arguments", "code"), [("status", 2), ("config show", 0), ("config show --set x=1", 2)]
)
def test_closed_streams_change_no_exit_code(tmp_path: Path, closed: str, arguments: str, code: int) -> None:
    url = f" {tmp_path}" if arguments == "status" else ""
    command = f"{sys.executable} -m lithify {arguments}{url} {closed}"
    assert subprocess.run(["sh", "-c", command], check=False).returncode == code
