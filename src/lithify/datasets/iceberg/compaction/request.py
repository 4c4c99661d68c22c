"""An operator's request to compact a table, regardless of when its policy would do so (pure).

1. *Everything*: the planner's verdicts, without the reasons for chunks to wait: skip offsets, more data to
   arrive, and deferral for lack of capacity.
2. *Given chunks*: these are rewritten regardless of their verdict, together with the neighbours that share
   files with them, as the planner forms tasks.
3. The service decides which of these compactions can start now.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from lithify.base.errors import Refused
from lithify.datasets.iceberg.model import IcebergLedger, TableState
from lithify.datasets.iceberg.plan import active_tasks, held_notes, left_notes, proposed, timeline_policy
from lithify.planning.timeline.calendar import Calendar
from lithify.planning.timeline.model import (
    Chunk,
    ChunkAction,
    ChunkBucket,
    ChunkKey,
    ChunkVerdict,
    TimelinePlan,
)
from lithify.planning.timeline.plan import plan
from lithify.protocol.proposal import NOTHING_HELD, Held, Plan

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """A request to rewrite the chunks with these names, and other chunks only if they share files with
    these."""

    names: frozenset[str]
    calendar: Calendar

    def __call__(self, chunk: Chunk) -> ChunkVerdict:
        if chunk_name(chunk.key, self.calendar) in self.names:
            return ChunkVerdict(ChunkAction.COMPACT, "requested", 1.0)
        return ChunkVerdict(ChunkAction.NO_OPINION, "not requested")


def chunk_name(key: ChunkKey, calendar: Calendar) -> str:
    """Return the name of a chunk for operators: the name that `lithify plan` shows, or its bucket."""
    return calendar.name(key.start_us) if key.bucket is ChunkBucket.TIME else key.bucket.name.lower()


def everything(
    state: TableState,
    ledger: IcebergLedger,
    now_us: int,
    names: Collection[str] | None = None,
    held: Held = NOTHING_HELD,
    alone: frozenset[str] = frozenset(),
) -> TimelinePlan:
    """Return the timeline as if nothing had to wait; with `names`, as if only these chunks needed
    compaction."""
    policy = replace(
        timeline_policy(state.policy),
        min_saved_files=1,
        min_new_ratio=0.0,
        skip_clock_us=None,
        skip_newest_us=None,
    )
    if names is not None:
        policy = replace(policy, rules=(ChunkRequest(frozenset(names), policy.calendar),))
    return plan(state.files, policy, now_us, active=active_tasks(ledger), held=held, alone=alone)


def request(
    state: TableState,
    ledger: IcebergLedger,
    now_us: int,
    names: Collection[str] | None = None,
    held: Held = NOTHING_HELD,
    alone: frozenset[str] = frozenset(),
) -> Plan:
    """Plan everything, or the chunks with these names, without `held` files. Raise `Refused` for an unknown
    chunk name."""
    if state.refusal:
        return Plan(notes=state.notes, refusal=state.refusal)
    timeline = everything(state, ledger, now_us, names, held, alone)
    calendar = timeline_policy(state.policy).calendar
    wanted = {
        planned.chunk.key
        for planned in timeline.chunks
        if names is None or chunk_name(planned.chunk.key, calendar) in names
    }
    if names is not None:
        _check_names(names, wanted, timeline, calendar, is_timed=state.is_timed)
    tasks = [task for task in timeline.tasks if wanted.intersection(task.chunks)]
    notes = [*state.notes, *(held_notes(timeline, held) if held else ())]
    busy = sum(planned.task is not None and planned.chunk.key in wanted for planned in timeline.chunks)
    busy -= sum(len(wanted.intersection(task.chunks)) for task in tasks)
    if busy:
        notes.append(f"{busy} chunk(s) are already being compacted")
    return Plan(
        proposed(tasks, state),
        tuple(notes),
        left_alone=left_notes(state),
        stuck=left_notes(state, only_stuck=True),
    )


def _check_names(
    names: Collection[str],
    wanted: Collection[ChunkKey],
    timeline: TimelinePlan,
    calendar: Calendar,
    *,
    is_timed: bool,
) -> None:
    found = {chunk_name(key, calendar) for key in wanted}
    missing = sorted(set(names) - found)
    if missing:
        known = list(dict.fromkeys(chunk_name(p.chunk.key, calendar) for p in timeline.chunks))
        if not is_timed:
            raise Refused(
                f"there is no chunk {', '.join(missing)}: files are compacted by size here, and not by "
                "chunks of time; add --full instead of --chunk"
            )
        more = " …" if len(known) > _SHOWN else ""
        raise Refused(
            f"there is no chunk {', '.join(missing)}: a chunk is one {calendar.granularity.value} here, such "
            f"as {', '.join(known[-_SHOWN:]) or 'none'}{more}; `lithify plan` shows them"
        )
    if ChunkBucket.UNKNOWN in {key.bucket for key in wanted}:
        raise Refused(
            "files of unknown times cannot be compacted, because their rows may belong to any chunk"
        )
