"""Members: the processes of a fleet, each the only writer of one object `members/<role>-<ulid>.json`.

*Liveness* is judged by the store's clock alone: a member states how soon it will write again, and is dead
once its object is `MISSED_BEATS` times as old, compared with the newest object of the same listing. No
member compares its own clock with anything. A member that writes nothing for so long, because it is
suspended or disconnected, counts as dead until it writes again; one with slow rounds keeps writing
(`lithify.fleet.members`). Errors here do no harm: ledgers and epochs decide what a member may do, never
liveness.

Repeated readers read again only the objects that have changed according to the listing.

A heartbeat sums up what datasets report of themselves, which may be anything. Numbers and texts are written
only within the limits that readers accept, so no dataset can make its member unreadable.

A member may compare with the newest object because it wrote its own in the same round: so the newest one
shows the store's time. All other readers ask the store for its time (`Asked`): where all members are
silent, no object is newer, and the last member to write would count as alive forever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any

from annotated_types import Interval

from lithify.base import concurrency
from lithify.base.clock import Clock
from lithify.base.documents import CountKey, DocumentCodec, Ratio, StoredAs
from lithify.base.errors import CorruptObject, ObjectNotFound
from lithify.fleet.catalog.model import Catalog
from lithify.planning.fleet.waits import NO_WAITS, Waits
from lithify.planning.fleet.waits import together as together_waited
from lithify.store.keys import join
from lithify.store.objects import ObjectMeta, ObjectStore

BEAT_EVERY_MS = 10_000
"""How often a member writes its object."""
IDLE_BEAT_EVERY_MS = 60_000
"""How often a worker writes its object once it has been idle for this long."""
MISSED_BEATS = 3
DEAD_AFTER_MS = MISSED_BEATS * BEAT_EVERY_MS
"""For members that are not idle, and for those whose heartbeat cannot be read."""
FORGOTTEN_AFTER_MS = 3_600_000
"""When the files of a dead member are deleted."""
READS_AT_ONCE = 16
MAX_TROUBLED = 20
MAX_RUNNING = 256
MAX_OVERDUE = 50
_SUFFIX = ".json"
_MAX_BYTES = 32 << 20
"""Limit of what is read of one member: some hundred bytes for each tenant with work in a queue. A fleet may
have a thousand tenants with a policy, all of them with work in many queues."""
_MAX_WHY_CHARS = 1_000
_MOST = (1 << 53) - 1
Amount = Annotated[int, Interval(ge=0, le=_MOST)]


class FleetRole(Enum):
    """The role of a member."""

    COORDINATOR = "coordinator"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Amounts:
    """The work of one tenant in one queue, as one member reports it."""

    running: Amount = 0
    """Compactions that a worker runs."""
    queued: Amount = 0
    """Published task offers of a coordinator."""
    queued_bytes: Amount = 0
    waiting: Amount = 0
    """Pending tasks of a coordinator that are not admitted yet."""
    waiting_bytes: Amount = 0
    deferred: Amount = 0
    """Pending tasks that did not fit into a coordinator's backlog."""
    demand: Amount = 0
    """The amount of running and waiting work of a coordinator; of each dataset, at most its share."""
    lowest_priority: Ratio | None = None
    """The rank of the last waiting task, from 0 (may wait) to 1 (urgent)."""
    oldest_ms: Amount | None = None
    """How long the oldest waiting or queued task has waited; `youngest_ms` likewise."""
    youngest_ms: Amount | None = None
    backlog_ms: Amount = 0
    """How long one slot would take for all queued, waiting and deferred tasks."""
    waits: Waits = NO_WAITS
    """Waiting times of the tasks claimed since the coordinator started."""


@dataclass(frozen=True, slots=True)
class _Tenant(Amounts):
    """Amounts as stored."""

    tenant: str | None = None


def _by_tenant(stored: Iterable[_Tenant]) -> dict[str | None, Amounts]:
    names = tuple(one.name for one in fields(Amounts))
    return {one.tenant: Amounts(**{name: getattr(one, name) for name in names}) for one in stored}


def combined(amounts: Iterable[Amounts]) -> Amounts:
    """Return the sum of all amounts."""
    all_of = tuple(amounts)
    counts = {name: sum(getattr(one, name) for one in all_of) for name in _COUNTS}
    return Amounts(
        **counts,
        lowest_priority=min(
            (one.lowest_priority for one in all_of if one.lowest_priority is not None), default=None
        ),
        oldest_ms=max((one.oldest_ms for one in all_of if one.oldest_ms is not None), default=None),
        youngest_ms=min((one.youngest_ms for one in all_of if one.youngest_ms is not None), default=None),
        waits=together_waited(one.waits for one in all_of),
    )


