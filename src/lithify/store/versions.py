"""A value that advances through numbered files (SlateDB format: numbered files).

Version N of the value is the object `<folder>/<N as 20 digits><suffix>`. Versions start at 1, follow
each other without a gap and never change. Garbage collection deletes old ones, and says so before in
the *boundary*: an object with a decimal number, at or below which no version counts any more.

Publishing on top of version N:

1. Create N+1 unless it exists. If it does, another party was faster: `VersionConflict`.
2. If the answer is in doubt (`ObjectExists` after the store repeated a lost request, or any other
   failure), read N+1 back. It is ours only if it carries the id of this very attempt. If there is
   none, the request may still be under way, and the outcome is reported as unknown.
3. Read the boundary, always anew. If N+1 is at or below it, the write came after a collection had
   deleted a version of that number: it does not count, and is a conflict.

Step 3 may go on while its caller does something else (`write`): something that does no harm if the version
does not count. What is published on top of such a version is safe too. If N+1 was created behind the
boundary, N+2 was there before, because the boundary never reaches the latest version. So another N+2 is
refused as existing, or, where the first was collected as well, by its own step 3.

Equal bytes alone prove nothing in step 2. Two coordinators that take over at the same time both raise
the same epoch by one and so write the same bytes; both would believe to own it. SlateDB solves this
by an id of its own in the object's user metadata, and so does this (`ObjectStore.create`'s `put_id`).
Where a store keeps no such id, a write in doubt counts as a conflict although it may have landed: the
caller reads the latest version, which then is its own. So a change must be able to meet its own
result; that is also what it meets after a crash.

Finding the latest version:

1. Cold: list the folder and read the highest. If that has been deleted since, list again. What was found
   must lie above the boundary, else begin again.
2. Warm: the last one seen is remembered; read its successors until one is missing. After
   `MAX_PROBES` hits, and each `LISTING_EVERY_S`, the folder is listed instead. If there were any, read the
   boundary: the last of them must lie above it, else forget it and begin again. For who slept while the one
   it had seen, and the ones after it, were collected, a "successor" can be what another sleeper has just
   created behind the boundary.
3. If there is no successor, the one seen is the latest, or it has been collected with all that came up to
   the latest (never the latest itself). Then it is as if it had been read before a long sleep: everything
   that is published on top of it is refused, by step 3 of publishing. So for who publishes what it makes of
   it the boundary need not be read (`latest`); only each `MAX_TRUSTED_LOOKS`th such search in a row reads it,
   so that who finds nothing to publish notices too. Who does something else with it, who deletes by it or
   refuses something in another place, has to know (`confirmed`).

What was just published is the last one seen, and is not read back. `update` starts with the one seen, without
a search: if that is not the latest any more, publishing on it is a conflict like any other. Only where
nothing is to be published on it, because nothing has to change or can, nobody would notice: then the latest
is looked for, and what is newer is asked again. What is remembered never goes back to an older version
because a search that began before it was slow.

A version never changes, so what was read is not read again, unless it cannot be decoded (`decode`): then
the next search is cold. So a process notices that a damaged version was restored, or taken away.

*A folder that was deleted, made anew or restored from a backup* has nothing to do with what is remembered,
and a successor of that would stand on top of it for everybody. What shows it is that the version seen last is
gone although the boundary does not say so, or is another. That is checked

1. wherever the boundary is read by a search: by who finds successors, by `confirmed`, and by each
   `MAX_TRUSTED_LOOKS`th search that finds nothing;
2. before a version is created on top of one that was last known to be there more than `FRESH_S` ago, on a
   disk always;
3. beside step 3 of publishing. Where it is too late then, because all of this happened meanwhile, the version
   that was just created is deleted again, if what else there is shows that it is of another history: versions
   below it that came after the one it was built on. (Nothing else shows that: an old collector without a
   boundary may just have deleted that one.)

Then `Replaced` is raised, and the next search is cold. Folders that stand or fall together share a `Bond`:
once one of them was replaced, every further call through any of them raises `Replaced`, and a caller that
goes on opens the dataset anew. What is written between 2 and 3, within a round trip or `FRESH_S`, may be seen
by others until it is deleted; only a store with conditions over several objects could prevent that.

Gaps in a listing are no error: collection keeps single versions that checkpoints need, and an old or
differently configured collector keeps no boundary. The highest version counts, as for every client;
and nothing here creates one, because a version is only published on top of the latest.

A name with this suffix that is not exactly 20 digits directly in the folder is refused: SlateDB's
clients would find its number, not find the object, and list again for ever. Other suffixes are
ignored.
"""

