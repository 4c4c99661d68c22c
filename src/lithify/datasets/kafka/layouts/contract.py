"""The contract between planning and layouts. The engine only gets objects and bytes of batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from lithify.datasets.kafka.cleaning.retention import NO_BOUND
from lithify.store.objects import ObjectMeta, ObjectStore


@dataclass(frozen=True, slots=True)
class Segment:
    """An object with consecutive batches of a partition."""

    key: str
    base_offset: int
    size_bytes: int
    modified_ms: int = field(default=-1, compare=False)
    """Last write, by the store's clock."""
    etag: str | None = field(default=None, compare=False)
    """As listed; `None` if the store does not list etags."""


@dataclass(frozen=True, slots=True)
class ObjectChunk(Segment):
    """Neighbouring objects that a task reads as one."""

    objects: tuple[Segment, ...] = ()
    """At least one."""


@dataclass(frozen=True, slots=True)
class BrokerTopic:
    """The broker's metadata of a topic that is compacted in place."""

    id: str
    """Changes if the topic is recreated."""
    configs: Mapping[str, str]
    """The topic's own settings, by Kafka's names."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The offset up to which a partition is committed, and its source (`high_watermarks.py`)."""

    end: int
    """Records from this offset on decide nothing and stay as they are."""
    limit: str
    """Why records from `end` on stay as they are, for display."""
    is_known: bool = True
    """Whether the broker has stored a high watermark of the partition, if there is a broker."""


ALL_COMMITTED = CommittedOffset(NO_BOUND, "")


@dataclass(frozen=True, slots=True)
class PartitionFolder:
    """A partition as listed."""

    folder: str
    segments: tuple[Segment, ...]
    """In the order of their offsets; at least one, unless the partition is refused."""
    companions: tuple[str, ...]
    """Keys of files to copy unchanged."""
    fingerprint: str
    """Changes if a file of the folder is changed, added or removed."""
    chunks: tuple[ObjectChunk, ...] = ()
    """The parts for tasks, if a part is several objects; empty if each segment is a part."""
    bound: int = NO_BOUND
    """Objects from this offset on must stay as they are, by the broker's metadata."""
    topic: BrokerTopic | None = None
    """The topic, if it is compacted in place; `None` if a new folder is written."""
    activity: str = ""
    """Changes if the broker writes its metadata or the partition's watermark."""
    committed: CommittedOffset = ALL_COMMITTED
    configs: Mapping[str, str] | None = None
    """The topic's own settings, by Kafka's names; `None` if they are not known."""
    start: int = 0
    """Records before this offset are deleted."""
    refusal: str = ""
    """Why this partition is not compacted, although others may be; empty if it can be. It may then have no
    segments."""

    @property
    def parts(self) -> tuple[Segment, ...]:
        """One part for each task."""
        return self.chunks or self.segments

    @property
    def size_bytes(self) -> int:
        """Total size of the segments."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def topic_id(self) -> str:
        """The broker's id of the topic; empty without one."""
        return "" if self.topic is None else self.topic.id


class LogLayout(Protocol):
    """The layout of one log's partitions in a store."""

    @property
    def target_bytes(self) -> int | None:
        """Desired size of an object; `None` if the settings decide."""
        ...

    @property
    def refusal(self) -> str | None:
        """Why the log, as listed last, can be planned and shown, but not compacted; `None` if it can."""
        ...

    def partitions(self) -> Mapping[str, PartitionFolder]:
        """List all partitions by name (`orders-0`), in the order of their numbers.

        Raises `DatasetNotFound`, `Refused` and `CorruptObject`.
        """
        ...

    def check_output(self, store: ObjectStore, folder: str) -> None:
        """Raise `Refused` if writing to this folder would harm the log's owner."""
        ...


def fingerprint_of(listed: Iterable[ObjectMeta], owner: str = "") -> str:
    """Return a fingerprint of a folder's listing and of `owner`, the broker's own data about it. Listed etags
    count too: an object can be replaced by one of the same size within a second, and many stores list whole
    seconds."""
    names = [
        f"{meta.key.rpartition('/')[2]} {meta.size} {meta.last_modified_ms} {meta.etag}" for meta in listed
    ]
    return hashlib.sha256("\n".join([owner, *names] if owner else names).encode()).hexdigest()
