"""Leadership: being the one coordinator of a dataset, from its lease and its epoch to its end.

The epoch keeps data from harm: whoever takes the next one fences all older coordinators, Lithify's and the
owner's. The lease keeps that from happening for nothing, or to a program that may be alive. Acquiring:

1. Read the lease, then the epoch. Whatever cannot be coordinated is refused here.
2. Unless told to take over, nobody but Lithify's coordinators may hold the epoch (`Led.why_held`). What
   is not known counts as held.
3. Unless told to take over, or its holder has resigned, watch the lease. One that changes has a live
   holder. One that stays the same for `LEASE_MS` has none; the clocks of other machines do not matter.
4. Take the next epoch. Before each try it must still follow the one found in step 1: a coordinator that
   started meanwhile may be alive. Then the lease announces what is about to be written (`Taking`), so that
   a run that dies right after it can be recognised, and nobody else is taken for it. Nothing is written to
   the dataset before this, and nothing is announced that the dataset refuses.
5. Say in the lease that the epoch was taken.

From then on `renew` writes the lease again from time to time, and whatever ends the leadership ends the
lease too (`acquire` is a context manager). Nothing is written over the lease of a successor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from lithify.clock import Clock
from lithify.compaction.lease import LEASE_MS, FoundLease, Lease, LeaseFile, Permit, Taking
from lithify.errors import CoordinatorAlive, Fenced, StoreError
from lithify.ids import Ids

RENEW_AFTER_MS = 3_000
LOOK_AFTER_MS = 1_000
"""Between two looks at a lease that is watched."""

_log = logging.getLogger("lithify")


@dataclass(frozen=True, slots=True)
class Term:
    """A time of being the coordinator."""

    epoch: int
    predecessor: str | None = None
    """The name of the process before, if it ended without resigning."""


def _follows(taking: Taking, epoch: int) -> bool:
    """Whether nobody has taken an epoch since `epoch` was found."""
    return taking.epoch == epoch + 1


class Led(Protocol):
    """What a dataset gives so that it can be led."""

    @property
    def url(self) -> str: ...

    @property
    def lease(self) -> LeaseFile:
        """The lease of Lithify's coordinator."""
        ...

    def epoch(self) -> int:
        """The newest coordinator's epoch, 0 when none ever ran. `Refused` and `CorruptObject` where no
        coordinator may start."""
        ...

    def why_held(self, epoch: int, lease: Lease | None) -> str | None:
        """Why somebody who is not Lithify may hold `epoch`, and what to do; `None` when nobody can."""
        ...

    def take_epoch(self, permit: Permit, confirm: Callable[[int], None]) -> int:
        """Fence every older coordinator; returns the new epoch. Creates the ledger if absent. `permit` is
        asked before each try, and refused is what `epoch` refuses before it is asked. A try that landed
        though its answer was lost is found out and not made again. `confirm` is told of the epoch once it
        is taken, before anything else is done."""
        ...

    def has_taken(self, taking: Taking) -> bool:
        """Whether the version that was announced is there with its mark: its author took the epoch. False
        too when it has been collected since."""
        ...


class Leadership:
    """The leadership of one dataset, as one process seeks and holds it."""

    def __init__(self, dataset: Led, clock: Clock, ids: Ids) -> None:
        self._dataset = dataset
        self._clock = clock
        self._lease: Lease | None = None
        """As this process wrote it last; `None` when it holds none."""
        self._written_s = 0.0
        self.holder = f"lithify-{ids.ulid(clock.now_ms())}"
        """The name this process goes by, in the lease and as a worker."""

    @contextmanager
    def acquire(self, *, take_over: bool = False) -> Iterator[Term]:
        """Be the coordinator for as long as the context lasts; see the module's steps.

        `CoordinatorAlive`, before anything is written, when another coordinator may be at work and this one
        was not told to `take_over`. `Refused`, `CorruptObject` and `StoreError` as the dataset gives them.
        """
        found = self._dataset.lease.read()
        lease = found.lease if found is not None else None
        epoch = self._dataset.epoch()
        if not take_over:
            reason = self._dataset.why_held(epoch, lease)
            if reason is not None:
                raise CoordinatorAlive(reason)
            found = self._watch(found)
        is_lithifys = lease is not None and lease.proves(epoch, self._dataset.has_taken)
        announced = Lease(self.holder, taken=epoch if is_lithifys else None)
        last = found.lease if found is not None else None

        def permit(taking: Taking) -> None:
            if not take_over and not _follows(taking, epoch):
                raise CoordinatorAlive(
                    f"another coordinator has just started on {self._dataset.url} (epoch "
                    f"{taking.epoch - 1}); see `lithify status`"
                )
            self._write(replace(announced, taking=taking))

        def confirm(taken: int) -> None:
            self._write(Lease(self.holder, taken=taken))

        try:
            taken = self._dataset.take_epoch(permit, confirm)
            yield Term(taken, last.holder if last is not None and not last.is_ended else None)
        finally:
            self._resign()

    def renew(self) -> None:
        """Show that this process is alive, if it is time to. `Fenced` when another took over meanwhile."""
        lease = self._lease
        if lease is None:
            raise AssertionError("only who has acquired the leadership can renew it")
        since_ms = (self._clock.monotonic_s() - self._written_s) * 1000
        if since_ms < RENEW_AFTER_MS:
            return
        if since_ms >= LEASE_MS:  # who watched meanwhile saw no sign of life
            self._check_successor(lease)
        self._write(replace(lease, renewals=lease.renewals + 1))

    def _watch(self, found: FoundLease | None) -> FoundLease | None:
        """The lease of another, once nobody renews it any more; `CoordinatorAlive` when its holder lives."""
        seen = found
        until_s = self._clock.monotonic_s() + LEASE_MS / 1000
        while seen is not None and not (seen.lease is not None and seen.lease.is_ended):
            if seen != found:
                name = f"Lithify run ({seen.lease.holder})" if seen.lease is not None else "run"
                raise CoordinatorAlive(
                    f"another {name} is compacting {self._dataset.url} right now; wait for it, or stop it "
                    "with --take-over"
                )
            left_s = until_s - self._clock.monotonic_s()
            if left_s <= 0:
                break
            self._clock.sleep_s(min(left_s, LOOK_AFTER_MS / 1000))
            seen = self._dataset.lease.read()
        return seen

    def _check_successor(self, lease: Lease) -> None:
        found = self._dataset.lease.read()
        newest = found.lease.taken if found is not None and found.lease is not None else None
        if newest is not None and newest > (lease.taken or 0):
            raise Fenced(
                f"another coordinator has taken over (epoch {newest}, mine was {lease.taken}) while this one "
                "was not running; stopping"
            )

    def _resign(self) -> None:
        """End the lease, so that the next run need not watch it. What it proves stays."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        try:
            found = self._dataset.lease.read()
            if found is None or found.lease is None or found.lease.holder != self.holder:
                return
            if lease.taking is not None and self._dataset.has_taken(lease.taking):  # it failed only then
                lease = replace(lease, taken=lease.taking.epoch, taking=None)
            self._dataset.lease.write(replace(lease, renewals=lease.renewals + 1, is_ended=True))
        except StoreError as error:
            _log.error(
                "the lease on %s could not be ended, so the next coordinator watches it for %d s: %s",
                self._dataset.url,
                LEASE_MS // 1000,
                error,
            )

    def _write(self, lease: Lease) -> None:
        self._written_s = self._clock.monotonic_s()
        self._lease = lease
        self._dataset.lease.write(lease)
