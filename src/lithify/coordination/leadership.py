"""Leadership: being the only coordinator of a dataset, from lease and epoch to the end of the term.

The epoch protects data: taking the next one fences all older coordinators, Lithify's and the owner's. The
lease avoids fencing a coordinator that is alive. The steps and their proof are in docs/protocol.md
(*Leadership*).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from lithify.base import concurrency
from lithify.base.clock import Clock
from lithify.base.errors import (
    CoordinatorAlive,
    Fenced,
    LithifyError,
    PreconditionFailed,
    Replaced,
    StoreError,
)
from lithify.base.ids import Ids
from lithify.protocol.lease import (
    LEASE_MS,
    LOOK_AFTER_MS,
    RENEW_AFTER_MS,
    EpochClaim,
    EpochHeld,
    FoundLease,
    Lease,
    LeaseFile,
    Permit,
)

WATCH_PAUSE_MS = 1_000
"""Pause between two checks of a watched lease."""
MAX_WRITES = 5
"""Attempts at a write that conflicts with writes of other processes."""

_log = logging.getLogger("lithify")


@dataclass(frozen=True, slots=True)
class Term:
    """A term: the time during which a process is the coordinator."""

    epoch: int
    predecessor: str | None = None
    """The name of the previous holder, if it ended without releasing its lease."""


def _follows(taking: EpochClaim, epoch: int) -> bool:
    """Return whether no epoch was taken since `epoch` was read."""
    return taking.epoch == epoch + 1


class FencedResource(Protocol):
    """A dataset as leadership needs it: a lease, and an epoch that fences."""

    @property
    def url(self) -> str: ...

    @property
    def lease(self) -> LeaseFile:
        """The lease of Lithify's coordinator of this dataset."""
        ...

    def epoch(self) -> int:
        """Return the newest coordinator's epoch; 0 if none ever ran. Raise `Refused` or `CorruptObject` if no
        coordinator may start."""
        ...

    def why_held(self, epoch: int, lease: Lease | None) -> EpochHeld | None:
        """Return why a program other than Lithify may hold `epoch`, and what to do; `None` if none can."""
        ...

    def take_epoch(self, permit: Permit) -> int:
        """Fence all older coordinators and return the new epoch. Each try first checks what `epoch` checks,
        and then calls `permit`. A try that landed although its answer was lost is recognised and not
        repeated."""
        ...

    def has_taken(self, taking: EpochClaim) -> bool:
        """Return whether the announced version exists with its mark, which proves that its author took the
        epoch. Also false if that version has been collected meanwhile."""
        ...

    def may_have_taken(self, taking: EpochClaim) -> bool:
        """Return, without a request, whether the epoch of a lease can have been taken in this dataset. The
        lease may be left over from another dataset in the same place."""
        ...

    def confirm(self) -> None:
        """Raise `Replaced` unless this is still the dataset that was opened."""
        ...


