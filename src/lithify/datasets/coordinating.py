"""How a Lithify coordinator shows that it is alive: a lease at `<root>/lithify/coordinator.json`.

1. Who is about to coordinate waits until another's lease has ended. One that is renewed meanwhile belongs
   to a live run.
2. The lease is written before the epoch is taken and names both the epoch found free and the next one, so
   that a run that dies in between is recognised too. So it is before each further try: where the store
   cannot tell whose write landed, an epoch whose answer was lost is taken by nobody, and the next is tried.
3. It is renewed while the coordinator works, and ended when it stops, unless another has taken it.

One that has ended without being given back belongs to a process that was killed or hangs.

The lease keeps nobody from harm: an older coordinator is fenced by the epoch. It only keeps two runs from
fencing each other for nothing.
"""

from __future__ import annotations

from dataclasses import replace

from lithify.clock import Clock
from lithify.compaction.presence import CoordinatorStatus, Presence
from lithify.errors import CoordinatorAlive
from lithify.ids import Ids
from lithify.store.keys import join
from lithify.store.leases import Lease, read_lease, write_lease
from lithify.store.objects import ObjectStore

LEASE_MS = 10_000
RENEW_AFTER_MS = 3_000


def lease_key(root: str) -> str:
    """The object in which Lithify's coordinator of the dataset at `root` shows that it is alive."""
    return join(root, "lithify", "coordinator.json")


def judge_lease(epoch: int, lease: Lease, now_ms: int) -> CoordinatorStatus:
    """What the lease tells of Lithify's coordinator, which took `epoch` (pure)."""
    if lease.is_live(now_ms):
        presence = Presence.ALIVE
    elif lease.expires_at_ms == 0:
        presence = Presence.STOPPED
    else:
        presence = Presence.LOST
    return CoordinatorStatus(presence, epoch, lease.holder, lease.expires_at_ms or None)


class CoordinatorLease:
    """The lease of one dataset, used by one process."""

    def __init__(self, store: ObjectStore, root: str, url: str, clock: Clock, ids: Ids) -> None:
        self._store = store
        self._key = lease_key(root)
        self._url = url
        self._clock = clock
        self._held: Lease | None = None
        self.holder = f"lithify-{ids.ulid(clock.now_ms())}"
        """The name this process goes by, in the lease and as a worker."""

    def read(self) -> Lease | None:
        """The lease as it is, whoever holds it."""
        return read_lease(self._store, self._key)

    def wait_for_end(self, lease: Lease) -> None:
        """Wait until the lease has ended; `CoordinatorAlive` when its holder renews it."""
        wait_ms = lease.expires_at_ms - self._clock.now_ms()
        if wait_ms <= 0:
            return
        self._clock.sleep_s(min(wait_ms, LEASE_MS) / 1000)
        renewed = self.read()
        if renewed is not None and renewed.is_live(self._clock.now_ms()):
            raise CoordinatorAlive(
                f"another Lithify run (epoch {renewed.epoch}) is compacting {self._url} right now; "
                "wait for it, or stop it with --take-over"
            )

    def take(self, epoch: int, before: Lease | None) -> str | None:
        """Announce the epoch behind `epoch` as this process's. Gives the holder of the lease `before`
        if that has ended without being given back."""
        self._write(Lease(self.holder, epoch + 1, epoch, self._clock.now_ms() + LEASE_MS))
        return before.holder if before is not None and before.expires_at_ms else None

    def hold(self, epoch: int) -> None:
        """Announce this coordinator; renews the lease when it is time to."""
        now_ms = self._clock.now_ms()
        held = self._held
        if held is None or held.epoch != epoch or now_ms >= held.expires_at_ms - LEASE_MS + RENEW_AFTER_MS:
            self._write(Lease(self.holder, epoch, epoch - 1, now_ms + LEASE_MS))

    def give_back(self) -> None:
        """End the lease, so that the next run need not wait. Its epoch stays, as the mark that the
        newest epoch was Lithify's. Nothing is written over another run's lease."""
        held, self._held = self._held, None
        current = self.read()
        if held is not None and current is not None and current.holder == self.holder:
            write_lease(self._store, self._key, replace(held, expires_at_ms=0))

    def _write(self, lease: Lease) -> None:
        write_lease(self._store, self._key, lease)
        self._held = lease
