"""The published threshold of a history, as numbered files (`lithify.watermarks`).

Each version is `{"position": …, "least": {"position", "by", "since_ms"} | null}`. Whoever publishes makes the
next version of the one it has read, so of two leaders the slower one decides again, and no version is lower
than the one before. The latest is looked for anew each time: another program may have removed all versions,
and then others begin again at the first.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from lithify.base.clock import Clock
from lithify.base.errors import CorruptObject
from lithify.base.ids import Ids
from lithify.base.jsonvalues import UNDECODABLE, text, whole_number
from lithify.store.keys import join
from lithify.store.objects import ObjectStore
from lithify.store.versions import VersionedFiles
from lithify.watermarks.model import Needed, Threshold

MAX_POSITION = (1 << 62) - 1
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
        """The latest one; `None` when none was ever published."""
        version = self.files.found_anew()
        return None if version is None else self.files.decode(version, decode)

    def publish(self, change: Callable[[Threshold | None], Threshold | None]) -> Threshold | None:
        """Publish what `change` makes of the latest one, unless that is the same; what is the latest then."""

        def changed(version: Any) -> bytes | None:
            now = None if version is None else self.files.decode(version, decode)
            new = change(now)
            assert now is None or (new is not None and new.position >= now.position), "it never goes down"
            return None if new is None or new == now else encode(new)

        self.files.found_anew()
        version = self.files.update(changed, self._clock, self._rng)
        return None if version is None else self.files.decode(version, decode)


def encode(threshold: Threshold) -> bytes:
    return json.dumps(threshold_fields(threshold)).encode()


def decode(data: bytes, key: str) -> Threshold:
    """`CorruptObject` when it is none."""
    try:
        return threshold_from(json.loads(data))
    except UNDECODABLE as error:
        raise CorruptObject(key, f"does not decode as a watermark: {error}") from error


def threshold_fields(threshold: Threshold) -> dict[str, Any]:
    """A threshold as it stands in JSON."""
    return asdict(threshold)


def threshold_from(fields: Any) -> Threshold:
    """What `threshold_fields` gave. `ValueError`, `TypeError` and `KeyError` when it is none."""
    least = fields["least"]
    position = whole_number(fields["position"], most=MAX_POSITION)
    return Threshold(position, None if least is None else _needed(least))


def _needed(fields: Any) -> Needed:
    since = fields["since_ms"]
    return Needed(
        whole_number(fields["position"], most=MAX_POSITION),
        text(fields["by"]),
        None if since is None else whole_number(since, most=MAX_POSITION),
    )
