"""Settings of topics, from the cluster's metadata log in a broker's directory.

    __cluster_metadata-0/00000000000000000000.log                       records of changes
    __cluster_metadata-0/00000000000000081240-0000000003.checkpoint     the state below that offset

Both consist of record batches. The value of a record: version of the frame (1), type and version of the
message as unsigned varints, then the fields. Of all types three count:

| type | message         | fields                                                                       |
|------|-----------------|------------------------------------------------------------------------------|
| 2    | topic           | name · id, 16 bytes                                                          |
| 4    | setting         | kind of resource i8 (2: topic, 4: broker) · its name · name · value, or null |
| 9    | topic's removal | id                                                                           |

A string is its length plus one, as an unsigned varint, and its bytes; a length of 0 means null. The settings
of the broker without a name are defaults of the whole cluster. Those in a broker's own file are not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lithify.base.errors import CorruptObject
from lithify.base.jsonvalues import UNDECODABLE
from lithify.datasets.kafka.format.kernel.layout import CONTROL
from lithify.datasets.kafka.format.record_batches import decode
from lithify.datasets.kafka.layouts.tails import without_torn_end
from lithify.store.objects import ObjectMeta, ObjectStore

METADATA_TOPIC = "__cluster_metadata-"
METADATA_FOLDER = "__cluster_metadata-0"
_SEGMENT = re.compile(r"([0-9]{20})\.log")
_SNAPSHOT = re.compile(r"([0-9]{20})-[0-9]{10}\.checkpoint")
_FRAME = 1
_TOPIC, _CONFIG, _REMOVED = 2, 4, 9
_OF_TOPIC, _OF_BROKER = 2, 4
_ID_BYTES = 16
_MAX_VARINT_BITS = 28
_DEFAULTS = {
    "log.cleanup.policy": "cleanup.policy",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms",
    "log.cleaner.delete.retention.ms": "delete.retention.ms",
    "log.segment.bytes": "segment.bytes",
}
"""Names of topics' settings by those of the brokers' defaults."""


class MetadataLog:
    """Reads metadata logs, each again only once its listing has changed."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._read: dict[str, tuple[tuple[ObjectMeta, ...], Mapping[str, Mapping[str, str]]]] = {}

    def configs(self, folder: str) -> Mapping[str, Mapping[str, str]]:
        """Return the settings of all topics by name, defaults included.

        Raises `CorruptObject` and `Unsupported`.
        """
        listed = tuple(sorted(self._store.folder(folder).objects, key=lambda meta: meta.key))
        known = self._read.get(folder)
        if known is None or known[0] != listed:
            known = self._read[folder] = listed, _Topics.of(self._store, listed).configs()
        return known[1]


@dataclass(slots=True)
class _Topics:
    """The cluster's topics and settings after some records."""

    ids: dict[bytes, str] = field(default_factory=dict)
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    """By topic."""
    defaults: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, store: ObjectStore, listed: tuple[ObjectMeta, ...]) -> _Topics:
        found = cls()
        snapshots = [(key, meta) for meta in listed if (key := _number(meta, _SNAPSHOT)) is not None]
        start, snapshot = max(snapshots, key=lambda one: one[1].key, default=(0, None))
        segments = [meta for meta in listed if _number(meta, _SEGMENT) is not None]
        if snapshot is not None:
            found._replay(snapshot.key, store.get(snapshot.key), 0)
        for meta in segments:
            data = store.get(meta.key)
            found._replay(meta.key, without_torn_end(data) if meta is segments[-1] else data, start)
        return found

    def configs(self) -> dict[str, Mapping[str, str]]:
        return {name: {**self.defaults, **self.settings.get(name, {})} for name in self.ids.values()}

    def _replay(self, key: str, data: bytes | memoryview, start: int) -> None:
        """Apply the records from the offset `start` on."""
        if not len(data):
            return
        found = decode(data, key)
        for number, record in enumerate(found.records):
            value = found.value(number)
            is_control = found.batches["attributes"][record["batch"]] & CONTROL
            if value is None or is_control or record["offset"] < start:
                continue
            try:
                self._apply(iter(value))
            except (*UNDECODABLE, StopIteration) as error:
                place = f"the record at offset {record['offset']}"
                raise CorruptObject(key, f"{place} does not decode") from error

    def _apply(self, fields: Iterator[int]) -> None:
        if _varint(fields) != _FRAME:
            raise ValueError("another frame")
        message, _version = _varint(fields), _varint(fields)
        if message == _TOPIC:
            name = _string(fields)
            self.ids[_take(fields, _ID_BYTES)] = name or ""
        elif message == _REMOVED:
            self.settings.pop(self.ids.pop(_take(fields, _ID_BYTES), ""), None)
        elif message == _CONFIG:
            kind, resource = next(fields), _string(fields)
            name, value = _string(fields) or "", _string(fields)
            if kind == _OF_TOPIC:
                _set(self.settings.setdefault(resource or "", {}), name, value)
            elif kind == _OF_BROKER and not resource and name in _DEFAULTS:
                _set(self.defaults, _DEFAULTS[name], value)


def _set(settings: dict[str, str], name: str, value: str | None) -> None:
    settings.pop(name, None)
    if value is not None:
        settings[name] = value


def _varint(fields: Iterator[int]) -> int:
    found = shift = 0
    while (byte := next(fields)) & 0x80:
        found |= (byte & 0x7F) << shift
        shift += 7
        if shift > _MAX_VARINT_BITS:
            raise ValueError("a number is too long")
    return found | byte << shift


def _string(fields: Iterator[int]) -> str | None:
    length = _varint(fields)
    return None if not length else _take(fields, length - 1).decode()


def _take(fields: Iterator[int], count: int) -> bytes:
    found = bytes(byte for _, byte in zip(range(count), fields, strict=False))
    if len(found) < count:
        raise ValueError("a field is cut off")
    return found


def _number(meta: ObjectMeta, form: re.Pattern[str]) -> int | None:
    found = form.fullmatch(meta.key.rpartition("/")[2])
    return None if found is None else int(found[1])
