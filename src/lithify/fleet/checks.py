"""Findings about a fleet, derived from its visible state. Pure.

| check | warning | problem |
|---|---|---|
| `members` | one is silent, or has another version | no coordinator watches the datasets |
| `catalog` | a member uses an older one | |
| `queue` | it is paused or drains, with work in it | work waits, and no worker serves it |
| `rule` | it names no dataset, or one that another rule names too | it cannot be looked up |
| `tenant` | it has a weight or a limit, and no dataset | |
| `dataset` | its coordinator does not poll it for now, after an error | |
| `clock` | this machine's or a member's differs from the store's | |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from lithify.base.errors import LithifyError
from lithify.fleet.catalog.model import Catalog, DatasetRule, QueueState
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
    yield from _check_clock(status)


def _check_members(status: FleetStatus, datasets: int) -> Iterator[Finding]:
    alive = [member for member in status.members if member.seen.is_alive]
    coordinators = [member for member in alive if member.seen.role is FleetRole.COORDINATOR]
    if datasets and not coordinators:
        yield problem("members", f"nobody watches its {datasets} datasets", f"lithify fleet run {status.url}")
    else:
        yield ok(
            "members",
            f"{len(coordinators)} coordinators and {len(alive) - len(coordinators)} workers are alive",
        )
    if status.members and not status.is_timed:
        says = "how long members have been silent cannot be seen: the store tells its time by what is written"
        do = f"let this user write below {status.url}; the last one to have written counts as alive meanwhile"
        yield warning("members", says, do)
    for member in status.members:
        if not member.seen.is_alive:
            silent_s = member.seen.silent_ms // 1000
            says = f"{member.seen.name} has been silent for {silent_s} s: killed, suspended, or cut off"
            yield warning("members", says, "nothing: others do its work. It is forgotten after an hour")
    versions = Counter(member.says.version for member in alive if member.says is not None)
    if len(versions) > 1:
        found = ", ".join(f"{version} ({count})" for version, count in sorted(versions.items()))
        yield warning("members", f"members are of different versions: {found}", "upgrade the rest")
    number = status.catalog.number
    behind = [m.seen.name for m in alive if m.says is not None and m.says.catalog < number]
    ahead = [m.seen.name for m in alive if m.says is not None and m.says.catalog > number]
    if ahead:
        says = f"{', '.join(ahead[:5])} {'works' if len(ahead) == 1 else 'work'} with a newer catalog than"
        do = f"wait {BEAT_EVERY_MS // 1000} s; if it stays so, restart the member"
        yield warning("catalog", f"{says} {number}: the fleet was restored from a backup or made anew", do)
    elif behind:
        says = f"{', '.join(behind[:5])} {'works' if len(behind) == 1 else 'work'} with an older catalog"
        do = f"wait {BEAT_EVERY_MS // 1000} s; if it stays so, see the member's log"
        yield warning("catalog", f"{says} than {number}", do)
    else:
        yield ok("catalog", f"version {number} is known to all members")


def _check_queues(status: FleetStatus) -> Iterator[Finding]:
    for found in status.queues:
        queue, waiting = found.queue, len(found.hints) + found.waiting + found.deferred
        if waiting and queue.state is not QueueState.ACTIVE:
            do = f"lithify queue resume {status.url} {queue.name}, when it is time"
            yield warning("queue", f"queue {queue.name} is {queue.state.value}, and {waiting} wait in it", do)
        elif waiting and not found.workers:
            do = f"lithify fleet worker --queue {queue.name} {status.url}"
            yield problem("queue", f"nobody serves queue {queue.name}, and {waiting} wait in it", do)
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
            "rule", f"{pattern} cannot be looked up: {error}", "see that the members may read there"
        )
    for rule in catalog.rules:
        if not used[rule.pattern] and rule.pattern not in problems and is_pattern(rule.pattern):
            do = "see that the pattern is right; fewer levels, or another rule that comes first?"
            yield warning("rule", f"{rule.pattern} names nothing of its own", do)
    for (first, other), url in shared.items():
        says = f"{first} and {other} both name {url}; the first is more specific and counts"
        yield warning("rule", says, "make one of them narrower")
    if not (problems or shared):
        yield ok("rule", f"{len(catalog.rules)} rules name {len(datasets)} datasets")


def _check_tenants(catalog: Catalog, datasets: Mapping[str, DatasetRule]) -> Iterator[Finding]:
    having = {rule.tenant_of(url) for url, rule in datasets.items()} if catalog.tenants else set()
    for tenant in catalog.tenants:
        if tenant.name not in having:
            do = "see that the name is right, as `lithify fleet list` has it"
            yield warning("tenant", f"tenant {tenant.name} has a weight or a limit, and no dataset", do)


def _check_datasets(status: FleetStatus) -> Iterator[Finding]:
    alive = [member.says for member in status.members if member.seen.is_alive and member.says is not None]
    for member in alive:
        for url, why in member.troubled.items():
            do = f"lithify doctor {url}; it is looked at again by itself, or now with `lithify fleet wake`"
            yield warning("dataset", f"{url} is left alone: {why}", do)
        if member.quarantined > len(member.troubled):
            says = (
                f"{member.quarantined - len(member.troubled)} more datasets of {member.name} are left alone"
            )
            yield warning("dataset", says, "see its log")


def _check_clock(status: FleetStatus) -> Iterator[Finding]:
    if abs(status.off_ms) > MAX_CLOCK_OFF_MS:
        where = "ahead of" if status.off_ms > 0 else "behind"
        says = f"this machine's clock is {abs(status.off_ms) // 1000} s {where} the store's"
        yield warning("clock", says, "set it; no age that is shown here depends on it")
    for member in status.members:
        if member.says is None or not member.says.at_ms:
            continue
        off_ms = member.says.at_ms - member.seen.last_ms
        if abs(off_ms) > MAX_CLOCK_OFF_MS:
            where = "ahead of" if off_ms > 0 else "behind"
            says = f"the clock of {member.says.host} is {abs(off_ms) // 1000} s {where} the store's"
            do = f"set it; only times that {member.seen.name} tells depend on it"
            yield warning("clock", says, do)
