"""What is known of each chunk from its last analysis, so that it need not be analysed again.

    empty     no data
    stable    nothing to do
    unstable  has to be compacted
    deferred  has to be compacted, but its task was shed

A record holds while the chunk's fingerprint and the policy's are unchanged. Late data, a replacement,
a new delete and another policy change one of the two, and the chunk is analysed anew.

- A plan gives the records of all chunks it saw (`plan.remember`).
- A shed task makes its unstable chunks deferred (`deferred`). They come back, highest priority first,
  when the queue is empty (`plan(..., revive_deferred=True)`), or at once when they change.
- A commit makes the chunks of its task stable with the content it has just written (`committed`), so
  that our own commits are no change. Whatever others added meanwhile differs from that, and shows. A
  neighbour that got part of a shared file shows as well.

Records are a memory and nothing else: losing them costs one analysis of all chunks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from lithify.planning.timeline.chunks import lay_out
from lithify.planning.timeline.model import ChunkKey, Fingerprint, TimelineFile, TimelinePolicy
from lithify.planning.timeline.rules import rules_of

_FINGERPRINT_BYTES = 8


class ChunkState(Enum):
    """The state of a chunk."""

    EMPTY = "empty"
    STABLE = "stable"
    UNSTABLE = "unstable"
    DEFERRED = "deferred"


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """What is known of one chunk."""

    state: ChunkState
    fingerprint: Fingerprint
    priority: float = 0.0
    """Of the last verdict; above 0 only when unstable or deferred."""
    no_opinion: bool = False
    """Stable, but may be rewritten together with a neighbour."""
    settled: bool = False
    """It has been as good as can be since its time was over, whatever has come since."""


@dataclass(frozen=True, slots=True)
class ChunkStates:
    """The records of a timeline under one policy."""

    policy: str = ""
    """`policy_fingerprint` of the policy the records hold for."""
    records: Mapping[ChunkKey, ChunkRecord] = field(default_factory=dict)

    def under(self, policy: TimelinePolicy) -> ChunkStates:
        """The same if it holds for that policy, else nothing."""
        fingerprint = policy_fingerprint(policy)
        return self if self.policy == fingerprint else ChunkStates(fingerprint)


def policy_fingerprint(policy: TimelinePolicy) -> str:
    """16 hexadecimal digits of everything that verdicts depend on: calendar and rules."""
    text = repr((policy.calendar, policy.max_chunks_per_file, rules_of(policy)))
    return hashlib.blake2b(text.encode(), digest_size=_FINGERPRINT_BYTES).hexdigest()


def deferred(states: ChunkStates, chunks: Iterable[ChunkKey]) -> ChunkStates:
    """The unstable ones of these chunks become deferred: their task was shed."""
    records = dict(states.records)
    for key in chunks:
        record = records.get(key)
        if record is not None and record.state is ChunkState.UNSTABLE:
            records[key] = replace(record, state=ChunkState.DEFERRED)
    return replace(states, records=records)


def committed(
    states: ChunkStates, chunks: Iterable[ChunkKey], added: Iterable[TimelineFile], policy: TimelinePolicy
) -> ChunkStates:
    """A task that rewrote `chunks` into `added` was committed. `added` are the files as the next
    listing will show them."""
    states = states.under(policy)
    written = {chunk.key: chunk for chunk in lay_out(added, policy).chunks}
    records = dict(states.records)
    for key in chunks:
        chunk, before = written.get(key), records.pop(key, None)
        if chunk is not None:
            settled = before is not None and before.settled
            records[key] = ChunkRecord(
                ChunkState.STABLE, chunk.fingerprint, no_opinion=chunk.overlaps, settled=settled
            )
    return replace(states, records=records)
