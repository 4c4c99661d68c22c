"""Command options of single kinds of datasets, and the values that a command got for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class KindOption:
    """The description of a command option."""

    name: str
    """The parameter's name, from which the flag is derived."""
    commands: frozenset[str]
    """Names of the commands that have the option."""
    help: str
    type: Any = str
    """`bool` for a flag, `list[…]` for an option that may be repeated."""
    metavar: str | None = None
    setting: str | None = None
    """The setting that the option overrides. If that is a table, the values are KEY=VALUE."""

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class Inspection:
    """A part of datasets of one kind that `inspect` can show."""

    part: str
    help: str
    url_help: str | None = None
    """What the URL names, if not a dataset."""
    options: tuple[KindOption, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """The parts of commands that belong to one kind of dataset."""

    options: tuple[KindOption, ...] = ()
    inspections: tuple[Inspection, ...] = ()
    environment: tuple[str, ...] = ()
    """Prefixes of the environment variables that its libraries read, including secrets."""
    metric_names: Mapping[str, str] = field(default_factory=dict)
    """Additional, established names of metrics."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A small dataset that `lithify demo` has made."""

    what: str
    """A description of a few words."""
    url: str
    settings: Mapping[str, str]
    """Settings that it is opened with."""
    reader: str
    """The foreign program that reads the rows."""
    rows: Any
    """The rows before the compaction, with a length and an equality."""
    read: Callable[[], Any]
    """Returns the rows as the reader reads them now."""
    query_cost: Callable[[], str] | None = None
    """Returns what a typical query reads now, for kinds that have one."""


@dataclass(frozen=True, slots=True)
class CommandArgs:
    """A command's request about one dataset."""

    full: bool = False
    """Whether to process everything instead of what the planner finds worthwhile."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Values of the kind's own options, by name."""
