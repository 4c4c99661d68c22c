"""Displays of a fleet for commands, as neutral blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lithify.fleet.catalog.documents import queue_document, rule_document, tenant_document
from lithify.fleet.catalog.model import Catalog, CatalogTenant, DatasetRule, Queue, QueueState, shown_setting
from lithify.fleet.members import Amounts, FleetRole, OverdueDataset, amounts_document
from lithify.fleet.status import FleetStatus, MemberStatus, QueueStatus, RunningStatus
from lithify.planning.fleet.priorities import PriorityClass, rank
from lithify.planning.fleet.task_offers import ClaimOffer
from lithify.planning.fleet.waits import BOUNDS_MS, Waits
from lithify.views import text
from lithify.views.blocks import Alarm, Block, Line, Shown, Table, columns

SHOWN_HINTS = 20
SHOWN_TENANTS = 20
SHOWN_OVERDUE = 20


def show_status(found: FleetStatus) -> Shown:
    """Show the fleet as a whole."""
    document = {
        "url": found.url,
        "at_ms": found.at_ms,
        "catalog": found.catalog.number,
        "members": [_member_document(member) for member in found.members],
        "queues": [queue_status_document(status, found.at_ms) for status in found.queues],
        "rules": len(found.catalog.catalog.rules),
        "wakes": found.wakes,
        "elsewhere": found.overdue_count[0],
        "near_limit": found.overdue_count[1],
        "overdue": [asdict(one) for one in found.overdue],
    }
    blocks: list[Block] = [
        Line(f"catalog {found.catalog.number}, {len(found.catalog.catalog.rules)} rules", found.url)
    ]
    if found.members:
        rows = [_member_row(member, found.catalog.number) for member in found.members]
        headings = columns("=member", "host", "version", ">datasets", ">busy", "state")
        blocks.append(Table("Members", headings, rows, "members"))
    else:
        blocks.append(Line("No process serves this fleet; start `lithify fleet run`."))
    blocks.append(_queue_table(found.queues, found.at_ms))
    blocks += _tenant_tables(found.queues)
    blocks += _overdue_table(found)
    return Shown(document, tuple(blocks))


def _overdue_table(found: FleetStatus) -> Sequence[Table]:
    """Return a table of wanted work that no process does; none if there is none."""
    overdue, (elsewhere, near_limit) = found.overdue, found.overdue_count
    if not overdue:
        return ()
    rows = [
        (one.url, Alarm(why) if one.is_stalling else why)
        for one in overdue[:SHOWN_OVERDUE]
        for why in _why_overdue(one)
    ]
    title = f"Work that nothing does: {elsewhere} coordinated elsewhere, {near_limit} near their limit"
    return (Table(title, columns("=dataset", "why"), rows, "datasets"),)


def _why_overdue(one: OverdueDataset) -> list[str]:
    near = [f"near its limit, and nothing is under way: {one.near_limit}"] if one.near_limit else []
    return near + ([f"wanted, but coordinated elsewhere: {one.elsewhere}"] if one.elsewhere else [])


def show_workers(found: FleetStatus) -> Shown:
    """Show the workers and the queues that they serve."""
    names = {queue.id: queue.name for queue in found.catalog.catalog.queues}
    workers = [member for member in found.members if member.seen.role is FleetRole.WORKER]
    documents = []
    for member in workers:
        load = member.says.load if member.says is not None else {}
        queues = [
            {
                "queue": names.get(queue_id),
                "slots": of.slots,
                "running": of.total.running,
                "bytes_per_s": of.bytes_per_s or None,
            }
            for queue_id, of in load.items()
        ]
        documents.append({**_member_document(member), "queues": queues})
    rows = []
    for member in workers:
        name, host, version, _, busy, state = _member_row(member, found.catalog.number)
        rows.append((name, host, version, busy, _served(member, names), state))
    headings = columns("=worker", "host", "version", ">busy", "queues", "state")
    nobody = Line("No worker serves this fleet; start `lithify fleet worker`.")
    table = Table("Workers", headings, rows, "workers")
    return Shown({"workers": documents}, (table if rows else nobody,))


def _served(member: MemberStatus, names: Mapping[str, str]) -> str:
    load = member.says.load if member.says is not None else {}
    return ", ".join(sorted(names[queue_id] for queue_id in load if queue_id in names)) or "–"


def show_running(found: Sequence[RunningStatus], problems: Mapping[str, Exception]) -> Shown:
    """Show the running compactions."""
    document = {
        "running": [asdict(one) for one in found],
        "problems": {url: str(error) for url, error in problems.items()},
    }
    rows = [
        (
            one.compaction,
            one.url,
            one.queue or "–",
            one.tenant or "–",
            "–" if one.bytes is None else text.size(one.bytes),
            text.duration(one.running_ms),
            one.worker,
        )
        for one in found
    ]
    headings = columns("=compaction", "dataset", "queue", "tenant", ">size", ">for", "worker")
    table = Table(f"{len(found)} running compactions", headings, rows, "compactions")
    bad = [Line(str(error), f"{url}:", is_bad=True) for url, error in problems.items()]
    return Shown(document, (table if rows else Line("No compaction is running."), *bad))


def show_queues(queues: Sequence[QueueStatus], at_ms: int) -> Shown:
    document = {"queues": [queue_status_document(status, at_ms) for status in queues]}
    return Shown(document, (_queue_table(queues, at_ms),))


def show_queue(status: QueueStatus, at_ms: int) -> Shown:
    """Show one queue, why tasks wait in it, and its claimable tasks."""
    hints = [
        {
            "url": hint.url,
            "compaction": hint.compaction,
            "band": hint.band,
            "priority": hint.priority,
            "bytes": hint.bytes,
            "waiting_ms": max(0, at_ms - hint.since_ms),
            "attempts": hint.attempts,
            "tenant": hint.tenant,
        }
        for hint in status.hints
    ]
    rows = [
        (
            hint.compaction,
            hint.url,
            _why_wanted(hint),
            text.ratio(hint.priority),
            text.size(hint.bytes),
            text.duration(max(0, at_ms - hint.since_ms)),
        )
        for hint in status.hints[:SHOWN_HINTS]
    ]
    headings = columns("=compaction", "dataset", "why", ">priority", ">size", ">waits for")
    waiting = Table(
        f"The first {len(rows)} of {len(hints)} claimable compactions", headings, rows, "compactions"
    )
    why = _why_waiting(status)
    blocks = (
        _queue_table([status], at_ms),
        *((Line(why, "waits:"),) if why else ()),
        *_tenant_tables([status]),
        *((waiting,) if rows else ()),
    )
    return Shown({**queue_status_document(status, at_ms), "hints": hints}, blocks)


def _why_waiting(status: QueueStatus) -> str:
    """Explain in words why tasks wait in a queue; return an empty text if none do."""
    count = len(status.hints) + status.waiting + status.deferred
    if not count:
        return ""
    if status.queue.state is QueueState.PAUSED:
        return f"{count}, because the queue is paused"
    if status.queue.state is not QueueState.ACTIVE:
        return f"{count}, because the queue is draining: nothing new is admitted"
    if not status.workers:
        return f"{count}, because no worker serves the queue"
    if status.running >= status.slots:
        return f"{count}, because all {status.slots} slots are busy"
    return f"{count}, until a worker claims it, within seconds"


_BANDS = {
    PriorityClass.STALL: "its writer is near a stall",
    PriorityClass.ASKED: "requested",
    PriorityClass.OVER_LIMIT: "its backlog is over the limit",
    PriorityClass.NORMAL: "planned",
}


def _why_wanted(hint: ClaimOffer) -> str:
    """Explain the urgency of a task, and the results of earlier attempts."""
    why = _BANDS[PriorityClass(hint.band)] if hint.band in set(PriorityClass) else f"band {hint.band}"
    return f"{why}; failed {hint.attempts} times" if hint.attempts else why


def show_changed_queue(queue: Queue) -> Shown:
    """Show a queue after a change."""
    largest = "no limit" if queue.largest_bytes is None else f"below {text.size(queue.largest_bytes)}"
    line = f"{queue.state.value}, {largest}, weight {queue.weight}"
    return Shown(queue_document(queue), (Line(line, f"queue {queue.name}:"),))


def show_datasets(
    catalog: Catalog, datasets: Mapping[str, DatasetRule], problems: Mapping[str, Exception]
) -> Shown:
    """Show the rules and the datasets that they name."""
    found = [
        {
            "url": url,
            "pattern": rule.pattern,
            "coordinates": rule.coordinates.value,
            "queue": rule.queue,
            "tenant": rule.tenant_of(url),
        }
        for url, rule in datasets.items()
    ]
    counts = {rule.pattern: 0 for rule in catalog.rules}
    for rule in datasets.values():
        counts[rule.pattern] += 1
    document = {
        "rules": [
            {**rule_document(rule), "settings": _shown_settings(rule), "datasets": counts[rule.pattern]}
            for rule in catalog.rules
        ],
        "datasets": found,
        "tenants": [tenant_document(tenant) for tenant in catalog.tenants],
        "problems": {pattern: str(error) for pattern, error in problems.items()},
    }
    rows = [
        (
            rule.pattern,
            rule.coordinates.value,
            rule.queue or "by size",
            rule.tenant or "–",
            ", ".join(f"{name}={value}" for name, value in _shown_settings(rule).items()) or "–",
            str(counts[rule.pattern]),
        )
        for rule in catalog.rules
    ]
    headings = columns("pattern", "coordinator", "queue", "tenant", "settings", ">found")
    blocks: list[Block] = [Table("Rules", headings, rows, "rules")] if rows else []
    if not rows:
        blocks.append(Line("This fleet has no datasets; add some with `lithify fleet add`."))
    if catalog.tenants:
        blocks.append(_treatments(catalog.tenants))
    if found:
        lines = [
            (str(one["url"]), str(one["queue"] or "by size"), str(one["tenant"] or "–")) for one in found
        ]
        blocks.append(Table("Datasets", columns("=dataset", "queue", "tenant"), lines, "datasets"))
    blocks += [Line(f"{error}", f"{pattern}:", is_bad=True) for pattern, error in problems.items()]
    return Shown(document, tuple(blocks))


def _shown_settings(rule: DatasetRule) -> dict[str, str]:
    return {name: shown_setting(name, value) for name, value in rule.settings.items()}


def show_tenants(tenants: Sequence[CatalogTenant]) -> Shown:
    """Show the tenants that have a treatment of their own."""
    document = {"tenants": [tenant_document(tenant) for tenant in tenants]}
    nothing = Line("No tenant has a weight or limit; `lithify fleet tenant set` sets them.")
    return Shown(document, (_treatments(tenants) if tenants else nothing,))


def _treatments(tenants: Sequence[CatalogTenant]) -> Table:
    rows = [
        (tenant.name, str(tenant.weight), "–" if tenant.most_running is None else str(tenant.most_running))
        for tenant in tenants
    ]
    return Table("Tenants", columns("=tenant", ">weight", ">most running"), rows, "tenants")


def queue_status_document(status: QueueStatus, at_ms: int) -> dict[str, Any]:
    """Return a queue and its contents as a JSON value."""
    hint_ages = [max(0, at_ms - hint.since_ms) for hint in status.hints]
    total = status.total
    ranks = [
        rank(PriorityClass(hint.band), hint.priority)
        for hint in status.hints
        if hint.band in set(PriorityClass)
    ]
    return {
        **queue_document(status.queue),
        "queued": len(status.hints),
        "queued_bytes": status.queued_bytes,
        "running": total.running,
        "slots": status.slots,
        "workers": status.workers,
        "waiting": total.waiting,
        "waiting_bytes": total.waiting_bytes,
        "deferred": total.deferred,
        "resting": status.resting,
        "lowest_priority": min(
            (one for one in (*ranks, total.lowest_priority) if one is not None), default=None
        ),
        "oldest_ms": max((one for one in (*hint_ages, total.oldest_ms) if one is not None), default=None),
        "youngest_ms": min((one for one in (*hint_ages, total.youngest_ms) if one is not None), default=None),
        "backlog_ms": total.backlog_ms,
        "waited": _waited_document(total.waits),
        "is_unserved": status.is_unserved,
        "tenants": [
            {"tenant": tenant, **_amounts_document(amounts)} for tenant, amounts in status.tenants.items()
        ],
    }


def _amounts_document(amounts: Amounts) -> dict[str, Any]:
    said = amounts_document(amounts)
    del said["demand"], said["waits"]
    return {**said, "waited": _waited_document(amounts.waits)}


def _waited_document(waits: Waits) -> dict[str, Any]:
    """Return the waiting times from first seen to claimed, of tasks claimed since the coordinators
    started."""
    return {
        "claimed": waits.count,
        "total_ms": waits.total_ms,
        "bounds_ms": list(BOUNDS_MS),
        "counts": list(waits.counts),
        "p50_ms_at_most": waits.at_most_ms(0.5),
        "p95_ms_at_most": waits.at_most_ms(0.95),
    }


def _queue_table(queues: Sequence[QueueStatus], at_ms: int) -> Table:
    """Return a table narrow enough for a terminal; the document has weights and shares."""
    headings = columns(
        "=queue", "state", ">below", ">queued", ">size", ">oldest", ">waiting", ">busy", ">workers"
    )
    rows = []
    for status in queues:
        queue, oldest_ms = status.queue, max((at_ms - hint.since_ms for hint in status.hints), default=None)
        waiting, workers = str(status.waiting), str(status.workers)
        rows.append(
            (
                queue.name,
                queue.state.value,
                "–" if queue.largest_bytes is None else text.size(queue.largest_bytes),
                str(len(status.hints)),
                text.size(status.queued_bytes),
                text.duration(None if oldest_ms is None else max(0, oldest_ms)),
                f"{waiting} + {status.deferred} deferred" if status.deferred else waiting,
                f"{status.running}/{status.slots}",
                Alarm(workers) if status.is_unserved else workers,
            )
        )
    return Table("Queues", headings, rows, "queues")


def _tenant_tables(queues: Sequence[QueueStatus]) -> Sequence[Table]:
    """Return tables of the tenants with the most waiting work; none if there are no tenants."""
    found = [
        (status.queue.name, tenant, amounts)
        for status in queues
        for tenant, amounts in status.tenants.items()
        if amounts.running or amounts.queued or amounts.waiting or amounts.deferred
    ]
    if all(tenant is None for _, tenant, _ in found):
        return ()
    found.sort(key=lambda one: -one[2].backlog_ms)
    rows = [
        (
            tenant or "(others)",
            queue,
            str(amounts.running),
            str(amounts.queued),
            f"{amounts.waiting} + {amounts.deferred} deferred" if amounts.deferred else str(amounts.waiting),
            text.size(amounts.queued_bytes + amounts.waiting_bytes),
            text.duration(amounts.oldest_ms),
        )
        for queue, tenant, amounts in found[:SHOWN_TENANTS]
    ]
    headings = columns("=tenant", "queue", ">running", ">queued", ">waiting", ">size", ">oldest")
    return (Table("Tenants", headings, rows, "tenants"),)


def _member_document(member: MemberStatus) -> dict[str, Any]:
    seen, says = member.seen, member.says
    return {
        "name": seen.name,
        "role": seen.role.value,
        "is_alive": seen.is_alive,
        "silent_ms": seen.silent_ms,
        "last_ms": seen.last_ms,
        "host": says.host if says is not None else None,
        "version": says.version if says is not None else None,
        "catalog": says.catalog if says is not None else None,
        "datasets": says.datasets if says is not None else None,
        "quarantined": says.quarantined if says is not None else None,
        "queues": sorted(says.load) if says is not None else [],
    }


def _member_row(member: MemberStatus, catalog: int) -> tuple[str, ...]:
    seen, says = member.seen, member.says
    state = "alive" if seen.is_alive else Alarm(f"silent for {text.duration(seen.silent_ms)}")
    if says is None:
        return (seen.name, "–", "–", "–", "–", state)
    if seen.is_alive and says.catalog != catalog:
        state = Alarm(f"alive, with catalog {says.catalog}")
    loads = says.load.values()
    # Queues of one worker share its slots.
    busy = f"{sum(load.total.running for load in loads)}/{max((load.slots for load in loads), default=0)}"
    is_fleet_coordinator = seen.role is FleetRole.COORDINATOR
    return (
        seen.name,
        says.host,
        says.version,
        str(says.datasets) if is_fleet_coordinator else "–",
        "–" if is_fleet_coordinator else busy,
        state,
    )
