"""Lithify's progress with each partition: a value in numbered files next to its ledger.

A *round* takes a partition as listed (`fingerprint`) through three steps, each a compaction: index, match,
rewrite. A topic in a broker's bucket has a fourth one, publish. The next version of this value publishes a
step. Versions are created only if absent, so publication is atomic: a new folder is valid from the version
that names it. A published folder stays named for ever, since its readers are unknown.

The first version names the source; the output of another log must be elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any

from annotated_types import Interval, Len

from lithify.base.documents import Count, CountKey, DocumentCodec, UlidText
from lithify.base.errors import Unsupported
from lithify.base.ids import Ulid
from lithify.watermarks.groups import Marks, PartitionStanding

VERSION = 1
MOST_PARTITIONS = 1 << 20
Offset = Annotated[int, Interval(ge=0, le=(1 << 63) - 1)]
"""An offset, or a time that Kafka stores: 64 bits with a sign."""


NOTHING_KEPT = (1 << 63) - 1
"""Past every offset."""


class Step(StrEnum):
    """The steps of a round, in order."""

    INDEX = "index"
    MATCH = "match"
    REWRITE = "rewrite"
    PUBLISH = "publish"
    """Only for a topic that is compacted in place."""


STEPS = tuple(Step)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that seems to hang: a broker waits for it for ever."""

    producer_id: Offset
    producer_epoch: int
    first_offset: Offset
    idle_ms: Offset
    """The time from its last record to the newest record of the log."""

    def __str__(self) -> str:
        return (
            f"a transaction of producer {self.producer_id} (epoch {self.producer_epoch}) has been open from "
            f"offset {self.first_offset:,} on for {self.idle_ms / 3_600_000:,.1f} h: end it with "
            f"kafka-transactions.sh abort --start-offset {self.first_offset}"
        )


@dataclass(frozen=True, slots=True)
class PartitionRound:
    """The progress of a partition."""

    fingerprint: str
    """The fingerprint of its folder."""
    done: Annotated[tuple[UlidText, ...], Len(1, len(STEPS))]
    """Published compactions, one for each step."""
    bound: Offset
    """Records below it are compared with each other; all others stay."""
    settled: Count
    """The number of segments that end before the bound."""
    segments: Count
    size_bytes: Count
    records: Count
    tombstones: Count = 0
    """The number of tombstones in settled segments."""
    new_segments: Count = 0
    new_bytes: Count = 0
    topic_id: str = ""
    """Id of the broker's topic that is compacted in place; empty if a new folder is written."""
    activity: str = ""
    """The broker's last write when the first step was published."""
    until_ms: Offset = 0
    """For a copied topic, the objects of this round (`ObjectRange`); 0: it is not copied."""
    below: Offset = 0
    """The same, also for a topic that is compacted live."""
    end: Offset = 0
    """For a copied topic: the copy will reach up to this offset."""
    kept_tombstone: Offset = NOTHING_KEPT
    """The first tombstone that the round kept only because of the group; `NOTHING_KEPT` if there is none."""
    kept_marker: Offset = NOTHING_KEPT
    """The same for transaction markers."""
    unkeyed: Count = 0
    """The number of records without a key in settled segments."""
    torn_bytes: Count = 0
    """The size of the newest segment's end that is not a whole batch, and is left out."""
    open_transaction: OpenTransaction | None = None
    """The first open transaction, if the log goes on long after it."""

    @property
    def steps(self) -> tuple[Step, ...]:
        return STEPS if self.topic_id else STEPS[: STEPS.index(Step.PUBLISH)]

    @property
    def is_whole(self) -> bool:
        return len(self.done) == len(self.steps)

    @property
    def next_step(self) -> Step | None:
        """The next step; `None` if nothing is left to do."""
        return None if self.is_whole or not (self.settled or self.until_ms) else STEPS[len(self.done)]


@dataclass(frozen=True, slots=True)
class Copied:
    """The extent of a partition's copy: all objects last written by `until_ms` that lie below `end`."""

    topic_id: str
    """Id of the source topic."""
    until_ms: Offset
    end: Offset
    fingerprint: str
    """The fingerprint of the copied objects of the source topic; empty if there are none."""
    marks: str = ""
    """The fingerprint of the groups' committed offsets when they were carried over."""
    groups: tuple[str, ...] = ()
    """Groups whose offsets were carried over."""
    gone_on: tuple[str, ...] = ()
    """Groups that have committed offsets in the copy themselves: those are kept."""


