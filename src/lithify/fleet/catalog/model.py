"""The catalog of a fleet: its queues, rules and tenants, as one value, and what must hold of it. Pure.

A *queue* is a named pool of work with an id of its own. Work goes to the first queue whose largest size
exceeds its cost, unless the rule of its dataset names one. A *rule* says which datasets are the fleet's, by a
URL or a pattern, and how they are treated. A *tenant* has rules' datasets, and is here when its work has a
weight or a cap of its own.

Invariants of every catalog (`checked`):

1. Names of queues are unique, so are their ids; an id is never used again, also not by a queue that is made
   again under the same name.
2. Exactly one queue has no limit, and no two have the same: so everything has a queue, and only one. The one
   without limit is the default queue, and it neither drains nor goes.
3. The patterns of rules are unique, and a rule names only a queue that is there.
4. The names of tenants are unique. A rule may name one that is not here: it has weight 1 and no cap.

Of several rules that match a URL the most specific one counts (`patterns.breadth`), of two that are alike the
one that was added first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from lithify.base.errors import Refused
from lithify.base.redaction import is_secret, shown
from lithify.fleet.catalog.patterns import breadth, match, normal
from lithify.planning.fleet.routing import Routing

MAX_QUEUES = 1_000
MAX_RULES = 100_000
MAX_TENANTS = 1_000
MAX_BYTES = 1 << 62
MAX_SLOTS = 1_000_000
MAX_WEIGHT = 1_000
MAX_BACKLOG = 10_000_000
MAX_PER_SLOT = 1_000
DEFAULT_BACKLOG = 10_000
MAX_TEXT_CHARS = 4_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class QueueState(Enum):
    """What happens to the work of a queue."""

    ACTIVE = "active"
    PAUSED = "paused"
    """Nothing is admitted and nothing claimed; what waits goes on waiting."""
    DRAINING = "draining"
    """Nothing is admitted; what was is worked off, and the rest goes to the next queue."""


class Coordinates(Enum):
    """Who coordinates datasets of a rule."""

    FLEET = "fleet"
    """The fleet's keepers."""
    OWNER = "owner"
    """Somebody else, such as the process that writes it. The fleet works on it and never takes its epoch."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A named pool of work."""

    name: str
    id: str
    """A ULID. What lies in the store for a queue goes by it, not by its name."""
    largest_bytes: int | None = None
    """Work that costs less may be its; `None`: no limit."""
    weight: int = 1
    """Its share of turns, against those of other queues of the same worker."""
    reserved_slots: int = 0
    """Of its slots, over all its workers, those for what is small and for writers near a stall."""
    longest_backlog: int = DEFAULT_BACKLOG
    """So much waits; beyond it the lowest is deferred."""
    largest_share: float = 1.0
    """The part of its slots that one dataset may use, above 0 and at most 1."""
    per_slot: int = 1
    """So many of its compactions share a slot of the engine: for what is so small that a slot would mostly
    wait for what is around it."""
    state: QueueState = QueueState.ACTIVE

    @property
    def is_draining(self) -> bool:
        """Whether nothing more goes to it."""
        return self.state is QueueState.DRAINING


@dataclass(frozen=True, slots=True)
class DatasetRule:
    """Which datasets are the fleet's, and how they are treated."""

    pattern: str
    """A URL, or one with `*` in it (`lithify.fleet.catalog.patterns`)."""
    coordinates: Coordinates = Coordinates.FLEET
    queue: str | None = None
    """The name of the queue that takes all its work, whatever that costs."""
    tenant: str | None = None
    """For whom it is; `*` stands for what the first `*` of the pattern stands for."""
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """By dotted names; they win over those of the process."""

    def tenant_of(self, url: str) -> str | None:
        """For whom the dataset at `url` is, which matches."""
        if self.tenant is None or "*" not in self.tenant:
            return self.tenant
        found = match(self.pattern, url)
        return self.tenant.replace("*", found[0]) if found else self.tenant


@dataclass(frozen=True, slots=True)
class CatalogTenant:
    """How the work of one tenant is treated, against that of others."""

    name: str
    weight: int = 1
    """Turns it has, against those of other tenants with work in the same band of a queue."""
    most_running: int | None = None
    """So many of its compactions may run in each queue at the same time; `None`: no limit."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """All queues, rules and tenants of a fleet. Made by `checked` and what calls it."""

    queues: tuple[Queue, ...]
    """By size, the one without a limit last."""
    default_queue: str
    """The name of the queue without a limit."""
    rules: tuple[DatasetRule, ...] = ()
    """In the order in which they were added."""
    tenants: tuple[CatalogTenant, ...] = ()
    """Those that are treated in a way of their own, by name."""

    def find(self, name: str) -> Queue | None:
        """The queue of that name."""
        return next((queue for queue in self.queues if queue.name == name), None)

    def with_id(self, queue_id: str) -> Queue | None:
        """The queue of that id; `None` once it was deleted, whatever has its name now."""
        return next((queue for queue in self.queues if queue.id == queue_id), None)

    def queue(self, name: str) -> Queue:
        """The queue of that name. `Refused` when there is none."""
        found = self.find(name)
        if found is None:
            known = ", ".join(queue.name for queue in self.queues)
            raise Refused(f"there is no queue {name!r}; there are {known}")
        return found

    def rules_for(self, url: str) -> tuple[DatasetRule, ...]:
        """All rules that match, the one that counts first."""
        found = [rule for rule in self.rules if match(rule.pattern, url) is not None]
        return by_breadth(found)

    def rule_for(self, url: str) -> DatasetRule | None:
        """The rule that counts for the dataset at `url`; `None` when it is not the fleet's."""
        return next(iter(self.rules_for(url)), None)


