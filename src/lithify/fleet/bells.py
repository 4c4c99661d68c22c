"""Bells: "look at the boards of this queue". `bells/<queue id>` holds a nonce, and a new one rings it.

Who listens asks for it with one GET and compares. A bell may be lost, or rung for nothing: who has heard
nothing for long looks anyway.
"""

from __future__ import annotations

from lithify.errors import ObjectNotFound
from lithify.ids import Ids
from lithify.store.keys import join
from lithify.store.objects import ObjectStore


class Bells:
    """The bells of the fleet that lies below `folder` of `store`."""

    def __init__(self, store: ObjectStore, folder: str, ids: Ids) -> None:
        self._store = store
        self._folder = join(folder, "bells")
        self._ids = ids

    def ring(self, queue_id: str) -> None:
        """Somebody is to look."""
        self._store.put(join(self._folder, queue_id), self._ids.uuid().hex.encode())

    def nonce(self, queue_id: str) -> bytes:
        """As it is now; empty when it was never rung."""
        try:
            return self._store.get(join(self._folder, queue_id))
        except ObjectNotFound:
            return b""


class Ear:
    """Listens to the bell of one queue."""

    def __init__(self, bells: Bells, queue_id: str) -> None:
        self._bells = bells
        self._queue_id = queue_id
        self._heard: bytes | None = None

    def hears(self) -> bool:
        """Whether it was rung since the last time; the first time always."""
        nonce = self._bells.nonce(self._queue_id)
        is_news, self._heard = nonce != self._heard, nonce
        return is_news
