"""The status of a compaction, for operators and scripts: its progress, start, remaining time, and what it
waits for. Pure.

1. *Progress*: each range counts the same share of the compaction's bytes. A finished range counts whole, a
running one by its task's last report, an interrupted one by its outputs.
2. *Pace and remaining time*: the open part, at the pace since the present worker first recorded progress,
once that is `MIN_PACE_MS` ago; until then, since it claimed. Work finished before does not count towards the
pace.
3. *Waiting*: follows from its state, the heartbeats of its worker, earlier attempts, and whether a
coordinator is known to be alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lithify.base.backlog import Backlog
from lithify.base.ids import Ulid, ulid_ms
from lithify.protocol.attempts import Attempt, FailedAttempt, Movement
from lithify.protocol.model import CompactionState
from lithify.protocol.presence import CoordinatorStatus
from lithify.protocol.proposal import Plan
from lithify.protocol.retained import Retained
from lithify.protocol.transitions import AnyCompaction

MIN_PACE_MS = 10_000
"""Over a shorter time, the pace would depend on which ranges happened to finish at the same time."""


@dataclass(frozen=True, slots=True)
class RangeState:
    """The state of one range in the ledger and the journal."""

    is_finished: bool
    output_bytes: int


@dataclass(frozen=True, slots=True)
class Stay:
    """When a compaction entered its present state (under its present worker), and what was finished then."""

    since_ms: int
    ranges: tuple[RangeState, ...] = ()


@dataclass(frozen=True, slots=True)
class CompactionDetails:
    """All that is known of a compaction besides its entry in the ledger."""

    cost_bytes: int
    """Bytes of its inputs."""
    ranges: tuple[RangeState, ...] = ()
    """Empty until its worker has recorded them."""
    stay: Stay | None = None
    first_progress: Stay | None = None
    """When the present worker first recorded ranges."""
    heard_ms: int | None = None
    """The present worker's last heartbeat, by the clock that wrote the ledger's versions, not the worker's;
    `None` if unknown."""
    movements: Mapping[str, Movement] | None = None
    attempts: tuple[Attempt, ...] = ()


@dataclass(frozen=True, slots=True)
class CompactionStatus:
    id: Ulid
    unit: str
    state: CompactionState
    submitted_ms: int
    since_ms: int | None
    """When it entered this state; `None` when the ledger's history is gone."""
    worker: str | None
    heartbeat_age_ms: int | None
    is_stale: bool
    """Whether its worker has been silent for longer than the timeout."""
    ranges: int
    finished_ranges: int
    cost_bytes: int
    done_bytes: int
    bytes_per_s: int | None
    """Pace in bytes of its inputs, under its present worker; unknown before anything has moved."""
    remaining_ms: int | None
    """Estimate; unknown before anything has moved."""
    attempts: int
    last_failure: str | None
    waits_for: str
    """One sentence; empty while it is being worked on."""
    range_shares: tuple[float, ...] = ()
    """The finished share of each range, 0 to 1; empty until its worker has recorded them."""

    @property
    def share_done(self) -> float:
        """The finished share, 0 to 1."""
        return min(self.done_bytes / self.cost_bytes, 1.0) if self.cost_bytes else 0.0


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a dataset."""

    url: str
    at_ms: int
    """By the store's clock if known (`store_ms`), else by this machine's."""
    snapshot: Any
    """The latest committed state."""
    coordinator: CoordinatorStatus
    compactions: tuple[CompactionStatus, ...]
    """Active compactions, oldest first."""
    plan: Plan
    """The plan that would be added now."""
    backlog: tuple[Backlog, ...]
    failures: tuple[FailedAttempt, ...]
    """Compactions that failed for good, oldest first."""
    retained: Retained | None = None
    """The history it keeps; `None` for kinds without history that Lithify could expire."""
    store_ms: int | None = None
    """The time by the store's clock, which dates the times in `compactions`. `None` when no compaction is
    active, or the store does not report its time: then the difference of those and `at_ms` is meaningless."""

    @property
    def stall_ms(self) -> int | None:
        """Time until the first unit's writer stalls."""
        return min((p.stall_ms for p in self.backlog if p.stall_ms is not None), default=None)


