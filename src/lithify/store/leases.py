"""A lease: proof of life in one small object, and nothing more.

Nothing depends on a lease for correctness (fencing by epochs gives that). It tells a second process
whether it would disturb a first one: the holder writes the time until which it means to go on, in
milliseconds of the wall clock, and writes it again well before. A lease that is lost, stale or
unreadable only costs politeness.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from lithify.errors import ObjectNotFound
from lithify.store.objects import ObjectStore


@dataclass(frozen=True, slots=True)
class Lease:
    """Who holds what until when."""

    holder: str
    epoch: int
    """What the holder holds, or is about to take: the coordinator's epoch."""
    base_epoch: int
    """The epoch before, which the holder found to be free."""
    expires_at_ms: int
    """Wall-clock milliseconds; 0 means given back."""

    def is_live(self, now_ms: int) -> bool:
        """Whether the holder may still be at work."""
        return now_ms < self.expires_at_ms


def read_lease(store: ObjectStore, key: str) -> Lease | None:
    """The lease, or `None` when there is none that can be read."""
    try:
        fields = json.loads(store.get(key))
        return Lease(
            str(fields["holder"]),
            int(fields["epoch"]),
            int(fields["base_epoch"]),
            int(fields["expires_at_ms"]),
        )
    except (ObjectNotFound, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def write_lease(store: ObjectStore, key: str, lease: Lease) -> None:
    """Replace the lease."""
    store.put(key, json.dumps(asdict(lease)).encode())
