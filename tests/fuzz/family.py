"""What the harness asks of a kind of dataset."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

SOUND = "sound"
"""The dataset that is never damaged."""
WROTE_NOTHING = frozenset({2, 3, 4})
"""Exit codes that promise that nothing was written: refused, a coordinator alive, corrupt."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """A damaged copy of a dataset."""

    url: str
    folder: Path
    """Holds all objects of it."""
    what: str
    """What is wrong with it, in a few words."""
    options: tuple[str, ...] = ()
    """What every command needs to find it."""
    ids: tuple[str, ...] = ()
    """Compactions to ask for: those in its sound ledger, and others."""
    objects: tuple[str, ...] = ()
    """URLs of single objects to ask for."""
    is_forged: bool = False
    """Whether its record of compactions may claim what nobody did: then no rows are sure."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command, and what it promises."""

    name: str
    arguments: Callable[[Damaged, random.Random], Sequence[str]]
    reads_only: bool = False
    keeps_rows: bool = True
    """Whether a reader must see the same rows afterwards, where it saw them before."""
    weight: int = 1
    may_write: tuple[str, ...] = ()
    """Names, or how they begin, of objects that it may write although it then refuses."""
    helps: bool = False
    """Whether the command is about a sound dataset too."""


class Family(Protocol):
    """A kind of dataset."""

    @property
    def name(self) -> str: ...

    @property
    def commands(self) -> Sequence[Command]: ...

    def prepare(self, folder: Path, place: Path) -> None:
        """Make sound datasets under `folder`, once. Each case copies one to `place`, whose path may stand in
        them, and the sound one beside it, as `SOUND`."""
        ...

    def damage(self, prepared: Path, folder: Path, rng: random.Random) -> Damaged:
        """A damaged copy, in `folder`, of one of the sound datasets."""
        ...

    def seen(self, damaged: Damaged) -> Any:
        """What a foreign reader sees of it; `None` when that cannot read it."""
        ...

    def add_sound(self, prepared: Path, folder: Path) -> str:
        """Put the sound dataset of `Command.helps` into `folder`; its URL."""
        ...

    def was_helped(self, folder: Path) -> bool:
        """Whether the sound dataset got what the command owes it."""
        ...


@dataclass(slots=True)
class Verdict:
    """What one case came to."""

    case: int
    command: str
    what: str
    exit_code: int | None = None
    problems: list[str] = field(default_factory=list)
    cpu_s: float = 0.0
    memory_bytes: int = 0
    said: str = ""
    """The end of what it printed, for people."""
