"""The catalog of a fleet: its queues, rules and tenants as one value, and its invariants. Pure.

A *queue* is a named pool of work with a unique id. Work goes to the first queue whose largest size exceeds
its cost, unless the rule of its dataset names a queue. A *rule* selects datasets of the fleet by a URL or a
pattern, and says how they are treated. A *tenant* owns the datasets of rules, and is listed here if its
work has a weight or a cap of its own.

Invariants of every catalog (`checked`):

1. Names of queues are unique, and so are their ids; an id is never used again, not even for a queue
   recreated under the same name.
2. Exactly one queue has no limit, and no two have the same limit: so all work has exactly one queue. The
   one without limit is the default queue; it cannot drain or be deleted.
3. The patterns of rules are unique, and a rule names only existing queues.
4. The names of tenants are unique. A rule may name a tenant that is not listed: it has weight 1 and no cap.

If several rules match a URL, the most specific one applies (`patterns.breadth`); if two are equally
specific, the one that was added first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from lithify.base.errors import Refused
from lithify.base.jsonvalues import shown_number
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
    """How a queue treats its work."""

    ACTIVE = "active"
    PAUSED = "paused"
    """Nothing is admitted or claimed; waiting work keeps waiting."""
    DRAINING = "draining"
    """Nothing is admitted; admitted work is executed, and the rest goes to the next queue."""


class Coordinates(Enum):
    """Which process coordinates the datasets of a rule."""

    FLEET = "fleet"
    """The fleet coordinators."""
    OWNER = "owner"
    """Another process, such as the dataset's writer. The fleet works on the dataset and never takes its
    epoch."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A named pool of work."""

    name: str
    id: str
    """A ULID. Files of a queue are named by it, not by the queue's name."""
    largest_bytes: int | None = None
    """The queue takes work that costs less; `None`: no limit."""
    weight: int = 1
    """The queue's share of turns among the queues of a worker."""
    reserved_slots: int = 0
    """How many of the queue's slots, over all workers, are reserved for small tasks and for writers near a
    stall."""
    longest_backlog: int = DEFAULT_BACKLOG
    """The maximum number of waiting tasks; beyond it, those of the lowest rank are deferred."""
    largest_share: float = 1.0
    """The part of the queue's slots that one dataset may use, above 0 and at most 1."""
    per_slot: int = 1
    """How many of the queue's compactions share a slot of the engine: for tasks so small that overhead would
    leave a slot mostly waiting."""
    state: QueueState = QueueState.ACTIVE

    @property
    def is_draining(self) -> bool:
        """Whether the queue takes no more work."""
        return self.state is QueueState.DRAINING


@dataclass(frozen=True, slots=True)
class DatasetRule:
    """A selection of datasets and how they are treated."""

    pattern: str
    """A URL, or a URL with `*` in it (`lithify.fleet.catalog.patterns`)."""
    coordinates: Coordinates = Coordinates.FLEET
    queue: str | None = None
    """The name of the queue that takes all work, regardless of its cost."""
    tenant: str | None = None
    """The tenant that owns the datasets; `*` is replaced by the text that the first `*` of the pattern
    matches."""
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Settings by dotted names; they override those of the process."""
    take_over_ms: int | None = None
    """When an operator asked last to take these datasets from coordinators of other systems, by the store's
    clock; `None`: never. Each dataset is taken at most once for each request."""

    def tenant_of(self, url: str) -> str | None:
        """Return the tenant that owns the dataset at `url`, which matches."""
        if self.tenant is None or "*" not in self.tenant:
            return self.tenant
        found = match(self.pattern, url)
        return self.tenant.replace("*", found[0]) if found else self.tenant


@dataclass(frozen=True, slots=True)
class CatalogTenant:
    """How the work of one tenant is treated, compared to that of others."""

    name: str
    weight: int = 1
    """The tenant's share of turns among tenants with work in the same priority class of a queue."""
    most_running: int | None = None
    """The maximum number of compactions that run at the same time in each queue; `None`: no limit."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """All queues, rules and tenants of a fleet. Created only by `checked` and its callers."""

    queues: tuple[Queue, ...]
    """Queues by size, the one without a limit last."""
    default_queue: str
    """The name of the queue without a limit."""
    rules: tuple[DatasetRule, ...] = ()
    """Rules in the order in which they were added."""
    tenants: tuple[CatalogTenant, ...] = ()
    """Tenants with a treatment of their own, by name."""

    def find(self, name: str) -> Queue | None:
        """Return the queue of that name, or `None`."""
        return next((queue for queue in self.queues if queue.name == name), None)

    def with_id(self, queue_id: str) -> Queue | None:
        """Return the queue of that id; `None` once it is deleted, even if a new queue has its name."""
        return next((queue for queue in self.queues if queue.id == queue_id), None)

    def queue(self, name: str) -> Queue:
        """Return the queue of that name. Raise `Refused` if there is none."""
        found = self.find(name)
        if found is None:
            known = ", ".join(queue.name for queue in self.queues)
            raise Refused(f"there is no queue {name!r}; the queues are {known}")
        return found

    def rules_for(self, url: str) -> tuple[DatasetRule, ...]:
        """Return all rules that match, the one that applies first."""
        found = [rule for rule in self.rules if match(rule.pattern, url) is not None]
        return by_breadth(found)

    def rule_for(self, url: str) -> DatasetRule | None:
        """Return the rule that applies to the dataset at `url`; `None` if the dataset does not belong to the
        fleet."""
        return next(iter(self.rules_for(url)), None)


def by_breadth(rules: Iterable[DatasetRule]) -> tuple[DatasetRule, ...]:
    """Sort rules, the most specific first; equally specific ones keep their order."""
    return tuple(sorted(rules, key=lambda rule: breadth(rule.pattern)))


def checked(
    queues: Iterable[Queue],
    default_queue: str,
    rules: Iterable[DatasetRule] = (),
    tenants: Iterable[CatalogTenant] = (),
) -> Catalog:
    """Return a catalog of these parts. Raise `Refused`, with one sentence, if an invariant is violated."""
    queues = tuple(queues)
    rules = tuple(rules)
    tenants = tuple(sorted(tenants, key=lambda tenant: tenant.name))
    if len(queues) > MAX_QUEUES or len(rules) > MAX_RULES or len(tenants) > MAX_TENANTS:
        raise Refused(
            f"a fleet has at most {MAX_QUEUES} queues, {MAX_RULES} rules and {MAX_TENANTS} tenants with a "
            "weight or limit"
        )
    for queue in queues:
        _check_queue(queue)
    _check_unique("two queues have the name", (queue.name for queue in queues))
    _check_unique("two queues have the id", (queue.id for queue in queues))
    Routing(queues)  # refuses sizes that would leave some work without a queue, or with two
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
    """Return the name. Raise `Refused` if no queue can have it."""
    if not _NAME.fullmatch(name):
        raise Refused(f"{name[:120]!r} is not a name: use up to 100 letters, digits, '.', '_' or '-'")
    return name


def check_public(rule: DatasetRule) -> None:
    """Raise `Refused` if the rule has a secret. Only new rules are checked: a fleet that already has one must
    stay readable, if only to remove it."""
    for name, value in rule.settings.items():
        if is_secret(_in_section(name)) or shown_setting(name, value) != value:
            raise Refused(
                f"rule {rule.pattern}: the setting {name} is or contains a secret, which all readers of the "
                "fleet's catalog would see; set it in the environment or file of the processes"
            )


def shown_setting(name: str, value: str) -> str:
    """Return the value of a rule's setting in a form that may be displayed."""
    return str(shown(_in_section(name), value))


