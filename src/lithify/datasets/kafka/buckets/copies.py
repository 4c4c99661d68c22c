"""What a copy of a topic in a broker's bucket has to be: a new topic of the same cluster, with the same
offsets, compacted. Pure.

    topics/NEW/partitions/P/records/…batch   what a round merged of the source, and the rest as it is
    topics/NEW/partitions/P/watermark.json   where the source ended
    groups/consumers/G/offsets/NEW/…         what groups had committed in the source
    lithify/NEW/copy.json                    of which topic NEW is a copy, and its id
    meta.json                                NEW, with the settings of the source and an id of its own

1. The broker knows of NEW by `meta.json` alone, so that is written last: nothing half is served as a topic.
   The same goes for partitions that the source gains later: the number there is raised once they are copied.
   It is never lowered, since rows would be hidden.
2. A partition that the broker was not told of yet is compacted in the copy. What the source gets later is put
   behind it as it is, so that producers have to stand still for a moment only.
3. What was copied of the source may not have changed since: where it was compacted meanwhile, a tombstone may
   be gone that deletes what the copy has.
4. Nobody may have written into NEW: the copy would not have the same offsets any more.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lithify.base.errors import CorruptObject, Refused
from lithify.base.jsonvalues import UNDECODABLE, text, whole_number
from lithify.datasets.kafka.layouts.contract import PartitionFolder, Segment
from lithify.datasets.kafka.layouts.objects import ObjectRange
from lithify.datasets.kafka.state import MOST_PARTITIONS, Copied, LogState
from lithify.store.objects import ObjectMeta

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_OFFSETS = re.compile(r"(.+)/offsets/([^/]+)/partitions/([0-9]{10})\.json")
_MOST = (1 << 63) - 1


def checked_topic(name: str) -> str:
    """The name of a new topic; `Refused` for what Kafka allows none to be called."""
    if _TOPIC.fullmatch(name) is None or name in (".", ".."):
        raise Refused(
            f"{name!r} is no name of a topic: up to 249 letters of A-Z, a-z, 0-9, dot, underscore and hyphen"
        )
    return name


@dataclass(frozen=True, slots=True)
class Found:
    """What there is of the new topic, and of the source beside it."""

    id: str | None
    """As the broker knows it; `None` where it does not."""
    partitions: int
    """Likewise; 0 where it does not."""
    source_id: str
    of_source: int
    """How many partitions the source has."""
    has_objects: bool
    """Whether there is anything in its folder."""


def why_not(source: str, name: str, found: Found, state: LogState) -> str:
    """Why it cannot be made, or be gone on with; empty if it can."""
    if found.id is not None and found.id != state.copy_id:
        return f"there is a topic {name} already, which was not made here; choose another name"
    if found.id is None and state.is_copy_visible:
        return f"{name} was made here, and was deleted since; choose another name"
    if found.id is None and not state.copy_id and found.has_objects:
        return f"the broker knows no topic {name}, but there are objects in its folder; choose another name"
    if found.partitions < state.announced:
        made = _counted(state.announced)
        return f"{name} was made with {made}, and has {found.partitions} now; make another copy"
    if found.of_source < found.partitions:
        return f"{source} has {_counted(found.of_source)}, and {name} {found.partitions}; make another copy"
    return ""


def _counted(partitions: int) -> str:
    return f"{partitions} partition{'' if partitions == 1 else 's'}"


def why_moved(partition: str, folder: PartitionFolder | None, source_id: str, copied: Copied) -> str:
    """Why what was copied of a partition is not what is there now, of the topic with this id; empty if it
    is."""
    if source_id != copied.topic_id:
        return f"{partition}: the topic was deleted and made again since it was copied; make another copy"
    if copied.fingerprint and (folder is None or kept_of(folder, copied) != copied.fingerprint):
        return (
            f"{partition}: what was copied of it, below offset {copied.end:,}, has changed since, as by a "
            "compaction in its place; make another copy"
        )
    return ""


def kept_of(folder: PartitionFolder, copied: Copied) -> str:
    """The fingerprint of what there is of that which was copied."""
    found = ObjectRange(copied.until_ms, copied.end).within(folder)
    return "" if found is None else found.fingerprint


def rest_of(segments: Iterable[Segment], copied: Copied | None) -> tuple[Segment, ...]:
    """What of these objects the copy does not have."""
    if copied is None:
        return tuple(segments)
    has = ObjectRange(copied.until_ms, copied.end)
    return tuple(one for one in segments if not has.chosen((one,)))


def with_topic(
    document: bytes, key: str, source: str, source_id: str, name: str, id: str, count: int
) -> bytes | None:
    """The broker's `meta.json` with so many partitions of the new topic, which has the settings that the
    source had when it was made; `None` if it has them already.

    Raises `CorruptObject`, and `Refused` where another one has either name, or the source less partitions.
    """
    try:
        found = json.loads(document)
        topics = found["topics"]
        if name in topics and topics[name]["id"] != id:
            raise Refused(f"there is a topic {name} already, which was made meanwhile; choose another name")
        if source not in topics:
            raise Refused(f"the topic {source} was deleted meanwhile")
        if topics[source]["id"] != source_id:
            raise Refused(f"the topic {source} was deleted and made again meanwhile; make another copy")
        if (now := _partitions(topics[source])) < count:
            raise Refused(f"{source} has {_counted(now)} now, and had {count} a moment ago; run again")
        if name not in topics:
            topics[name] = {**copy.deepcopy(topics[source]), "id": id}
            topics[name]["topic"]["name"] = name
        elif _partitions(topics[name]) >= count:
            return None
        topics[name]["topic"]["num_partitions"] = count
    except UNDECODABLE as error:
        raise CorruptObject(key, f"does not decode: {error}") from error
    return json.dumps(found, separators=(",", ":")).encode()


def told_of(document: bytes, key: str, topic: str) -> tuple[str | None, int]:
    """The id of a topic by the broker's `meta.json`, and how many partitions it has: `None` and 0 where the
    broker knows none of that name. `CorruptObject`."""
    try:
        topics = json.loads(document)["topics"]
        return (text(topics[topic]["id"]), _partitions(topics[topic])) if topic in topics else (None, 0)
    except UNDECODABLE as error:
        raise CorruptObject(key, f"does not decode: {error}") from error


def _partitions(topic: Mapping[str, Any]) -> int:
    return whole_number(topic["topic"]["num_partitions"], least=1, most=MOST_PARTITIONS)


def high_of(watermark: bytes, key: str) -> int:
    """Where a partition ends by its `watermark.json`; `CorruptObject`."""
    try:
        high = json.loads(watermark).get("high")
        return 0 if high is None else whole_number(high, most=_MOST)
    except UNDECODABLE as error:
        raise CorruptObject(key, f"does not decode: {error}") from error


def ending_at(watermark: bytes | None, key: str, end: int) -> bytes:
    """The `watermark.json` of the copy of a partition with this one, which ends at this offset."""
    known: dict[str, Any] = {"low": None, "high": None, "timestamps": None}
    if watermark is not None:
        high_of(watermark, key)  # it is one
        known |= json.loads(watermark)
    return json.dumps({**known, "high": end or None}, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class OffsetLocation:
    """Where an offset lies that a group has committed."""

    group: str
    object: ObjectMeta
    target: str
    """Where it goes."""


def committed_offsets(
    listed: Iterable[ObjectMeta], groups: str, topic: str, name: str
) -> Mapping[int, list[OffsetLocation]]:
    """Those for a topic, by partition, among all that lies in the folder `groups`."""
    found: dict[int, list[OffsetLocation]] = {}
    for meta in listed:
        parts = _OFFSETS.fullmatch(meta.key.removeprefix(f"{groups}/"))
        if parts is not None and parts[2] == topic:
            target = f"{groups}/{parts[1]}/offsets/{name}/partitions/{parts[3]}.json"
            found.setdefault(int(parts[3]), []).append(OffsetLocation(parts[1], meta, target))
    return found


def marks_of(offsets: Iterable[OffsetLocation]) -> str:
    """Another one for whatever groups have committed since."""
    known = [
        f"{one.object.key} {one.object.size} {one.object.last_modified_ms} {one.object.etag}"
        for one in offsets
    ]
    return hashlib.sha256("\n".join(known).encode()).hexdigest() if known else ""
