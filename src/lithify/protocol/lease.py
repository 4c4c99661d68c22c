"""The lease of a dataset's coordinator, and the conclusions from it. Pure.

A lease is one small object, written conditionally by etag: no process overwrites a version it has not read.
It answers two questions:

1. *Is its holder alive?* A process that needs to know writes its name into the lease (`challenger`). A live
holder polls its lease every `LOOK_AFTER_MS` and answers by writing it anew (`renewals`). If a challenge has
stood for `LEASE_MS`, by the monotonic clock of the watching process, the holder does not run, whatever the
clocks of the two machines show. Without a challenge, a lease is renewed only every `RENEW_AFTER_MS`. So a
single read is informative too, by the store's clock (`judge_lease`).
2. *Was an epoch taken by Lithify?* Only with proof (`Lease.proves`): either the holder has recorded it after
it took the epoch (`taken`), or it announced in advance which version of the dataset's numbered files would
carry the epoch and a unique mark (`taking`), and that version has the mark.

No data depend on a lease: an older coordinator is fenced by the epoch. But raising an epoch that is not
Lithify's closes a program that may be alive, so without proof by a lease the owner is unknown. An unreadable
lease proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Protocol

from annotated_types import Interval, Predicate

from lithify.base.documents import DocumentCodec
from lithify.base.errors import CorruptObject
from lithify.protocol.presence import CoordinatorStatus, Presence

LOOK_AFTER_MS = 11_000
"""How often a holder checks for a challenge."""
RENEW_AFTER_MS = 60_000
"""How often a holder renews its lease without a challenge."""
LEASE_MS = 25_000
"""A challenge that stands for this long has no live holder to answer it. Longer than two polls, so that one
may be late or fail."""
VALID_MS = RENEW_AFTER_MS + LEASE_MS
"""A lease that was written this long ago has no live holder."""
MAX_EPOCH = (1 << 64) - 1
MARK_BYTES = 16

_Uint64 = Annotated[int, Interval(ge=0, le=MAX_EPOCH)]
_Mark = Annotated[str, Predicate(re.compile(rf"[0-9a-fA-F]{{{2 * MARK_BYTES}}}").fullmatch)]


@dataclass(frozen=True, slots=True)
class EpochClaim:
    """The announcement of an epoch: the version of the numbered files that is to carry it."""

    epoch: _Uint64
    version: Annotated[int, Interval(ge=1, le=MAX_EPOCH)]
    mark: _Mark
    """Hexadecimal; random bytes in a part of the version that readers ignore."""


@dataclass(frozen=True, slots=True)
class EpochHeld:
    """A program other than Lithify may hold the epoch."""

    why: str
    do: str
    """What an operator of a single dataset can do."""


Permit = Callable[[EpochClaim], None]
"""Called before a version is written that carries a new epoch. It raises an error to forbid that."""


class Tries:
    """A process's attempts to take an epoch whose results are unknown.

    A caller may give up before the answer arrives, and try again; the first attempt can succeed during the
    second. It must not look like another coordinator's: while no result is known, all attempts carry one
    mark.
    """

    def __init__(self) -> None:
        self._mark = ""
        self._last: EpochClaim | None = None

    def begin(self, mark: str) -> str:
        """Return the mark of the following attempts; `mark`, if none is open."""
        if self._last is None:
            self._mark = mark
        return self._mark

    def has_landed(self, epoch: int, has_taken: Callable[[EpochClaim], bool]) -> bool:
        """Return whether `epoch`, which is the newest, was taken by the last attempt."""
        last = self._last
        return last is not None and last.epoch == epoch and has_taken(last)

    def made(self, taking: EpochClaim) -> None:
        """Record an attempt that is about to be made."""
        self._last = taking

    def taken(self) -> int:
        """Return the epoch of the last attempt, which is known to have succeeded."""
        assert self._last is not None
        taken, self._last = self._last.epoch, None
        return taken


@dataclass(frozen=True, slots=True)
class Lease:
    """The content of a lease."""

    holder: str
    """The name of a process."""
    renewals: _Uint64 = 0
    """How often it has been written."""
    is_ended: bool = False
    """Whether the holder has resigned."""
    taken: _Uint64 | None = None
    """The newest epoch known to have been taken by a Lithify process."""
    taking: EpochClaim | None = None
    """The version the holder was about to take when it wrote this, or has taken (`taken`)."""
    challenger: str | None = None
    """The process that checks whether the holder is alive; all other fields are as the holder wrote them."""

    def proves(
        self,
        epoch: int,
        has_taken: Callable[[EpochClaim], bool],
        may_have_taken: Callable[[EpochClaim], bool],
    ) -> bool:
        """Return whether `epoch` was taken by Lithify; `has_taken` reads whether a version has its mark. A
        lease may have been left behind by another dataset in the same place: `may_have_taken` returns whether
        it is possible, without a read."""
        taking = self.taking
        if self.taken == epoch:
            return taking is None or taking.epoch != epoch or may_have_taken(taking)
        return taking is not None and taking.epoch == epoch and has_taken(taking)

    def unasked(self) -> Lease:
        """Return the lease as the holder wrote it."""
        return replace(self, challenger=None)


@dataclass(frozen=True, slots=True)
class FoundLease:
    """A lease object as it was read."""

    lease: Lease | None
    """`None` if it is unreadable."""
    etag: str
    """Changes with every write."""
    written_ms: int
    """When it was written, by the store's clock."""

    @property
    def is_open(self) -> bool:
        """Whether its holder has not resigned, as far as that can be read."""
        return self.lease is None or not self.lease.is_ended


