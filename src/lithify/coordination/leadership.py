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
    FoundLease,
    Lease,
    LeaseFile,
    Permit,
    Taking,
)

WATCH_PAUSE_MS = 1_000
"""Between two looks at a lease that is watched."""
MAX_WRITES = 5
"""Times a write is tried again because others write the lease too."""

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


class FencedResource(Protocol):
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

    def take_epoch(self, permit: Permit) -> int:
        """Fence every older coordinator; returns the new epoch. `permit` is asked before each try, and
        refused is what `epoch` refuses before it is asked. A try that landed though its answer was lost is
        found out and not made again."""
        ...

    def has_taken(self, taking: Taking) -> bool:
        """Whether the version that was announced is there with its mark: its author took the epoch. False
        too when it has been collected since."""
        ...

    def may_have_taken(self, taking: Taking) -> bool:
        """Whether it can have been this dataset in which an epoch was taken, without a request: another may
        have been in its place when a lease was written that was left behind."""
        ...

    def confirm(self) -> None:
        """Make sure that this is still the dataset that was opened; `Replaced` when it is not."""
        ...


class Leadership:
    """The leadership of one dataset, as one process seeks and holds it."""

    def __init__(self, dataset: FencedResource, clock: Clock, ids: Ids, holder: str | None = None) -> None:
        """Under a new name, unless it has one."""
        self._dataset = dataset
        self._clock = clock
        self._lease: Lease | None = None
        """What this process holds, as it wrote it last or is to write it next; `None` when it holds none."""
        self._etag: str | None = None
        """Of the lease as this process wrote it, or of the one it is to replace; `None`: there was none."""
        self._is_announced = False
        """The lease of this process is known to have been there."""
        self._is_said = False
        """The lease says which epoch was taken."""
        self._saying: Callable[[], None] | None = None
        """Waits for the lease to say it, while that is under way beside the caller."""
        self._telling: Callable[[], object] | None = None
        """Waits for a look at the lease that was announced."""
        self._gave_way_to: str | None = None
        """The last who announced an epoch while this process held one."""
        self._ahead: tuple[FoundLease | None, bool] | None = None
        """The lease that was read ahead, and whether its holder was asked, until it is used."""
        self._looked_s = 0.0
        self._written_s = 0.0
        self.holder = f"lithify-{ids.ulid(clock.now_ms())}" if holder is None else holder
        """The name this process goes by, in the lease and as a worker."""

    def look_ahead(self) -> None:
        """Read the lease for the next `acquire`, while other things are read. Writes nothing."""
        # Whoever has nothing to do does not need it; else `acquire` reads again, and says what is wrong.
        with suppress(LithifyError):
            self.read_ahead()

    def read_ahead(self) -> FoundLease | None:
        """The same for who needs to know what it says."""
        found = self._dataset.lease.read()
        self._ahead = found, False
        return found

    def ask_ahead(self) -> None:
        """Step 3 for the next `acquire`, for who has other things to do meanwhile. `CoordinatorAlive` when
        the holder lives. What is known of the dataset by then is as old as the question: look again, and
        then whatever was done since changes the lease, which `acquire` notices."""
        found, _ = self._taken_ahead()
        self._ahead = self._watch(found), True

    def _taken_ahead(self) -> tuple[FoundLease | None, bool]:
        ahead, self._ahead = self._ahead, None
        return ahead if ahead is not None else (self._dataset.lease.read(), False)

    @contextmanager
    def acquire(
        self, *, take_over: bool = False, is_dead: Callable[[str], bool] = lambda holder: False
    ) -> Iterator[Term]:
        """Be the coordinator for as long as the context lasts; see the module's steps. A holder of whom
        `is_dead` is known is not asked.

        `CoordinatorAlive`, before anything but a question in its lease is written, when another coordinator
        may be at work and this one was not told to `take_over`. `Refused`, `CorruptObject` and `StoreError`
        as the dataset gives them.
        """
        found, has_asked = self._taken_ahead()
        lease = found.lease if found is not None else None
        epoch = self._dataset.epoch()
        if not take_over:
            reason = self._dataset.why_held(epoch, lease)
            if reason is not None:
                raise CoordinatorAlive(reason)
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

        def permit(taking: Taking) -> None:
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
            self._telling = concurrency.beside.start(self._dataset.lease.look)

        try:
            taken = self._dataset.take_epoch(permit)
            self._wait_until_told()
            self._saying = concurrency.beside.start(partial(self._say, taken))
            yield Term(taken, last.holder if last is not None and not last.is_ended else None)
        finally:
            self._resign()

    def _say(self, taken: int) -> None:
        """Say in the lease which epoch was taken."""
        with suppress(StoreError):  # the first renewal says it again
            taking = self._lease.taking if self._lease is not None else None
            said = Lease(self.holder, self._renewals, taken=taken, taking=taking)
            self._is_said = self._write(said, self._may_renew_over)

    def _wait_until_told(self) -> None:
        """Beside taking the epoch, one look at the own lease tells the store's time."""
        telling, self._telling = self._telling, None
        if telling is not None:
            with suppress(StoreError):  # who needs the time asks again
                telling()

    def _wait_until_said(self) -> None:
        """Only one at a time writes the lease."""
        saying, self._saying = self._saying, None
        if saying is not None:
            saying()

    def renew(self) -> None:
        """Show that this process is alive, if it is time to or somebody asks. `Fenced` when another took over
        meanwhile."""
        if self._lease is None:
            raise AssertionError("only who has acquired the leadership can renew it")
        now_s = self._clock.monotonic_s()
        if (now_s - self._looked_s) * 1000 < LOOK_AFTER_MS:
            return
        self._wait_until_said()
        lease = self._lease
        is_quiet = self._is_said and (now_s - self._written_s) * 1000 < RENEW_AFTER_MS
        if not (is_quiet and self._dataset.lease.look() == self._etag):
            self._is_said = self._write(lease, self._may_renew_over) or self._is_said
        self._looked_s = now_s

    # Asking

    def _watch(self, found: FoundLease | None) -> FoundLease | None:
        """The lease of another, once nobody answers for it; `CoordinatorAlive` when its holder lives."""
        if found is None or not found.is_open or _is_of(found, self.holder):
            return found  # its own may be left from a try that failed
        name = found.lease.holder if found.lease is not None else "somebody"
        _log.warning(
            "%s may still be at work; watching the lease of %s for %d s",
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
        """Put the question, unless somebody has; one who cannot be understood is not asked."""
        if found.lease is None or found.lease.challenger is not None:
            return found
        asked = replace(found.lease, challenger=self.holder)
        try:
            return replace(found, lease=asked, etag=self._dataset.lease.write(asked, found.etag))
        except PreconditionFailed:
            return self._look_again(found)

    def _look_again(self, found: FoundLease) -> FoundLease | None:
        """The lease as it is now, unless its holder has shown that it lives."""
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
            f"the lease on {self._dataset.url}: {MAX_WRITES} times others were faster to write it"
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
                f"{other.holder} says that it has taken epoch {mine} of {self._dataset.url}, the same one as "
                "this process: the dataset was made anew or restored from a backup"
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
