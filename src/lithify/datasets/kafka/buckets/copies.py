"""Rules for a copy of a topic in a broker's bucket: a compacted topic in the same cluster, with the same
offsets. Pure.

    topics/NEW/partitions/P/records/…batch   merged objects, and the source's other objects unchanged
    topics/NEW/partitions/P/watermark.json   the offset up to which the source was copied
    groups/consumers/G/offsets/NEW/…         offsets that groups committed in the source
    lithify/NEW/copy.json                    the name of the source
    meta.json                                NEW, with the source's settings and an id of its own

1. The broker knows NEW from `meta.json` alone, so NEW is added there last: an incomplete topic is never
   served. Partitions that the source gains later are copied before the number there is raised. It is never
   lowered, since that would hide records.
2. A partition is compacted before the broker knows it. Later objects of the source are appended unchanged, so
   producers have to stop for a moment only.
3. The copied part of the source must not change. If it was compacted, a tombstone may be gone that deletes
   records of the copy.
4. Only Lithify may have written into NEW; otherwise its offsets would differ from the source's.
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
    """Return the name of a new topic. Raise `Refused` if Kafka does not allow it."""
    if _TOPIC.fullmatch(name) is None or name in (".", ".."):
        raise Refused(
            f"{name!r} is not a valid topic name; use at most 249 characters of A-Z, a-z, 0-9, dot, "
            "underscore and hyphen"
        )
    return name


@dataclass(frozen=True, slots=True)
class Found:
    """The new topic and its source, as found in the bucket."""

    id: str | None
    """The new topic's id; `None` if the broker does not know the topic."""
    partitions: int
    """The new topic's partitions; 0 if the broker does not know the topic."""
    source_id: str
    of_source: int
    """The source's partitions."""
    has_objects: bool
    """Whether the new topic's folder contains anything."""


def why_not(source: str, name: str, found: Found, state: LogState) -> str:
    """Return why the copy cannot be begun or continued; empty if it can."""
    if found.id is not None and found.id != state.copy_id:
        return f"a topic {name} exists already that is not a copy made by Lithify; choose another name"
    if found.id is None and state.is_copy_visible:
        return f"the copy {name} has been deleted since it was made; choose another name"
    if found.id is None and not state.copy_id and found.has_objects:
        return (
            f"the broker does not know a topic {name}, but its folder contains objects; choose another name"
        )
    if found.partitions < state.announced:
        made = _counted(state.announced)
        return f"the copy {name} was made with {made}, and now has {found.partitions}; make another copy"
    if found.of_source < found.partitions:
        return (
            f"{source} has {_counted(found.of_source)}, but its copy {name} has {found.partitions}; make "
            "another copy"
        )
    return ""


def _counted(partitions: int) -> str:
    return f"{partitions} partition{'' if partitions == 1 else 's'}"


def why_moved(partition: str, folder: PartitionFolder | None, source_id: str, copied: Copied) -> str:
    """Return why the source no longer has the copied part of a partition; empty if it has. `source_id` is the
    present one."""
    if source_id != copied.topic_id:
        return f"{partition}: the topic was deleted and created again after it was copied; make another copy"
    if copied.fingerprint and (folder is None or kept_of(folder, copied) != copied.fingerprint):
        return (
            f"{partition}: the copied part, below offset {copied.end:,}, has changed since, for example "
            "because it was compacted in place; make another copy"
        )
    return ""


def kept_of(folder: PartitionFolder, copied: Copied) -> str:
    """Return the copied part's present fingerprint; empty without objects."""
    found = ObjectRange(copied.until_ms, copied.end).within(folder)
    return "" if found is None else found.fingerprint


def rest_of(segments: Iterable[Segment], copied: Copied | None) -> tuple[Segment, ...]:
    """Return the objects that the copy does not have."""
    if copied is None:
        return tuple(segments)
    has = ObjectRange(copied.until_ms, copied.end)
    return tuple(one for one in segments if not has.chosen((one,)))


def with_topic(
    document: bytes, key: str, source: str, source_id: str, name: str, id: str, count: int
) -> bytes | None:
    """Return the broker's `meta.json` with `count` partitions of the new topic; `None` if it has them
    already. The topic gets the source's settings when it is added.

    Raises `CorruptObject`, and `Refused` if another topic has either name or the source has fewer partitions.
    """
    try:
        found = json.loads(document)
        topics = found["topics"]
        if name in topics and topics[name]["id"] != id:
            raise Refused(f"a topic {name} was created meanwhile; choose another name")
        if source not in topics:
            raise Refused(f"the topic {source} was deleted meanwhile")
        if topics[source]["id"] != source_id:
            raise Refused(f"the topic {source} was deleted and created again meanwhile; make another copy")
        if (now := _partitions(topics[source])) < count:
            raise Refused(f"{source} now has {_counted(now)}, but had {count} a moment ago; run again")
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
    """Return a topic's id and number of partitions from the broker's `meta.json`; `None` and 0 if the broker
    does not know the topic. Raises `CorruptObject`."""
    try:
        topics = json.loads(document)["topics"]
        return (text(topics[topic]["id"]), _partitions(topics[topic])) if topic in topics else (None, 0)
    except UNDECODABLE as error:
        raise CorruptObject(key, f"does not decode: {error}") from error


def _partitions(topic: Mapping[str, Any]) -> int:
    return whole_number(topic["topic"]["num_partitions"], least=1, most=MOST_PARTITIONS)


def high_of(watermark: bytes, key: str) -> int:
    """Return a partition's end offset from its `watermark.json`. Raises `CorruptObject`."""
    try:
        high = json.loads(watermark).get("high")
        return 0 if high is None else whole_number(high, most=_MOST)
    except UNDECODABLE as error:
        raise CorruptObject(key, f"does not decode: {error}") from error


def ending_at(watermark: bytes | None, key: str, end: int) -> bytes:
    """Return the `watermark.json` of a partition's copy that ends at `end`; `watermark` is the source's."""
    known: dict[str, Any] = {"low": None, "high": None, "timestamps": None}
    if watermark is not None:
        high_of(watermark, key)  # raises unless it is a watermark
        known |= json.loads(watermark)
    return json.dumps({**known, "high": end or None}, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class OffsetLocation:
    """The object with an offset that a group has committed."""

    group: str
    object: ObjectMeta
    target: str
    """Its key in the copy."""


def committed_offsets(
    listed: Iterable[ObjectMeta], groups: str, topic: str, name: str
) -> Mapping[int, list[OffsetLocation]]:
    """Return the offsets committed for a topic, by partition, from a listing of the folder `groups`."""
    found: dict[int, list[OffsetLocation]] = {}
    for meta in listed:
        parts = _OFFSETS.fullmatch(meta.key.removeprefix(f"{groups}/"))
        if parts is not None and parts[2] == topic:
            target = f"{groups}/{parts[1]}/offsets/{name}/partitions/{parts[3]}.json"
            found.setdefault(int(parts[3]), []).append(OffsetLocation(parts[1], meta, target))
    return found


def marks_of(offsets: Iterable[OffsetLocation]) -> str:
    """Return a fingerprint that changes when a group commits; empty without offsets."""
    known = [
        f"{one.object.key} {one.object.size} {one.object.last_modified_ms} {one.object.etag}"
        for one in offsets
    ]
    return hashlib.sha256("\n".join(known).encode()).hexdigest() if known else ""
