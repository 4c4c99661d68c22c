"""How far Lithify is with each partition, as a value in numbered files beside its ledger.

A *round* takes a partition as its folder was listed (`fingerprint`) through three steps, each a compaction:
index, match, rewrite. A topic in a broker's bucket has a fourth one, publish. Each step is published by the
next version of this value, which is created only if absent, and so is the new folder: it counts from the
version on that names it, whatever lies in it before. A folder that was published once stays named for ever,
since nobody knows who reads it.

The first version says of which log all this is: what is made of another one goes elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from lithify.base.errors import CorruptObject, Unsupported
from lithify.base.ids import Ulid, parse_ulid
from lithify.base.jsonvalues import UNDECODABLE, text, whole_number
from lithify.watermarks.groups import Marks, PartitionStanding

VERSION = 1
MOST_PARTITIONS = 1 << 20
_MOST = (1 << 63) - 1
_TEXTS = ("fingerprint", "topic_id", "activity")


class Step(StrEnum):
    """What is done to a partition, in this order."""

    INDEX = "index"
    MATCH = "match"
    REWRITE = "rewrite"
    PUBLISH = "publish"
    """Only of a topic that is compacted in its place."""


STEPS = tuple(Step)


@dataclass(frozen=True, slots=True)
class PartitionRound:
    """How far a partition is."""

    fingerprint: str
    """Of its folder."""
    done: tuple[Ulid, ...]
    """Compactions that were published, one for each step."""
    bound: int
    """Records below it are compared with each other; from here on everything stays."""
    settled: int
    """How many segments end before it."""
    segments: int
    size_bytes: int
    records: int
    tombstones: int = 0
    """Among what is settled."""
    new_segments: int = 0
    new_bytes: int = 0
    topic_id: str = ""
    """Of the broker's topic that is compacted in its place; empty where a new folder is written."""
    activity: str = ""
    """What that broker had written last when the first step was published."""
    until_ms: int = 0
    """Of a topic that is copied: which objects this is about (`Cut`); 0: it is not copied."""
    below: int = 0
    """Likewise, and of one that is compacted live."""
    end: int = 0
    """Likewise: the copy will reach up to this offset."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """All that such a round has."""
        return STEPS if self.topic_id else STEPS[: STEPS.index(Step.PUBLISH)]

    @property
    def is_whole(self) -> bool:
        """Whether all steps are done."""
        return len(self.done) == len(self.steps)

    @property
    def next_step(self) -> Step | None:
        """What has to follow; `None` when nothing is left to do."""
        return None if self.is_whole or not (self.settled or self.until_ms) else STEPS[len(self.done)]


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy has of a partition: whatever was written last by `until_ms` and lies below `end`."""

    topic_id: str
    """Of the topic that is copied."""
    until_ms: int
    end: int
    fingerprint: str
    """Of those objects of the topic that is copied; empty for none."""
    marks: str = ""
    """Of the offsets that groups had committed when they were carried over."""
    groups: tuple[str, ...] = ()
    """Whose offsets were carried over."""
    gone_on: tuple[str, ...] = ()
    """Groups that have committed offsets in the copy themselves: those stay."""


