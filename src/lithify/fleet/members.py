"""Members: the processes of a fleet, each with one object `members/<role>-<ulid>.json`, written by it alone.

*Liveness* is by one clock, the store's: a member says how soon it will write again, and is dead once its
object is `MISSED_BEATS` times as old, compared with the newest of the same listing. No member compares its
own clock with anything, and one that writes nothing for so long, because it is suspended or cut off, counts
as dead until it writes again; one whose rounds are slow goes on writing (`lithify.fleet.heartbeat`). That
does no harm: what a member may do is decided by ledgers and epochs, never by who is alive.

Who looks again and again reads those anew that have changed, as the listing shows.

What is said adds up what datasets say of themselves, which may be anything. Of a number and of a sentence no
more is written than is read, so nothing that a dataset says makes its member one that nobody can read.

A member compares with the newest because its own object is, in the same round: so the newest is the store's
time. Anybody else asks the store what time it is (`Asked`): where all are silent nobody is newer, and the
last one to have written would live for ever.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Any

from lithify.base import concurrency
from lithify.base.errors import ObjectNotFound
from lithify.base.jsonvalues import UNDECODABLE, text, whole_number
from lithify.fleet.catalog.model import Catalog
from lithify.planning.fleet.waits import NO_WAITS, Waits
from lithify.planning.fleet.waits import together as together_waited
from lithify.store.keys import join
from lithify.store.objects import ObjectMeta, ObjectStore

BEAT_EVERY_MS = 10_000
"""So often a member writes its object."""
IDLE_BEAT_EVERY_MS = 60_000
"""So often a worker does that has been idle for so long."""
MISSED_BEATS = 3
DEAD_AFTER_MS = MISSED_BEATS * BEAT_EVERY_MS
"""Of those that are not idle, and of those that nobody can read."""
FORGOTTEN_AFTER_MS = 3_600_000
"""What a dead member left is deleted then."""
READS_AT_ONCE = 16
MAX_TROUBLED = 20
MAX_RUNNING = 256
_SUFFIX = ".json"
_MAX_BYTES = 32 << 20
"""Read of what one says: some hundred bytes for each tenant that has something in a queue. Of the thousand
tenants with a policy that a fleet may have, all may, in many queues."""
_MAX_WHY_CHARS = 1_000
_MOST = (1 << 53) - 1


class FleetRole(Enum):
    """What a member does."""

    KEEPER = "keeper"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Amounts:
    """What a member has of one tenant in one queue."""

    running: int = 0
    """On a worker."""
    queued: int = 0
    """Hints on the board of a keeper."""
    queued_bytes: int = 0
    waiting: int = 0
    """Wants of a keeper that are not admitted yet."""
    waiting_bytes: int = 0
    deferred: int = 0
    """Wants that its backlog had no place for."""
    demand: int = 0
    """How much of a keeper runs or waits; of one dataset no more than its share."""
    lowest: float | None = None
    """Rank of the last that waits, from 0 (may wait) to 1 (urgent)."""
    oldest_ms: int | None = None
    """How long the oldest of what waits or is queued has waited; and the youngest."""
    youngest_ms: int | None = None
    backlog_ms: int = 0
    """How long one slot would take for all that is queued, waits or is deferred."""
    waits: Waits = NO_WAITS
    """Of what was claimed since the keeper began."""


def combined(amounts: Iterable[Amounts]) -> Amounts:
    """All of these together."""
    all_of = tuple(amounts)
    counts = {name: sum(getattr(one, name) for one in all_of) for name in _COUNTS}
    return Amounts(
        **counts,
        lowest=min((one.lowest for one in all_of if one.lowest is not None), default=None),
        oldest_ms=max((one.oldest_ms for one in all_of if one.oldest_ms is not None), default=None),
        youngest_ms=min((one.youngest_ms for one in all_of if one.youngest_ms is not None), default=None),
        waits=together_waited(one.waits for one in all_of),
    )


@dataclass(frozen=True, slots=True)
class Load:
    """What a member has to do with one queue."""

    slots: int = 0
    """How many compactions of it a worker can run at once."""
    bytes_per_s: int = 0
    """How fast a slot of a worker works it off (`lithify.planning.fleet.pace`); 0 when it does not know."""
    resting: int = 0
    """Wants of a keeper that are left alone after a failure."""
    demand: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    """How much of a keeper runs or waits, by band."""
    tenants: Mapping[str | None, Amounts] = field(default_factory=lambda: MappingProxyType({}))
    """By tenant; `None` has those without a name of their own (`lithify.planning.fleet.labels`)."""

    @property
    def total(self) -> Amounts:
        """Of all tenants."""
        return combined(self.tenants.values())


@dataclass(frozen=True, slots=True)
class Running:
    """A compaction that runs on a worker."""

    url: str
    """Of its dataset."""
    compaction: str
    queue_id: str
    since_ms: int
    """When it was claimed, by the worker's clock."""
    bytes: int
    """That it reads."""
    tenant: str | None = None
    catalog: int = 0
    """Under which it was admitted."""


