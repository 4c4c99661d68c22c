"""The verdict about a dataset: well, working, failing or unreadable, with the reasons, since when, and the
advice. Pure: it judges the status that `lithify status` prints.

| level        | when                                                                                 |
|--------------|--------------------------------------------------------------------------------------|
| `unreadable` | the last read failed                                                                 |
| `failing`    | a concern is a problem: it does not work, or soon will not                           |
| `working`    | compactions are under way or wait                                                    |
| `well`       | nothing has to be done                                                               |
| `unread`     | it has not been read yet                                                             |

A dataset of any level can have warnings.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from lithify.planning.fleet.overdue import is_near_limit
from lithify.protocol.attempts import FailedAttempt
from lithify.protocol.model import CompactionState
from lithify.protocol.presence import Presence
from lithify.protocol.status import CompactionStatus, Status
from lithify.views import text

MAX_FAILURES = 5
"""Failures that are concerns of their own; the others are counted."""


class DatasetLevel(StrEnum):
    """A dataset's level, the most severe first."""

    FAILING = "failing"
    UNREADABLE = "unreadable"
    UNREAD = "unread"
    WORKING = "working"
    WELL = "well"


@dataclass(frozen=True, slots=True)
class Concern:
    """Something that an operator should know."""

    is_problem: bool
    """Whether something does not work, or soon will not; else it is a warning."""
    says: str
    do: str
    """The advice."""
    command: str = ""
    """The command that does it; empty if there is none."""
    since_ms: int | None = None
    """`None` if unknown."""


@dataclass(frozen=True, slots=True)
class DatasetVerdict:
    """The judgement of a dataset."""

    level: DatasetLevel
    says: str
    """One sentence."""
    concerns: tuple[Concern, ...] = ()
    """Problems first."""


UNREAD = DatasetVerdict(DatasetLevel.UNREAD, "It has not been read yet.")


def command(*words: str) -> str:
    """Return a command of Lithify to copy into a shell."""
    return shlex.join(("lithify", *words))


def unreadable(url: str, error: str, read_ms: int) -> DatasetVerdict:
    """Return the verdict about a dataset whose last read failed; `read_ms` is the last successful one, 0 for
    none."""
    do = "check that it exists, that its store answers, and that this process may read it"
    concern = Concern(True, f"It cannot be read: {error}", do, command("doctor", url), read_ms or None)
    return DatasetVerdict(DatasetLevel.UNREADABLE, concern.says, (concern,))


def judge(url: str, found: Status, *, of_fleet: str = "") -> DatasetVerdict:
    """Judge a status. `of_fleet` is the URL of the fleet that coordinates the dataset; empty if none does."""
    concerns = tuple(sorted(_concerns(url, found, of_fleet), key=lambda concern: not concern.is_problem))
    if concerns and concerns[0].is_problem:
        return DatasetVerdict(DatasetLevel.FAILING, concerns[0].says, concerns)
    if found.compactions or found.plan.proposals:
        return DatasetVerdict(DatasetLevel.WORKING, f"{_work(found)}.", concerns)
    return DatasetVerdict(
        DatasetLevel.WELL, concerns[0].says if concerns else "Nothing has to be done.", concerns
    )


def work_bytes(found: Status) -> int:
    """Return the bytes of all compactions that run or wait, without those already read."""
    active = sum(max(c.cost_bytes - c.done_bytes, 0) for c in found.compactions)
    return active + sum(proposal.cost_bytes for proposal in found.plan.proposals)


def outlook(found: Status, pace: float | None) -> tuple[str, ...]:
    """Return how long things take, one sentence for each; `pace` is the last commit's, in bytes a second."""
    said = []
    running = [c.remaining_ms for c in found.compactions if c.state is CompactionState.RUNNING]
    known = [left for left in running if left is not None]
    if running:
        end = (
            f"in about {text.duration(max(known))}" if known else "at a time that is unknown until bytes move"
        )
        rest = f"; {len(running) - len(known)} more are unknown" if 0 < len(known) < len(running) else ""
        said.append(f"Running compactions end {end}{rest}.")
    if waiting := work_bytes(found):
        took = "takes a time that is unknown before the first commit"
        if pace:
            took = f"takes about {text.duration(1000 * waiting / pace)} at the pace of the last commit"
        said.append(f"All work ({text.size(waiting)}) {took}.")
    if found.stall_ms:
        said.append(f"The writer stalls in {text.duration(found.stall_ms)} if nothing is compacted.")
    return tuple(said) or ("Nothing is under way, and nothing waits.",)


def _work(found: Status) -> str:
    running = sum(c.state is CompactionState.RUNNING for c in found.compactions)
    waiting = len(found.compactions) - running + len(found.plan.proposals)
    parts = [f"{text.count(running, 'compaction')} under way"] if running else []
    parts += [f"{text.count(waiting, 'compaction')} waiting"] if waiting else []
    return f"{' and '.join(parts)}, {text.size(work_bytes(found))} left to read"


