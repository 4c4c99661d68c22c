"""Databases that old official clients made (see `fixtures/make_old_database.py`)."""

from __future__ import annotations

import tarfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.judge.fixtures.make_old_database import FLUSHES, steps

FIXTURES = Path(__file__).parent / "fixtures"
OLD_DATABASES = ("slatedb-0.10.0", "slatedb-0.12.1", "slatedb-0.15.0")
"""All have manifest format 1; the first has SSTs of format 1, the first two have filters of format 0."""
_kept: list[TemporaryDirectory[str]] = []
"""Removed when the process ends."""


def unpack_old_database(name: str, folder: Path) -> Path:
    """Unpack one of `OLD_DATABASES` into `folder`, and return it."""
    with tarfile.open(FIXTURES / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@cache
def kept_old_database(name: str) -> Path:
    """One of `OLD_DATABASES` for this process, to be read only."""
    _kept.append(TemporaryDirectory(prefix="lithify-old-"))
    return unpack_old_database(name, Path(_kept[-1].name))


def old_database_content() -> dict[bytes, bytes]:
    """What a scan of any of them must show."""
    content: dict[bytes, bytes] = {}
    for flush in range(FLUSHES):
        for key, value, _ttl_ms in steps(flush):
            if value is None:
                content.pop(key, None)
            else:
                content[key] = value
    return dict(sorted(content.items()))