def describe(
    compaction: AnyCompaction,
    unit: str,
    known: CompactionDetails,
    now_ms: int | None,
    heartbeat_timeout_ms: int,
    coordinator_alive: bool | None,
) -> CompactionStatus:
    """Return the status of `compaction`. `now_ms` is by the clock of the times in `known`, `None` if that is
    unavailable; `coordinator_alive` is `None` if unknown."""
    owner = compaction.worker if compaction.state is CompactionState.RUNNING else None
    age_ms = None
    if owner is not None and known.heard_ms is not None and now_ms is not None:
        age_ms = max(now_ms - known.heard_ms, 0)
    is_silent = age_ms is not None and age_ms > heartbeat_timeout_ms
    is_stale = compaction.state is CompactionState.RUNNING and (owner is None or is_silent)
    done = _done_bytes(known.cost_bytes, known.ranges, known.movements or {})
    if compaction.state is CompactionState.COMPACTED:
        done = known.cost_bytes
    last = known.attempts[-1] if known.attempts else None
    pace = _bytes_per_ms(compaction, known, done, now_ms)
    return CompactionStatus(
        id=compaction.id,
        unit=unit,
        state=compaction.state,
        submitted_ms=ulid_ms(compaction.id),
        since_ms=known.stay.since_ms if known.stay is not None else None,
        worker=owner.id if owner is not None else None,
        heartbeat_age_ms=age_ms,
        is_stale=is_stale,
        ranges=len(known.ranges),
        finished_ranges=sum(r.is_finished for r in known.ranges),
        cost_bytes=known.cost_bytes,
        done_bytes=done,
        bytes_per_s=None if pace is None else round(pace * 1000),
        remaining_ms=None if pace is None else round((known.cost_bytes - done) / pace),
        attempts=len(known.attempts),
        last_failure=last.reason if last is not None else None,
        waits_for=_waits_for(compaction.state, is_stale, len(known.attempts), coordinator_alive),
        range_shares=_range_shares(known),
    )


def _done_bytes(cost_bytes: int, ranges: tuple[RangeState, ...], movements: Mapping[str, Movement]) -> int:
    read = _read_bytes(movements)
    if not ranges:
        return min(sum(read.values()), cost_bytes)
    return round(sum(_done_by_range(cost_bytes, ranges, read)))


def _read_bytes(movements: Mapping[str, Movement]) -> dict[int, int]:
    """Return the bytes last reported by the tasks of each range."""
    read: dict[int, int] = {}
    for movement in movements.values():
        read[movement.index] = max(read.get(movement.index, 0), movement.bytes_read)
    return read


def _done_by_range(
    cost_bytes: int, ranges: tuple[RangeState, ...], read: Mapping[int, int]
) -> Iterator[float]:
    share = cost_bytes / len(ranges)
    for index, r in enumerate(ranges):
        yield share if r.is_finished else min(max(read.get(index, 0), r.output_bytes), share)


def _range_shares(known: CompactionDetails) -> tuple[float, ...]:
    if not known.ranges or not known.cost_bytes:
        return tuple(float(r.is_finished) for r in known.ranges)
    share = known.cost_bytes / len(known.ranges)
    done = _done_by_range(known.cost_bytes, known.ranges, _read_bytes(known.movements or {}))
    return tuple(round(bytes_done / share, 4) for bytes_done in done)


def _bytes_per_ms(
    compaction: AnyCompaction, known: CompactionDetails, done: int, now_ms: int | None
) -> float | None:
    if compaction.state is not CompactionState.RUNNING or now_ms is None:
        return None
    for start, least_ms in ((known.first_progress, MIN_PACE_MS), (known.stay, 1)):
        if start is None:
            continue
        # Bytes moved by then in unfinished ranges are not recorded, so they count as moved since.
        moved = done - _done_bytes(known.cost_bytes, start.ranges, {})
        elapsed_ms = now_ms - start.since_ms
        if moved > 0 and elapsed_ms >= least_ms:
            return moved / elapsed_ms
    return None


def _waits_for(state: CompactionState, is_stale: bool, attempts: int, coordinator_alive: bool | None) -> str:
    coordinator = {
        True: "the coordinator's next poll",
        False: "a coordinator; none is running",
        None: "the coordinator; whether one is running is unknown",
    }[coordinator_alive]
    tried = f" after {attempts} failed attempt{'s' if attempts != 1 else ''}" if attempts else ""
    match state:
        case CompactionState.COMPACTED if coordinator_alive:
            return "its commit, which may include compactions that still run"
        case CompactionState.SUBMITTED | CompactionState.COMPACTED:
            return coordinator
        case CompactionState.SCHEDULED:
            return f"a free worker to claim it{tried}"
        case CompactionState.RUNNING if is_stale:
            return f"its silent worker's compaction to be reclaimed by {coordinator}"
        case _:
            return ""