class LeaseFile(Protocol):
    """The storage of a dataset's lease."""

    def read(self) -> FoundLease | None:
        """Return the current lease of any holder; `None` when there is none."""
        ...

    def look(self) -> str | None:
        """Return the etag of the current lease; `None` when there is none."""
        ...

    def write(self, lease: Lease, etag: str | None) -> str:
        """Overwrite the lease that has this etag, or create one if it is `None`; return the new etag. Raise
        `PreconditionFailed` when another is there: another process wrote meanwhile, or this very lease was
        written before and the answer was lost."""
        ...


def next_epoch(epoch: int, name: str) -> int:
    """Return the epoch after the one that the object `name` carries. Raise `CorruptObject` when there is
    none."""
    if not 0 <= epoch < MAX_EPOCH:
        raise CorruptObject(
            name,
            f"its coordinator's epoch is {epoch}, which is at or above the limit ({MAX_EPOCH}); no program "
            "counts that far, so it is damaged: restore an older version of it",
        )
    return epoch + 1


def without_lease(epoch: int) -> CoordinatorStatus:
    """Return the status of Lithify's coordinator if there is no readable lease. `epoch` was taken last, 0
    when none was."""
    return CoordinatorStatus(Presence.STOPPED if epoch else Presence.NEVER, epoch)


def judge_lease(
    epoch: int, lease: Lease, written_ms: int, now_ms: Callable[[], int | None]
) -> CoordinatorStatus:
    """Return the status of Lithify's coordinator, which took `epoch`, after a single read of a lease. Both
    times are of the store's clock; `now_ms` is called only if the result depends on it, and returns `None` if
    the store does not report its time here."""
    if lease.is_ended:
        return CoordinatorStatus(Presence.STOPPED, epoch, lease.holder)
    # A challenge is a write too, though not by the holder.
    ends_ms = written_ms + (VALID_MS if lease.challenger is None else LEASE_MS)
    asked_ms = now_ms()
    if asked_ms is None:
        presence = Presence.UNCLEAR
    else:
        presence = Presence.LOST if asked_ms >= ends_ms else Presence.ALIVE
    return CoordinatorStatus(presence, epoch, lease.holder, ends_ms)


def encode_lease(lease: Lease) -> bytes:
    """Encode the lease as JSON."""
    return _LEASES.encode(lease)


def decode_lease(data: bytes) -> Lease | None:
    """Decode a lease from bytes that any program may have written; `None` when they are invalid."""
    try:
        return _LEASES.decode(data, "lease")
    except CorruptObject:
        return None


_LEASES = DocumentCodec(Lease, optional={"challenger"})  # older versions have no challenger
