"""Objects on disk that have been there for longer than they have."""

from __future__ import annotations

import os
from pathlib import Path


def age(folder: Path, by_ms: int) -> None:
    """Let all files below `folder` have been written so much earlier: as if the store's clock had gone on."""
    for path in folder.rglob("*"):
        if path.is_file():
            written_ns = path.stat().st_mtime_ns - by_ms * 1_000_000
            os.utime(path, ns=(written_ns, written_ns))
