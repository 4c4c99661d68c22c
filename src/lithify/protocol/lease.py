"""The lease of a dataset's coordinator: what it says, and what can be told from it. Pure.

A lease is one small object, written by its etag only: nobody writes over what he has not seen. It says two
things:

1. *Is its holder alive?* Whoever wants to know asks: he writes his name into the lease (`challenger`). A live
   holder looks at its lease every `LOOK_AFTER_MS` and answers by writing it anew (`renewals`). If a question
   has stood for `LEASE_MS`, by the monotonic clock of who watches it, the holder does not run, whatever the
   clocks of the two machines show. While nobody asks, a lease is renewed every `RENEW_AFTER_MS` only. So one
   look tells something too, by the store's clock (`judge_lease`).
2. *Was an epoch taken by Lithify?* Only with proof (`Lease.proves`): either the holder has said so after it
   took the epoch (`taken`), or it announced before which version of the dataset's numbered files would carry
   the epoch and a mark that nobody else writes (`taking`), and that version has the mark.

No data depend on a lease: an older coordinator is fenced by the epoch. But raising an epoch that is not
Lithify's closes a program that may be alive, so what a lease does not prove is not known. One that cannot be
read proves nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from lithify.base.errors import CorruptObject
from lithify.base.jsonvalues import UNDECODABLE, text, whole_number
from lithify.protocol.presence import CoordinatorStatus, Presence

LOOK_AFTER_MS = 11_000
"""So often a holder looks whether somebody asks."""
RENEW_AFTER_MS = 60_000
"""So often a holder writes its lease although nobody asks."""
LEASE_MS = 25_000
"""A question that stands for so long has no live holder to answer it. Longer than two looks, so that one may
be late or fail."""
VALID_MS = RENEW_AFTER_MS + LEASE_MS
"""A lease that was written so long ago has no live holder."""
MAX_EPOCH = (1 << 64) - 1
MARK_BYTES = 16


@dataclass(frozen=True, slots=True)
class Taking:
    """The announcement of an epoch: the version of the numbered files that is to carry it."""

    epoch: int
    version: int
    mark: str
    """Hexadecimal; chance bytes that stand in the version where no reader looks."""


Permit = Callable[[Taking], None]
"""Is asked before a version is written that carries a new epoch. What it raises, it forbids."""


class Tries:
    """What a process has tried to take, and does not know yet whether it has.

    Who asks for an epoch may give up before the answer is there, and try again; the first try can land during
    the second. It is no other coordinator's: as long as nothing is known, all tries carry one mark.
    """

    def __init__(self) -> None:
        self._mark = ""
        self._last: Taking | None = None

    def begin(self, mark: str) -> str:
        """The mark of the tries that follow; `mark`, where nothing is open."""
        if self._last is None:
            self._mark = mark
        return self._mark

    def has_landed(self, epoch: int, has_taken: Callable[[Taking], bool]) -> bool:
        """Whether `epoch`, which is the newest, was taken by the last try."""
        last = self._last
        return last is not None and last.epoch == epoch and has_taken(last)

    def made(self, taking: Taking) -> None:
        """It is about to be tried."""
        self._last = taking

    def taken(self) -> int:
        """The epoch of the last try, which is known to have been taken."""
        assert self._last is not None
        taken, self._last = self._last.epoch, None
        return taken


@dataclass(frozen=True, slots=True)
class Lease:
    """What a lease says."""

    holder: str
    """The name of a process."""
    renewals: int = 0
    """How often it has been written."""
    is_ended: bool = False
    """The holder has resigned."""
    taken: int | None = None
    """The newest epoch known to have been taken by a Lithify process."""
    taking: Taking | None = None
    """What the holder was about to take when it wrote this, or has taken (`taken`)."""
    challenger: str | None = None
    """The process that asks whether the holder is alive; all else stands as the holder wrote it."""

    def proves(
        self, epoch: int, has_taken: Callable[[Taking], bool], may_have_taken: Callable[[Taking], bool]
    ) -> bool:
        """Whether `epoch` was taken by Lithify; `has_taken` looks whether a version has its mark. A lease may
        have been left behind by another dataset in the same place: `may_have_taken` tells what is known of
        that without a look."""
        taking = self.taking
        if self.taken == epoch:
            return taking is None or taking.epoch != epoch or may_have_taken(taking)
        return taking is not None and taking.epoch == epoch and has_taken(taking)

    def unasked(self) -> Lease:
        """As the holder wrote it."""
        return replace(self, challenger=None)


@dataclass(frozen=True, slots=True)
class FoundLease:
    """A lease object as it was found."""

    lease: Lease | None
    """`None`: it cannot be read."""
    etag: str
    """Changes with every write."""
    written_ms: int
    """When it was written, by the store's clock."""

    @property
    def is_open(self) -> bool:
        """Whether its holder has not resigned, as far as that can be read."""
        return self.lease is None or not self.lease.is_ended


