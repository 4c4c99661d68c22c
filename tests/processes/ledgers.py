"""Damaging a ledger as somebody else's program might, and mending it as an operator does.

A process that has read a version does not read it again, because versions do not change. So what is damaged
here is a new one that nobody has read: junk under the next number.
"""

from __future__ import annotations

import os
from pathlib import Path

JUNK = b"junk" * 100


def newest(folder: Path) -> Path:
    """The newest version in the folder of a ledger."""
    return max(path for path in folder.iterdir() if path.stem.isdigit())


def damage(folder: Path) -> Path:
    """Publish junk as the newest version; its file. Others may publish at the same time."""
    draft = folder.with_name("junk")
    draft.write_bytes(JUNK)
    try:
        while True:
            latest = newest(folder)
            junk = latest.with_name(f"{int(latest.stem) + 1:020d}{latest.suffix}")
            try:
                os.link(draft, junk)
            except FileExistsError:
                continue
            return junk
    finally:
        draft.unlink()


def restore(junk: Path) -> None:
    """Write over it what the version before it says, in one step."""
    before = junk.with_name(f"{int(junk.stem) - 1:020d}{junk.suffix}")
    draft = junk.parent.with_name("restored")
    draft.write_bytes(before.read_bytes())
    draft.replace(junk)


def take_away(junk: Path) -> None:
    """Take it away: the version before it is the newest again."""
    junk.unlink()
