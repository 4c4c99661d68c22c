"""Checks of a dataset's compactions, the same for all kinds. Pure.

1. A coordinator is alive if compactions are active, and workers that run ranges send heartbeats. Compactions
   that are only possible may wait for the next run, for operators that compact now and then
   (`lithify compact`).
2. No compaction stays in a state longer than its owner needs to notice it.
3. No compaction has failed for good.
4. Clocks that wrote times into the dataset do not run ahead of the store's.
5. Old versions do not pile up.

Ages are differences of the store's times: if the store does not report its time, nothing is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from lithify.protocol.finding import Finding, ok, problem, warning
from lithify.protocol.model import CompactionState
from lithify.protocol.presence import Presence
from lithify.protocol.status import CompactionStatus, Status
from lithify.protocol.transitions import AnyLedger

MAX_AHEAD_MS = 5_000
MAX_STAY_MS = {
    CompactionState.SUBMITTED: 60_000,
    CompactionState.COMPACTED: 60_000,
    CompactionState.SCHEDULED: 300_000,
}
"""After longer than that, the process that has to act is missing: a coordinator polls every few seconds; a
worker may be busy with other work for a while."""
MAX_VERSIONS = 2_000
_SHOWN = 3


def check_compactions(found: Status) -> Iterator[Finding]:
    """Do steps 1 to 3."""
    yield from check_coordinator(found)
    yield from (finding for c in found.compactions for finding in check_compaction(c, found))
    yield from check_failures(found)


def check_coordinator(found: Status) -> Iterator[Finding]:
    """Check that a coordinator is alive where one is needed."""
    coordinator, check = found.coordinator, "coordinator"
    start = f"start one: lithify run {found.url}; or once: lithify compact {found.url}"
    if coordinator.presence is Presence.ALIVE:
        yield ok(check, f"Lithify's coordinator {coordinator.holder} is alive (epoch {coordinator.epoch})")
    elif coordinator.presence is Presence.FOREIGN:
        yield ok(
            check,
            f"{coordinator.system} coordinates (epoch {coordinator.epoch}); whether its process is running "
            "is unknown",
        )
    elif coordinator.presence is Presence.LOST:
        ended = coordinator.lease_ends_ms or found.at_ms
        yield problem(
            check,
            f"the coordinator {coordinator.holder} has been silent for {(found.at_ms - ended) // 1000} s: it "
            "was killed, or it hangs",
            f"{start}; both take over automatically and lose nothing",
        )
    elif coordinator.presence is Presence.UNCLEAR:
        yield warning(
            check,
            f"whether the coordinator {coordinator.holder} is alive is unknown: the store's time can only be "
            "read by writing an object, and nothing may be written here",
            "run this as a user that may write in Lithify's own folder, and without --read-only",
        )
    elif found.compactions:
        yield problem(check, "compactions are under way, and no coordinator is running", start)
    elif found.plan.proposals:
        yield ok(
            check,
            "no coordinator is running, and there is something to compact: run lithify compact once, or "
            "lithify run continuously",
        )
    else:
        yield ok(check, "no coordinator is running, and there is nothing to do")


def check_compaction(c: CompactionStatus, found: Status) -> Iterator[Finding]:
    """Check that a compaction makes progress."""
    if c.is_stale:
        age = "never" if c.heartbeat_age_ms is None else f"{c.heartbeat_age_ms // 1000} s ago"
        says = f"compaction {c.id}: the last heartbeat of its worker {c.worker or '?'} was {age}"
        if found.coordinator.is_alive:
            yield warning(
                "heartbeats",
                says,
                "the coordinator reclaims it at its next poll and another worker continues; if this repeats, "
                "check that worker's log: it is too slow, hangs, or cannot reach the store",
            )
        else:
            yield problem(
                "heartbeats",
                says,
                f"start a coordinator, which reclaims it: lithify run {found.url}",
            )
    stay_ms = found.at_ms - (c.since_ms if c.since_ms is not None else found.at_ms)
    # A live coordinator may hold finished compactions back to commit them together.
    may_wait = c.state is CompactionState.COMPACTED and found.coordinator.is_alive
    is_late = found.store_ms is not None and stay_ms > MAX_STAY_MS.get(c.state, stay_ms)
    if is_late and not may_wait:
        yield problem(
            "stuck",
            f"compaction {c.id} has been {c.state.value} for {stay_ms // 1000} s and waits for {c.waits_for}",
            f"start a worker: lithify worker {found.url}"
            if c.state is CompactionState.SCHEDULED
            else f"check that its coordinator runs; start Lithify's with: lithify run {found.url}",
        )
    if c.attempts:
        yield warning(
            "attempts",
            f"compaction {c.id} of {c.unit} has failed {c.attempts} times; last failure: {c.last_failure}",
            "it is retried after growing pauses and then given up; to give it up now: "
            f"lithify cancel {found.url} {c.id}",
        )


def check_failures(found: Status) -> Iterator[Finding]:
    """Report compactions that failed for good after attempts; not cancelled ones."""
    tried = [f for f in found.failures if f.attempts and not f.is_cancelled]
    for failure in tried[-_SHOWN:]:
        of = f" of {failure.unit}" if failure.unit else ""
        yield problem(
            "given up",
            f"compaction {failure.compaction}{of} was given up after {failure.attempts} attempts: "
            f"{failure.reason}",
            f"remove the cause, then: lithify retry {found.url} {failure.compaction}",
        )


def heartbeats(ledger: AnyLedger | None) -> Iterator[tuple[int, str]]:
    """Return the last heartbeats of workers, by their own clocks, with the workers."""
    for compaction in ledger.active() if ledger is not None else ():
        if compaction.worker is not None:
            yield compaction.worker.last_heartbeat_ms, f"worker {compaction.worker.id}"


def check_clocks(written: Iterable[tuple[int, str]], store_ms: int | None, now_ms: int) -> Finding:
    """Check that no clock is ahead of the store's or, where the store does not report its time, of this
    machine's. `written` has times and the owners of their clocks."""
    latest_ms, who = max(written, default=(0, ""))
    whose = "this machine's" if store_ms is None else "the store's"
    ahead_ms = latest_ms - (now_ms if store_ms is None else store_ms)
    if ahead_ms <= MAX_AHEAD_MS:
        return ok("clocks", "no heartbeat and no data is from the future")
    return warning(
        "clocks",
        f"the clock of {who} is {ahead_ms / 1000:.0f} s ahead of {whose}",
        "synchronise both (NTP): a dead worker whose clock is ahead is noticed too late, and garbage is "
        "kept too long",
    )


def check_versions(counts: Mapping[str, int], url: str, collectors: str) -> Finding:
    """Check that the number of versions of each kind of numbered file shows that they are collected."""
    name, most = max(counts.items(), key=lambda item: item[1])
    if most <= MAX_VERSIONS:
        return ok("versions", ", ".join(f"{count} {what}" for what, count in counts.items()))
    return warning(
        "versions",
        f"there are {most} {name}: garbage is not collected",
        f"run `lithify gc --delete {url}`, and check that {collectors} runs",
    )
