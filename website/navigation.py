"""The table of contents: what mkdocs.yml says, and at the end of the section `REST` every other document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

REST = "How it works"


def listed(entry: Any) -> list[str]:
    """The pages that an entry, or a list of them, names."""
    if isinstance(entry, str):
        return [entry]
    children = entry.values() if isinstance(entry, dict) else entry
    return [page for child in children for page in listed(child)]


def whole(nav: list[Any], docs: Path) -> list[Any]:
    """The table of contents with every document that lies in `docs`."""
    known = set(listed(nav))
    rest = sorted({path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} - known)
    return [{REST: [*entry[REST], *rest]} if REST in entry else entry for entry in nav]
