"""Findings about a fleet, derived from its visible state. Pure.

| check | warning | problem |
|---|---|---|
| `members` | one is silent, or has another version | no coordinator watches the datasets |
| `catalog` | a member uses an older one | |
| `queue` | it is paused or drains, with work in it | work waits, and no worker serves it |
| `rule` | it names no dataset, or one that another rule names too | it cannot be looked up |
| `tenant` | it has a weight or a limit, and no dataset | |
| `dataset` | its coordinator does not poll it for now, after an error | |
| `elsewhere` | its work is wanted, but another process coordinates it | |
| `limit` | its writer is near a stall, and nothing is under way | the writer is stalled, or soon will be |
| `clock` | this machine's or a member's differs from the store's | |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from lithify.base.errors import LithifyError
from lithify.fleet.catalog.model import Catalog, Coordinates, DatasetRule, QueueState
from lithify.fleet.catalog.patterns import is_pattern
from lithify.fleet.members import BEAT_EVERY_MS, FleetRole
from lithify.fleet.status import FleetStatus
from lithify.protocol.finding import Finding, ok, problem, warning

MAX_CLOCK_OFF_MS = 60_000


def check_fleet(
    status: FleetStatus, datasets: Mapping[str, DatasetRule], problems: Mapping[str, LithifyError]
) -> Iterator[Finding]:
    """Yield the findings about a fleet with these datasets and these patterns that could not be looked up."""
    yield from _check_members(status, len(datasets))
    yield from _check_queues(status)
    yield from _check_rules(status.catalog.catalog, datasets, problems)
    yield from _check_tenants(status.catalog.catalog, datasets)
    yield from _check_datasets(status)
    yield from _check_overdue(status, datasets)
    yield from _check_clock(status)


def _check_members(status: FleetStatus, datasets: int) -> Iterator[Finding]:
    alive = [member for member in status.members if member.seen.is_alive]
    coordinators = [member for member in alive if member.seen.role is FleetRole.COORDINATOR]
    if datasets and not coordinators:
        yield problem(
            "members", f"no coordinator watches the {datasets} datasets", f"lithify fleet run {status.url}"
        )
    else:
        yield ok(
            "members",
            f"{len(coordinators)} coordinators and {len(alive) - len(coordinators)} workers are alive",
        )
    if status.members and not status.is_timed:
        says = "the time since members' last heartbeats is unknown: reading the store's time needs a write"
        do = f"let this user write below {status.url}; until then the member that wrote last counts as alive"
        yield warning("members", says, do)
    for member in status.members:
        if not member.seen.is_alive:
            silent_s = member.seen.silent_ms // 1000
            says = f"{member.seen.name} has been silent for {silent_s} s: killed, suspended, or cut off"
            do = "nothing: other members take over its work, and it is removed from the list after an hour"
            yield warning("members", says, do)
    versions = Counter(member.says.version for member in alive if member.says is not None)
    if len(versions) > 1:
        found = ", ".join(f"{version} ({count})" for version, count in sorted(versions.items()))
        yield warning("members", f"members run different versions: {found}", "upgrade the older ones")
    number = status.catalog.number
    behind = [m.seen.name for m in alive if m.says is not None and m.says.catalog < number]
    ahead = [m.seen.name for m in alive if m.says is not None and m.says.catalog > number]
    if ahead:
        says = f"{', '.join(ahead[:5])} {'works' if len(ahead) == 1 else 'work'} with a newer catalog than"
        do = f"wait {BEAT_EVERY_MS // 1000} s; if this persists, restart the member"
        yield warning("catalog", f"{says} {number}: the fleet was restored from a backup or recreated", do)
    elif behind:
        says = f"{', '.join(behind[:5])} {'works' if len(behind) == 1 else 'work'} with an older catalog"
        do = f"wait {BEAT_EVERY_MS // 1000} s; if this persists, check the member's log"
        yield warning("catalog", f"{says} than {number}", do)
    else:
        yield ok("catalog", f"all members work with version {number}")


def _check_queues(status: FleetStatus) -> Iterator[Finding]:
    for found in status.queues:
        queue, waiting = found.queue, len(found.hints) + found.waiting + found.deferred
        if waiting and queue.state is not QueueState.ACTIVE:
            do = f"lithify queue resume {status.url} {queue.name}, if it should run again"
            yield warning("queue", f"queue {queue.name} is {queue.state.value}, and {waiting} wait in it", do)
        elif waiting and not found.workers:
            do = f"lithify fleet worker --queue {queue.name} {status.url}"
            yield problem("queue", f"no worker serves queue {queue.name}, and {waiting} wait in it", do)
        else:
            yield ok("queue", f"queue {queue.name}: {found.workers} workers, {waiting} wait")


def _check_rules(
    catalog: Catalog, datasets: Mapping[str, DatasetRule], problems: Mapping[str, LithifyError]
) -> Iterator[Finding]:
    used = Counter(rule.pattern for rule in datasets.values())
    shared: dict[tuple[str, str], str] = {}
    for url in datasets:
        first, *others = [rule.pattern for rule in catalog.rules_for(url) if is_pattern(rule.pattern)] or [""]
        for other in others:
            shared.setdefault((first, other), url)
    for pattern, error in problems.items():
        yield problem(
            "rule", f"{pattern} cannot be resolved: {error}", "check that the members may read there"
        )
    for rule in catalog.rules:
        if not used[rule.pattern] and rule.pattern not in problems and is_pattern(rule.pattern):
            do = "check the number of levels of the pattern, and whether more specific rules match the same"
            yield warning("rule", f"no dataset uses the rule {rule.pattern}", do)
    for (first, other), url in shared.items():
        says = f"{first} and {other} both match {url}; the first is more specific and applies"
        yield warning("rule", says, "make one of them narrower")
    if not (problems or shared):
        yield ok("rule", f"{len(catalog.rules)} rules match {len(datasets)} datasets")


def _check_tenants(catalog: Catalog, datasets: Mapping[str, DatasetRule]) -> Iterator[Finding]:
    having = {rule.tenant_of(url) for url, rule in datasets.items()} if catalog.tenants else set()
    for tenant in catalog.tenants:
        if tenant.name not in having:
            do = "check the name against `lithify fleet list`"
            yield warning("tenant", f"tenant {tenant.name} has a weight or a limit, but no dataset", do)


def _check_datasets(status: FleetStatus) -> Iterator[Finding]:
    alive = [member.says for member in status.members if member.seen.is_alive and member.says is not None]
    for member in alive:
        for url, why in member.troubled.items():
            do = f"lithify doctor {url}; it is retried automatically, or now with `lithify fleet wake`"
            yield warning("dataset", f"{url} is quarantined: {why}", do)
        if member.quarantined > len(member.troubled):
            says = (
                f"{member.quarantined - len(member.troubled)} more datasets of {member.name} are quarantined"
            )
            yield warning("dataset", says, "check its log")


def _check_overdue(status: FleetStatus, datasets: Mapping[str, DatasetRule]) -> Iterator[Finding]:
    found = status.overdue
    for one in found:
        if one.near_limit:
            says = f"{one.url} is near its limit, and nothing is under way: {one.near_limit}"
            do = f"lithify plan {one.url}; lithify fleet status {status.url} shows whether workers are free"
            yield (problem if one.is_stalling else warning)("limit", says, do)
        if one.elsewhere:
            says = f"{one.url}: work is wanted, but coordinated elsewhere: {one.elsewhere}"
            yield warning("elsewhere", says, _how_to_coordinate(one.url, datasets.get(one.url), status.url))
    elsewhere, near_limit = status.overdue_count
    more = (("elsewhere", elsewhere, "elsewhere"), ("limit", near_limit, "near_limit"))
    for check, count, name in more:
        unnamed = count - sum(bool(getattr(one, name)) for one in found)
        if unnamed > 0:
            yield warning(check, f"{unnamed} more datasets of this kind", "see the coordinators' logs")


def _how_to_coordinate(url: str, rule: DatasetRule | None, fleet: str) -> str:
    """Advise on a dataset that the fleet does not coordinate."""
    if rule is not None and rule.coordinates is Coordinates.OWNER:
        return (
            f"start the owner's coordinator, or add {rule.pattern} again without --coordinated-by, so that "
            "the fleet coordinates it"
        )
    pattern = url if rule is None else rule.pattern
    return (
        "if no process of the other system coordinates it any more (SlateDB: all are opened with "
        f"compactor_options null), lithify fleet take-over {fleet} '{pattern}'; else add it with "
        "--coordinated-by owner"
    )


def _check_clock(status: FleetStatus) -> Iterator[Finding]:
    if abs(status.off_ms) > MAX_CLOCK_OFF_MS:
        where = "ahead of" if status.off_ms > 0 else "behind"
        says = f"this machine's clock is {abs(status.off_ms) // 1000} s {where} the store's"
        yield warning("clock", says, "synchronise it (NTP); no age shown here depends on it")
    for member in status.members:
        if member.says is None or not member.says.at_ms:
            continue
        off_ms = member.says.at_ms - member.seen.last_ms
        if abs(off_ms) > MAX_CLOCK_OFF_MS:
            where = "ahead of" if off_ms > 0 else "behind"
            says = f"the clock of {member.says.host} is {abs(off_ms) // 1000} s {where} the store's"
            do = f"synchronise it (NTP); only times that {member.seen.name} reports depend on it"
            yield warning("clock", says, do)
