"""The result of a planner: proposals, and reasons for not proposing the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, Protocol

from lithify.protocol.model import SpecT

MAX_PRIORITY = 1.0
Held = Mapping[str, str]
"""Inputs (`TaskIdentity.inputs`) that must not be compacted for now, each with a sentence that says why."""
NOTHING_HELD: Held = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """What identifies a spec, planned or active."""

    key: str
    """Unique among all planned and active specs, and the same if the same work is planned again."""
    unit: str
    """The unit that it compacts: groups compactions in status, metrics and logs."""
    inputs: frozenset[str]
    """Names of its inputs, unique within the dataset. After a compaction has failed for good, the planner
    backs off from specs that share an input with it."""
    conflict_scope: frozenset[Any]
    """The parts of the dataset that it rewrites. After a commit conflict, the planner backs off from specs of
    the same scope, but not from larger ones."""


@dataclass(frozen=True, slots=True)
class Proposal(Generic[SpecT]):
    """A compaction that the planner proposes."""

    spec: SpecT
    priority: float
    """0 (may wait) to `MAX_PRIORITY` (urgent)."""
    cost_bytes: int
    """Bytes to read."""
    reason: str
    """One sentence for the operator."""
    after: tuple[str, ...] = ()
    """Keys (`TaskIdentity.key`) of planned or active compactions that must end first."""


@dataclass(frozen=True, slots=True)
class Total:
    """Totals of some part of a dataset."""

    units: int
    files: int
    size_bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Plan(Generic[SpecT]):
    """A plan: proposals, the most urgent first, and reasons for not proposing the rest."""

    proposals: tuple[Proposal[SpecT], ...] = ()
    notes: tuple[str, ...] = ()
    """Why the other units are not proposed, one sentence for each."""
    refusal: str = ""
    """Why no part of the dataset can be compacted, regardless of the work there is; the first of the notes.
    Empty if any part can."""
    left_alone: tuple[str, ...] = ()
    """The notes about parts that cannot be compacted: there may be more work than is proposed."""
    stuck: tuple[str, ...] = ()
    """The subset of `left_alone` that no later run can compact and that gets worse: an operator has to
    act."""
    is_left_out: bool = False
    """Whether the dataset's own policy excludes it from planned compactions."""
    totals: Mapping[str, Total] = field(default_factory=dict)
    """The dataset's totals by planned action; every file counts once. Empty if the planner does not read
    everything."""
    memory: Any = field(default=None, compare=False, repr=False)
    """Planner state for `DatasetPort.save_planner_state`, opaque to all but the kind."""


class Planner(Protocol):
    """A function that plans compactions; see `DatasetPort.propose`."""

    def __call__(self, snapshot: Any, ledger: Any, held: Held = NOTHING_HELD, /) -> Plan: ...
