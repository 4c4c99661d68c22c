"""The published threshold of a history, as numbered files (`lithify.watermarks`).

Each version is `{"position": …, "least": {"position", "by", "since_ms"} | null}`. A leader publishes the next
version of the one it has read, so the slower of two leaders decides again, and no version is lower than the
one before. The latest version is always searched anew: another program may have deleted all versions, and
other processes then start again at the first.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from lithify.base.clock import Clock
from lithify.base.documents import MAX_COUNT, DocumentCodec
from lithify.base.ids import Ids
from lithify.store.keys import join
from lithify.store.objects import ObjectStore
from lithify.store.versions import VersionedFiles
from lithify.watermarks.model import Threshold

MAX_POSITION = MAX_COUNT
_SUFFIX = ".json"


class ThresholdFiles:
    """The threshold of the dataset whose own folder is `folder` of `store`."""

    def __init__(
        self, store: ObjectStore, folder: str, clock: Clock, ids: Ids, rng: random.Random | None = None
    ) -> None:
        self.files = VersionedFiles(
            store, join(folder, "watermark"), _SUFFIX, join(folder, "watermark.boundary"), ids, clock=clock
        )
        self._clock = clock
        self._rng = rng if rng is not None else random.Random()

    def read(self) -> Threshold | None:
        """Return the latest threshold; `None` if none was ever published."""
        version = self.files.found_anew()
        return None if version is None else self.files.decode(version, decode)

    def publish(self, change: Callable[[Threshold | None], Threshold | None]) -> Threshold | None:
        """Publish the result of `change` on the latest threshold, unless it is equal. Return the latest
        threshold."""

        def changed(version: Any) -> bytes | None:
            now = None if version is None else self.files.decode(version, decode)
            new = change(now)
            assert now is None or (new is not None and new.position >= now.position), "it never goes down"
            return None if new is None or new == now else encode(new)

        self.files.found_anew()
        version = self.files.update(changed, self._clock, self._rng)
        return None if version is None else self.files.decode(version, decode)


_THRESHOLDS = DocumentCodec(Threshold, "a watermark")
encode, decode = _THRESHOLDS.encode, _THRESHOLDS.decode
