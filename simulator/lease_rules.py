"""What must hold whenever the coordinator's lease is written.

1. Everybody writes in its own name; who asks whether the holder is alive puts the question and changes
   nothing else.
2. Who has said which epoch it took never writes over the lease of one who has said that it took a newer one.
   (Who was told to take over and fell asleep before it knew that it had may find nothing left of what it
   wrote, and take over once more.)
3. Who was not told to take over writes over another's lease, to announce an epoch, only if that one resigned,
   or if a question in it has stood for `LEASE_MS`; and not if its holder was alive all that time and nothing
   kept it from answering.
"""

from __future__ import annotations

from typing import NoReturn

from lithify.protocol.lease import Lease, decode_lease
from simulator import rules
from simulator.scenario import LEASE_MS
from simulator.world import Process, World


class LeaseRules:
    """Knows the lease, and who took which epoch."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lease: Lease | None = None
        self._asked_ms: int | None = None
        """Since when a question stands in the lease."""
        self._names: dict[str, Process] = {}
        """Holders by the name in their leases."""
        self._epochs: dict[str, int] = {}
        """By the name of the process, which epoch it took."""
        self._said: dict[str, int] = {}
        """The same, as its lease said."""

    def took(self, process: Process, epoch: int) -> None:
        """An epoch was taken."""
        self._epochs[process.name] = epoch

    def wrote(self, process: Process, data: bytes) -> None:
        """The lease was written."""
        old, new = self._lease, decode_lease(data)
        if new is None:
            self._fail(process, f"writes what is no lease: {data!r}")
        if new.challenger is not None:
            self._asks(process, old, new)
        elif self._names.setdefault(new.holder, process) is not process:
            self._fail(process, f"writes the lease of {self._names[new.holder].name}")
        elif old is not None and old.holder != new.holder:
            self._replaces(process, old, new)
        elif self._asked_ms is not None:
            self._world.count("event: question answered")
        self._lease = new
        if new.challenger is None:
            self._asked_ms = None
            if new.taken is not None and not _is_announcement(new):
                self._said[process.name] = new.taken

    def _asks(self, process: Process, old: Lease | None, new: Lease) -> None:
        if old is None or old.challenger is not None or old != new.unasked():
            self._fail(process, f"puts a question and changes the lease from {old} to {new}")
        self._asked_ms = self._world.now_ms
        self._world.count("event: question asked")

    def _replaces(self, process: Process, old: Lease, new: Lease) -> None:
        # Who has the epoch may say so for the first time over an announcement that came to nothing.
        known = self._said if _is_announcement(new) else self._epochs
        epoch, holder = known.get(process.name), self._names[old.holder]
        if epoch is not None:
            if old.taken is not None and old.taken > epoch:
                self._fail(process, f"holds epoch {epoch} and writes over the lease of {holder.name}: {old}")
        elif not (process.takes_over or old.is_ended):
            self._check_dead(process, holder)

    def _check_dead(self, process: Process, holder: Process) -> None:
        now_ms, since_ms = self._world.now_ms, self._asked_ms
        if since_ms is None or now_ms - since_ms < LEASE_MS:
            self._fail(process, f"has not watched the lease of {holder.name} and takes it")
        is_undisturbed = holder.disturbed_ms < since_ms
        if not holder.is_dead and holder.name in self._epochs and is_undisturbed:
            self._fail(process, f"takes the lease of {holder.name}, which is alive and has not answered")

    def _fail(self, process: Process, text: str) -> NoReturn:
        raise self._world.fail(rules.LEASES, f"{process.name}: {text}")


def _is_announcement(lease: Lease) -> bool:
    """Whether the lease announces an epoch that its holder has not said it took."""
    return lease.taking is not None and lease.taking.epoch != lease.taken