@dataclass(frozen=True, slots=True)
class Load:
    """A member's work in one queue."""

    slots: Amount = 0
    """How many of the queue's compactions a worker can run at once."""
    bytes_per_s: Amount = 0
    """The pace of a worker's slot in this queue (`lithify.planning.fleet.pace`); 0 if unknown."""
    resting: Amount = 0
    """Pending tasks of a coordinator that back off after a failure."""
    demand: Mapping[CountKey, Amount] = field(default_factory=lambda: MappingProxyType({}))
    """The amount of running and waiting work of a coordinator, by priority class."""
    tenants: Annotated[Mapping[str | None, Amounts], StoredAs(tuple[_Tenant, ...], _by_tenant)] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """Amounts by tenant; `None` has the tenants that are not reported by name
    (`lithify.planning.fleet.labels`)."""

    @property
    def total(self) -> Amounts:
        """The sum over all tenants."""
        return combined(self.tenants.values())


@dataclass(frozen=True, slots=True)
class Running:
    """A compaction that runs on a worker."""

    url: str
    """The URL of its dataset."""
    compaction: str
    queue_id: str
    since_ms: Amount
    """When it was claimed, by the worker's clock."""
    bytes: Amount
    """The size of its inputs."""
    tenant: str | None = None
    catalog: Amount = 0
    """The catalog version that it was admitted under."""


@dataclass(frozen=True, slots=True)
class OverdueDataset:
    """A dataset with work that is wanted, and that no process does (`lithify.planning.fleet.overdue`)."""

    url: str
    elsewhere: str = ""
    """Why the fleet does not coordinate it; empty if it may."""
    near_limit: str = ""
    """The units near their limit; empty if there are none."""
    is_stalling: bool = False


@dataclass(frozen=True, slots=True)
class FleetMember:
    """The heartbeat of a member."""

    name: str
    role: FleetRole
    host: str
    version: str
    """The version of Lithify."""
    catalog: Amount
    """The number of the catalog that the member uses."""
    datasets: Amount = 0
    """The number of datasets that a coordinator watches."""
    load: Mapping[str, Load] = field(default_factory=lambda: MappingProxyType({}))
    """The load by queue id."""
    quarantined: Amount = 0
    """The number of datasets that a coordinator does not poll for now after an error."""
    troubled: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The first `MAX_TROUBLED` of these by URL, with the reason."""
    running: tuple[Running, ...] = ()
    """The first `MAX_RUNNING` compactions that a worker runs."""
    at_ms: Amount = 0
    """When this was written, by the member's own clock."""
    needs: Amount = 0
    """The oldest catalog version that the member and its admitted or running tasks use; 0 if not reported."""
    beats_ms: Annotated[int, Interval(ge=0, le=IDLE_BEAT_EVERY_MS)] = BEAT_EVERY_MS
    """The longest time until the next heartbeat."""
    elsewhere: Amount = 0
    """The number of a coordinator's datasets with wanted work that the fleet may not coordinate."""
    near_limit: Amount = 0
    """The number of a coordinator's datasets near their limit without anything under way."""
    overdue: tuple[OverdueDataset, ...] = ()
    """The first `MAX_OVERDUE` of both, those near a stall first."""


Asked = Callable[[], int | None]
"""Return the time by the store's clock; `None` if the store does not report it."""
ReportListener = Callable[[FleetMember, Catalog], None]
"""Called with each heartbeat of a member, and the catalog that the member uses."""


def unheard(member: FleetMember, catalog: Catalog) -> None:
    """Ignore the heartbeat."""


@dataclass(frozen=True, slots=True)
class ListedMember:
    """A member as a listing shows it."""

    name: str
    role: FleetRole
    last_ms: int
    """When it last wrote, by the store's clock."""
    silent_ms: int
    """For how long the member has written nothing, up to the store's time if it was asked for, else up to the
    newest write of any member."""
    says: FleetMember | None
    """The heartbeat; `None` if it cannot be read."""

    @property
    def is_alive(self) -> bool:
        beats_ms = self.says.beats_ms if self.says is not None else BEAT_EVERY_MS
        return self.silent_ms < MISSED_BEATS * beats_ms


def new_member_name(role: FleetRole, ulid: str) -> str:
    """Return the name of a new process."""
    return f"{role.value}-{ulid}"


def is_fleet_coordinator(name: str | None) -> bool:
    """Return whether a process of this name is a fleet coordinator: no other name given by Lithify begins
    so."""
    return name is not None and name.startswith(f"{FleetRole.COORDINATOR.value}-")


