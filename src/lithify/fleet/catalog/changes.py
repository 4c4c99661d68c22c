"""Changes of a catalog: pure functions from value to value. Each gives a catalog that was checked as a whole,
or is `Refused`.

Whoever publishes a change may have to apply it again to a newer catalog, or to its own result when only the
answer was lost (`lithify.store.versions`). So:

1. A queue is created with an id that is new. If a queue of that name is there and has this very id, it was
   this change that made it; with another id somebody else was faster.
2. Queues are changed by id, never by name: a name that was deleted and made again is another queue. What is
   deleted already stays deleted; what is to be changed and was deleted meanwhile is refused.
3. To add a rule that is there, or remove one that is not, changes nothing. The same holds of tenants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from lithify.base.errors import Refused
from lithify.fleet.catalog.model import (
    Catalog,
    CatalogTenant,
    DatasetRule,
    Queue,
    QueueState,
    check_public,
    checked,
)
from lithify.fleet.catalog.patterns import normal

ChangedT = TypeVar("ChangedT", Queue, CatalogTenant)
CatalogChange = Callable[[Catalog], Catalog]

DEFAULT_QUEUE = "default"
_OWN = ("name", "id", "state")
"""Are set in other ways."""


def first_catalog(queue_id: str) -> Catalog:
    """A fleet that has nothing yet: one queue that takes everything."""
    return checked([Queue(DEFAULT_QUEUE, queue_id)], DEFAULT_QUEUE)


def create_queue(catalog: Catalog, queue: Queue) -> Catalog:
    """Add a queue, which has a new id."""
    there = catalog.find(queue.name)
    if there is not None and there.id == queue.id:
        return catalog
    if there is not None:
        raise Refused(f"there is a queue {queue.name} already; change it with `lithify queue set`")
    return _with(catalog, queues=(*catalog.queues, queue))


def set_queue(catalog: Catalog, queue_id: str, **changes: Any) -> Catalog:
    """Change attributes of a queue, all but its name, its id and its state."""
    changed = with_attributes(_queue(catalog, queue_id), changes)
    return _with(catalog, queues=(changed if q.id == queue_id else q for q in catalog.queues))


def pause_queue(catalog: Catalog, queue_id: str) -> Catalog:
    """Admit nothing and claim nothing. `Refused` for one that drains."""
    if _queue(catalog, queue_id).state is QueueState.DRAINING:
        name = _queue(catalog, queue_id).name
        raise Refused(f"queue {name} is draining; resume it first, if it is not to")
    return _replace(catalog, queue_id, state=QueueState.PAUSED)


def resume_queue(catalog: Catalog, queue_id: str) -> Catalog:
    """Go on, whatever it was told before."""
    return _replace(catalog, queue_id, state=QueueState.ACTIVE)


def drain_queue(catalog: Catalog, queue_id: str) -> Catalog:
    """Admit nothing more; what was admitted is worked off."""
    _check_dispensable(catalog, _queue(catalog, queue_id), "drain")
    return _replace(catalog, queue_id, state=QueueState.DRAINING)


def delete_queue(catalog: Catalog, queue_id: str) -> Catalog:
    """Take a queue away. `Refused` while a rule names it, and for the one that takes what no other does."""
    queue = catalog.with_id(queue_id)
    if queue is None:
        return catalog
    _check_dispensable(catalog, queue, "be deleted")
    naming = [rule.pattern for rule in catalog.rules if rule.queue == queue.name]
    if naming:
        more = f" and {len(naming) - 1} more" if len(naming) > 1 else ""
        raise Refused(
            f"queue {queue.name} cannot be deleted: rule {naming[0]}{more} names it; add that again without"
        )
    return _with(catalog, queues=(q for q in catalog.queues if q.id != queue_id))


def add_rules(catalog: Catalog, rules: Iterable[DatasetRule]) -> Catalog:
    """Add rules. One with a pattern that is there takes the place of that one. `Refused` for a secret."""
    found = {normal(rule.pattern): rule for rule in catalog.rules}
    for rule in rules:
        check_public(rule)
        found[normal(rule.pattern)] = replace(rule, pattern=normal(rule.pattern))
    return _with(catalog, rules=found.values())


def remove_rules(catalog: Catalog, patterns: Iterable[str]) -> Catalog:
    """Take rules away. What their datasets are in the middle of goes on; nothing new is begun."""
    gone = {normal(pattern) for pattern in patterns}
    return _with(catalog, rules=(rule for rule in catalog.rules if normal(rule.pattern) not in gone))


def set_tenant(catalog: Catalog, name: str, **changes: Any) -> Catalog:
    """Change how a tenant is treated; what is not given stays, or is as for everybody."""
    tenant = next((tenant for tenant in catalog.tenants if tenant.name == name), CatalogTenant(name))
    others = (tenant for tenant in catalog.tenants if tenant.name != name)
    return _with(catalog, tenants=(*others, with_attributes(tenant, changes)))


def with_attributes(changed: ChangedT, attributes: Mapping[str, Any]) -> ChangedT:
    """A queue or tenant with these attributes. `Refused` for one that nobody sets."""
    known = [field.name for field in fields(changed) if field.name not in _OWN]
    unknown = sorted(attributes.keys() - set(known))
    if unknown:
        raise Refused(f"{', '.join(unknown)}: nothing that can be set there; there are {', '.join(known)}")
    return replace(changed, **attributes)


def remove_tenant(catalog: Catalog, name: str) -> Catalog:
    """Treat a tenant as everybody else. Its datasets stay."""
    return _with(catalog, tenants=(tenant for tenant in catalog.tenants if tenant.name != name))


def _check_dispensable(catalog: Catalog, queue: Queue, what: str) -> None:
    if queue.name == catalog.default_queue:
        raise Refused(f"queue {queue.name} cannot {what}: it takes what no other queue does")


def _queue(catalog: Catalog, queue_id: str) -> Queue:
    found = catalog.with_id(queue_id)
    if found is None:
        raise Refused("the queue was deleted meanwhile; one of the same name would be another")
    return found


def _replace(catalog: Catalog, queue_id: str, **changes: Any) -> Catalog:
    changed = replace(_queue(catalog, queue_id), **changes)
    return _with(catalog, queues=(changed if q.id == queue_id else q for q in catalog.queues))


def _with(
    catalog: Catalog,
    *,
    queues: Iterable[Queue] | None = None,
    rules: Iterable[DatasetRule] | None = None,
    tenants: Iterable[CatalogTenant] | None = None,
) -> Catalog:
    return checked(
        catalog.queues if queues is None else queues,
        catalog.default_queue,
        catalog.rules if rules is None else rules,
        catalog.tenants if tenants is None else tenants,
    )
