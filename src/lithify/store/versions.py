"""A value that advances through numbered files (SlateDB format: numbered files).

Version N of the value is the object `<folder>/<N as 20 digits><suffix>`. Versions start at 1, have no gaps
and never change. To publish on top of version N, create N+1 only if it is absent; if it exists, raise
`VersionConflict`. Garbage collection first raises the *boundary*, an object with a decimal number, and then
deletes versions: a version at or below the boundary is not valid.

The steps of publishing and searching, and the proof that a crash, a lost answer, a collected version or a
replaced folder loses nothing, are in docs/protocol.md (*Numbered files*).

A name with this suffix that is not exactly 20 digits directly in the folder is refused: SlateDB's clients
would find its number, not find the object, and list again for ever. Other suffixes are ignored.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from lithify.base import concurrency
from lithify.base.backoff import RandomPause
from lithify.base.clock import Clock, SystemClock
from lithify.base.concurrency import both
from lithify.base.errors import (
    ObjectExists,
    ObjectNotFound,
    PreconditionFailed,
    Refused,
    Replaced,
    StoreError,
    StoreUnavailable,
    VersionConflict,
)
from lithify.base.ids import Ids, RandomIds
from lithify.store.keys import MAX_VERSION_ID, format_id, parse_boundary, parse_key
from lithify.store.objects import ObjectMeta, ObjectStore

__all__ = ["Change", "PendingVersion", "Version", "VersionConflict", "VersionedFiles"]

ValueT = TypeVar("ValueT")

MAX_PROBES = 4
"""Successors read one by one before listing is quicker."""
MAX_TRUSTED_LOOKS = 8
"""One in so many searches without news reads the boundary."""
MAX_LOOKUPS = 20
"""Times the search for the latest version begins again."""
FRESH_S = 2.0
"""For so long a version that was read or written is assumed to exist. Shorter than an operator needs to
replace a folder, and longer than a tick."""
LISTING_EVERY_S = 3_600.0
"""The folder is listed at least so often: if a collector without a boundary keeps the cached version and
deletes its successors, only a listing shows that there are newer versions."""
MAX_BOUNDARY_TRIES = 20
"""Times an advance of the boundary is repeated after a conflict."""
MAX_UPDATE_TRIES = 20
"""Times `update` is repeated after a conflict."""
CONFLICT_PAUSE = RandomPause(first_s=0.05, max_s=2.0)
"""Pause after a conflict."""

_WHOLE_SECOND_MS = 1_000
"""Some stores report times in whole seconds."""
_DISK = "file:"
"""Scheme of local disks, where a check costs next to nothing, and a copy may keep the times of a backup."""


@dataclass(frozen=True, slots=True)
class Version:
    """One version of the value."""

    id: int
    data: bytes
    etag: str | None = field(default=None, compare=False, repr=False)
    """The object's etag, if known."""
    there_s: float = field(default=float("-inf"), compare=False, repr=False)
    """When it was last known to exist, in seconds of the monotonic clock of its `VersionedFiles`."""


@dataclass(frozen=True, slots=True)
class _LatestVersion:
    """The version that was found or published last: the cache of a search."""

    version: Version
    """Its number is 0 if there was no version."""
    trusted_looks: int
    """How many searches may end without a successor before the boundary must be read. 0: the version itself
    may lie at or below the boundary."""


_NONE = Version(0, b"")


class Bond:
    """Joins the numbered files of one dataset: once the history of one of them was replaced, all of them
    raise `Replaced`."""

    def __init__(self) -> None:
        self._broken: Replaced | None = None
        self._files: list[VersionedFiles] = []

    def join(self, files: VersionedFiles) -> None:
        self._files.append(files)

    def others(self, files: VersionedFiles) -> Sequence[VersionedFiles]:
        return [other for other in self._files if other is not files]

    def check(self) -> None:
        if self._broken is not None:
            raise Replaced(str(self._broken))

    def break_off(self, error: Replaced) -> None:
        self._broken = error


Change = Callable[[Version | None], bytes | None]
"""Returns the bytes to publish on top of a version (`None`: there is no version yet), or `None` for
nothing."""


class PendingVersion:
    """A version that was written and is not yet known to be valid. The check starts at once, in the
    background; without `prove`, the version is valid."""

    def __init__(self, prove: Callable[[], None] | None = None) -> None:
        self._prove = prove
        self._under_way = concurrency.background.start(prove) if prove is not None else None

    def __call__(self) -> bool:
        """Wait for the check, and return whether the version is valid. After a `StoreError`, call again to
        repeat the check."""
        finish, self._under_way = self._under_way or self._prove, None
        try:
            if finish is not None:
                finish()
        except VersionConflict:
            return False
        return True


