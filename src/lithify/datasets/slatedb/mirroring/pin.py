"""A checkpoint that keeps a database's manifest, and all SSTs that it names, while they are copied."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace

from lithify.base.clock import Clock
from lithify.base.errors import LithifyError
from lithify.base.ids import Ids
from lithify.datasets.slatedb.files import DatabaseFiles
from lithify.datasets.slatedb.model import Checkpoint, Manifest

LIFETIME_S = 900
"""As SlateDB's own. After the death of a mirror its checkpoint lasts so long."""
NAME = "lithify mirror"


class PinLapsed(LithifyError):
    """The checkpoint was deleted or has expired: what it protected may be gone."""


class SourcePin:
    """A checkpoint in the database with these files. `keep` is safe to call from several threads."""

    def __init__(self, files: DatabaseFiles, clock: Clock, ids: Ids) -> None:
        self._files = files
        self._clock = clock
        self._id: uuid.UUID = ids.uuid()
        self._ahead_ms = 0
        """How far the store's clock is ahead of this machine's: collectors may go by either."""
        self._renewed_s = float("-inf")
        self._renewing = threading.Lock()

    def take(self) -> int:
        """Add the checkpoint. Return the id of the manifest that it keeps, which is the one with it."""
        pinned = 0

        def add(manifest_id: int, manifest: Manifest) -> Manifest | None:
            nonlocal pinned
            for mine in (c for c in manifest.checkpoints if c.id == self._id):
                pinned = mine.manifest_id
                return None  # only the answer was lost
            pinned, now_s = manifest_id + 1, self._clock.now_ms() // 1000
            mine = Checkpoint(self._id, pinned, self._expiry_s(), now_s, NAME)
            return replace(manifest, checkpoints=(*manifest.checkpoints, mine))

        self._renewed_s = self._clock.monotonic_s()
        self._files.update_manifest(add)
        return pinned

    def saw(self, written_ms: int) -> None:
        """Note when the store has written the manifest of `take`, by its clock."""
        ahead_ms = written_ms - self._clock.now_ms()
        if ahead_ms > LIFETIME_S * 250:
            self._ahead_ms = ahead_ms
            self._renewed_s = float("-inf")
            self.keep()

    def keep(self) -> None:
        """Prolong the checkpoint if half of its life is over. Raise `PinLapsed` if it is gone."""
        with self._renewing:
            now_s = self._clock.monotonic_s()
            if now_s - self._renewed_s >= LIFETIME_S / 2:
                self._prolong()
                self._renewed_s = now_s

    def _prolong(self) -> None:
        def prolong(manifest_id: int, manifest: Manifest) -> Manifest:
            if all(c.id != self._id for c in manifest.checkpoints):
                raise PinLapsed(
                    f"{self._files.url}: the checkpoint of this mirror was removed while it copied"
                )
            checkpoints = (
                replace(c, expire_time_s=self._expiry_s()) if c.id == self._id else c
                for c in manifest.checkpoints
            )
            return replace(manifest, checkpoints=tuple(checkpoints))

        self._files.update_manifest(prolong)

    def release(self) -> None:
        """Remove the checkpoint."""

        def remove(manifest_id: int, manifest: Manifest) -> Manifest | None:
            kept = tuple(c for c in manifest.checkpoints if c.id != self._id)
            return None if len(kept) == len(manifest.checkpoints) else replace(manifest, checkpoints=kept)

        self._files.update_manifest(remove)

    def _expiry_s(self) -> int:
        return (self._clock.now_ms() + self._ahead_ms) // 1000 + LIFETIME_S