from __future__ import annotations

import random
import re
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
    CorruptObject,
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
"""So long a version that was read or written counts as there. Shorter than it takes a person to replace a
folder, and longer than a tick."""
LISTING_EVERY_S = 3_600.0
"""The folder is listed so often at least. Where a collector that keeps no boundary has left the version that
was seen, and taken its successors, nothing else shows that there are newer ones."""
MAX_BOUNDARY_TRIES = 20
"""Times an advance of the boundary is repeated after a conflict."""
MAX_UPDATE_TRIES = 20
"""Times `update` is repeated after a conflict."""
CONFLICT_PAUSE = RandomPause(first_s=0.05, max_s=2.0)
"""After a conflict."""

MAX_VERSION_ID = (1 << 64) - 1
_ID_DIGITS = 20
_CANONICAL_ID = re.compile(rf"[0-9]{{{_ID_DIGITS}}}")
_BOUNDARY = re.compile(rb"\s*([0-9]{1,20})\s*")
_MAX_SHOWN_BYTES = 40
_WHOLE_SECOND_MS = 1_000
"""Some stores count in seconds only."""
_DISK = "file:"
"""Where a look costs next to nothing, and a copy may keep the times of a backup."""


@dataclass(frozen=True, slots=True)
class Version:
    """One version of the value."""

    id: int
    data: bytes
    etag: str | None = field(default=None, compare=False, repr=False)
    """Of its object, where that is known."""
    there_s: float = field(default=float("-inf"), compare=False, repr=False)
    """When it was last known to be there, by the monotonic clock of the files it came from."""


@dataclass(frozen=True, slots=True)
class _LatestVersion:
    """The version that was found or published last."""

    version: Version
    """With number 0: there was none."""
    trusted_looks: int
    """How many searches may find no successor of it before the boundary has to be read; none: it may itself
    lie behind the boundary."""


_NONE = Version(0, b"")


class Bond:
    """What the files of one dataset have in common: once the history of one was replaced, none of them is
    read or written through here any more."""

    def __init__(self) -> None:
        self._broken: Replaced | None = None
        self._files: list[VersionedFiles] = []

    def join(self, files: VersionedFiles) -> None:
        """These stand or fall with the others."""
        self._files.append(files)

    def others(self, files: VersionedFiles) -> Sequence[VersionedFiles]:
        """All but these."""
        return [other for other in self._files if other is not files]

    def check(self) -> None:
        """`Replaced` once it is broken."""
        if self._broken is not None:
            raise Replaced(str(self._broken))

    def break_off(self, error: Replaced) -> None:
        """From now on nothing of this holds."""
        self._broken = error


def format_id(version_id: int) -> str:
    """The number as it stands in the object's name."""
    return f"{version_id:0{_ID_DIGITS}d}"


def parse_key(key: str, folder: str, suffix: str) -> int | None:
    """The number of the version that `key` names; `None` when it names something else.

    `CorruptObject` when the name would mislead a client.
    """
    if not key.endswith(suffix):
        return None
    stem = key.removeprefix(f"{folder}/").removesuffix(suffix)
    if not _CANONICAL_ID.fullmatch(stem) or not 1 <= int(stem) <= MAX_VERSION_ID:
        raise CorruptObject(
            key,
            f"the name is not a number from 1 with exactly {_ID_DIGITS} digits and {suffix!r}; clients "
            "can hang on such a name, so find out who wrote it and move it away",
        )
    return int(stem)