class MemberFiles:
    """The members of the fleet in `folder` of `store`."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store = store
        self._folder = join(folder, "members")
        self._known: dict[ObjectMeta, FleetMember | None] = {}
        """Decoded heartbeats, by object as of the last listing."""

    def beat(self, member: FleetMember) -> None:
        """Write the heartbeat of a member."""
        written: Any = {one.name: getattr(member, one.name) for one in fields(member)}
        written["troubled"] = {
            url: why[:_MAX_WHY_CHARS] for url, why in list(member.troubled.items())[:MAX_TROUBLED]
        }
        written["overdue"] = [_bounded_texts(one) for one in member.overdue[:MAX_OVERDUE]]
        written["running"] = [replace(one, bytes=_bounded(one.bytes)) for one in member.running[:MAX_RUNNING]]
        written["load"] = {queue_id: _load_document(load) for queue_id, load in member.load.items()}
        self._store.put(self._key(member.name), _HEARTBEATS.encode(written))

    def leave(self, name: str) -> None:
        """Delete the object of a member that ends or has been dead for long."""
        self._store.delete(self._key(name))

    def listed(self, now_ms: Asked = lambda: None) -> tuple[ListedMember, ...]:
        """Return all members, also dead ones, by name, with one listing and one request for each object that
        has changed. `now_ms`, which returns the store's time or `None`, is for callers that are no members;
        it is called if there are members."""
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


_HEARTBEATS = DocumentCodec(
    FleetMember,
    optional={"elsewhere", "near_limit", "overdue"},  # older members do not write them
    mends_text=True,
)


def _decode(data: bytes, name: str) -> FleetMember | None:
    """Treat data that cannot be decoded as absent, since members' objects may be lost."""
    try:
        return replace(_HEARTBEATS.decode(data[:_MAX_BYTES], name), name=name)
    except CorruptObject:
        return None


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
_NOT_COUNTED = ("oldest_ms", "youngest_ms", "lowest_priority", "waits")


def _load_document(load: Load) -> dict[str, Any]:
    return {
        **{name: _bounded(getattr(load, name)) for name in _OF_QUEUE},
        "demand": load.demand,
        "tenants": [{"tenant": tenant, **amounts_document(one)} for tenant, one in load.tenants.items()],
    }


def amounts_document(amounts: Amounts) -> dict[str, Any]:
    """Return the amounts as a JSON value."""
    return {
        **{name: _bounded(getattr(amounts, name)) for name in _COUNTS},
        **{name: getattr(amounts, name) for name in _NOT_COUNTED},
    }


def _bounded_texts(one: OverdueDataset) -> OverdueDataset:
    return replace(one, elsewhere=one.elsewhere[:_MAX_WHY_CHARS], near_limit=one.near_limit[:_MAX_WHY_CHARS])


def _bounded(number: int) -> int:
    return min(number, _MOST)


LONGEST_ROUND_S = 600.0
"""Much longer than a slow store takes, and than all waiting in a round for an unavailable store."""


class MemberHeartbeat:
    """The heartbeat of one member: written in each round, and from another thread during long rounds. Any
    thread may call `beat`, one at a time; only the round calls the rest.

    1. A round writes the current heartbeat (`say`). It may take long, because a dataset is slow or a pattern
       matches a thousand folders. A member that is taken for dead meanwhile loses all datasets that it leads
       to other members, only to take them back later. So while a round runs, another thread repeats the last
       heartbeat (`beat`) at the promised interval.
    2. A heartbeat proves that rounds end. So it is not repeated between two rounds, nor once a round has
       taken `LONGEST_ROUND_S`: a member that hangs counts as dead, and the others continue without it.
    3. In the end the newest heartbeat is stored, and none after `leave`: a thread that finds a newer one
       after writing writes that as well. The threads do not wait for each other, so a request that hangs
       blocks nothing else.

    A repeated heartbeat is no newer than the round, so it may be stale. That is safe: ledgers and epochs
    decide what a member may do, and its need for old catalogs only decreases.
    """

    def __init__(self, name: str, files: MemberFiles, clock: Clock) -> None:
        self._name = name
        self._files = files
        self._clock = clock
        self._said: FleetMember | None = None
        """The last heartbeat to write; `None` before the first and after leaving."""
        self._said_s = float("-inf")
        self._round_since_s: float | None = None
        """When the current round began."""

    @contextmanager
    def round(self) -> Iterator[None]:
        """Run a block as a round."""
        self._round_since_s = self._clock.monotonic_s()
        try:
            yield
        finally:
            self._round_since_s = None

    def say(self, member: FleetMember) -> None:
        """Write this heartbeat."""
        now_s = self._clock.monotonic_s()
        self._said = member
        self._files.beat(member)
        self._said_s = now_s

    def beat(self) -> None:
        """Repeat the last heartbeat if it is due and a round is running."""
        now_s, since_s, said = self._clock.monotonic_s(), self._round_since_s, self._said
        if since_s is None or now_s - since_s >= LONGEST_ROUND_S:
            return
        if said is None or (now_s - self._said_s) * 1000 < said.beats_ms:
            return
        self._files.beat(said)
        self._said_s = now_s
        while (newer := self._said) is not said:
            said = newer
            if said is None:
                self._files.leave(self._name)
            else:
                self._files.beat(said)

    def leave(self) -> None:
        """Delete the heartbeat."""
        self._said = None
        self._files.leave(self._name)
