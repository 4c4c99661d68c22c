"""Changes of a catalog: pure functions from value to value.

Each returns a catalog that was checked as a whole, or raises `Refused`. A change may have to be applied
again, to a newer catalog, or to its own result if only the response was lost (`lithify.store.versions`).
So:

1. A queue is created with a new id. If a queue of that name exists with this very id, this change has
   created it; with another id, a concurrent change has.
2. Queues are changed by id, never by name: a queue recreated under the same name is another queue. Deleting
   a deleted queue changes nothing; changing one is refused.
3. Adding an existing rule or removing a missing one changes nothing. The same holds for tenants.
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
"""Attributes that are set in other ways."""


def first_catalog(queue_id: str) -> Catalog:
    """Return the catalog of a new fleet: one queue that takes all work."""
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
    """Change attributes of a queue, except its name, id and state."""
    changed = with_attributes(_queue(catalog, queue_id), changes)
    return _with(catalog, queues=(changed if q.id == queue_id else q for q in catalog.queues))


def pause_queue(catalog: Catalog, queue_id: str) -> Catalog:
    """Stop admission and claims. Raise `Refused` if the queue drains."""
    if _queue(catalog, queue_id).state is QueueState.DRAINING:
        name = _queue(catalog, queue_id).name
        raise Refused(f"queue {name} is draining; resume it before pausing it")
    return _replace(catalog, queue_id, state=QueueState.PAUSED)


def resume_queue(catalog: Catalog, queue_id: str) -> Catalog:
    """Resume a queue that is paused or drains."""
    return _replace(catalog, queue_id, state=QueueState.ACTIVE)


def drain_queue(catalog: Catalog, queue_id: str) -> Catalog:
    """Stop admission; admitted tasks are still executed."""
    _check_dispensable(catalog, _queue(catalog, queue_id), "drain")
    return _replace(catalog, queue_id, state=QueueState.DRAINING)


def delete_queue(catalog: Catalog, queue_id: str) -> Catalog:
    """Delete a queue. Raise `Refused` while a rule names it, and for the default queue."""
    queue = catalog.with_id(queue_id)
    if queue is None:
        return catalog
    _check_dispensable(catalog, queue, "be deleted")
    naming = [rule.pattern for rule in catalog.rules if rule.queue == queue.name]
    if naming:
        more = f" and {len(naming) - 1} more" if len(naming) > 1 else ""
        raise Refused(
            f"queue {queue.name} cannot be deleted: rule {naming[0]}{more} names it; add the rule again "
            "without the queue"
        )
    return _with(catalog, queues=(q for q in catalog.queues if q.id != queue_id))


def add_rules(catalog: Catalog, rules: Iterable[DatasetRule]) -> Catalog:
    """Add rules; each replaces an existing rule with the same pattern. Raise `Refused` for a secret."""
    found = {normal(rule.pattern): rule for rule in catalog.rules}
    for rule in rules:
        check_public(rule)
        found[normal(rule.pattern)] = replace(rule, pattern=normal(rule.pattern))
    return _with(catalog, rules=found.values())


def remove_rules(catalog: Catalog, patterns: Iterable[str]) -> Catalog:
    """Remove rules. Running work of their datasets continues; no new work starts."""
    gone = {normal(pattern) for pattern in patterns}
    return _with(catalog, rules=(rule for rule in catalog.rules if normal(rule.pattern) not in gone))


def take_over(catalog: Catalog, patterns: Iterable[str], at_ms: int) -> Catalog:
    """Record that the datasets of these rules may be taken from coordinators of other systems, once each.
    Raise `Refused` if there is no such rule."""
    wanted = {normal(pattern) for pattern in patterns}
    known = {normal(rule.pattern) for rule in catalog.rules}
    if missing := sorted(wanted - known):
        raise Refused(f"{missing[0]}: no rule has this pattern; `lithify fleet list` shows them")
    rules = (
        replace(rule, take_over_ms=at_ms) if normal(rule.pattern) in wanted else rule
        for rule in catalog.rules
    )
    return _with(catalog, rules=rules)


def set_tenant(catalog: Catalog, name: str, **changes: Any) -> Catalog:
    """Change how a tenant is treated; attributes that are not given keep their value or the default."""
    tenant = next((tenant for tenant in catalog.tenants if tenant.name == name), CatalogTenant(name))
    others = (tenant for tenant in catalog.tenants if tenant.name != name)
    return _with(catalog, tenants=(*others, with_attributes(tenant, changes)))


def with_attributes(changed: ChangedT, attributes: Mapping[str, Any]) -> ChangedT:
    """Return a queue or tenant with these attributes. Raise `Refused` for one that cannot be set."""
    known = [field.name for field in fields(changed) if field.name not in _OWN]
    unknown = sorted(attributes.keys() - set(known))
    if unknown:
        raise Refused(f"{', '.join(unknown)}: not an attribute that can be set; those are {', '.join(known)}")
    return replace(changed, **attributes)


def remove_tenant(catalog: Catalog, name: str) -> Catalog:
    """Remove a tenant's own weight and limits. Its datasets are kept."""
    return _with(catalog, tenants=(tenant for tenant in catalog.tenants if tenant.name != name))


def _check_dispensable(catalog: Catalog, queue: Queue, what: str) -> None:
    if queue.name == catalog.default_queue:
        raise Refused(f"queue {queue.name} cannot {what}: it takes the work that no other queue takes")


def _queue(catalog: Catalog, queue_id: str) -> Queue:
    found = catalog.with_id(queue_id)
    if found is None:
        raise Refused("the queue was deleted meanwhile; a new queue of the same name is not changed")
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
