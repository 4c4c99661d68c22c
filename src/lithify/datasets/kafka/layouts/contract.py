"""What planning asks of a layout. The engine asks nothing: it is given objects, and bytes of batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from lithify.datasets.kafka.cleaning.retention import NO_BOUND
from lithify.store.objects import ObjectMeta, ObjectStore


@dataclass(frozen=True, slots=True)
class Segment:
    """An object with batches of a partition, one behind the other."""

    key: str
    base_offset: int
    size_bytes: int
    modified_ms: int = field(default=-1, compare=False)
    """When it was written last, by its store."""
    etag: str | None = field(default=None, compare=False)
    """As it was listed; `None` where the store does not list any."""


@dataclass(frozen=True, slots=True)
class ObjectChunk(Segment):
    """Neighbouring objects that a task reads as if they were one."""

    objects: tuple[Segment, ...] = ()
    """At least one."""


@dataclass(frozen=True, slots=True)
class BrokerTopic:
    """What the broker says of a topic that is compacted in its place."""

    id: str
    """Another one, if the topic was deleted and made again."""
    configs: Mapping[str, str]
    """The topic's own, by Kafka's names."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """Up to which offset a partition is committed, and how that is known (`high_watermarks.py`)."""

    end: int
    """Records from here on decide nothing and stay as they are."""
    limit: str
    """Why nothing from there on is touched, in words."""
    is_known: bool = True
    """Whether the broker has left a high watermark of the partition."""


ALL_COMMITTED = CommittedOffset(NO_BOUND, "")


@dataclass(frozen=True, slots=True)
class PartitionFolder:
    """A partition as its folder was listed."""

    folder: str
    segments: tuple[Segment, ...]
    """In the order of their offsets; at least one."""
    companions: tuple[str, ...]
    """Keys of what is taken over as it is."""
    fingerprint: str
    """Another one, if a file of the folder has changed, come or gone."""
    chunks: tuple[ObjectChunk, ...] = ()
    """What a task takes, where that is several objects; empty: each segment alone."""
    bound: int = NO_BOUND
    """Objects from here on have to stay as they are, by what the broker says."""
    topic: BrokerTopic | None = None
    """Of a partition that is compacted in its place; `None` where a new folder is written."""
    activity: str = ""
    """Another one, if the broker has written something of the topic."""
    committed: CommittedOffset = ALL_COMMITTED

    @property
    def parts(self) -> tuple[Segment, ...]:
        """What each task takes."""
        return self.chunks or self.segments

    @property
    def size_bytes(self) -> int:
        """Of all segments."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def topic_id(self) -> str:
        """Of the broker's topic; empty where there is none."""
        return "" if self.topic is None else self.topic.id


class LogLayout(Protocol):
    """How the partitions of one log lie in a store."""

    @property
    def target_bytes(self) -> int | None:
        """As large as an object should be; `None`: as the settings say."""
        ...

    @property
    def refusal(self) -> str | None:
        """Why such a log can be planned and shown, but not compacted; `None` when it can."""
        ...

    def partitions(self) -> Mapping[str, PartitionFolder]:
        """All of them by name (`orders-0`), in the order of their numbers, as they are listed now.

        Raises `DatasetNotFound`, `Refused` and `CorruptObject`.
        """
        ...

    def check_output(self, store: ObjectStore, folder: str) -> None:
        """`Refused` for a folder that the owner of the log could not bear."""
        ...


def fingerprint_of(listed: Iterable[ObjectMeta], owner: str = "") -> str:
    """One for this listing, whose objects are in one folder; `owner` is what the broker says of it besides.
    Many stores list whole seconds, in one of which an object may become another one as large; so the etag
    counts, where one is listed."""
    names = [
        f"{meta.key.rpartition('/')[2]} {meta.size} {meta.last_modified_ms} {meta.etag}" for meta in listed
    ]
    return hashlib.sha256("\n".join([owner, *names] if owner else names).encode()).hexdigest()
