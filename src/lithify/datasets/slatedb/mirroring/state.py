"""The state of a mirror: which points in time it can restore, and which objects it may delete. Pure.

A mirror is a folder with copies of the files of one database, under names that no SlateDB process opens:

| object                                | is                                                             |
|---------------------------------------|----------------------------------------------------------------|
| `mirror/<n as 20 digits>.json`        | version n of the state                                         |
| `mirror.boundary`                     | the boundary of its old versions                               |
| `manifests/<id>.manifest`             | a manifest of the database, byte for byte                      |
| `manifests/<id>.json`                 | the SSTs of that manifest, with their sizes                    |
| `compacted/<ULID>.sst`, `wal/<id>.sst`| copies of SSTs and of files of the write-ahead log             |

A restore point is a manifest and the files of the write-ahead log that a writer would replay on it, up to a
certain one. That is what a database is after the death of its writer, so it is a state that its clients have
seen.

Each version of the state is made from its predecessor by a change that only the current session may make, so
a mirror has one writer at a time. An object is deleted only if the state lists it as doomed, and it is listed
only if a point that is dropped, or a copy that was begun and not used, has named it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from annotated_types import Interval

from lithify.base.documents import Count, DocumentCodec, Name, TimeMs, UlidText, WholeText, readable
from lithify.base.errors import CorruptObject, Fenced, Unsupported
from lithify.base.ids import Ulid
from lithify.base.jsonvalues import UNDECODABLE

FORMAT = 1
MAX_POINTS = 10_000
"""If there are more, every second one of the older half is dropped."""
_ANY_FORMAT = Interval(ge=1, le=1 << 30)


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """A state of the database that can be restored."""

    at_ms: TimeMs
    """A time after which it has no writes, at most a second later than that of its last one, by the clock of
    the database's store, in wall-clock milliseconds."""
    manifest_id: Count
    wal_after: Count
    """The last file of the write-ahead log that the manifest does not need."""
    wal_to: Count
    """The last file of the write-ahead log that belongs to the point; `wal_after` if there is none."""
    wal_bytes: Count
    """Size of these files together."""


@dataclass(frozen=True, slots=True)
class Doomed:
    """Objects that no point needs and that are being deleted."""

    manifests: tuple[Count, ...] = ()
    ssts: tuple[UlidText, ...] = ()
    wal_to: Count = 0
    """Files of the write-ahead log up to this one."""

    @property
    def is_empty(self) -> bool:
        return not (self.manifests or self.ssts or self.wal_to)


@dataclass(frozen=True, slots=True)
class MirrorState:
    """One version of the state."""

    format: Annotated[int, _ANY_FORMAT]
    source: WholeText
    """URL of the database."""
    session: Name
    """The process that may change the mirror."""
    points: tuple[RestorePoint, ...]
    """In order of time."""
    copying: tuple[UlidText, ...]
    """SSTs whose copies have begun; perhaps no point names them."""
    doomed: Doomed
    wal_gone: Count
    """The files of the write-ahead log up to this one were deleted."""


@dataclass(frozen=True, slots=True)
class CopiedManifest:
    """What a manifest of a mirror needs."""

    ssts: Mapping[UlidText, Count]
    """Size in bytes by SST."""


@dataclass(frozen=True, slots=True)
class KeepPolicy:
    """Which points stay."""

    keep_ms: int
    """Any state of this last time can be restored."""
    min_points: int = 1
    """At least so many of the newest points stay."""


_STATES = DocumentCodec(MirrorState, "a mirror's state")
_MANIFESTS = DocumentCodec(CopiedManifest, "the list of a manifest's SSTs")


def encode_state(state: MirrorState, where: str) -> bytes:
    """Encode a state that is to be written to `where`."""
    return readable(partial(_STATES.encode, state), partial(decode_state, key=where), where)


def decode_state(data: bytes, key: str) -> MirrorState:
    """Decode a version of the state. Raise `Unsupported` if a newer version of Lithify wrote it."""
    try:
        state = _STATES.decode(data, key)
    except CorruptObject:
        if _format_of(data) > FORMAT:
            raise Unsupported(
                f"{key}: a newer version of Lithify wrote this mirror; upgrade Lithify"
            ) from None
        raise
    if state.format > FORMAT:
        raise Unsupported(f"{key}: a newer version of Lithify wrote this mirror; upgrade Lithify")
    times = [point.at_ms for point in state.points]
    if times != sorted(times) or any(point.wal_to < point.wal_after for point in state.points):
        raise CorruptObject(key, "its points are not in order of time, or end before they begin")
    return state


def encode_copied(copied: CopiedManifest) -> bytes:
    return _MANIFESTS.encode(copied)


def decode_copied(data: bytes, key: str) -> CopiedManifest:
    return _MANIFESTS.decode(data, key)


def _format_of(data: bytes) -> int:
    try:
        found: Any = json.loads(data)["format"]
    except (*UNDECODABLE, KeyError, TypeError):
        return 0
    return found if isinstance(found, int) else 0


# Changes


def owned(state: MirrorState, session: str, target: str) -> MirrorState:
    """Return the state. Raise `Fenced` if it belongs to another session."""
    if state.session != session:
        raise Fenced(f"another `lithify mirror` writes to {target} now; this one stops, and nothing is lost")
    return state


def with_point(state: MirrorState, point: RestorePoint, in_use: Collection[Ulid]) -> MirrorState:
    """Add the newest point. Copies that were begun and that no point uses are doomed; `in_use` are the SSTs
    of all points, the new one included."""
    unused = sorted({*state.copying, *state.doomed.ssts}.difference(in_use))
    doomed = replace(state.doomed, ssts=tuple(unused))
    return replace(state, points=(*state.points, point), copying=(), doomed=doomed)


def kept_points(
    points: tuple[RestorePoint, ...], policy: KeepPolicy, now_ms: int
) -> tuple[RestorePoint, ...]:
    """Return the points that stay. The newest point that is not younger than `keep_ms` stays too: it is the
    state at the beginning of that time."""
    since_ms = now_ms - policy.keep_ms
    by_time = next((n for n, p in reversed(tuple(enumerate(points))) if p.at_ms <= since_ms), 0)
    kept = points[max(0, min(by_time, len(points) - max(policy.min_points, 1))) :]
    if len(kept) > MAX_POINTS:
        half = len(kept) // 2
        kept = (*kept[:half:2], *kept[half:])
    return kept


def without_points(
    state: MirrorState, kept: tuple[RestorePoint, ...], unused_ssts: Collection[Ulid]
) -> MirrorState:
    """Drop all points but `kept`. `unused_ssts` are the SSTs that only dropped points name."""
    needed = {point.manifest_id for point in kept}
    manifests = {point.manifest_id for point in state.points} - needed
    wal_to = min(point.wal_after for point in kept)
    doomed = Doomed(
        tuple(sorted({*state.doomed.manifests, *manifests} - needed)),
        tuple(sorted({*state.doomed.ssts, *unused_ssts})),
        wal_to if wal_to > state.wal_gone else state.doomed.wal_to,
    )
    return replace(state, points=kept, doomed=doomed)


def swept(state: MirrorState) -> MirrorState:
    """Note that all doomed objects are deleted."""
    return replace(state, doomed=Doomed(), wal_gone=max(state.wal_gone, state.doomed.wal_to))


def point_at(state: MirrorState, at_ms: int | None) -> RestorePoint | None:
    """Return the newest point, or the newest one that is not later than `at_ms`."""
    found = [point for point in state.points if at_ms is None or point.at_ms <= at_ms]
    return found[-1] if found else None