def _concerns(url: str, found: Status, of_fleet: str) -> Iterator[Concern]:
    serve = command("fleet", "run", of_fleet) if of_fleet else command("run", url)
    yield from _stalls(found, command("fleet", "worker", of_fleet) if of_fleet else command("worker", url))
    for one in found.compactions:
        yield from _compaction(found, one, serve)
    if not of_fleet:
        yield from _coordinator(url, found, serve)
    yield from _failures(url, found)
    for note in found.plan.stuck:
        yield Concern(True, note, "no later run can compact this, and it grows", command("plan", url))
    if found.plan.refusal:
        do = "mend what the reason names; until then no part of it is compacted"
        yield Concern(False, found.plan.refusal, do, command("plan", url))
    yield from _history(url, found)


def _stalls(found: Status, more_workers: str) -> Iterator[Concern]:
    for one in found.backlog:
        full = f"{one.waiting} of {one.limit} wait in {one.unit}"
        if one.stall_ms == 0:
            yield Concern(True, f"The writer stalls: {full}", "add a worker", more_workers)
        elif is_near_limit(one) and not found.compactions:
            when = "" if one.stall_ms is None else f", and its writer stalls in {text.duration(one.stall_ms)}"
            do = "start a worker if none is free"
            yield Concern(False, f"Near its limit with nothing under way: {full}{when}", do, more_workers)


def _compaction(found: Status, one: CompactionStatus, serve: str) -> Iterator[Concern]:
    name = f"compaction {text.short_id(one.id)} of {one.unit}"
    if one.is_stale:
        silent_ms = one.heartbeat_age_ms
        since_ms = None if silent_ms is None or found.store_ms is None else found.store_ms - silent_ms
        do = "a coordinator gives it to another worker; start one if none runs"
        yield Concern(True, f"The worker of {name} is silent", do, serve, since_ms)
    elif one.attempts:
        tried = f"{text.count(one.attempts, 'attempt')} of {name} failed: {one.last_failure}"
        yield Concern(False, tried, "it is retried; mend the cause if the same reason comes again")


def _coordinator(url: str, found: Status, serve: str) -> Iterator[Concern]:
    """A fleet's coordinators are judged as a whole."""
    coordinator = found.coordinator
    has_work = bool(found.compactions or found.plan.proposals)
    if coordinator.presence is Presence.LOST:
        says = "Its coordinator is silent: it was killed, or hangs"
        yield Concern(has_work, says, "start it again; it takes over", serve, coordinator.lease_ends_ms)
    elif has_work and coordinator.is_alive is False:
        says = f"Nothing coordinates this: {_work(found)}"
        yield Concern(bool(found.compactions), says, "start a service, or compact it once", serve)
    elif found.stall_ms is not None and coordinator.is_alive is False:
        says = f"Nothing coordinates this, and its writer stalls in {text.duration(found.stall_ms)}"
        yield Concern(False, says, "start a service", serve)


def _failures(url: str, found: Status) -> Iterator[Concern]:
    failed = [failure for failure in reversed(found.failures) if not failure.is_cancelled]
    for failure in failed[:MAX_FAILURES]:
        yield _failure(url, failure)
    if len(failed) > MAX_FAILURES:
        says = f"{len(failed) - MAX_FAILURES} more compactions were given up"
        yield Concern(True, says, "read their reasons", command("status", url))


def _failure(url: str, failure: FailedAttempt) -> Concern:
    unit = f" of {failure.unit}" if failure.unit else ""
    tried = f" after {text.count(failure.attempts, 'attempt')}" if failure.attempts else ""
    says = f"Compaction {text.short_id(failure.compaction)}{unit} was given up{tried}: {failure.reason}"
    retry = command("retry", url, text.short_id(failure.compaction))
    return Concern(True, says, advice(failure), retry, failure.at_ms)


def advice(failure: FailedAttempt) -> str:
    """Return the advice for a compaction that was given up."""
    if failure.is_cancelled:
        return "nothing: an operator cancelled it, and it is planned again if there is still a reason"
    if not failure.attempts:
        return "it was invalid before it ran: check the plan, and retry it if its inputs are still there"
    return "mend the cause that the reason names, then retry it; until then its inputs are not compacted"


def _history(url: str, found: Status) -> Iterator[Concern]:
    kept = found.retained
    if kept is None:
        return
    doctor = command("doctor", url)
    if kept.lost:
        says = f"Nothing of its history can expire: records of {kept.lost} are missing"
        yield Concern(True, says, "restore them, or drop the holder", doctor)
    for what in kept.damaged:
        yield Concern(True, f"A record of its history is damaged: {what}", "repair or remove it", doctor)
    for why in kept.blocked:
        yield Concern(False, f"Files are never deleted: {why}", "change the setting that it names", doctor)
