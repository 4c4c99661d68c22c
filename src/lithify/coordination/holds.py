"""Holds as objects in Lithify's folder of a dataset: `holds/<name>~<token>.json` (`lithify.watermarks`).

1. A hold is written, then deleted and refused if another hold has its name; of two written at the same time,
   both may be refused. Then the published threshold is read: if it is past the hold's position, the hold is
   deleted and refused, because the data it is to keep may be gone.
2. A hold is a lease. It expires if it is not rewritten in time, by the store's clock. Renewing is a
   conditional rewrite; if the hold had expired by then, the threshold is read again. A hold that had not is
   valid wherever the threshold is: a leader may have listed the holds, then this was written and accepted,
   then the leader published; before the leader deletes history, it lists them again.
3. An expired hold stays until the threshold is past it, since its holder may still renew it; then a leader
   deletes it.
4. A crash between the two steps leaves a hold that expires.
5. Each hold has a token of its own, so no two have the same object. So a late deletion of one never deletes
   another, although stores have no conditional deletion. Only an operator releases by name.

An object that cannot be decoded as a hold is an error: it may have been one that a reader relies on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from lithify.base.clock import Clock
from lithify.base.documents import Count, DocumentCodec, readable
from lithify.base.errors import (
    CorruptObject,
    HoldLapsed,
    ObjectExists,
    ObjectNotFound,
    PreconditionFailed,
    Refused,
    StoreError,
)
from lithify.base.ids import Ids
from lithify.coordination.thresholds import ThresholdFiles
from lithify.store.keys import join
from lithify.store.objects import ObjectMeta, ObjectStore
from lithify.watermarks.model import Hold, Threshold
from lithify.watermarks.rules import admits, is_over

MIN_LEASE_MS = 10_000
"""Leaves time for a few renewals over a slow network."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SUFFIX = ".json"
_TOKEN = "~"
"""Precedes the token; not allowed in names."""
_MAX_TRIES = 5


def checked_name(name: str) -> str:
    """Return the name. Raise `Refused` if it is not allowed."""
    if not _NAME.fullmatch(name):
        raise Refused(f"{name[:120]!r} is not a name: use up to 100 letters, digits, '.', '_' or '-'")
    return name


@dataclass(frozen=True, slots=True)
class Placed:
    """A hold as stored."""

    hold: Hold
    lease_ms: int
    about: Mapping[str, Any]
    """The part of the dataset that it keeps, in the dataset's own terms."""
    token: str
    """Unique to its holder, to distinguish holds of the same name."""
    etag: str | None = None

    @property
    def name(self) -> str:
        return self.hold.name


