"""Plan a timeline: from files, policy and memory to tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lithify.planning.timeline.model import (
    ActiveTask,
    ChunkKey,
    ListedChunk,
    TimelineFile,
    TimelinePlan,
    TimelinePolicy,
)
from lithify.planning.timeline.state import ChunkStates


def files_of(listing: Iterable[ListedChunk]) -> tuple[TimelineFile, ...]:
    """The files of a list of time chunks, each once; `Refused` when two of the same id differ or a
    file is listed in a chunk it does not meet."""
    raise NotImplementedError


def plan(
    files: Iterable[TimelineFile],
    policy: TimelinePolicy,
    now_us: int,
    *,
    states: ChunkStates | None = None,
    active: Sequence[ActiveTask] = (),
    revive_deferred: bool = False,
) -> TimelinePlan:
    """What to compact now.

    Chunks whose record in `states` still holds are not analysed; deferred ones among them are left
    alone unless `revive_deferred` (the queue is empty). Chunks of an active task get no second one,
    and tasks that share a file with an active task wait for it.
    """
    raise NotImplementedError


def remember(plan: TimelinePlan, policy: TimelinePolicy) -> ChunkStates:
    """The states to keep after this plan: one record for each chunk that has files. Equal to the old
    states when nothing changed, so that nothing has to be written."""
    raise NotImplementedError


def resolve(
    chunks: Iterable[ChunkKey], files: Iterable[TimelineFile], policy: TimelinePolicy
) -> tuple[TimelineFile, ...]:
    """The inputs of a task over `chunks` on the timeline as it is now. To be asked when a task starts:
    the files that a black task shared with its predecessors are gone by then."""
    raise NotImplementedError
