"""Checkpoints of watched datasets, for the next coordinator: `memory/<member>.json.zst`.

Only a cache: a coordinator that finds none, or one that does not decode, polls all datasets as if they were
newly found. A live coordinator keeps writing it, and writes it last of all when it leaves in order: so a
reader reads again the files that have changed according to the listing, and uses the newest. Times are
wall-clock milliseconds of the coordinator; they affect only how often datasets are polled.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final, Literal

import zstandard
from annotated_types import Interval

from lithify.base import concurrency
from lithify.base.documents import DocumentCodec, OrOmitted, WholeText
from lithify.base.errors import CorruptObject, ObjectNotFound
from lithify.store.keys import join
from lithify.store.objects import ObjectMeta, ObjectStore

MAX_BYTES = 256 << 20
"""Limit of the JSON's size; a larger one is not unpacked."""
READS_AT_ONCE = 4
_FORMAT: Final = 1
_SUFFIX = ".json.zst"
_LEVEL = 3
_Time = Annotated[int, Interval(ge=0, le=(1 << 53) - 1)]


@dataclass(frozen=True, slots=True)
class DatasetCheckpoint:
    """The known times of one dataset."""

    changed_ms: int | None = None
    """When the dataset was last seen to change."""
    committed_ms: int | None = None
    """When the fleet last committed in it."""
    collected_ms: int | None = None
    """When its garbage was last collected and its other duties were done."""
    due_ms: int | None = None
    """When more is due even if the dataset does not change; `None` if that is never, or unknown."""


class MemoryFiles:
    """The checkpoint files of the fleet in `folder` of `store`."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store = store
        self._folder = join(folder, "memory")
        self._others: dict[ObjectMeta, dict[str, DatasetCheckpoint]] = {}
        """Decoded checkpoints of other members, by object as of the last listing."""

    def write(self, member: str, known: Mapping[str, DatasetCheckpoint]) -> None:
        """Write the checkpoints of this member, by URL."""
        datasets = {url: (k.changed_ms, k.committed_ms, k.collected_ms, k.due_ms) for url, k in known.items()}
        data = _MEMORIES.encode(_Handover(_FORMAT, datasets))
        self._store.put(self._key(member), zstandard.ZstdCompressor(level=_LEVEL).compress(data))

    def read(self, member: str) -> dict[str, DatasetCheckpoint]:
        """Return the checkpoints of a member; none if they cannot be read."""
        try:
            return _decode(self._store.get(self._key(member)), self._key(member))
        except ObjectNotFound:
            return {}

    def others(self, member: str) -> tuple[Mapping[str, DatasetCheckpoint], ...]:
        """Return the checkpoints of all other members, the newest first, with one listing and one request for
        each file that has changed."""
        listed = self._store.list(self._folder)
        found = [meta for meta in listed if meta.key.endswith(_SUFFIX) and _member_of(meta.key) != member]
        new = [meta for meta in found if meta not in self._others]
        read = concurrency.all_of((partial(self.read, _member_of(meta.key)) for meta in new), READS_AT_ONCE)
        self._others = {meta: self._others.get(meta, {}) for meta in found} | dict(
            zip(new, read, strict=True)
        )
        newest = sorted(found, key=lambda meta: (meta.last_modified_ms, meta.key), reverse=True)
        return tuple(self._others[meta] for meta in newest)

    def members(self) -> tuple[str, ...]:
        """Return the members that have checkpoint files."""
        keys = (meta.key for meta in self._store.list(self._folder) if meta.key.endswith(_SUFFIX))
        return tuple(map(_member_of, keys))

    def forget(self, member: str) -> None:
        """Delete the checkpoint file of a member."""
        self._store.delete(self._key(member))

    def forget_strangers(self, known: Collection[str], before_ms: int) -> None:
        """Delete files written before that time by members that are not known."""
        for meta in self._store.list(self._folder):
            if meta.last_modified_ms < before_ms and _member_of(meta.key) not in known:
                self._store.delete(meta.key)

    def _key(self, member: str) -> str:
        return join(self._folder, f"{member}{_SUFFIX}")


def _member_of(key: str) -> str:
    return key.rpartition("/")[2].removesuffix(_SUFFIX)


@dataclass(frozen=True, slots=True)
class _Handover:
    format: Literal[1]
    datasets: Mapping[OrOmitted[WholeText], OrOmitted[tuple[_Time | None, ...]]]
    """For each URL the times in the order of `DatasetCheckpoint`."""


_MEMORIES = DocumentCodec(_Handover, mends_text=True)


def _decode(data: bytes, key: str) -> dict[str, DatasetCheckpoint]:
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= MAX_BYTES:
            return {}
        unpacked = zstandard.ZstdDecompressor().decompress(data, max_output_size=MAX_BYTES)
        found = _MEMORIES.decode(unpacked, key)
    except (zstandard.ZstdError, CorruptObject):
        return {}
    return {url: DatasetCheckpoint(*times[:4]) for url, times in found.datasets.items()}