class ObjectHolds:
    """The holds of the dataset whose own folder is `folder` of `store`."""

    def __init__(
        self, store: ObjectStore, folder: str, thresholds: ThresholdFiles, clock: Clock, ids: Ids
    ) -> None:
        self._store = store
        self._folder = join(folder, "holds")
        self._thresholds = thresholds
        self._clock = clock
        self._ids = ids

    def list(self) -> tuple[Placed, ...]:
        """Return all holds, including expired ones, by name."""
        found = (self._read(meta.key) for meta in self._store.list(self._folder) if _is_hold(meta))
        return tuple(placed for placed in found if placed is not None)

    def find(self, name: str) -> Placed:
        """Return the hold of that name. Raise `HoldLapsed` if there is none."""
        found = self._named(checked_name(name))
        if not found:
            raise HoldLapsed(f"there is no hold {name}: it was released, or it expired and was removed")
        return found[0]

    def take(
        self, name: str | None, owner: str, position: int, lease_ms: int, about: Mapping[str, Any]
    ) -> Placed:
        """Create a hold; see the module. Raise `Refused` if the name is taken or the hold is too late."""
        _check_lease(lease_ms)
        name = checked_name(name) if name is not None else self._ids.uuid().hex[:12]
        now_ms = self._clock.now_ms()
        hold = Hold(name, owner, position, now_ms)
        placed = Placed(hold, lease_ms, about, self._ids.uuid().hex)
        key = _key(self._folder, placed)
        with suppress(ObjectExists):  # by an earlier request whose answer was lost: the token is unique
            self._store.create(key, _encoded(placed, key))
        if any(other.token != placed.token for other in self._named(name)):
            self._store.delete(key)
            raise Refused(
                f"there is a hold {name} already; renew it with --renew, release it, or use another name"
            )
        if not admits(self._thresholds.read(), position):
            self._store.delete(key)
            raise Refused(_too_late(f"hold {name}"))
        found = self._read(key)
        if found is None:
            raise HoldLapsed(f"hold {name} was released by another process")
        return found

    def renew(self, placed: Placed, lease_ms: int | None = None) -> Placed:
        """Rewrite the hold, so that its lease starts anew. Raise `HoldLapsed` if that was too late."""
        if lease_ms is not None:
            _check_lease(lease_ms)
            placed = Placed(placed.hold, lease_ms, placed.about, placed.token, placed.etag)
        key = _key(self._folder, placed)
        for _ in range(_MAX_TRIES):
            try:
                self._store.replace(key, _encoded(placed, key), placed.etag or "")
            except (PreconditionFailed, ObjectNotFound):
                # Perhaps changed by an earlier renewal whose answer was lost.
                there = self._read(key)
                if there is None:
                    raise HoldLapsed(
                        f"hold {placed.name} expired and was removed; the history it held may be gone"
                    ) from None
                hold = there.hold if _follows(there, placed) else placed.hold
                placed = Placed(hold, placed.lease_ms, placed.about, placed.token, there.etag)
                continue
            renewed = self._read(key)
            is_in_time = renewed is not None and _follows(renewed, placed)
            if not is_in_time and not admits(self._thresholds.read(), placed.hold.position):
                self._store.delete(key)
                raise HoldLapsed(_too_late(f"hold {placed.name} had expired, and its renewal"))
            if renewed is None:
                raise HoldLapsed(f"hold {placed.name} was released by another process")
            return renewed
        raise StoreError(f"hold {placed.name}: changed by other processes {_MAX_TRIES} times in a row")

    def release(self, placed: Placed | str) -> None:
        """Delete this hold, or all holds of a name; no error if there is none."""
        found = self._named(checked_name(placed)) if isinstance(placed, str) else [placed]
        for one in found:
            self._store.delete(_key(self._folder, one))

    def remove_over(self, placed: Iterable[Placed], threshold: Threshold | None, now_ms: int) -> None:
        """Delete those that have expired and cannot be renewed."""
        for one in placed:
            if is_over(one.hold, threshold, now_ms):
                self._store.delete(_key(self._folder, one))

    def _named(self, name: str) -> Sequence[Placed]:
        mine = f"{join(self._folder, name)}{_TOKEN}"
        keys = [meta.key for meta in self._store.list(self._folder) if meta.key.startswith(mine)]
        return [placed for key in keys if (placed := self._read(key)) is not None]

    def _read(self, key: str) -> Placed | None:
        try:
            data, meta = self._store.get_with_meta(key)
        except ObjectNotFound:
            return None
        return _decode(data, meta)


def _key(folder: str, placed: Placed) -> str:
    return join(folder, f"{placed.name}{_TOKEN}{placed.token}{_SUFFIX}")


def _follows(renewed: Placed, placed: Placed) -> bool:
    """Return whether the hold was renewed before it expired, so that no leader ever saw it expired."""
    until_ms, new_until_ms = placed.hold.until_ms, renewed.hold.until_ms
    return until_ms is not None and new_until_ms is not None and new_until_ms - renewed.lease_ms < until_ms


def _is_hold(meta: ObjectMeta) -> bool:
    return meta.key.endswith(_SUFFIX)


def _check_lease(lease_ms: int) -> None:
    if lease_ms < MIN_LEASE_MS:
        raise Refused(f"a lease of {lease_ms} ms is too short; use at least {MIN_LEASE_MS // 1000} s")


def _too_late(what: str) -> str:
    return f"{what} came too late: history up to its position may be gone; hold a newer version"


@dataclass(frozen=True, slots=True)
class _HoldDocument:
    owner: str
    position: Count
    since_ms: Count
    lease_ms: Count
    about: Mapping[str, Any]
    token: str


_HOLDS = DocumentCodec(_HoldDocument)


def _encoded(placed: Placed, key: str) -> bytes:
    hold = placed.hold
    written = _HoldDocument(
        hold.owner, hold.position, hold.since_ms, placed.lease_ms, dict(placed.about), placed.token
    )
    return readable(partial(_HOLDS.encode, written), partial(_HOLDS.decode, key=key), key)


def _decode(data: bytes, meta: ObjectMeta) -> Placed:
    name, _, token = meta.key.rpartition("/")[2].removesuffix(_SUFFIX).partition(_TOKEN)
    try:
        found = _HOLDS.decode(data, meta.key)
        if token != found.token:
            raise CorruptObject(meta.key, "its token differs from that in its name")
        hold = Hold(
            name=checked_name(name),
            owner=found.owner,
            position=found.position,
            since_ms=found.since_ms,
            until_ms=meta.last_modified_ms + found.lease_ms,
        )
    except (Refused, CorruptObject) as error:
        why = error.reason if isinstance(error, CorruptObject) else error
        reason = f"is not a hold: {why}; find out which program wrote it, and delete it if it is not needed"
        raise CorruptObject(meta.key, reason) from None
    return Placed(hold, found.lease_ms, found.about, found.token, meta.etag)
