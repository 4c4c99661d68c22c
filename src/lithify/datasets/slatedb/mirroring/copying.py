"""Copying immutable objects from one store to another, in bounded memory.

If source and target are the same store, the store copies an object itself, if it can. Otherwise it is
streamed in pieces. A copy counts only if the source did not change meanwhile and the target has its size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lithify.base.errors import StoreError
from lithify.store.objects import ObjectMeta, ObjectStore

PIECE_BYTES = 4 << 20
COPIES_AT_ONCE = 4
"""Together they hold about 16 pieces in memory, with those that uploads have in flight."""


@dataclass(frozen=True, slots=True)
class ObjectCopier:
    """Copies objects from `source` to `target`."""

    source: ObjectStore
    target: ObjectStore
    is_same_store: bool
    """Whether both are one store, opened with the same options."""

    def copy(self, key: str, to: str, each_piece: Callable[[], None] | None = None) -> ObjectMeta:
        """Copy the object `key` to `to`, replacing any object there. Return the source's metadata. Raise
        `ObjectNotFound` if the source does not exist. `each_piece` is called before each streamed piece."""
        before = self.source.head(key)
        if self.is_same_store and before.size and self.target.copy(key, to):
            return self._checked(before, to)
        if before.size <= PIECE_BYTES:
            data, now = self.source.get_with_meta(key)
            if len(data) != before.size or now.etag != before.etag:
                raise _changed(key)
            self.target.put(to, data)
            return self._checked(before, to)
        with self.target.open_writer(to) as writer:
            for offset in range(0, before.size, PIECE_BYTES):
                if each_piece is not None:
                    each_piece()
                length = min(PIECE_BYTES, before.size - offset)
                writer.give(self.source.get_buffer(key, offset, length))
            now = self.source.head(key)
            if now.size != before.size or now.etag != before.etag:
                raise _changed(key)
            writer.commit()
        return self._checked(before, to)

    def _checked(self, source: ObjectMeta, to: str) -> ObjectMeta:
        written = self.target.head(to)
        if written.size != source.size:
            raise StoreError(
                f"copy {source.key}: {to} has {written.size} bytes instead of {source.size}; copy it again"
            )
        return source


def _changed(key: str) -> StoreError:
    return StoreError(f"copy {key}: another program replaced it meanwhile; such objects never change")