class Leadership:
    """The leadership of one dataset, from the view of one process."""

    def __init__(self, dataset: FencedResource, clock: Clock, ids: Ids, holder: str | None = None) -> None:
        """`holder` is the name of this process in the lease; by default a new one."""
        self._dataset = dataset
        self._clock = clock
        self._lease: Lease | None = None
        """This process's lease, as last written or to be written next; `None` if it holds none."""
        self._etag: str | None = None
        """The etag of the lease that this process wrote, or is about to replace; `None` if there was no
        lease."""
        self._is_announced = False
        """Whether the lease of this process is known to have been written."""
        self._is_said = False
        """Whether the lease says which epoch was taken."""
        self._saying: Callable[[], None] | None = None
        """Waits for the background write that says it, if one is under way."""
        self._telling: Callable[[], object] | None = None
        """Waits for the background read of the announced lease, if one is under way."""
        self._gave_way_to: str | None = None
        """The last process that announced an epoch while this process held one."""
        self._ahead: tuple[FoundLease | None, bool] | None = None
        """The lease that was read ahead, and whether its holder was challenged, until it is used."""
        self._looked_s = 0.0
        self._written_s = 0.0
        self.holder = f"lithify-{ids.ulid(clock.now_ms())}" if holder is None else holder
        """The name of this process, in the lease and as a worker."""

    def look_ahead(self) -> None:
        """Read the lease for the next `acquire`, while other things are read. Writes nothing."""
        # An idle caller does not need it; otherwise `acquire` reads again and reports the error.
        with suppress(LithifyError):
            self.read_ahead()

    def read_ahead(self) -> FoundLease | None:
        """Read the lease for the next `acquire`, and return it."""
        found = self._dataset.lease.read()
        self._ahead = found, False
        return found

    def ask_ahead(self) -> None:
        """Do step 3 ahead of the next `acquire`, while the caller does other things. Raise `CoordinatorAlive`
        if the holder is alive. Read the dataset again afterwards: what was read before is as old as the
        challenge. Later changes also change the lease, which `acquire` notices."""
        found, _ = self._taken_ahead()
        self._ahead = self._watch(found), True

    def _taken_ahead(self) -> tuple[FoundLease | None, bool]:
        ahead, self._ahead = self._ahead, None
        return ahead if ahead is not None else (self._dataset.lease.read(), False)

    @contextmanager
    def acquire(
        self,
        *,
        take_over: bool = False,
        is_dead: Callable[[str], bool] = lambda holder: False,
        adopts_before_ms: int | None = None,
    ) -> Iterator[Term]:
        """Be the coordinator for as long as the context lasts (docs/protocol.md, *Leadership*). A holder for
        which `is_dead` returns true is not challenged. With `adopts_before_ms`, an epoch that a program other
        than Lithify may hold is taken, unless Lithify has coordinated the dataset since that time of the
        store's clock: then that program has come back since. Coordinators of Lithify are never fenced so.

        `CoordinatorAlive`, before anything but a question in its lease is written, when another coordinator
        may be at work and this one was not told to `take_over`. `Refused`, `CorruptObject` and `StoreError`
        as the dataset gives them.
        """
        found, has_asked = self._taken_ahead()
        lease = found.lease if found is not None else None
        epoch = self._dataset.epoch()
        if not take_over:
            held = self._dataset.why_held(epoch, lease)
            if held is not None and not self._adopts(found, adopts_before_ms):
                raise CoordinatorAlive(f"{held.why}. {held.do}", held.why)
            if not has_asked and (lease is None or not is_dead(lease.holder)):
                found = self._watch(found)
        is_lithifys = lease is not None and lease.proves(
            epoch, self._dataset.has_taken, self._dataset.may_have_taken
        )
        announced = Lease(self.holder, taken=epoch if is_lithifys else None)
        last = found.lease if found is not None else None
        self._etag = found.etag if found is not None else None
        self._is_announced = self._is_said = False
        self._gave_way_to = None

        def permit(taking: EpochClaim) -> None:
            is_free = take_over or _follows(taking, epoch)
            if is_free:
                is_free = self._write(
                    replace(announced, taking=taking),
                    lambda other: take_over or self._may_be_written_over(other, last),
                )
            if not is_free:
                raise CoordinatorAlive(
                    f"another coordinator has just started on {self._dataset.url} (epoch "
                    f"{taking.epoch - 1}); see `lithify status`"
                )
            self._is_announced = True
            self._telling = concurrency.background.start(self._dataset.lease.look)

        try:
            taken = self._dataset.take_epoch(permit)
            self._wait_until_told()
            self._saying = concurrency.background.start(partial(self._say, taken))
            yield Term(taken, last.holder if last is not None and not last.is_ended else None)
        finally:
            self._resign()

    def _adopts(self, found: FoundLease | None, before_ms: int | None) -> bool:
        """Return whether an epoch of another program may be taken: Lithify has taken none since that time."""
        if before_ms is None:
            return False
        if found is None or found.written_ms < before_ms:
            return True
        lease = found.lease
        if lease is None or lease.taken is not None:
            return False
        return lease.taking is None or not self._dataset.has_taken(lease.taking)

    def _say(self, taken: int) -> None:
        """Write into the lease which epoch was taken."""
        with suppress(StoreError):  # the first renewal writes it again
            taking = self._lease.taking if self._lease is not None else None
            said = Lease(self.holder, self._renewals, taken=taken, taking=taking)
            self._is_said = self._write(said, self._may_renew_over)

    def _wait_until_told(self) -> None:
        """Read the own lease while the epoch is taken, which shows the store's time."""
        telling, self._telling = self._telling, None
        if telling is not None:
            with suppress(StoreError):  # callers that need the time read it again
                telling()

    def _wait_until_said(self) -> None:
        """Wait for the background write: there is one writer of the lease at a time."""
        saying, self._saying = self._saying, None
        if saying is not None:
            saying()

    def renew(self) -> None:
        """Renew the lease if it is time, or if there is a challenge. Raise `Fenced` if another process has
        taken over meanwhile."""
        if self._lease is None:
            raise AssertionError("only the holder of the leadership can renew it")
        now_s = self._clock.monotonic_s()
        if (now_s - self._looked_s) * 1000 < LOOK_AFTER_MS:
            return
        self._wait_until_said()
        lease = self._lease
        is_quiet = self._is_said and (now_s - self._written_s) * 1000 < RENEW_AFTER_MS
        if not (is_quiet and self._dataset.lease.look() == self._etag):
            self._is_said = self._write(lease, self._may_renew_over) or self._is_said
        self._looked_s = now_s

    # Challenging

    def _watch(self, found: FoundLease | None) -> FoundLease | None:
        """Wait until a foreign lease counts as dead, and return it. Raise `CoordinatorAlive` if its holder
        lives."""
        if found is None or not found.is_open or _is_of(found, self.holder):
            return found  # its own lease may be left over from a failed try
        name = found.lease.holder if found.lease is not None else "another process"
        _log.warning(
            "%s may still be running; watching the lease of %s for %d s",
            name,
            self._dataset.url,
            LEASE_MS // 1000,
        )
        seen: FoundLease | None = self._ask(found)
        left_ms = LEASE_MS
        while seen is not None and seen.is_open and left_ms > 0:
            pause_ms = min(left_ms, WATCH_PAUSE_MS)
            self._clock.sleep_s(pause_ms / 1000)
            left_ms -= pause_ms
            seen = self._look_again(seen)
        return seen

    def _ask(self, found: FoundLease) -> FoundLease | None:
        """Challenge the holder, unless it is challenged already or its lease cannot be decoded."""
        if found.lease is None or found.lease.challenger is not None:
            return found
        asked = replace(found.lease, challenger=self.holder)
        try:
            return replace(found, lease=asked, etag=self._dataset.lease.write(asked, found.etag))
        except PreconditionFailed:
            return self._look_again(found)

    def _look_again(self, found: FoundLease) -> FoundLease | None:
        """Read the lease again. Raise `CoordinatorAlive` if its holder has renewed it."""
        if self._dataset.lease.look() == found.etag:
            return found
        seen = self._dataset.lease.read()
        if seen is None or not seen.is_open or _is_unanswered(found.lease, seen.lease):
            return seen
        name = f"Lithify run ({seen.lease.holder})" if seen.lease is not None else "run"
        raise CoordinatorAlive(
            f"another {name} is compacting {self._dataset.url} right now; wait for it, or stop it "
            "with --take-over"
        )

    # Writing

    def _write(
        self, lease: Lease, may_write_over: Callable[[Lease | None], bool], *, begins: bool = True
    ) -> bool:
        """Write `lease`, with a number of its own. Whether it was written: another's, which has been written
        since this process looked last, stays if it may not be written over. Where the lease that was there
        is gone, one begins again if it is still the same dataset, and only if `begins`."""
        self._lease = lease = replace(lease, renewals=self._renewals + 1)
        etag = self._etag
        for _ in range(MAX_WRITES):
            now_s = self._clock.monotonic_s()
            try:
                written = self._dataset.lease.write(lease, etag)
            except PreconditionFailed:
                found = self._dataset.lease.read()
                etag = found.etag if found is not None else None
                if found is None and not begins:
                    return False
                if found is None:
                    if self._is_announced:
                        self._dataset.confirm()
                    continue
                if found.lease != lease:
                    if not may_write_over(found.lease):
                        return False
                    continue
                written = found.etag  # only the answer was lost
            self._etag, self._written_s, self._looked_s = written, now_s, now_s
            return True
        raise StoreError(
            f"the lease on {self._dataset.url}: other processes wrote it first {MAX_WRITES} times in a row"
        )

    @property
    def _renewals(self) -> int:
        return self._lease.renewals if self._lease is not None else 0

    def _may_be_written_over(self, other: Lease | None, last: Lease | None) -> bool:
        """Whether an announcement may replace the lease `other`, which has been written since the watch of
        `last` ended."""
        if other is not None and other.holder == self.holder:
            return True
        if other is None or last is None or other.holder != last.holder:
            return False
        return other.is_ended or _is_unanswered(last, other)

    def _may_renew_over(self, other: Lease | None) -> bool:
        """Whether a renewal may replace the lease `other`; `Fenced` when that one's epoch is newer."""
        if other is None or other.holder == self.holder:
            return True
        taken = self._lease.taken if self._lease is not None else None
        mine, taking = taken or 0, other.taking
        is_newer = taking is not None and taking.epoch > mine
        newest = other.taken or 0
        if newest == mine > 0 and not is_newer:
            raise Replaced(
                f"{other.holder} has taken epoch {mine} of {self._dataset.url}, the same as this process: "
                "the dataset was created again or restored from a backup"
            )
        if taking is not None and is_newer and newest <= mine and self._dataset.has_taken(taking):
            newest = taking.epoch
        if newest > mine:
            raise Fenced(f"another coordinator has taken over (epoch {newest}, mine was {mine}); stopping")
        if not is_newer or other.is_ended or other.holder == self._gave_way_to:
            return True
        self._gave_way_to = other.holder
        return False

    def _resign(self) -> None:
        """End the lease, so that the next run need not watch it. What it proves stays."""
        with suppress(LithifyError):  # who is fenced writes over nobody's lease below
            self._wait_until_said()
        lease = self._lease
        if lease is None:
            return
        try:
            if not self._is_announced:  # whether it was written is not known
                found = self._dataset.lease.read()
                if found is None or found.lease is None or found.lease.holder != self.holder:
                    return
                self._etag = found.etag
            taking = lease.taking
            is_open = taking is not None and taking.epoch != lease.taken
            if taking is not None and is_open and self._dataset.has_taken(taking):  # it failed only then
                lease = replace(lease, taken=taking.epoch)
            self._write(
                replace(lease, is_ended=True),
                lambda other: other is not None and other.holder == self.holder,
                begins=False,
            )
        except StoreError as error:
            _log.error(
                "the lease on %s could not be ended, so the next coordinator watches it for %d s: %s",
                self._dataset.url,
                LEASE_MS // 1000,
                error,
            )
        finally:
            self._lease = None


def _is_of(found: FoundLease, holder: str) -> bool:
    return found.lease is not None and found.lease.holder == holder


def _is_unanswered(before: Lease | None, after: Lease | None) -> bool:
    """Whether nobody but challengers wrote between these two."""
    return before is not None and after is not None and before.unasked() == after.unasked()