class LeaseFile(Protocol):
    """Where a dataset's lease is kept."""

    def read(self) -> FoundLease | None:
        """The lease as it is, whoever holds it; `None` when there is none."""
        ...

    def look(self) -> str | None:
        """The etag of the lease as it is; `None` when there is none."""
        ...

    def write(self, lease: Lease, etag: str | None) -> str:
        """Write the lease over the one that has this etag, or where there is none if it is `None`; the new
        etag. `PreconditionFailed` when another is there: somebody else wrote meanwhile, or this very lease
        was written before and the answer was lost."""
        ...


def next_epoch(epoch: int, name: str) -> int:
    """The epoch behind the one that the object `name` carries. `CorruptObject` when there is none."""
    if not 0 <= epoch < MAX_EPOCH:
        raise CorruptObject(
            name,
            f"its coordinator's epoch is {epoch}, and none comes after it (the last is {MAX_EPOCH - 1}); no "
            "program counts so far, so it is damaged: restore an older version of it",
        )
    return epoch + 1


def without_lease(epoch: int) -> CoordinatorStatus:
    """What it tells of Lithify's coordinator that there is no lease, or none that can be read. `epoch` was
    taken last, 0 when none was."""
    return CoordinatorStatus(Presence.STOPPED if epoch else Presence.NEVER, epoch)


def judge_lease(
    epoch: int, lease: Lease, written_ms: int, now_ms: Callable[[], int | None]
) -> CoordinatorStatus:
    """Return what one look at a lease tells of Lithify's coordinator, which took `epoch`. Both times are of
    one clock, the store's; `now_ms` is asked only where the answer depends on it, and gives `None` where the
    store does not tell its time here."""
    if lease.is_ended:
        return CoordinatorStatus(Presence.STOPPED, epoch, lease.holder)
    # Asking is writing too, though not by the holder.
    ends_ms = written_ms + (VALID_MS if lease.challenger is None else LEASE_MS)
    asked_ms = now_ms()
    if asked_ms is None:
        presence = Presence.UNCLEAR
    else:
        presence = Presence.LOST if asked_ms >= ends_ms else Presence.ALIVE
    return CoordinatorStatus(presence, epoch, lease.holder, ends_ms)


def encode_lease(lease: Lease) -> bytes:
    """The lease as JSON."""
    return json.dumps(asdict(lease)).encode()


def decode_lease(data: bytes) -> Lease | None:
    """The lease in these bytes, which anybody may have written; `None` when it is none."""
    try:
        fields = json.loads(data)
        taking, challenger = fields["taking"], fields.get("challenger")  # older versions do not ask
        return Lease(
            holder=text(fields["holder"]),
            renewals=_number(fields["renewals"]),
            is_ended=fields["is_ended"] is True,
            taken=None if fields["taken"] is None else _number(fields["taken"]),
            taking=None if taking is None else _taking(taking),
            challenger=None if challenger is None else text(challenger),
        )
    except UNDECODABLE:
        return None


def _taking(fields: Any) -> Taking:
    taking = Taking(_number(fields["epoch"]), _number(fields["version"]), text(fields["mark"]))
    if len(bytes.fromhex(taking.mark)) != MARK_BYTES or taking.version < 1:
        raise ValueError("a mark or version that nobody writes")
    return taking


def _number(value: Any) -> int:
    return whole_number(value, most=MAX_EPOCH)
