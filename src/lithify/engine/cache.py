"""Where Lithify keeps what can be made again: the user's cache folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

CACHE_VARIABLE = "LITHIFY_CACHE_DIR"


def cache_folder(environ: Mapping[str, str]) -> Path:
    """`LITHIFY_CACHE_DIR`, else `lithify` in the XDG cache folder."""
    if own := environ.get(CACHE_VARIABLE):
        return Path(own)
    shared = environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "lithify"


def write_atomically(path: Path, data: bytes, mode: int) -> None:
    """Create or replace a file so that no reader and no crash ever sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    staged = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        staged.chmod(mode)
        staged.replace(path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
