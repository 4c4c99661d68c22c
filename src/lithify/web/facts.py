"""The parts of a dataset or a fleet that the dashboard reads and renders: calls of `lithify.api.client` and
`lithify.api.fleets`, each the same as a command's.

| part       | command                | shown on                              |
|------------|------------------------|---------------------------------------|
| `STATUS`   | `lithify status`       | overview, dataset, running, failures  |
| `PLAN`     | `lithify plan`         | dataset, plan                         |
| `HISTORY`  | `lithify history`      | history                               |
| `LAST`     | the newest of these    | overview                              |
| `FLEET`    | `lithify fleet status` | fleet, queues                         |
| `DATASETS` | `lithify fleet list`   | overview of a fleet                   |
| `LIST`     | all it prints          | only as JSON: thousands are slow      |
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from lithify.api.client import CommitRecord, Dataset, Status
from lithify.api.fleets import Fleet
from lithify.fleet.catalog.model import DatasetRule
from lithify.fleet.status import FleetStatus
from lithify.fleet.view import show_datasets, show_queue, show_status
from lithify.protocol.model import CompactionState
from lithify.views.blocks import Levels, Shown, Timeline
from lithify.web.readers import PagePart
from lithify.web.rendering import clean, render_blocks

HISTORY_LAST = 50
"""The command's default."""
_PASSING = frozenset({"at_ms", "heartbeat_age_ms", "lease_ends_ms", "remaining_ms", "silent_ms", "last_ms"})
"""Fields that change by themselves."""
_COMPACTED = "compacted"


@dataclass(frozen=True, slots=True)
class Summary:
    """A dataset in one line, and as an entry of `/api/datasets`."""

    url: str
    state: str
    """One or two words."""
    is_bad: bool
    coordinator: str
    coordinator_is_alive: bool | None
    unit: str | None
    """The unit nearest to a stall; `waiting` is its backlog and `limit` its limit."""
    waiting: int | None
    limit: int | None
    stall_ms: int | None
    share_compacted: float | None
    """Of the bytes; `None` if the planner does not examine everything."""
    running: int
    bytes_per_s: int | None
    failures: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered part."""

    json: bytes
    """The command's `--json` document, without secrets."""
    html: Markup
    """The command's blocks."""
    facts: Any
    """Values that pages lay out themselves."""


@dataclass(frozen=True, slots=True)
class StatusFacts:
    """A status without its snapshot."""

    status: Status
    summary: Summary


def summary_of(found: Status) -> Summary:
    worst = max(found.backlog, key=lambda b: b.waiting / max(b.limit, 1), default=None)
    running = [c for c in found.compactions if c.state is CompactionState.RUNNING]
    rates = [c.bytes_per_s for c in running if c.bytes_per_s is not None]
    sizes = {name: total.size_bytes for name, total in found.plan.totals.items()}
    state, is_bad = _state(found, len(running))
    return Summary(
        url=found.url,
        state=state,
        is_bad=is_bad,
        coordinator=found.coordinator.says,
        coordinator_is_alive=found.coordinator.is_alive,
        unit=None if worst is None else worst.unit,
        waiting=None if worst is None else worst.waiting,
        limit=None if worst is None else worst.limit,
        stall_ms=found.stall_ms,
        share_compacted=sizes.get(_COMPACTED, 0) / sum(sizes.values()) if sum(sizes.values()) else None,
        running=len(running),
        bytes_per_s=sum(rates) if rates else None,
        failures=sum(not failure.is_cancelled for failure in found.failures),
        at_ms=found.at_ms,
    )


def _state(found: Status, running: int) -> tuple[str, bool]:
    if found.stall_ms == 0:
        return "writer stalls", True
    if any(c.is_stale for c in found.compactions):
        return "worker silent", True
    if running:
        return f"compacting ({running})", False
    if found.compactions:
        return "waiting", found.coordinator.is_alive is False
    return ("has work", False) if found.plan.proposals else ("idle", False)


def _status(dataset: Dataset) -> tuple[Any, str]:
    found = dataset.status()
    shown = dataset.show_status(found)
    is_moving = any(c.state is CompactionState.RUNNING for c in found.compactions)
    # Pages need no snapshot, and it can be large.
    facts = StatusFacts(replace(found, snapshot=None), summary_of(found))
    return _rendered(shown, facts), _version(shown.document, is_moving)


def _plan(dataset: Dataset) -> tuple[Any, str]:
    planned = dataset.plan()
    pictures = tuple(block for block in planned.shown.blocks if isinstance(block, Levels | Timeline))
    drawn = render_blocks(pictures, with_tables=False)
    return _rendered(planned.shown, drawn), _version(planned.document)


def _history(dataset: Dataset) -> tuple[Any, str]:
    shown = dataset.show_history(last=HISTORY_LAST)
    return _rendered(shown, shown.document["totals"]), _version(shown.document)


def _last(dataset: Dataset) -> tuple[CommitRecord | None, str]:
    commits = dataset.history(last=1)
    return (commits[-1], commits[-1].compaction) if commits else (None, "")


def _fleet(fleet: Fleet) -> tuple[Any, str]:
    found = fleet.status()
    shown = show_status(found)
    queues = {
        status.queue.name: _rendered(show_queue(status, found.at_ms), status) for status in found.queues
    }
    return _rendered(shown, FleetFacts(found, queues)), _version(shown.document)


def _datasets(fleet: Fleet) -> tuple[Any, str]:
    rules, problems = fleet.datasets()
    said = "; ".join(f"{pattern}: {error}" for pattern, error in problems.items())
    return FleetDatasets(rules, said), _version({"urls": list(rules), "problems": said})


def _list(fleet: Fleet) -> tuple[Any, str]:
    rules, problems = fleet.datasets()
    shown = show_datasets(fleet.catalog().catalog, rules, problems)
    return _rendered(shown, None, with_html=False), _version(shown.document)


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """A fleet's status, and its queues as they are shown."""

    status: FleetStatus
    queues: Mapping[str, Rendered]


Rules = Mapping[str, DatasetRule]
"""The datasets of a fleet: rules by URL."""


@dataclass(frozen=True, slots=True)
class FleetDatasets:
    """The datasets of a fleet, and the patterns that could not be resolved."""

    rules: Rules
    problems: str


STATUS = PagePart("status", 3.0, _status)
PLAN = PagePart("plan", 10.0, _plan)
HISTORY = PagePart("history", 30.0, _history)
LAST = PagePart("last", 60.0, _last)
FLEET = PagePart("fleet", 3.0, _fleet)
DATASETS = PagePart("datasets", 60.0, _datasets)
LIST = PagePart("list", 60.0, _list)


def _rendered(shown: Shown, facts: Any, *, with_html: bool = True) -> Rendered:
    html = render_blocks(shown.blocks) if with_html else Markup()
    return Rendered(json.dumps(clean(shown.document)).encode(), html, facts)


def _version(document: Mapping[str, Any], is_moving: bool = False) -> str:
    """Hash the fields that do not change by themselves; if `is_moving`, all fields."""
    told = document if is_moving else _lasting(document)
    return hashlib.sha256(json.dumps(told, default=str).encode()).hexdigest()[:16]


def _lasting(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _lasting(inner) for name, inner in value.items() if name not in _PASSING}
    if isinstance(value, list | tuple):
        return [_lasting(inner) for inner in value]
    return value
