"""A diskless broker's metadata of its topics, in `clusters/C/meta.json`: one object for the whole cluster.

    {"topics": {"orders": {"id": "0190…", "topic":
         {"configs": [{"name": "cleanup.policy", "value": "compact"}]}}},
     "transactions": {"tx": {"producer": 2, "epochs": {"0": {"state": "Begin", "produces":
         {"orders": {"0": {"offset_start": 3, "offset_end": 3}}}}}}}}

The broker writes a transaction's range of offsets there before it writes the objects. So a reader that lists
objects first and reads the metadata afterwards finds each open transaction that has one of the objects.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lithify.base.errors import CorruptObject, DatasetNotFound, ObjectNotFound
from lithify.base.jsonvalues import UNDECODABLE, text, whole_number
from lithify.datasets.kafka.layouts.contract import BrokerTopic
from lithify.store.objects import ObjectMeta, ObjectStore

_DECIDED = ("Committed", "Aborted")
_MOST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    topic: BrokerTopic
    open_from: Mapping[int, int]
    """By partition, the first offset of its open transactions."""
    object: ObjectMeta
    """The metadata object that was read."""


def metadata_key(root: str) -> str:
    """Return the metadata's key for the topic in this folder (`…/clusters/C/topics/T`)."""
    return f"{root.rpartition('/topics/')[0]}/meta.json"


def read_metadata(store: ObjectStore, root: str) -> TopicMetadata:
    """Read the metadata of the topic in this folder.

    Raises `DatasetNotFound` if the broker does not know the topic, and `CorruptObject`.
    """
    key, name = metadata_key(root), root.rpartition("/")[2]
    try:
        data, meta = store.get_with_meta(key)
    except ObjectNotFound as error:
        raise DatasetNotFound(f"{root}: there is no broker metadata at {key}") from error
    try:
        found = json.loads(data)
        topics = found.get("topics", {})
        if name not in topics:
            raise DatasetNotFound(f"{root}: the broker does not know the topic {name} ({key})")
        configs = {
            text(one["name"]): text(one["value"])
            for one in topics[name]["topic"].get("configs") or ()
            if one.get("value") is not None
        }
        open_from: dict[int, int] = {}
        for partition, offset in _open(found.get("transactions") or {}, name):
            open_from[partition] = min(offset, open_from.get(partition, offset))
        return TopicMetadata(BrokerTopic(text(topics[name]["id"]), configs), open_from, meta)
    except UNDECODABLE as error:
        raise CorruptObject(key, f"does not decode: {error}") from error


def _open(transactions: Mapping[str, Any], topic: str) -> Iterator[tuple[int, int]]:
    """Yield partition and first offset of open transactions."""
    for one in transactions.values():
        for epoch in one["epochs"].values():
            if epoch["state"] not in _DECIDED:
                for partition, span in epoch.get("produces", {}).get(topic, {}).items():
                    yield int(partition), whole_number(span["offset_start"], most=_MOST)