def _in_section(name: str) -> str:
    """Return the name within its section, as a whole: names of store options may contain dots."""
    section, _, rest = name.partition(".")
    return rest or section


def _check_queue(queue: Queue) -> None:
    name = checked_name(queue.name)
    if not _NAME.fullmatch(queue.id):
        raise Refused(f"queue {name}: {queue.id[:120]!r} is not an id")
    for what, value, least, most in (
        ("largest size", queue.largest_bytes, 1, MAX_BYTES),
        ("weight", queue.weight, 1, MAX_WEIGHT),
        ("number of reserved slots", queue.reserved_slots, 0, MAX_SLOTS),
        ("longest backlog", queue.longest_backlog, 1, MAX_BACKLOG),
        ("number of compactions that share a slot", queue.per_slot, 1, MAX_PER_SLOT),
    ):
        if value is not None and not (isinstance(value, int | float) and least <= value <= most):
            raise Refused(
                f"queue {name}: its {what} is {shown_number(value)}; it must be a whole number from {least} "
                f"to {most}"
            )
    if not (isinstance(queue.largest_share, int | float) and 0 < queue.largest_share <= 1):
        raise Refused(
            f"queue {name}: the largest share of one dataset is {shown_number(queue.largest_share)}; it must "
            "be above 0 and at most 1"
        )


def _check_rule(rule: DatasetRule, queues: set[str]) -> None:
    normal(rule.pattern)  # refuses invalid ones
    if rule.queue is not None and rule.queue not in queues:
        raise Refused(f"rule {rule.pattern}: there is no queue {rule.queue!r}; create it first")
    if rule.tenant is not None and not 1 <= len(rule.tenant) <= MAX_TEXT_CHARS:
        raise Refused(f"rule {rule.pattern}: the tenant needs a name of at most {MAX_TEXT_CHARS} characters")
    if rule.take_over_ms is not None and rule.coordinates is Coordinates.OWNER:
        raise Refused(
            f"rule {rule.pattern}: its datasets are coordinated by their owner, so the fleet takes none of "
            "them over; add the rule again with --coordinated-by fleet"
        )


def _check_tenant(tenant: CatalogTenant) -> None:
    if not 1 <= len(tenant.name) <= MAX_TEXT_CHARS or "*" in tenant.name:
        raise Refused(f"{tenant.name[:120]!r} is not a tenant's name")
    for what, value, most in (
        ("weight", tenant.weight, MAX_WEIGHT),
        ("limit of running compactions", tenant.most_running, MAX_SLOTS),
    ):
        if value is not None and not (isinstance(value, int | float) and 1 <= value <= most):
            raise Refused(
                f"tenant {tenant.name}: its {what} is {shown_number(value)}; it must be a whole number "
                f"from 1 to {most}"
            )


def _check_unique(what: str, names: Iterable[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise Refused(f"{what} {twice[0]}")
