"""Options of commands that only one kind of dataset has, and what was given of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class KindOption:
    """An option, for commands to make one of."""

    name: str
    """Its parameter; the flag is made of it."""
    commands: frozenset[str]
    """Those that have it."""
    help: str
    type: Any = str
    """`bool` for a flag, `list[…]` for what may be repeated."""
    metavar: str | None = None
    setting: str | None = None
    """The setting it stands for; of a table of settings, its values are KEY=VALUE."""

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class Inspection:
    """A part of what datasets of one kind consist of, for a command to show."""

    part: str
    help: str
    url_help: str | None = None
    """What its URL names, where that is no dataset."""
    options: tuple[KindOption, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """What commands have for one kind of dataset alone."""

    options: tuple[KindOption, ...] = ()
    inspections: tuple[Inspection, ...] = ()
    environment: tuple[str, ...] = ()
    """What environment variables begin with that its libraries read, secrets among them."""
    metric_names: Mapping[str, str] = field(default_factory=dict)
    """Metrics that have another name as well, by which people know them."""


@dataclass(frozen=True, slots=True)
class CommandArgs:
    """What a command was told to do with one dataset."""

    full: bool = False
    """All there is, rather than what the planner finds worth it."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """By name, the options of its kind that were given."""