def parse_boundary(data: bytes, key: str) -> int:
    """The number in a boundary object."""
    match = _BOUNDARY.fullmatch(data)
    if match is None or int(match[1]) > MAX_VERSION_ID:
        raise CorruptObject(key, f"is not a decimal number of 64 bits: {data[:_MAX_SHOWN_BYTES]!r}")
    return int(match[1])


Change = Callable[[Version | None], bytes | None]
"""What is to be published on top of a version, `None` where there is no version yet; `None` for nothing."""


class PendingVersion:
    """Whether a version that was written counts. The proof begins at once, beside the caller. Without one
    there is nothing to prove."""

    def __init__(self, prove: Callable[[], None] | None = None) -> None:
        self._prove = prove
        self._under_way = concurrency.beside.start(prove) if prove is not None else None

    def __call__(self) -> bool:
        """Wait for the proof. A `StoreError` leaves it open: call again, and it is tried again."""
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
        """`bond`: these files stand or fall with others."""
        self.folder = folder
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._bond = bond
        if bond is not None:
            bond.join(self)
        self._lost: Version | None = None
        """The version that was found to be gone, or another."""
        self._listed_s = float("-inf")
        """When the folder was last listed."""
        self._store = store
        self._suffix = suffix
        self._boundary_key = boundary_key
        self._ids: Ids = ids if ids is not None else RandomIds()
        self._seen: _LatestVersion | None = None
        self._remembering = threading.Lock()

    def key(self, version_id: int) -> str:
        """The object key of a version."""
        return f"{self.folder}/{format_id(version_id)}{self._suffix}"

    def listed(self) -> list[tuple[int, ObjectMeta]]:
        """The versions that exist, with what the listing says of them, oldest first."""
        numbered = ((parse_key(m.key, self.folder, self._suffix), m) for m in self._store.list(self.folder))
        return sorted((version_id, meta) for version_id, meta in numbered if version_id is not None)

    def ids(self) -> list[int]:
        """The numbers of all versions that are listed, ascending, whatever the boundary says."""
        self._listed_s = self._now_s()
        return [version_id for version_id, _ in self.listed()]

    def read(self, version_id: int) -> bytes:
        """The bytes of one version (of a checkpoint, for example), whatever the boundary says."""
        return self._store.get(self.key(version_id))

    def has_mark(self, version_id: int, mark: bytes) -> bool:
        """Whether a version is there, counts, and contains `mark`. One that came after a collection had
        deleted its number does not count, however it looks; nor can it be told from one that was there
        before."""
        try:
            return mark in self.read(version_id) and version_id > self.boundary()
        except ObjectNotFound:
            return False

    def latest(self) -> Version | None:
        """The latest version; `None` when there is none at all. Who has not looked for so long that the one
        it had seen was collected meanwhile may be given that one a few times more; nothing can be published
        on it."""
        return self._search(is_trusting=True)

    def confirmed(self) -> Version | None:
        """The latest version, for who does something else with it than publish the next."""
        return self._search(is_trusting=False)

    def found_anew(self) -> Version | None:
        """The latest version as a process finds it that has seen none. For a folder of which another program
        may remove versions: who goes on from one that it has seen then is alone with those that follow."""
        with self._remembering:
            self._seen = None
        return self.confirmed()

    def known(self) -> Version | None:
        """The version seen or published last, or `None` if there was none then, without a request; what
        `latest` says where nobody has looked yet."""
        seen = self._seen
        if seen is None or not seen.trusted_looks:
            return self.latest()
        return _none_as_none(seen.version)

    def _search(self, *, is_trusting: bool) -> Version | None:
        self._check_bond()
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
                    # Behind the successors: it may be raised while they are read.
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
            self._forget(seen)
        raise StoreError(
            f"{self.folder}: {MAX_LOOKUPS} searches found no version above the boundary in "
            f"{self._boundary_key}; versions are deleted faster than they can be read, or the latest was "
            "removed: restore it, or delete that boundary if there is none to restore"
        )

    def _replace(self, before: _LatestVersion | None, seen: _LatestVersion) -> None:
        """Remember what a search has found, unless another thread has published or found a newer one."""
        with self._remembering:
            now = self._seen
            if now is before or now is None or now.version.id <= seen.version.id:
                self._seen = seen

    def _forget(self, before: _LatestVersion | None) -> None:
        """Begin again, unless another thread has found something since."""
        with self._remembering:
            if self._seen is before:
                self._seen = None

    def decode(self, version: Version, decode: Callable[[bytes, str], ValueT]) -> ValueT:
        """The value of a version, of its bytes and its key. What cannot be decoded is not remembered."""
        try:
            return decode(version.data, self.key(version.id))
        except Exception:
            self._seen = None
            raise

    def publish(self, base: Version | None, data: bytes) -> Version:
        """Publish `data` as the successor of `base`, `None` meaning that there is no version yet.

        `VersionConflict` when another party was faster. Any other `StoreError` leaves the outcome
        unknown: what was written may still become the next version.
        """
        version, base = self._create_on(base, data)
        self._prove(version, base)
        return version

    def _create_on(self, base: Version | None, data: bytes) -> tuple[Version, Version | None]:
        """Steps 1 and 2, and what was built on."""
        base = self._founded(base)
        try:
            return self._create(base, data), base
        except VersionConflict:
            self._check_there(base)  # what is there in its place may be of another history
            raise

    def _create(self, base: Version | None, data: bytes) -> Version:
        """Steps 1 and 2."""
        version = Version(base.id + 1 if base is not None else 1, data, there_s=self._now_s())
        if version.id > MAX_VERSION_ID:
            raise StoreError(
                f"{self.key(version.id - 1)}: no number is left for the next version; nobody counted "
                "so far, so find out who wrote this object and move it away"
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
        """Step 3. What cannot be proved is not remembered."""
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
                f"{self.key(version.id)}: later versions exist and this one had been collected already"
            )
        if why_not is not None:
            self._take_back(version)
            raise why_not

    # A history that was replaced

    def _now_s(self) -> float:
        return self._clock.monotonic_s()

    def _check_bond(self) -> None:
        if self._bond is not None:
            self._bond.check()

    def _founded(self, base: Version | None) -> Version | None:
        """The version to build on, once it is known to be there; `Replaced` when it is not."""
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
        """`Replaced` when what was built on is not there. Where nothing was, it is what the others have."""
        if base is not None:
            self._check_version(base)
        else:
            self._check_others(is_sure=True)

    def _check_others(self, *, is_sure: bool = False) -> None:
        """`Replaced` when the files that these stand or fall with are of another history."""
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
        """The version as known to be there now; `None` when it is gone, or another is in its place."""
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
        """`Replaced` when a version is not there and nothing says that it was collected."""
        if there is None and version.id > self.boundary():
            raise self._replaced(version)

    def _replaced(self, version: Version) -> Replaced:
        """The error, after what was remembered is forgotten."""
        error = Replaced(
            f"{self.key(version.id)} is gone or another, and was not collected: what lay in {self.folder} "
            "was deleted, made anew or restored from a backup, so nothing known of it holds any more"
        )
        with self._remembering:
            self._seen, self._lost = None, version
        if self._bond is not None:
            self._bond.break_off(error)
        return error

    def _take_back(self, version: Version) -> None:
        """Delete the version that was just created, if it is sure that it stands in another history. Another
        program that follows it already keeps it."""
        listed = dict(self.listed())
        mine = listed.get(version.id)
        if mine is None or max(listed) > version.id:
            return
        others = self._bond.others(self) if self._bond is not None else ()
        if any(files._is_another(mine.last_modified_ms) for files in (self, *others)):
            self._store.delete(self.key(version.id))

    def _is_another(self, at_ms: int) -> bool:
        """Whether it is sure, at this time of the store, that the history that was seen here is gone: nothing
        is there, or versions up to the one seen last came after that was last there. In one history they
        come before it, whatever a collector takes."""
        lost = self._lost or (None if self._seen is None else self._seen.version)
        if lost is None or lost is _NONE or self._still_there(lost) is not None or lost.id <= self.boundary():
            return False
        listed = self.listed()
        since_ms = at_ms - (self._now_s() - lost.there_s) * 1000 - _WHOLE_SECOND_MS
        return not listed or any(i <= lost.id and meta.last_modified_ms >= since_ms for i, meta in listed)

    def update(self, change: Change, clock: Clock, rng: random.Random) -> Version | None:
        """Publish what `change` makes of the version seen last, and on each conflict of the latest, a finite
        number of times and after pauses of random length. `None` from `change` means that nothing has to
        change, an error that nothing can: each counts of the latest version only. The answer is the version
        that then is the latest known."""
        return self._update(change, clock, rng, self.publish)

    def write(
        self, change: Change, clock: Clock, rng: random.Random
    ) -> tuple[Version | None, PendingVersion]:
        """As `update`, but does not wait for the proof that what was written counts. That is under way when
        this returns; `PendingVersion` waits for it."""
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
        """The highest number that does not count any more; 0 when nothing was ever collected."""
        try:
            return parse_boundary(self._store.get(self._boundary_key), self._boundary_key)
        except ObjectNotFound:
            return 0

    def advance_boundary(self, to: int) -> int:
        """Raise the boundary to `to`, never lower it, and say where it is. To be done before any
        version up to `to` is deleted."""
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
                    raise StoreError(f"{self._boundary_key}: the store gives no etag to overwrite it by")
            except (ObjectExists, PreconditionFailed):
                continue
            if latest is not None and self._still_there(latest) is None:
                self._lower_again(None if meta is None else data, etag, latest)
            return to
        raise StoreError(f"{self._boundary_key}: changed by others {MAX_BOUNDARY_TRIES} times in a row")

    def _lower_again(self, before: bytes | None, etag: str | None, latest: Version) -> None:
        """The boundary was just raised where the version that it was to stay below is gone: in a folder that
        was made anew, or by another collector's doing. It is as it was before, unless that one raised it."""
        with suppress(ObjectExists, ObjectNotFound, PreconditionFailed):
            found = self._highest_of(self.ids())
            if found.id > latest.id:
                return  # it has a successor, and was collected
            now = self._store.head(self._boundary_key)
            if etag is not None and now.etag != etag:
                return
            if before is None:
                self._store.delete(self._boundary_key)
            else:
                self._store.replace(self._boundary_key, before, now.etag or "")
        raise self._replaced(latest)

    def _find(self) -> tuple[Version, int]:
        """The highest version there is, whatever was seen before, and the boundary. The highest of a listing
        cannot have been created behind the boundary, unless the latest was lost: so it does not matter which
        of the two is read first."""
        return both(lambda: self._highest_of(self.ids()), self.boundary)

    def _follow(self, seen: Version) -> Version:
        """The last of the successors of `seen` that follow each other."""
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
        """The etag of `version`, if it is there and was written by the attempt `put_id`; else raise."""
        key = self.key(version.id)
        try:
            data, meta = self._store.get_with_meta(key)
        except StoreError as error:
            gone = isinstance(error, ObjectNotFound) and isinstance(failure, ObjectExists)
            if gone:  # it existed, and was collected since
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
    return VersionConflict(f"{key}: another party published this version first")
