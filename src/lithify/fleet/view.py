"""What commands show of a fleet, as neutral blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lithify.fleet.catalog import Catalog, Queue, Rule
from lithify.fleet.catalog_documents import queue_document, rule_document
from lithify.fleet.members import Role
from lithify.fleet.status import FleetStatus, MemberStatus, QueueStatus
from lithify.views import text
from lithify.views.blocks import Alarm, Block, Line, Shown, Table, columns

SHOWN_HINTS = 20


def show_status(found: FleetStatus) -> Shown:
    """The fleet as a whole."""
    document = {
        "url": found.url,
        "at_ms": found.at_ms,
        "catalog": found.catalog.number,
        "members": [_member_document(member) for member in found.members],
        "queues": [queue_status_document(status, found.at_ms) for status in found.queues],
        "rules": len(found.catalog.catalog.rules),
        "wakes": found.wakes,
    }
    blocks: list[Block] = [
        Line(f"catalog {found.catalog.number}, {len(found.catalog.catalog.rules)} rules", found.url)
    ]
    if found.members:
        rows = [_member_row(member, found.catalog.number) for member in found.members]
        headings = columns("=member", "host", "version", ">datasets", ">busy", "state")
        blocks.append(Table("Members", headings, rows, "members"))
    else:
        blocks.append(Line("Nobody serves this fleet; start `lithify fleet run`."))
    blocks.append(_queue_table(found.queues, found.at_ms))
    return Shown(document, tuple(blocks))


def show_queues(queues: Sequence[QueueStatus], at_ms: int) -> Shown:
    """All queues."""
    document = {"queues": [queue_status_document(status, at_ms) for status in queues]}
    return Shown(document, (_queue_table(queues, at_ms),))


def show_queue(status: QueueStatus, at_ms: int) -> Shown:
    """One queue, and what may be claimed in it."""
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
            str(hint.band),
            text.ratio(hint.priority),
            text.size(hint.bytes),
            text.duration(max(0, at_ms - hint.since_ms)),
        )
        for hint in status.hints[:SHOWN_HINTS]
    ]
    headings = columns("=compaction", "dataset", ">band", ">priority", ">size", ">waits for")
    waiting = Table(
        f"The first {len(rows)} of {len(hints)} that may be claimed", headings, rows, "compactions"
    )
    blocks = (_queue_table([status], at_ms), *((waiting,) if rows else ()))
    return Shown({**queue_status_document(status, at_ms), "hints": hints}, blocks)


def show_changed_queue(queue: Queue) -> Shown:
    """A queue as it is after a change."""
    largest = "no limit" if queue.largest_bytes is None else f"below {text.size(queue.largest_bytes)}"
    line = f"{queue.state.value}, {largest}, weight {queue.weight}"
    return Shown(queue_document(queue), (Line(line, f"queue {queue.name}:"),))


def show_datasets(catalog: Catalog, datasets: Mapping[str, Rule], problems: Mapping[str, Exception]) -> Shown:
    """Rules, and what they name."""
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
        "rules": [{**rule_document(rule), "datasets": counts[rule.pattern]} for rule in catalog.rules],
        "datasets": found,
        "problems": {pattern: str(error) for pattern, error in problems.items()},
    }
    rows = [
        (
            rule.pattern,
            rule.coordinates.value,
            rule.queue or "by size",
            rule.tenant or "–",
            ", ".join(f"{name}={value}" for name, value in rule.settings.items()) or "–",
            str(counts[rule.pattern]),
        )
        for rule in catalog.rules
    ]
    headings = columns("pattern", "led by", "queue", "tenant", "settings", ">found")
    blocks: list[Block] = [Table("Rules", headings, rows, "rules")] if rows else []
    if not rows:
        blocks.append(Line("This fleet has no datasets; add some with `lithify fleet add`."))
    if found:
        lines = [
            (str(one["url"]), str(one["queue"] or "by size"), str(one["tenant"] or "–")) for one in found
        ]
        blocks.append(Table("Datasets", columns("=dataset", "queue", "tenant"), lines, "datasets"))
    blocks += [Line(f"{error}", f"{pattern}:", is_bad=True) for pattern, error in problems.items()]
    return Shown(document, tuple(blocks))


def queue_status_document(status: QueueStatus, at_ms: int) -> dict[str, Any]:
    """A queue and what it has, as a JSON value."""
    ages = [max(0, at_ms - hint.since_ms) for hint in status.hints]
    return {
        **queue_document(status.queue),
        "queued": len(status.hints),
        "queued_bytes": status.queued_bytes,
        "running": status.running,
        "slots": status.slots,
        "workers": status.workers,
        "waiting": status.waiting,
        "deferred": status.deferred,
        "lowest_priority": min((hint.priority for hint in status.hints), default=None),
        "oldest_ms": max(ages, default=None),
        "youngest_ms": min(ages, default=None),
        "is_unserved": status.is_unserved,
    }


def _queue_table(queues: Sequence[QueueStatus], at_ms: int) -> Table:
    """Narrow enough for a terminal: weights and shares are in the document."""
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
    busy = f"{sum(load.running for load in loads)}/{max((load.slots for load in loads), default=0)}"
    is_keeper = seen.role is Role.KEEPER
    return (
        seen.name,
        says.host,
        says.version,
        str(says.datasets) if is_keeper else "–",
        "–" if is_keeper else busy,
        state,
    )