@dataclass(frozen=True, slots=True)
class FleetMember:
    """What a member says of itself."""

    name: str
    role: FleetRole
    host: str
    version: str
    """Of Lithify."""
    catalog: int
    """The number of the catalog that it works with."""
    datasets: int = 0
    """How many a keeper watches."""
    load: Mapping[str, Load] = field(default_factory=lambda: MappingProxyType({}))
    """By id of the queue."""
    quarantined: int = 0
    """How many of its datasets a keeper leaves alone after an error."""
    troubled: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The first `MAX_TROUBLED` of these by URL, and why."""
    running: tuple[Running, ...] = ()
    """What runs on a worker, the first `MAX_RUNNING`."""
    at_ms: int = 0
    """When it said this, by its own clock."""
    needs: int = 0
    """The oldest catalog that it, or what it admitted or runs, works with; 0 when it has not said so."""
    beats_ms: int = BEAT_EVERY_MS
    """In how long it will say the next thing, or sooner."""


Asked = Callable[[], int | None]
"""Gives the time by the store's clock; `None` where the store does not tell."""
Says = Callable[[FleetMember, Catalog], None]
"""Told what a member says of itself, and the catalog that it works with."""


def unheard(member: FleetMember, catalog: Catalog) -> None:
    """Nobody is told."""


@dataclass(frozen=True, slots=True)
class ListedMember:
    """A member as one listing shows it."""

    name: str
    role: FleetRole
    last_ms: int
    """When it last wrote, by the store's clock."""
    silent_ms: int
    """For how long it has written nothing: until the store was asked its time, or else until the newest
    member wrote."""
    says: FleetMember | None
    """`None` when nobody can read it."""

    @property
    def is_alive(self) -> bool:
        beats_ms = self.says.beats_ms if self.says is not None else BEAT_EVERY_MS
        return self.silent_ms < MISSED_BEATS * beats_ms


def new_member_name(role: FleetRole, ulid: str) -> str:
    """The name of a new process."""
    return f"{role.value}-{ulid}"


def is_keeper(name: str | None) -> bool:
    """Whether a process of this name is a keeper: no other name that Lithify gives begins so."""
    return name is not None and name.startswith(f"{FleetRole.KEEPER.value}-")


