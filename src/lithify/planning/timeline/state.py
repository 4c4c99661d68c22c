"""Records of each chunk's last analysis, so that it need not be analysed again.

    empty     no data
    stable    nothing to do
    unstable  has to be compacted
    deferred  has to be compacted, but its task was shed

A record holds while the chunk's fingerprint and the policy's are unchanged. Late data, a replacement,
a new delete and another policy change one of the two, and the chunk is analysed anew.

- A plan returns the records of all its chunks (`plan.remember`).
- A shed task makes its unstable chunks deferred (`deferred`). They come back, highest priority first,
  when the queue is empty (`plan(..., revive_deferred=True)`), or at once when they change.
- A commit makes the chunks of its task stable with the content it has just written (`committed`), so
  that Lithify's own commits are no change. Data added by other writers meanwhile is detected as one. A
  neighbour that received a part of a shared file is detected as well.

The records are only a cache: losing them costs one analysis of all chunks.
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
    EMPTY = "empty"
    STABLE = "stable"
    UNSTABLE = "unstable"
    DEFERRED = "deferred"


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """The record of one chunk's last analysis."""

    state: ChunkState
    fingerprint: Fingerprint
    priority: float = 0.0
    """Priority of the last verdict; above 0 only when unstable or deferred."""
    no_opinion: bool = False
    """Stable, but may be rewritten together with a neighbour."""
    settled: bool = False
    """Whether it has been optimal since its time was over, whatever was added since."""


@dataclass(frozen=True, slots=True)
class ChunkStates:
    """The records of a timeline under one policy."""

    policy: str = ""
    """`policy_fingerprint` of the policy the records hold for."""
    records: Mapping[ChunkKey, ChunkRecord] = field(default_factory=dict)

    def under(self, policy: TimelinePolicy) -> ChunkStates:
        """Return these states if they hold for that policy, else empty ones."""
        fingerprint = policy_fingerprint(policy)
        return self if self.policy == fingerprint else ChunkStates(fingerprint)


def policy_fingerprint(policy: TimelinePolicy) -> str:
    """Return 16 hexadecimal digits of everything that verdicts depend on: calendar and rules."""
    text = repr((policy.calendar, policy.max_chunks_per_file, rules_of(policy)))
    return hashlib.blake2b(text.encode(), digest_size=_FINGERPRINT_BYTES).hexdigest()


def deferred(states: ChunkStates, chunks: Iterable[ChunkKey]) -> ChunkStates:
    """Mark the unstable ones of these chunks as deferred: their task was shed."""
    records = dict(states.records)
    for key in chunks:
        record = records.get(key)
        if record is not None and record.state is ChunkState.UNSTABLE:
            records[key] = replace(record, state=ChunkState.DEFERRED)
    return replace(states, records=records)


def committed(
    states: ChunkStates, chunks: Iterable[ChunkKey], added: Iterable[TimelineFile], policy: TimelinePolicy
) -> ChunkStates:
    """Return the states after the commit of a task that rewrote `chunks` into `added`. `added` are
    the files as the next listing will show them."""
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
