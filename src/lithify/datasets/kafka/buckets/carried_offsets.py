"""Offsets that groups have committed in a topic, carried over to its copy: for one partition.

1. What groups have committed in the source is listed, then read.
2. Hashes of what is going to be written are put into an object of Lithify's own, beside those of what was
   carried before.
3. Each is created in the copy, or replaces one that was carried. So what a group has committed in the copy
   itself is told from carried ones, and stays. Whoever died in between does so again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from lithify.base.concurrency import all_of
from lithify.base.errors import CorruptObject, ObjectExists, ObjectNotFound, PreconditionFailed
from lithify.base.jsonvalues import UNDECODABLE, text
from lithify.datasets.kafka.buckets.copies import OffsetLocation, committed_offsets, marks_of
from lithify.datasets.kafka.layouts.objects import REQUESTS
from lithify.store.keys import join
from lithify.store.objects import ObjectStore

_KEPT_HASHES = 8
"""Of what was carried to one place: the newest were written, or were going to be."""


class CarriedOver(NamedTuple):
    """What became of the offsets of a partition."""

    marks: str
    """Of what groups had committed."""
    groups: tuple[str, ...]
    """Whose offsets are there now."""
    gone_on: tuple[str, ...]
    """Groups that went on in the copy themselves."""


def listed_offsets(store: ObjectStore, root: str, name: str) -> Mapping[int, list[OffsetLocation]]:
    """By partition, what groups have committed for the topic in this folder, and where it goes for the topic
    `name`."""
    cluster, _, topic = root.rpartition("/topics/")
    groups = join(cluster, "groups", "consumers")
    return committed_offsets(store.list(groups), groups, topic, name)


def carry_offsets(
    store: ObjectStore,
    own: ObjectStore,
    offsets: list[OffsetLocation],
    key: str,
    look_again: Callable[[], None],
) -> CarriedOver:
    """Carry these over; `key` is where it stands what was carried before. Who writes looks again before."""
    documents = all_of((partial(store.get, one.object.key) for one in offsets), REQUESTS)
    carried = _Carried.read(own, key)
    carried.add({one.target: data for one, data in zip(offsets, documents, strict=True)})
    if offsets:
        look_again()
        own.put(key, carried.encode())
    groups: list[str] = []
    gone_on: list[str] = []
    for one, data in zip(offsets, documents, strict=True):
        (groups if _carry(store, one.target, data, carried) else gone_on).append(one.group)
    return CarriedOver(marks_of(offsets), tuple(groups), tuple(gone_on))


def _carry(store: ObjectStore, target: str, data: bytes, carried: _Carried) -> bool:
    """Whether it is there now."""
    try:
        store.create(target, data)
        return True
    except ObjectExists:
        before, meta = store.get_with_meta(target)
    if before == data:
        return True
    if not carried.has(target, before):
        return False
    assert meta.etag is not None, target
    try:
        store.replace(target, data, meta.etag)
    except PreconditionFailed:
        return store.get(target) == data
    return True


class _Carried:
    """Hashes of what was carried to which place, or was going to be."""

    def __init__(self, hashes: dict[str, list[str]]) -> None:
        self._hashes = hashes

    @classmethod
    def read(cls, store: ObjectStore, key: str) -> _Carried:
        try:
            found = json.loads(store.get(key))
            return cls({text(place): list(map(text, known)) for place, known in found.items()})
        except ObjectNotFound:
            return cls({})
        except UNDECODABLE as error:
            raise CorruptObject(key, f"does not decode: {error}") from error

    def encode(self) -> bytes:
        return json.dumps(self._hashes).encode()

    def add(self, documents: Mapping[str, bytes]) -> None:
        for place, data in documents.items():
            known = [one for one in self._hashes.get(place, []) if one != _hash(data)]
            self._hashes[place] = [*known, _hash(data)][-_KEPT_HASHES:]

    def has(self, place: str, data: bytes) -> bool:
        return _hash(data) in self._hashes.get(place, [])


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