@dataclass(frozen=True, slots=True)
class LogState:
    """The rounds of all partitions, by name, and what was published ever."""

    rounds: Mapping[str, PartitionRound] = field(default_factory=dict)
    published: tuple[Ulid, ...] = ()
    source: str = ""
    """URL of the log's folder; empty while nobody has begun."""
    incarnation: str = ""
    """Of the log in its group; empty while it is in none."""
    standings: Mapping[int, PartitionStanding] = field(default_factory=dict)
    """By number of the partition, what was in it when it was read last (`members`)."""
    copy_id: str = ""
    """Of the new topic, if it is copied: nobody else makes one with this id."""
    announced: int = 0
    """Of how many partitions of the new topic the broker was told; 0: there is no such topic for it yet."""
    copied: Mapping[str, Copied] = field(default_factory=dict)
    """By partition."""

    @property
    def is_copy_visible(self) -> bool:
        """Whether the broker was told of the new topic."""
        return self.announced > 0

    def with_round(self, partition: str, found: PartitionRound) -> LogState:
        """The state after a step of a partition."""
        published = self.published
        if found.is_whole and not found.topic_id:
            published = (*published, found.done[-1])
        return replace(self, rounds={**self.rounds, partition: found}, published=published)

    def without_round(self, partition: str) -> LogState:
        """The state once a partition has to be looked at anew."""
        return replace(self, rounds={name: one for name, one in self.rounds.items() if name != partition})

    def has(self, compaction_id: Ulid) -> bool:
        """Whether a compaction was published, as far as is known."""
        return compaction_id in self.published or any(
            compaction_id in found.done for found in self.rounds.values()
        )

    def named(self) -> frozenset[Ulid]:
        """Compactions whose outputs are needed: those of a round that is not whole yet, and what was
        published."""
        going_on = (found for found in self.rounds.values() if found.next_step is not None)
        return frozenset(self.published) | {id for found in going_on for id in found.done}

    def encode(self) -> bytes:
        """As JSON."""
        rounds = {name: asdict(found) for name, found in self.rounds.items()}
        document: dict[str, Any] = {
            "version": VERSION,
            "source": self.source,
            "rounds": rounds,
            "published": self.published,
            "incarnation": self.incarnation,
            "standings": {
                str(number): [one.marks.clean, one.marks.resolved, one.end]
                for number, one in self.standings.items()
            },
        }
        if self.copy_id:
            copied = {name: asdict(found) for name, found in self.copied.items()}
            document["copy"] = {"id": self.copy_id, "announced": self.announced, "copied": copied}
        return json.dumps(document).encode()

    @classmethod
    def decode(cls, data: bytes, name: str) -> LogState:
        """What `encode` made.

        Raises `CorruptObject` and `Unsupported`.
        """
        try:
            found = json.loads(data)
            if found["version"] == VERSION:
                rounds = {text(name): _round(fields) for name, fields in found["rounds"].items()}
                published = tuple(map(parse_ulid, found["published"]))
                standings = {int(n): _standing(three) for n, three in found["standings"].items()}
                source, incarnation = text(found["source"]), text(found["incarnation"])
                copy = found.get("copy") or {"id": "", "announced": 0, "copied": {}}
                copied = {text(name): _copied(fields) for name, fields in copy["copied"].items()}
                told = copy.get("announced", int(copy.get("is_visible") is True))  # as it was said before
                announced = whole_number(told, most=MOST_PARTITIONS)
                of_copy = text(copy["id"]), announced, copied
                return cls(rounds, published, source, incarnation, standings, *of_copy)
            version = found["version"]
        except UNDECODABLE as error:
            raise CorruptObject(name, f"does not decode: {error}") from error
        raise Unsupported(f"{name}: is of version {version!r}; this Lithify knows {VERSION}; use a newer one")


def _round(fields: Mapping[str, Any]) -> PartitionRound:
    found: dict[str, Any] = {
        name: text(value) if name in _TEXTS else whole_number(value, most=_MOST)
        for name, value in fields.items()
        if name != "done"
    }
    done = tuple(map(parse_ulid, fields["done"]))
    if not 1 <= len(done) <= len(STEPS):
        raise ValueError(f"{len(done)} steps are done")
    return PartitionRound(done=done, **found)


def _copied(fields: Mapping[str, Any]) -> Copied:
    return Copied(
        text(fields["topic_id"]),
        whole_number(fields["until_ms"], most=_MOST),
        whole_number(fields["end"], most=_MOST),
        text(fields["fingerprint"]),
        text(fields["marks"]),
        tuple(map(text, fields["groups"])),
        tuple(map(text, fields["gone_on"])),
    )


def _standing(three: Any) -> PartitionStanding:
    clean, resolved, end = (whole_number(value, most=_MOST) for value in three)
    return PartitionStanding(Marks(clean, resolved), end)