class VersionedFiles:
    """The numbered files of one folder. Safe to share between threads."""

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        suffix: str,
        boundary_key: str,
        ids: Ids | None = None,
        *,
        clock: Clock | None = None,
        bond: Bond | None = None,
    ) -> None:
        """`bond` joins these files with others of the same dataset."""
        self.folder = folder
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._bond = bond
        if bond is not None:
            bond.join(self)
        self._lost: Version | None = None
        """The version that was found missing or different."""
        self._listed_s = float("-inf")
        """When the folder was last listed."""
        self._store = store
        self._suffix = suffix
        self._boundary_key = boundary_key
        self._ids: Ids = ids if ids is not None else RandomIds()
        self._seen: _LatestVersion | None = None
        self._remembering = threading.Lock()

    def key(self, version_id: int) -> str:
        return f"{self.folder}/{format_id(version_id)}{self._suffix}"

    def listed(self) -> list[tuple[int, ObjectMeta]]:
        """List the versions that exist, with their metadata, oldest first."""
        numbered = ((parse_key(m.key, self.folder, self._suffix), m) for m in self._store.list(self.folder))
        return sorted((version_id, meta) for version_id, meta in numbered if version_id is not None)

    def ids(self) -> list[int]:
        """List the numbers of all existing versions, ascending, regardless of the boundary."""
        self._listed_s = self._now_s()
        return [version_id for version_id, _ in self.listed()]

    def read(self, version_id: int) -> bytes:
        """Read one version (for example that of a checkpoint), regardless of the boundary."""
        return self._store.get(self.key(version_id))

    def has_mark(self, version_id: int, mark: bytes) -> bool:
        """Return whether a version exists, is valid, and contains `mark`. A version created after a
        collection had deleted its number is not valid; it looks the same as the one that was deleted."""
        try:
            return mark in self.read(version_id) and version_id > self.boundary()
        except ObjectNotFound:
            return False

    def latest(self) -> Version | None:
        """Return the latest version, or `None` if there is none. May return a stale version a few times, if
        the cached one was collected meanwhile; publishing on top of that one fails."""
        return self._search(is_trusting=True)

    def confirmed(self) -> Version | None:
        """Return the latest version and make sure that it is valid. Needed by all callers that do something
        else with it than publish the next version."""
        return self._search(is_trusting=False)

    def found_anew(self) -> Version | None:
        """Return the latest version as a process without a cache finds it. Needed if another program may
        remove versions from the folder: versions that follow a removed one would be visible to this process
        only."""
        with self._remembering:
            self._seen = None
        return self.confirmed()

    def known(self) -> Version | None:
        """Return the cached version, without a request; `None` if there was no version. Without a cache, do
        the same as `latest`."""
        seen = self._seen
        if seen is None or not seen.trusted_looks:
            return self.latest()
        return _none_as_none(seen.version)

    def _search(self, *, is_trusting: bool) -> Version | None:
        self._check_bond()
        is_gone = False
        for _ in range(MAX_LOOKUPS):
            seen = self._seen
            try:
                if seen is None:
                    found, boundary = self._find()
                else:
                    found = self._follow(seen.version)
                    if found is seen.version and is_trusting and seen.trusted_looks:
                        self._replace(seen, _LatestVersion(found, seen.trusted_looks - 1))
                        return _none_as_none(found)
                    if found is seen.version and self._now_s() - self._listed_s >= LISTING_EVERY_S:
                        found = self._highest_of(self.ids())
                    # Read after the successors: the boundary may be raised while they are read.
                    boundary, there = both(self.boundary, partial(self._still_there, seen.version))
                    if found is seen.version and there is not None:
                        found = there
                    self._check_history(seen.version, there)
            except ObjectNotFound:  # deleted since it was listed
                self._forget(seen)
                continue
            if found.id > boundary or (found is _NONE and boundary == 0):
                self._replace(seen, _LatestVersion(found, MAX_TRUSTED_LOOKS - 1))
                return _none_as_none(found)
            is_gone = found is _NONE
            self._forget(seen)
        if is_gone:
            raise StoreError(
                f"{self.folder}: all its files are gone, although there were some up to number {boundary}, "
                f"as {self._boundary_key} says: restore the folder, or, if that is impossible, stop all "
                f"programs that write there and delete {self._boundary_key}; then the numbers begin again"
            )
        raise StoreError(
            f"{self.folder}: {MAX_LOOKUPS} searches found no version above the boundary in "
            f"{self._boundary_key}; versions are deleted faster than they can be read, or the latest was "
            "removed: restore it, or delete the boundary if it cannot be restored"
        )

    def _replace(self, before: _LatestVersion | None, seen: _LatestVersion) -> None:
        """Cache the result of a search, unless another thread has published or found a newer version."""
        with self._remembering:
            now = self._seen
            if now is before or now is None or now.version.id <= seen.version.id:
                self._seen = seen

    def _forget(self, before: _LatestVersion | None) -> None:
        """Drop the cache, unless another thread has replaced it."""
        with self._remembering:
            if self._seen is before:
                self._seen = None

    def decode(self, version: Version, decode: Callable[[bytes, str], ValueT]) -> ValueT:
        """Decode a version by its bytes and its key. A version that cannot be decoded is dropped from the
        cache."""
        try:
            return decode(version.data, self.key(version.id))
        except Exception:
            self._seen = None
            raise

    def publish(self, base: Version | None, data: bytes) -> Version:
        """Publish `data` as the successor of `base` (`None`: there is no version yet). Raise
        `VersionConflict` if another process was faster. After any other `StoreError` the outcome is unknown:
        the request may still create the next version."""
        version, base = self._create_on(base, data)
        self._prove(version, base)
        return version

    def _create_on(self, base: Version | None, data: bytes) -> tuple[Version, Version | None]:
        """Check the base and create the next version (steps 1 and 2). Return it and its base."""
        base = self._founded(base)
        try:
            return self._create(base, data), base
        except VersionConflict:
            self._check_there(base)  # the version in its place may be of another history
            raise

    def _create(self, base: Version | None, data: bytes) -> Version:
        """Create the next version (steps 1 and 2 in docs/protocol.md)."""
        version = Version(base.id + 1 if base is not None else 1, data, there_s=self._now_s())
        if version.id > MAX_VERSION_ID:
            raise StoreError(
                f"{self.key(version.id - 1)}: no number is left for the next version; no program counts that "
                "far, so find out which program wrote this object and move it away"
            )
        put_id = self._ids.uuid().hex
        try:
            etag = self._store.create(self.key(version.id), data, put_id)
        except StoreError as error:
            etag = self._settle(version, put_id, error)
        version = replace(version, etag=etag)
        self._seen = _LatestVersion(version, MAX_TRUSTED_LOOKS - 1)
        return version

    def _prove(self, version: Version, base: Version | None) -> None:
        """Prove that a created version is valid (step 3). Drop it from the cache if that fails."""
        try:
            self._check_counts(version, base)
        except Exception:
            with self._remembering:
                if self._seen is not None and self._seen.version is version:
                    self._seen = None
            raise

    def _check_counts(self, version: Version, base: Version | None) -> None:
        boundary, why_not = both(self.boundary, partial(self._why_not_there, base))
        if version.id <= boundary:
            raise VersionConflict(
                f"{self.key(version.id)}: later versions exist and this one was already collected"
            )
        if why_not is not None:
            self._take_back(version)
            raise why_not

    # Replaced histories

    def _now_s(self) -> float:
        return self._clock.monotonic_s()

    def _check_bond(self) -> None:
        if self._bond is not None:
            self._bond.check()

    def _founded(self, base: Version | None) -> Version | None:
        """Return the version to build on, once it is known to exist. Raise `Replaced` if it does not."""
        self._check_bond()
        if base is None:
            self._check_others()
            return None
        return base if self._is_fresh(base) else self._check_version(base)

    def _is_fresh(self, version: Version) -> bool:
        return self._now_s() - version.there_s < FRESH_S and not self._store.url.startswith(_DISK)

    def _check_version(self, version: Version) -> Version:
        there = self._still_there(version)
        self._check_history(version, there)
        return version if there is None else there

    def _check_there(self, base: Version | None) -> None:
        """Raise `Replaced` if the base of a version is missing. Without a base, check the other files of the
        bond."""
        if base is not None:
            self._check_version(base)
        else:
            self._check_others(is_sure=True)

    def _check_others(self, *, is_sure: bool = False) -> None:
        """Raise `Replaced` if other files of the bond belong to another history."""
        for other in self._bond.others(self) if self._bond is not None else ():
            seen = other._seen
            if seen is not None and (is_sure or not other._is_fresh(seen.version)):
                other._check_version(seen.version)

    def _why_not_there(self, base: Version | None) -> Replaced | None:
        try:
            self._check_there(base)
        except Replaced as error:
            return error
        return None

    def _still_there(self, version: Version) -> Version | None:
        """Return the version with the time at which it was found to exist; `None` if it is missing or was
        replaced."""
        if version is _NONE:
            return version
        now_s = self._now_s()
        try:
            meta = self._store.head(self.key(version.id))
            if meta.etag is None or meta.etag != version.etag:
                data, meta = self._store.get_with_meta(self.key(version.id))
                if data != version.data:
                    return None
        except ObjectNotFound:
            return None
        return replace(version, etag=meta.etag, there_s=now_s)

    def _check_history(self, version: Version, there: Version | None) -> None:
        """Raise `Replaced` if a version is missing although it was not collected."""
        if there is None and version.id > self.boundary():
            raise self._replaced(version)

    def _replaced(self, version: Version) -> Replaced:
        """Drop the cache and break the bond. Return the error to raise."""
        error = Replaced(
            f"{self.key(version.id)} is missing or has changed, but was not collected: {self.folder} was "
            "deleted, created again or restored from a backup, so its cached state is invalid"
        )
        with self._remembering:
            self._seen, self._lost = None, version
        if self._bond is not None:
            self._bond.break_off(error)
        return error

    def _take_back(self, version: Version) -> None:
        """Delete the version just created, if it certainly belongs to another history. If another program has
        already published a successor, keep it."""
        listed = dict(self.listed())
        mine = listed.get(version.id)
        if mine is None or max(listed) > version.id:
            return
        others = self._bond.others(self) if self._bond is not None else ()
        if any(files._is_another(mine.last_modified_ms) for files in (self, *others)):
            self._store.delete(self.key(version.id))

    def _is_another(self, at_ms: int) -> bool:
        """Return whether the known history is certainly gone at the store's time `at_ms`: no version exists,
        or versions up to the one seen last are newer than its last known existence. Within one history they
        are older than that, whatever a collector deletes."""
        lost = self._lost or (None if self._seen is None else self._seen.version)
        if lost is None or lost is _NONE or self._still_there(lost) is not None or lost.id <= self.boundary():
            return False
        listed = self.listed()
        since_ms = at_ms - (self._now_s() - lost.there_s) * 1000 - _WHOLE_SECOND_MS
        return not listed or any(i <= lost.id and meta.last_modified_ms >= since_ms for i, meta in listed)

    def update(self, change: Change, clock: Clock, rng: random.Random) -> Version | None:
        """Apply `change` to the cached version and publish the result; after each conflict, apply it to the
        latest version, up to `MAX_UPDATE_TRIES` times and after random pauses. If `change` returns `None` or
        raises, it is repeated with the latest version before that result is returned or raised. Return the
        latest known version."""
        return self._update(change, clock, rng, self.publish)

    def write(
        self, change: Change, clock: Clock, rng: random.Random
    ) -> tuple[Version | None, PendingVersion]:
        """Do the same as `update`, but return before the new version is known to be valid. `PendingVersion`
        waits for that check."""
        written: list[tuple[Version, Version | None]] = []

        def create(base: Version | None, data: bytes) -> Version:
            written.append(self._create_on(base, data))
            return written[-1][0]

        version = self._update(change, clock, rng, create)
        return version, PendingVersion(partial(self._prove, *written[-1])) if written else PendingVersion()

    def _update(
        self,
        change: Change,
        clock: Clock,
        rng: random.Random,
        publish: Callable[[Version | None, bytes], Version],
    ) -> Version | None:
        self._check_bond()
        base, is_latest, tries = self.known(), False, 0
        while True:
            data, failure = _tried(change, base)
            if data is None:
                newest = base if is_latest else self.latest()
                if newest != base:
                    base, is_latest = newest, True
                    continue
                if failure is not None:
                    raise failure
                return base
            try:
                return publish(base, data)
            except VersionConflict:
                tries += 1
                if tries == MAX_UPDATE_TRIES:
                    raise
            clock.sleep_s(CONFLICT_PAUSE.after_s(tries, rng))
            base, is_latest = self.latest(), True

    def boundary(self) -> int:
        """Return the highest number that is not valid any more; 0 if nothing was ever collected."""
        try:
            return parse_boundary(self._store.get(self._boundary_key), self._boundary_key)
        except ObjectNotFound:
            return 0

    def advance_boundary(self, to: int) -> int:
        """Raise the boundary to at least `to`, and return it. Call this before deleting any version up to
        `to`."""
        latest = self.confirmed()
        if to >= (latest.id if latest is not None else 1):
            raise Refused(f"{self._boundary_key}: advancing it to {to} would discard the latest version")
        for _ in range(MAX_BOUNDARY_TRIES):
            try:
                data, meta = self._store.get_with_meta(self._boundary_key)
            except ObjectNotFound:
                data, meta = b"0", None
            current = parse_boundary(data, self._boundary_key)
            if current >= to:
                return current
            try:
                if meta is None:
                    etag = self._store.create(self._boundary_key, b"%d" % to)
                elif meta.etag is not None:
                    etag = self._store.replace(self._boundary_key, b"%d" % to, meta.etag)
                else:
                    raise StoreError(
                        f"{self._boundary_key}: the store returns no etag, which is needed to overwrite it"
                    )
            except (ObjectExists, PreconditionFailed):
                continue
            if latest is not None and self._still_there(latest) is None:
                self._lower_again(None if meta is None else data, etag, latest)
            return to
        raise StoreError(
            f"{self._boundary_key}: changed by other processes {MAX_BOUNDARY_TRIES} times in a row"
        )

    def _lower_again(self, before: bytes | None, etag: str | None, latest: Version) -> None:
        """Undo raising the boundary, because the version above it is missing: the folder was made anew, or
        another collector deleted the version. Leave the boundary alone if another process has changed it."""
        with suppress(ObjectExists, ObjectNotFound, PreconditionFailed):
            found = self._highest_of(self.ids())
            if found.id > latest.id:
                return  # its successor exists, so it was collected
            now = self._store.head(self._boundary_key)
            if etag is not None and now.etag != etag:
                return
            if before is None:
                self._store.delete(self._boundary_key)
            else:
                self._store.replace(self._boundary_key, before, now.etag or "")
        raise self._replaced(latest)

    def _find(self) -> tuple[Version, int]:
        """Return the highest existing version, regardless of the cache, and the boundary. The order of the
        two reads does not matter: the highest version of a listing cannot lie at or below the boundary unless
        the latest version was lost."""
        return both(lambda: self._highest_of(self.ids()), self.boundary)

    def _follow(self, seen: Version) -> Version:
        """Return the last of the consecutive successors of `seen`."""
        for version_id in range(seen.id + 1, seen.id + 1 + MAX_PROBES):
            try:
                seen = self._read_version(version_id)
            except ObjectNotFound:
                return seen
        return self._highest_of(self.ids())

    def _highest_of(self, ids: Sequence[int]) -> Version:
        return self._read_version(ids[-1]) if ids else _NONE

    def _read_version(self, version_id: int) -> Version:
        now_s = self._now_s()
        data, meta = self._store.get_with_meta(self.key(version_id))
        return Version(version_id, data, meta.etag, now_s)

    def _settle(self, version: Version, put_id: str, failure: StoreError) -> str | None:
        """Return the etag of `version` if it exists and was written by the attempt `put_id`; else raise."""
        key = self.key(version.id)
        try:
            data, meta = self._store.get_with_meta(key)
        except StoreError as error:
            gone = isinstance(error, ObjectNotFound) and isinstance(failure, ObjectExists)
            if gone:  # it existed and was collected meanwhile
                raise _conflict_of(key) from failure
            text = f"publish {key}: whether it was published is unknown: {failure}"
            if isinstance(failure, StoreUnavailable):
                raise StoreUnavailable(text, failure.cause, is_doubtful=failure.is_doubtful) from failure
            raise StoreError(text) from failure
        if meta.put_id == put_id and data == version.data:
            return meta.etag
        self._seen = _LatestVersion(replace(version, data=data, etag=meta.etag), trusted_looks=0)
        raise _conflict_of(key) from failure


def _tried(change: Change, base: Version | None) -> tuple[bytes | None, Exception | None]:
    try:
        return change(base), None
    except Exception as error:
        return None, error


def _none_as_none(version: Version) -> Version | None:
    return version if version.id else None


def _conflict_of(key: str) -> VersionConflict:
    return VersionConflict(f"{key}: another process published this version first")
