"""A view of a store with the beginnings of some objects in memory.

Ranges inside them are answered from memory, all others by the store. Intended for immutable objects, such as
SSTs. Missing beginnings are read concurrently, by one request each, so a caller that needs several small
pieces of many small objects waits for one round trip.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from lithify.base.concurrency import all_of
from lithify.store.objects import ObjectStore
from lithify.store.wrapped import WrappedStore

MAX_READERS = 32


class PreloadedStore(WrappedStore):
    """`inner`, with the first `sizes[key]` bytes of each of these objects in memory. `known` has the ones
    that were read before."""

    def __init__(self, inner: ObjectStore, sizes: Mapping[str, int], known: Mapping[str, bytes]) -> None:
        super().__init__(inner)
        left = {key: size for key, size in sizes.items() if len(known.get(key, b"")) != size}
        found = all_of((partial(inner.get_buffer, key, 0, size) for key, size in left.items()), MAX_READERS)
        self._loaded = {key: memoryview(content) for key, content in known.items() if key not in left}
        self._loaded |= zip(left, found, strict=True)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        found = self._find(key, offset, length)
        return super().get_range(key, offset, length) if found is None else bytes(found)

    def get_range_into(self, key: str, offset: int, target: memoryview) -> None:
        found = self._find(key, offset, target.nbytes)
        if found is None:
            super().get_range_into(key, offset, target)
        else:
            target.cast("B")[:] = found

    def get_buffer(self, key: str, offset: int, length: int) -> memoryview:
        found = self._find(key, offset, length)
        return super().get_buffer(key, offset, length) if found is None else found

    def _find(self, key: str, offset: int, length: int) -> memoryview | None:
        loaded = self._loaded.get(key)
        if loaded is None or not 0 <= offset <= offset + length <= len(loaded):
            return None
        return loaded[offset : offset + length]
