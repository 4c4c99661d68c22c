"""A ledger as numbered files of Lithify's own, for kinds of datasets that have no ledger themselves.

The epoch of the dataset's coordinator is the ledger's: publishing a version with a higher epoch fences every
older coordinator. The version that takes an epoch has a mark, by which its author recognizes it if the answer
was lost (`lithify.coordination.leadership`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Generic, TypeVar

from lithify.base.clock import Clock
from lithify.base.errors import Fenced, Refused
from lithify.base.ids import Ids
from lithify.coordination.ledger_documents import LedgerFormat, Texts
from lithify.coordination.ledger_history import LedgerHistory
from lithify.protocol.lease import EpochClaim, Permit, Tries, next_epoch
from lithify.protocol.model import Ledger, OutputT, RangeT, SpecT
from lithify.store.keys import join
from lithify.store.objects import ObjectStore
from lithify.store.versions import Bond, Change, PendingVersion, Version, VersionedFiles

SUFFIX = ".json"

ResultT = TypeVar("ResultT")


class LedgerFiles(Generic[SpecT, RangeT, OutputT]):
    """The ledger of the dataset at `url`, whose own folder is `folder` of `store`."""

    def __init__(
        self,
        url: str,
        store: ObjectStore,
        folder: str,
        format: LedgerFormat[SpecT, RangeT, OutputT],
        clock: Clock,
        ids: Ids,
        rng: random.Random,
        bond: Bond | None = None,
    ) -> None:
        self._url = url
        self._store = store
        self._format = format
        self._clock = clock
        self._ids = ids
        self._rng = rng
        self._folder = folder
        self.files = self._files(bond)
        self._decoded: tuple[int, Ledger[SpecT, RangeT, OutputT]] | None = None
        self._texts = Texts()
        self._encoded: tuple[bytes, Ledger[SpecT, RangeT, OutputT]] | None = None
        """The last version encoded here, which need not be decoded if it is published."""
        self._tries = Tries()

    def read(self) -> Ledger[SpecT, RangeT, OutputT] | None:
        """Return the latest ledger; `None` if no coordinator ever ran."""
        version = self.files.latest()
        return None if version is None else self._decode(version)

    def stored(self) -> Ledger[SpecT, RangeT, OutputT] | None:
        """Return the newest ledger in the store, without using the cache: after a ledger was removed, a
        process that has cached it may continue it while another process starts a new one."""
        files = self._files(bond=None)
        version = files.confirmed()
        return None if version is None else files.decode(version, self._format.decode)

    def _files(self, bond: Bond | None) -> VersionedFiles:
        return VersionedFiles(
            self._store,
            join(self._folder, "ledger"),
            SUFFIX,
            join(self._folder, "ledger.boundary"),
            self._ids,
            clock=self._clock,
            bond=bond,
        )

    def known(self) -> Ledger[SpecT, RangeT, OutputT] | None:
        """Return the ledger that was last read or published here, if possible without a request."""
        version = self.files.known()
        return None if version is None else self._decode(version)

    def _decode(self, version: Version) -> Ledger[SpecT, RangeT, OutputT]:
        decoded = self._decoded  # another thread may decode another version meanwhile
        if decoded is None or decoded[0] != version.id:
            own = self._encoded
            # Equal bytes may be another version: a claim and its release restore the old content.
            is_own = own is not None and own[0] is version.data
            ledger = own[1] if own is not None and is_own else self.files.decode(version, self._format.decode)
            self._decoded = decoded = version.id, ledger
        return decoded[1]

    def update(
        self, change: Callable[[Ledger[SpecT, RangeT, OutputT]], Ledger[SpecT, RangeT, OutputT]]
    ) -> Ledger[SpecT, RangeT, OutputT]:
        """Apply `change` to the cached ledger, after each conflict to the latest, and publish the result as
        the next version. Publish nothing if `change` returns an equal ledger."""
        return self._change(change, self.files.update)[0]

    def write(
        self, change: Callable[[Ledger[SpecT, RangeT, OutputT]], Ledger[SpecT, RangeT, OutputT]]
    ) -> tuple[Ledger[SpecT, RangeT, OutputT], PendingVersion]:
        """Do the same, without waiting for the proof that the version is valid."""
        changed, (_, counts) = self._change(change, self.files.write)
        return changed, counts

    def _change(
        self,
        change: Callable[[Ledger[SpecT, RangeT, OutputT]], Ledger[SpecT, RangeT, OutputT]],
        publish: Callable[[Change, Clock, random.Random], ResultT],
    ) -> tuple[Ledger[SpecT, RangeT, OutputT], ResultT]:
        changed: Ledger[SpecT, RangeT, OutputT] = Ledger()
        if self.files.known() is None:
            self.read()  # another process may have created one since

        def apply(version: Version | None) -> bytes | None:
            nonlocal changed
            if version is None:
                raise Refused(f"{self._url} has no ledger; start a coordinator first")
            ledger = self._decode(version)
            changed = change(ledger)
            if changed == ledger:
                return None
            data = self._format.encode(changed, texts=self._texts)
            self._encoded = data, changed
            return data

        result = publish(apply, self._clock, self._rng)
        return changed, result

    def history(self) -> LedgerHistory:
        """Return the history that older versions show."""
        return LedgerHistory(self._store, self.files.folder, SUFFIX, self._format.decode)

    # Leadership

    def epoch(self) -> int:
        """Return the newest coordinator's epoch, 0 if none ever ran. Raise `CorruptObject` if it is so high
        that there is no next one."""
        return self._next_epoch(self.read()) - 1

    def check_epoch(self, epoch: int) -> None:
        """Raise `Fenced` if `epoch` is not the newest any more."""
        ledger = self.read()
        if ledger is None or ledger.epoch != epoch:
            raise Fenced(f"another coordinator has taken over {self._url}; this one (epoch {epoch}) stops")

    def _next_epoch(self, ledger: Ledger[SpecT, RangeT, OutputT] | None) -> int:
        return next_epoch(ledger.epoch if ledger is not None else 0, self.files.folder)

    def take_epoch(self, permit: Permit) -> int:
        """Fence every older coordinator, and create the ledger if there is none. Return the new epoch."""
        mark = self._tries.begin(self._ids.uuid().hex)

        def raise_epoch(version: Version | None) -> bytes | None:
            ledger = None if version is None else self._decode(version)
            if ledger is not None and self._tries.has_landed(ledger.epoch, self.has_taken):
                return None  # only the answer was lost
            number = version.id + 1 if version is not None else 1
            taking = EpochClaim(self._next_epoch(ledger), number, mark)
            permit(taking)
            self._tries.made(taking)
            compactions = ledger.compactions if ledger is not None else ()
            return self._format.encode(Ledger(taking.epoch, compactions), mark)

        self.files.update(raise_epoch, self._clock, self._rng)
        return self._tries.taken()

    def has_taken(self, taking: EpochClaim) -> bool:
        """Return whether the announced version of the ledger exists with its mark."""
        return self.files.has_mark(taking.version, taking.mark.encode())
