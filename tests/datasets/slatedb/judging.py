"""What the official client makes of single metadata files."""

from __future__ import annotations

import tempfile
from enum import Enum
from pathlib import Path
from typing import Any

from tests.judge.admin import Admin


def official_manifest(data: bytes) -> Any:
    """The official client's value of a manifest file."""
    with tempfile.TemporaryDirectory() as folder:
        _place(Path(folder) / "manifest" / f"{1:020}.manifest", data)
        return Admin(folder).read_manifest(1)


def official_compactions(data: bytes) -> Any:
    """The official client's value of a compactions file."""
    with tempfile.TemporaryDirectory() as folder:
        _place(Path(folder) / "compactions" / f"{1:020}.compactions", data)
        return Admin(folder).read_compactions(1)


def _place(path: Path, data: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(data)


def plain(value: Any) -> Any:
    """A value of the official client as dictionaries and lists, without the number of its file."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Enum):
        return value.name
    fields = getattr(value, "__dict__", None)
    if not fields:
        return value
    return {name: plain(item) for name, item in fields.items()} | {"": type(value).__name__}


def same(left: Any, right: Any) -> bool:
    """Whether two values of the official client agree, but for the number of their file and the marker
    that only manifests of version 1 have."""
    one, two = plain(left), plain(right)
    for value in (one, two):
        value.pop("id")
        value.pop("last_compacted_l0_sst_id", None)
    return bool(one == two)
