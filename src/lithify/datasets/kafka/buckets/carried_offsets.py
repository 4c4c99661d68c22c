"""Carries the offsets that groups committed in a topic over to its copy, one partition at a time.

1. List and read the offsets committed in the source.
2. Store hashes of the documents to be written in an object of Lithify's own, with the hashes of earlier ones.
3. Create each document in the copy, or replace one whose hash is stored. Any other document was committed by
   the group in the copy itself, and is kept.

All steps are repeated after a crash.
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
"""Hashes kept for each key. The newest documents were written, or were about to be."""


class CarriedOver(NamedTuple):
    """The result of carrying over a partition's offsets."""

    marks: str
    """Fingerprint of the offsets committed in the source."""
    groups: tuple[str, ...]
    """Groups whose offsets are in the copy now."""
    gone_on: tuple[str, ...]
    """Groups that have committed in the copy themselves."""


def listed_offsets(store: ObjectStore, root: str, name: str) -> Mapping[int, list[OffsetLocation]]:
    """Return the offsets committed for the topic in this folder, by partition; their targets are in the topic
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
    """Carry these offsets over. `key` is that of the object with the hashes. `look_again` is called before
    the first write, and raises if nothing may be written."""
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
    """Return whether the document is in the copy now."""
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
    """Hashes of documents that were carried to each key, or were about to be."""

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