class MemberFiles:
    """The members of the fleet that lies below `folder` of `store`."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store = store
        self._folder = join(folder, "members")
        self._known: dict[ObjectMeta, FleetMember | None] = {}
        """What they said, as the last listing showed their objects."""

    def beat(self, member: FleetMember) -> None:
        """Say that this one lives."""
        data: dict[str, Any] = {
            name: getattr(member, name)
            for name in ("name", "host", "version", "catalog", "datasets", "quarantined", "at_ms", "needs")
        }
        data["beats_ms"] = member.beats_ms
        data["role"] = member.role.value
        data["troubled"] = {url: _sentence(why) for url, why in list(member.troubled.items())[:MAX_TROUBLED]}
        data["running"] = [
            {**asdict(one), "bytes": _bounded(one.bytes)} for one in member.running[:MAX_RUNNING]
        ]
        data["load"] = {queue_id: _load_document(load) for queue_id, load in member.load.items()}
        self._store.put(self._key(member.name), json.dumps(data).encode())

    def leave(self, name: str) -> None:
        """It ends, or was forgotten."""
        self._store.delete(self._key(name))

    def listed(self, now_ms: Asked = lambda: None) -> tuple[ListedMember, ...]:
        """All there are, dead ones too, by name; one listing, and a request for each that has changed.
        `now_ms`, which gives the store's time or `None`, is for a caller that is no member: it is asked where
        there are members."""
        found: dict[ObjectMeta, tuple[str, FleetRole]] = {}
        for meta in self._store.list(self._folder):
            name = meta.key.rpartition("/")[2].removesuffix(_SUFFIX)
            role = _role_of(name)
            if role is not None and meta.key == self._key(name):
                found[meta] = name, role
        new = [meta for meta in found if meta not in self._known]
        says = concurrency.all_of((partial(self._read, found[meta][0]) for meta in new), READS_AT_ONCE)
        self._known = {meta: self._known.get(meta) for meta in found} | dict(zip(new, says, strict=True))
        newest_ms = max((meta.last_modified_ms for meta in found), default=0)
        if found:
            newest_ms = max(newest_ms, now_ms() or 0)
        return tuple(
            ListedMember(
                name=name,
                role=role,
                last_ms=meta.last_modified_ms,
                silent_ms=newest_ms - meta.last_modified_ms,
                says=self._known[meta],
            )
            for meta, (name, role) in found.items()
        )

    def _read(self, name: str) -> FleetMember | None:
        try:
            return _decode(self._store.get(self._key(name)), name)
        except ObjectNotFound:
            return None

    def _key(self, name: str) -> str:
        return join(self._folder, f"{name}{_SUFFIX}")


def _role_of(name: str) -> FleetRole | None:
    return next((role for role in FleetRole if name.startswith(f"{role.value}-")), None)


def _decode(data: bytes, name: str) -> FleetMember | None:
    """May be lost, so what cannot be read counts as not there."""
    try:
        fields = json.loads(data[:_MAX_BYTES])
        return FleetMember(
            name=name,
            role=FleetRole(fields["role"]),
            host=text(fields["host"]),
            version=text(fields["version"]),
            catalog=_number(fields["catalog"]),
            datasets=_number(fields["datasets"]),
            quarantined=_number(fields["quarantined"]),
            troubled={text(url): text(why) for url, why in fields["troubled"].items()},
            running=tuple(map(_running, fields["running"])),
            at_ms=_number(fields["at_ms"]),
            needs=_number(fields["needs"]),
            beats_ms=whole_number(fields["beats_ms"], most=IDLE_BEAT_EVERY_MS),
            load={
                text(queue_id): Load(
                    **{name: _number(load[name]) for name in _OF_QUEUE},
                    demand={int(band): _number(n) for band, n in load["demand"].items()},
                    tenants={_optional(one["tenant"]): _amounts(one) for one in load["tenants"]},
                )
                for queue_id, load in fields["load"].items()
            },
        )
    except UNDECODABLE:
        return None


def _running(fields: Any) -> Running:
    return Running(
        url=text(fields["url"]),
        compaction=text(fields["compaction"]),
        queue_id=text(fields["queue_id"]),
        since_ms=_number(fields["since_ms"]),
        bytes=_number(fields["bytes"]),
        tenant=_optional(fields["tenant"]),
        catalog=_number(fields["catalog"]),
    )


_OF_QUEUE = ("slots", "bytes_per_s", "resting")
_COUNTS = (
    "running",
    "queued",
    "queued_bytes",
    "waiting",
    "waiting_bytes",
    "deferred",
    "demand",
    "backlog_ms",
)
_AGES = ("oldest_ms", "youngest_ms")


def _load_document(load: Load) -> dict[str, Any]:
    tenants = [{"tenant": tenant, **amounts_document(one)} for tenant, one in load.tenants.items()]
    return {
        **{name: _bounded(getattr(load, name)) for name in _OF_QUEUE},
        "demand": dict(load.demand),
        "tenants": tenants,
    }


def amounts_document(amounts: Amounts) -> dict[str, Any]:
    """As a JSON value."""
    return {
        **{name: _bounded(getattr(amounts, name)) for name in _COUNTS},
        **{name: getattr(amounts, name) for name in _AGES},
        "lowest_priority": amounts.lowest,
        "waits": {"counts": list(amounts.waits.counts), "total_ms": amounts.waits.total_ms},
    }


def _amounts(fields: Any) -> Amounts:
    lowest, waits = fields["lowest_priority"], fields["waits"]
    if lowest is not None and (isinstance(lowest, bool) or not 0 <= lowest <= 1):
        raise ValueError(f"{lowest!r} is no rank")
    counts = tuple(map(_number, waits["counts"]))
    if len(counts) != len(NO_WAITS.counts):
        raise ValueError(f"{len(counts)} are not the buckets of this version")
    return Amounts(
        **{name: _number(fields[name]) for name in _COUNTS},
        oldest_ms=_age(fields["oldest_ms"]),
        youngest_ms=_age(fields["youngest_ms"]),
        lowest=None if lowest is None else float(lowest),
        waits=Waits(counts, _number(waits["total_ms"])),
    )


def _bounded(number: int) -> int:
    return min(number, _MOST)


def _sentence(why: str) -> str:
    """What goes wrong may tell of a dataset's own words, which may have half a character in them."""
    return why[:_MAX_WHY_CHARS].encode(errors="replace").decode()


def _age(value: Any) -> int | None:
    return None if value is None else _number(value)


def _optional(value: Any) -> str | None:
    return None if value is None else text(value)


def _number(value: Any) -> int:
    return whole_number(value, most=_MOST)
