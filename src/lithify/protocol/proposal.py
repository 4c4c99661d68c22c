"""What a planner says: proposals, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, Protocol

from lithify.protocol.model import SpecT

MAX_PRIORITY = 1.0
Held = Mapping[str, str]
"""What is to be left alone for now: names of sources (`DatasetPort.sources`), each with a sentence why."""
NOTHING_HELD: Held = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Proposal(Generic[SpecT]):
    """Something worth compacting, and why."""

    spec: SpecT
    priority: float
    """0 (may wait) to `MAX_PRIORITY` (urgent)."""
    cost_bytes: int
    """Bytes that would be read."""
    reason: str
    """One sentence for people."""
    after: tuple[str, ...] = ()
    """Names (`DatasetPort.name`) of others, planned or active, that must have ended before."""


@dataclass(frozen=True, slots=True)
class Total:
    """So many units and files with so many bytes and rows."""

    units: int
    files: int
    size_bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Plan(Generic[SpecT]):
    """What should be compacted, most urgent first, and what should not, and why."""

    proposals: tuple[Proposal[SpecT], ...] = ()
    notes: tuple[str, ...] = ()
    """Why the rest is left alone, one sentence for each unit."""
    refusal: str = ""
    """Why nothing of the dataset can be compacted at all, whatever there is to do; the first of the notes.
    Empty when something can."""
    left_alone: tuple[str, ...] = ()
    """Of the notes, those about what cannot be compacted: there may be more to do than is proposed."""
    stuck: tuple[str, ...] = ()
    """Of these, what no later run can compact either and what grows worse: a person has to act."""
    is_left_out: bool = False
    """The dataset's own policy wants nothing of it compacted unasked."""
    totals: Mapping[str, Total] = field(default_factory=dict)
    """By what is to become of it, how much the dataset has; every file counts once. Empty where the
    planner does not look at everything."""
    memory: Any = field(default=None, compare=False, repr=False)
    """What the kind found out meanwhile and wants to keep, for `DatasetPort.remember`."""


class Planner(Protocol):
    """What decides what should be compacted; see `DatasetPort.propose`."""

    def __call__(self, snapshot: Any, ledger: Any, held: Held = NOTHING_HELD, /) -> Plan: ...
