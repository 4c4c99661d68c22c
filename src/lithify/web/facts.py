"""The parts of a dataset or a fleet that the dashboard reads and renders: calls of `lithify.api.client` and
`lithify.api.fleets`, each the same as a command's.

| part       | command                | shown on                              |
|------------|------------------------|---------------------------------------|
| `STATUS`   | `lithify status`       | overview, dataset, running, failures  |
| `PLAN`     | `lithify plan`         | dataset, plan                         |
| `HISTORY`  | `lithify history`      | history                               |
| `LAST`     | the newest of these    | overview, dataset                     |
| `FLEET`    | `lithify fleet status` | overview, fleet, queues               |
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
from lithify.base.errors import LithifyError
from lithify.fleet.catalog.model import DatasetRule
from lithify.fleet.members import combined
from lithify.fleet.status import FleetStatus
from lithify.fleet.view import show_datasets, show_queue, show_status
from lithify.protocol.model import CompactionState
from lithify.views.blocks import Levels, Shown, Timeline
from lithify.web.readers import PagePart, ReadPart
from lithify.web.rendering import clean, render_blocks
from lithify.web.verdicts import DatasetVerdict, judge, work_bytes

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
    work_bytes: int
    """Bytes that running and waiting compactions have still to read."""
    verdict: DatasetVerdict
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


def summary_of(url: str, found: Status, of_fleet: str = "") -> Summary:
    """Sum up a status; `of_fleet` as in `judge`."""
    worst = max(found.backlog, key=lambda b: b.waiting / max(b.limit, 1), default=None)
    running = [c for c in found.compactions if c.state is CompactionState.RUNNING]
    rates = [c.bytes_per_s for c in running if c.bytes_per_s is not None]
    sizes = {name: total.size_bytes for name, total in found.plan.totals.items()}
    verdict = judge(url, found, of_fleet=of_fleet)
    return Summary(
        url=found.url,
        state=_state(found, len(running)),
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
        work_bytes=work_bytes(found),
        verdict=verdict,
        at_ms=found.at_ms,
    )


def _state(found: Status, running: int) -> str:
    if found.stall_ms == 0:
        return "writer stalls"
    if any(c.is_stale for c in found.compactions):
        return "worker silent"
    if running:
        return f"compacting ({running})"
    if found.compactions:
        return "waiting"
    return "has work" if found.plan.proposals else "idle"


def _status(dataset: Dataset) -> ReadPart:
    found = dataset.status()
    shown = dataset.show_status(found)
    is_moving = any(c.state is CompactionState.RUNNING for c in found.compactions)
    # Pages need no snapshot, and it can be large.
    facts = replace(found, snapshot=None)
    return ReadPart(_rendered(shown, facts), _version(shown.document, is_moving), dataset.read_ms())


def _plan(dataset: Dataset) -> ReadPart:
    planned = dataset.plan()
    pictures = tuple(block for block in planned.shown.blocks if isinstance(block, Levels | Timeline))
    drawn = render_blocks(pictures, with_tables=False)
    return ReadPart(_rendered(planned.shown, drawn), _version(planned.document), dataset.read_ms())


def _history(dataset: Dataset) -> ReadPart:
    shown = dataset.show_history(last=HISTORY_LAST)
    return ReadPart(_rendered(shown, shown.document["totals"]), _version(shown.document))


def _last(dataset: Dataset) -> ReadPart:
    commits: tuple[CommitRecord | None, ...] = dataset.history(last=1)
    last = commits[-1] if commits else None
    return ReadPart(last, last.compaction if last is not None else "")


def _fleet(fleet: Fleet) -> ReadPart:
    found = fleet.status()
    shown = show_status(found)
    queues = {
        status.queue.name: _rendered(show_queue(status, found.at_ms), status) for status in found.queues
    }
    # As of its own time, by this machine's clock: a coordinator shows what it has read earlier.
    rendered = _rendered(shown, FleetFacts(found, queues))
    return ReadPart(rendered, _version(shown.document), found.at_ms + found.off_ms)


def _datasets(fleet: Fleet) -> ReadPart:
    rules, problems = fleet.datasets()
    found = FleetDatasets(rules, problems)
    return ReadPart(found, _version({"urls": list(rules), "problems": found.says}))


def _list(fleet: Fleet) -> ReadPart:
    rules, problems = fleet.datasets()
    shown = show_datasets(fleet.catalog().catalog, rules, problems)
    return ReadPart(_rendered(shown, None, with_html=False), _version(shown.document))


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """A fleet's status, and its queues as they are shown."""

    status: FleetStatus
    queues: Mapping[str, Rendered]


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """How far a fleet is with its work, as its live members report it."""

    claimed: int
    """Compactions that workers have started since the coordinators started."""
    running: int
    left: int
    """Compactions that wait."""
    left_bytes: int
    bytes_per_s: int
    drain_ms: float | None
    """How long the workers need for all that waits; `None` without a worker or an estimate."""


def figures_of(found: FleetStatus) -> FleetFigures:
    total = combined(amounts for status in found.queues for amounts in status.tenants.values())
    loads = [
        m.says.load.values() for m in found.members if m.seen.is_alive and m.says is not None and m.says.load
    ]
    # Queues of one worker share its slots.
    slots = sum(max(load.slots for load in of_member) for of_member in loads)
    left = sum(len(status.hints) + status.waiting + status.deferred for status in found.queues)
    return FleetFigures(
        claimed=total.waits.count,
        running=total.running,
        left=left,
        left_bytes=sum(status.queued_bytes for status in found.queues) + total.waiting_bytes,
        bytes_per_s=sum(load.bytes_per_s * load.total.running for of_member in loads for load in of_member),
        drain_ms=total.backlog_ms / slots if slots and (total.backlog_ms or not left) else None,
    )


def pace_of(last: CommitRecord | None) -> float | None:
    """Return the bytes per second of a commit's work; `None` if unknown."""
    return last.bytes_read / last.seconds if last is not None and last.seconds and last.bytes_read else None


Rules = Mapping[str, DatasetRule]
"""The datasets of a fleet: rules by URL."""


@dataclass(frozen=True, slots=True)
class FleetDatasets:
    """The datasets of a fleet, and the patterns that could not be resolved."""

    rules: Rules
    problems: Mapping[str, LithifyError]

    @property
    def says(self) -> str:
        """The problems as one text; empty if there are none."""
        return "; ".join(f"{pattern}: {error}" for pattern, error in self.problems.items())


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