def by_breadth(rules: Iterable[DatasetRule]) -> tuple[DatasetRule, ...]:
    """The most specific one first; those that are alike stay in order."""
    return tuple(sorted(rules, key=lambda rule: breadth(rule.pattern)))


def checked(
    queues: Iterable[Queue],
    default_queue: str,
    rules: Iterable[DatasetRule] = (),
    tenants: Iterable[CatalogTenant] = (),
) -> Catalog:
    """A catalog of these. `Refused`, in one sentence, when something does not hold."""
    queues = tuple(queues)
    rules = tuple(rules)
    tenants = tuple(sorted(tenants, key=lambda tenant: tenant.name))
    if len(queues) > MAX_QUEUES or len(rules) > MAX_RULES or len(tenants) > MAX_TENANTS:
        raise Refused(
            f"a fleet has at most {MAX_QUEUES} queues, {MAX_RULES} rules and {MAX_TENANTS} tenants that are "
            "treated in a way of their own"
        )
    for queue in queues:
        _check_queue(queue)
    _check_unique("two queues have the name", (queue.name for queue in queues))
    _check_unique("two queues have the id", (queue.id for queue in queues))
    Routing(queues)  # refuses what would leave some work without a queue, or with two
    unlimited = next(queue.name for queue in queues if queue.largest_bytes is None)
    if unlimited != default_queue:
        raise Refused(
            f"the default queue is {default_queue!r}, but the one without a largest size is {unlimited!r}"
        )
    for rule in rules:
        _check_rule(rule, {queue.name for queue in queues})
    _check_unique("two rules have the pattern", (normal(rule.pattern) for rule in rules))
    by_size = sorted(queues, key=lambda queue: (queue.largest_bytes is None, queue.largest_bytes or 0))
    for tenant in tenants:
        _check_tenant(tenant)
    _check_unique("two tenants have the name", (tenant.name for tenant in tenants))
    return Catalog(tuple(by_size), default_queue, rules, tenants)


def checked_name(name: str) -> str:
    """`Refused` when no queue can have this name."""
    if not _NAME.fullmatch(name):
        raise Refused(f"{name[:120]!r} is no name: take up to 100 letters, digits, '.', '_' or '-'")
    return name


def check_public(rule: DatasetRule) -> None:
    """`Refused` when the rule has a secret. It is asked of new rules only: a fleet that has one already is to
    be read, if only to remove it."""
    for name, value in rule.settings.items():
        if is_secret(_in_section(name)) or shown_setting(name, value) != value:
            raise Refused(
                f"rule {rule.pattern}: the setting {name} is a secret, or has one in it, which everybody who "
                "reads the fleet's catalog would see; give it to the processes, in their environment or file"
            )


def shown_setting(name: str, value: str) -> str:
    """The value of a setting of a rule as it may be shown."""
    return str(shown(_in_section(name), value))


def _in_section(name: str) -> str:
    """The whole of it counts: the names of a store's options have dots of their own."""
    section, _, rest = name.partition(".")
    return rest or section


def _check_queue(queue: Queue) -> None:
    name = checked_name(queue.name)
    if not _NAME.fullmatch(queue.id):
        raise Refused(f"queue {name}: {queue.id[:120]!r} is no id")
    for what, value, least, most in (
        ("largest size", queue.largest_bytes, 1, MAX_BYTES),
        ("weight", queue.weight, 1, MAX_WEIGHT),
        ("number of reserved slots", queue.reserved_slots, 0, MAX_SLOTS),
        ("longest backlog", queue.longest_backlog, 1, MAX_BACKLOG),
        ("number of compactions that share a slot", queue.per_slot, 1, MAX_PER_SLOT),
    ):
        if value is not None and not (isinstance(value, int | float) and least <= value <= most):
            raise Refused(
                f"queue {name}: its {what} is {value}; it must be a whole number from {least} to {most}"
            )
    if not (isinstance(queue.largest_share, int | float) and 0 < queue.largest_share <= 1):
        raise Refused(
            f"queue {name}: the largest share of one dataset is {queue.largest_share}; it must be above 0 "
            "and at most 1"
        )


def _check_rule(rule: DatasetRule, queues: set[str]) -> None:
    normal(rule.pattern)  # refuses what is none
    if rule.queue is not None and rule.queue not in queues:
        raise Refused(f"rule {rule.pattern}: there is no queue {rule.queue!r}; create it first")
    if rule.tenant is not None and not 1 <= len(rule.tenant) <= MAX_TEXT_CHARS:
        raise Refused(f"rule {rule.pattern}: the tenant needs a name of at most {MAX_TEXT_CHARS} characters")


def _check_tenant(tenant: CatalogTenant) -> None:
    if not 1 <= len(tenant.name) <= MAX_TEXT_CHARS or "*" in tenant.name:
        raise Refused(f"{tenant.name[:120]!r} is no name of a tenant")
    for what, value, most in (
        ("weight", tenant.weight, MAX_WEIGHT),
        ("limit of running compactions", tenant.most_running, MAX_SLOTS),
    ):
        if value is not None and not (isinstance(value, int | float) and 1 <= value <= most):
            raise Refused(
                f"tenant {tenant.name}: its {what} is {value}; it must be a whole number from 1 to {most}"
            )


def _check_unique(what: str, names: Iterable[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise Refused(f"{what} {twice[0]}")