@dataclass(frozen=True, slots=True)
class LogState:
    """The rounds of all partitions by name, and all compactions ever published."""

    rounds: Mapping[str, PartitionRound] = field(default_factory=dict)
    published: tuple[Ulid, ...] = ()
    source: str = ""
    """URL of the log's folder; empty before the first coordinator."""
    incarnation: str = ""
    """The log's incarnation in its group; empty if it is in none."""
    standings: Mapping[int, PartitionStanding] = field(default_factory=dict)
    """What each partition, by number, contained when it was last read (`members`)."""
    copy_id: str = ""
    """Id of the new topic of a copy; no other copy creates a topic with it."""
    announced: int = 0
    """Number of the new topic's partitions announced to the broker; 0: the broker does not know the topic
    yet."""
    copied: Mapping[str, Copied] = field(default_factory=dict)
    """The extent of the copy, by partition."""

    @property
    def is_copy_visible(self) -> bool:
        return self.announced > 0

    def with_round(self, partition: str, found: PartitionRound) -> LogState:
        published = self.published
        if found.is_whole and not found.topic_id:
            published = (*published, found.done[-1])
        return replace(self, rounds={**self.rounds, partition: found}, published=published)

    def without_round(self, partition: str) -> LogState:
        """Return the state without a partition's round, so that it is planned anew."""
        return replace(self, rounds={name: one for name, one in self.rounds.items() if name != partition})

    def has(self, compaction_id: Ulid) -> bool:
        """Return whether a compaction is known to be published."""
        return compaction_id in self.published or any(
            compaction_id in found.done for found in self.rounds.values()
        )

    def named(self) -> frozenset[Ulid]:
        """Return compactions whose outputs are needed: those of incomplete rounds, and all published ones."""
        going_on = (found for found in self.rounds.values() if found.next_step is not None)
        return frozenset(self.published) | {id for found in going_on for id in found.done}

    def encode(self) -> bytes:
        rounds = {name: asdict(found) for name, found in self.rounds.items()}
        document: dict[str, Any] = {
            "version": VERSION,
            "source": self.source,
            "rounds": rounds,
            "published": self.published,
            "incarnation": self.incarnation,
            "standings": {
                str(number): [
                    one.marks.clean,
                    one.marks.resolved,
                    one.end,
                    one.markers_end,
                    sorted(one.sample.items()),
                ]
                for number, one in self.standings.items()
            },
        }
        if self.copy_id:
            copied = {name: asdict(found) for name, found in self.copied.items()}
            document["copy"] = {"id": self.copy_id, "announced": self.announced, "copied": copied}
        return json.dumps(document).encode()

    @classmethod
    def decode(cls, data: bytes, name: str) -> LogState:
        """Return the state that `encode` made.

        Raises `CorruptObject` and `Unsupported`.
        """
        version = _VERSIONS.decode(data, name).version
        if version != VERSION:
            raise Unsupported(f"{name}: is of version {version!r}, not {VERSION}; use a newer Lithify")
        found = _STATES.decode(data, name)
        standings = {number: _standing(*fields) for number, fields in found.standings.items()}
        state = cls(found.rounds, found.published, found.source, found.incarnation, standings)
        copy = found.copy
        if copy is None:
            return state
        announced = copy.announced or int(copy.is_visible)
        return replace(state, copy_id=copy.id, announced=announced, copied=copy.copied)


_Standing = tuple[Offset, Offset, Offset, Offset, tuple[tuple[Offset, Offset], ...]]


def _standing(
    clean: int,
    resolved: int,
    end: int,
    markers_end: int = 0,
    sample: tuple[tuple[int, int], ...] = (),
) -> PartitionStanding:
    return PartitionStanding(Marks(clean, resolved), end, markers_end, dict(sample))


@dataclass(frozen=True, slots=True)
class _Version:
    version: Any


@dataclass(frozen=True, slots=True)
class _Copy:
    id: str
    copied: Mapping[str, Copied]
    announced: Annotated[int, Interval(ge=0, le=MOST_PARTITIONS)] = 0
    is_visible: bool = False
    """Written by older versions, in place of `announced`."""


@dataclass(frozen=True, slots=True)
class _Document:
    rounds: Mapping[str, PartitionRound]
    published: tuple[UlidText, ...]
    source: str
    incarnation: str
    standings: Mapping[CountKey, _Standing | tuple[Offset, Offset, Offset]]
    """Older versions wrote both marks and the end."""
    copy: _Copy | None = None


_VERSIONS = DocumentCodec(_Version)
_ADDED_LATER = {
    "topic_id",
    "activity",
    "until_ms",
    "below",
    "end",
    "copy",
    "kept_tombstone",
    "kept_marker",
    "unkeyed",
    "torn_bytes",
    "open_transaction",
    "announced",
    "is_visible",
}
_STATES = DocumentCodec(_Document, optional=_ADDED_LATER)
