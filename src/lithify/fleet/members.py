"""Members: the processes of a fleet, each with one object `members/<role>-<ulid>.json`, written by it alone.

*Liveness* is by one clock, the store's: of one listing, a member whose object is `DEAD_AFTER_MS` older than
the newest is dead. No member compares its own clock with anything, and one that writes nothing for so long,
because it is suspended or cut off, counts as dead until it writes again. That does no harm: what a member may
do is decided by ledgers and epochs, never by who is alive.

Where all are silent nobody is newer, so the last ones to have written count as alive: there is nobody who
could take anything over from them. Who asks from outside is told the age as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Any

from lithify.errors import ObjectNotFound
from lithify.jsonvalues import text, whole_number
from lithify.store import together
from lithify.store.keys import join
from lithify.store.objects import ObjectStore

BEAT_EVERY_MS = 10_000
"""So often a member writes its object."""
DEAD_AFTER_MS = 30_000
FORGOTTEN_AFTER_MS = 3_600_000
"""What a dead member left is deleted then."""
READS_AT_ONCE = 16
_SUFFIX = ".json"
_MAX_BYTES = 1 << 20
_MOST = (1 << 53) - 1


class Role(Enum):
    """What a member does."""

    KEEPER = "keeper"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Load:
    """What a member has to do with one queue."""

    slots: int = 0
    """How many compactions of it a worker can run at once."""
    running: int = 0
    queued: int = 0
    """Hints on the board of a keeper."""
    queued_bytes: int = 0
    waiting: int = 0
    """Wants of a keeper that are not admitted yet."""
    deferred: int = 0
    """Wants that its backlog had no place for."""
    demand: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    """How much of a keeper runs or waits, by band."""


@dataclass(frozen=True, slots=True)
class Member:
    """What a member says of itself."""

    name: str
    role: Role
    host: str
    version: str
    """Of Lithify."""
    catalog: int
    """The number of the catalog that it works with."""
    datasets: int = 0
    """How many a keeper watches."""
    load: Mapping[str, Load] = field(default_factory=lambda: MappingProxyType({}))
    """By id of the queue."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A member as one listing shows it."""

    name: str
    role: Role
    last_ms: int
    """When it last wrote, by the store's clock."""
    silent_ms: int
    """For how long it has written nothing when the newest member wrote."""

    @property
    def is_alive(self) -> bool:
        return self.silent_ms < DEAD_AFTER_MS


def new_member_name(role: Role, ulid: str) -> str:
    """The name of a new process."""
    return f"{role.value}-{ulid}"


class MemberFiles:
    """The members of the fleet that lies below `folder` of `store`."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store = store
        self._folder = join(folder, "members")

    def beat(self, member: Member) -> None:
        """Say that this one lives."""
        data: dict[str, Any] = {
            name: getattr(member, name) for name in ("name", "host", "version", "catalog", "datasets")
        }
        data["role"] = member.role.value
        data["load"] = {queue_id: _load_document(load) for queue_id, load in member.load.items()}
        self._store.put(self._key(member.name), json.dumps(data).encode())

    def leave(self, name: str) -> None:
        """It ends, or was forgotten."""
        self._store.delete(self._key(name))

    def listed(self) -> tuple[Seen, ...]:
        """All there are, dead ones too, by name; one listing."""
        found = []
        for meta in self._store.list(self._folder):
            name = meta.key.rpartition("/")[2].removesuffix(_SUFFIX)
            role = _role_of(name)
            if role is not None and meta.key == self._key(name):
                found.append((name, role, meta.last_modified_ms))
        newest_ms = max((last_ms for _, _, last_ms in found), default=0)
        return tuple(Seen(name, role, last_ms, newest_ms - last_ms) for name, role, last_ms in found)

    def read(self, names: Iterable[str]) -> dict[str, Member]:
        """What these say of themselves; without those that are gone, or that nobody can read."""
        read = together.all_of((partial(self._read, name) for name in names), READS_AT_ONCE)
        return {member.name: member for member in read if member is not None}

    def _read(self, name: str) -> Member | None:
        try:
            return _decode(self._store.get(self._key(name)), name)
        except ObjectNotFound:
            return None

    def _key(self, name: str) -> str:
        return join(self._folder, f"{name}{_SUFFIX}")


def _role_of(name: str) -> Role | None:
    return next((role for role in Role if name.startswith(f"{role.value}-")), None)


def _decode(data: bytes, name: str) -> Member | None:
    """May be lost, so what cannot be read counts as not there."""
    try:
        fields = json.loads(data[:_MAX_BYTES])
        return Member(
            name=name,
            role=Role(fields["role"]),
            host=text(fields["host"]),
            version=text(fields["version"]),
            catalog=_number(fields["catalog"]),
            datasets=_number(fields["datasets"]),
            load={
                text(queue_id): Load(
                    **{name: _number(load[name]) for name in _COUNTS},
                    demand={int(band): _number(n) for band, n in load["demand"].items()},
                )
                for queue_id, load in fields["load"].items()
            },
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


_COUNTS = ("slots", "running", "queued", "queued_bytes", "waiting", "deferred")


def _load_document(load: Load) -> dict[str, Any]:
    return {**{name: getattr(load, name) for name in _COUNTS}, "demand": dict(load.demand)}


def _number(value: Any) -> int:
    return whole_number(value, most=_MOST)
