"""Checkpoints of the partitions in a broker's directory, above all their committed offsets.

    /var/kafka/replication-offset-checkpoint    0                  the version
                                                2                  how many entries follow
                                                orders 0 81240     topic, partition, high watermark
                                                orders 1 79003

Records at or beyond a partition's high watermark are not on all replicas. After the next leader election a
broker may truncate them, so they decide nothing until the watermark has passed them.

1. A broker without an entry for a partition begins at offset 0 and gets the watermark from the leader. If the
   broker is stopped, nothing of such a partition counts as committed. The same holds without the file.
2. A broker that cannot parse the file takes the whole directory offline: `CorruptObject`.
3. A directory of partitions without any file of a broker is a backup or an export. A restore makes it the
   truth, so it is committed up to its end.

Two more files have the same form. `log-start-offset-checkpoint` has the offsets before which records were
deleted, if that is not visible in the names of segments. `cleaner-offset-checkpoint` names the partitions
that the broker itself compacts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lithify.base.errors import CorruptObject
from lithify.datasets.kafka.layouts.contract import ALL_COMMITTED, CommittedOffset
from lithify.store.keys import join
from lithify.store.objects import FolderListing, ObjectStore

CHECKPOINT = "replication-offset-checkpoint"
STARTS = "log-start-offset-checkpoint"
CLEANED = "cleaner-offset-checkpoint"
_OF_A_BROKER = re.compile(r"\.lock|\.kafka_cleanshutdown|meta\.properties|[a-z-]+-checkpoint")
_NUMBER = re.compile(r"[0-9]{1,19}")
_MOST = (1 << 63) - 1
_NOTHING = "so nothing is known to be committed until the broker has started and stopped once more"


@dataclass(frozen=True, slots=True)
class HighWatermarks:
    """The high watermarks of a directory's partitions."""

    offsets: Mapping[tuple[str, int], int] | None
    """By topic and partition number; `None` without the file."""
    is_of_a_broker: bool

    @classmethod
    def of(cls, store: ObjectStore, directory: str, listed: FolderListing) -> HighWatermarks:
        """Read the checkpoint of a listed directory. Raise `CorruptObject` if it is damaged."""
        names = {meta.key.rpartition("/")[2] for meta in listed.objects}
        is_of_a_broker = any(_OF_A_BROKER.fullmatch(name) for name in names)
        return cls(read_checkpoint(store, directory, listed, CHECKPOINT), is_of_a_broker)

    def committed(self, topic: str, number: int) -> CommittedOffset:
        """Return how far a partition is committed."""
        if self.offsets is None:
            if not self.is_of_a_broker:
                return ALL_COMMITTED
            return CommittedOffset(0, f"there is no {CHECKPOINT} next to it, {_NOTHING}", False)
        offset = self.offsets.get((topic, number))
        if offset is None:
            return CommittedOffset(0, f"{CHECKPOINT} does not name it, {_NOTHING}", False)
        return CommittedOffset(offset, f"from offset {offset:,} on records are not committed ({CHECKPOINT})")


def read_checkpoint(
    store: ObjectStore, directory: str, listed: FolderListing, name: str
) -> dict[tuple[str, int], int] | None:
    """Read a checkpoint of a listed directory; return `None` without the file. Raise `CorruptObject` if it is
    damaged."""
    key = join(directory, name)
    return parse(store.get(key), key) if any(meta.key == key for meta in listed.objects) else None


def parse(data: bytes, key: str) -> dict[tuple[str, int], int]:
    """Parse a checkpoint as strictly as a broker. An empty one has no entries; of two entries for a partition
    the lower one counts.

    Raises `CorruptObject`.
    """
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise CorruptObject(key, "is not text") from error
    if lines and _number(lines[0], key) != 0:
        raise CorruptObject(key, f"is of version {lines[0][:20]!r}; brokers write 0")
    found: dict[tuple[str, int], int] = {}
    entries = lines[2:]
    if len(lines) > 1 and _number(lines[1], key) != len(entries):
        raise CorruptObject(key, f"has {len(entries)} entries, but states {lines[1]}")
    for line in entries:
        fields = re.split(r"\s+", line)
        if len(fields) != 3:
            raise CorruptObject(key, f"has the line {line[:200]!r}, which is not an entry")
        of = fields[0], _number(fields[1], key)
        found[of] = min(_number(fields[2], key), found.get(of, _MOST))
    return found


def _number(text: str, key: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > _MOST:
        raise CorruptObject(key, f"has {text[:40]!r} where a number should be")
    return int(text)
