"""Checks a log: its existence, compactions and group. For a topic in a broker's bucket also whether the
broker can read merged objects, and whether deletions arrive there.

A group (`members.py`) keeps tombstones and markers until every member is past them. A member that holds up
the others for `FROZEN_MS` is probably gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from lithify.base.errors import DatasetNotFound, LithifyError, Refused
from lithify.datasets.kafka.buckets.live_topic import LEAST_BUILD, build_order
from lithify.datasets.kafka.dataset import LogDataset
from lithify.datasets.kafka.layouts.objects import count_covered
from lithify.datasets.kafka.model import LogSnapshot
from lithify.datasets.kafka.settings import KafkaSettings
from lithify.datasets.kafka.state import Step
from lithify.protocol.checks import check_compactions
from lithify.protocol.finding import Finding, ok, problem, warning
from lithify.protocol.status import Status
from lithify.views import text
from lithify.views.groups import WORDS
from lithify.watermarks.groups import GroupRole, waiting

FROZEN_MS = 7 * 86_400_000


def check_log(
    open_dataset: Callable[[], LogDataset],
    find: Callable[[LogDataset], Status],
    now_ms: int,
    settings: KafkaSettings,
) -> Iterator[Finding]:
    """Yield findings; the first one says whether there is a sound log at all."""
    try:
        dataset = open_dataset()
        found = find(dataset)
    except LithifyError as error:
        is_none = isinstance(error, DatasetNotFound)
        name = "name a folder of segments, such as orders-0, or a folder of partitions"
        yield problem("log", str(error), name if is_none else "correct that, and run lithify doctor again")
        if settings.live and settings.broker_build is not None:
            yield from _check_build(settings.broker_build)
        return
    partitions = found.snapshot.partitions.values()
    segments = sum(len(folder.segments) for folder in partitions)
    what = f"{text.count(len(partitions), 'partition')}, {text.count(segments, 'segment')}"
    if dataset.refusal is not None:
        yield warning("log", f"{what}; it {dataset.refusal}", "see lithify plan")
        return
    yield ok("log", what)
    if any(folder.topic for folder in partitions):
        yield from _check_build(settings.broker_build)
        yield from _check_deletions(dataset, found.snapshot)
    yield from _check_committed(found.snapshot)
    yield from _check_refused(found.snapshot)
    yield from check_compactions(found)
    yield from _check_partitions(found)
    yield from _check_group(dataset, found.snapshot, now_ms)


def _check_build(build: str | None) -> Iterator[Finding]:
    said = f"set kafka.broker_build to its build; it must be {LEAST_BUILD} or later"
    if build is None:
        yield warning(
            "broker",
            f"the broker's build is not configured; builds before {LEAST_BUILD} skip records for a consumer "
            "that starts inside a merged object",
            said,
        )
        return
    try:
        is_old = build_order(build) < build_order(LEAST_BUILD)
    except Refused as error:
        yield problem("broker", str(error), said)
        return
    if is_old:
        yield problem(
            "broker",
            f"a broker of build {build} skips records for a consumer that starts inside a merged object",
            f"upgrade the cluster before anything is compacted, and {said}",
        )
    else:
        yield ok("broker", f"build {build} reads merged objects from every offset")


def _check_deletions(dataset: LogDataset, snapshot: LogSnapshot) -> Iterator[Finding]:
    """Find objects covered by a merged one that no publication is about to delete: a replication without
    deletions leaves them. It also leaves objects of which nothing was kept; those cannot be recognized."""
    for name, folder in snapshot.partitions.items():
        known = snapshot.round(name)
        if known is not None and known.next_step is Step.PUBLISH:
            continue
        covered = count_covered(dataset.store, folder.segments)  # a topic's source is in the same bucket
        if covered:
            yield problem(
                "deletions",
                f"{name}: {covered:,} of {len(folder.segments):,} objects lie within the offsets of a "
                "merged object, although no publication is in progress: either the replication of this "
                "bucket skips deletions, so deleted keys may reappear, or Lithify's state next to the topic "
                "was removed",
                "let the replication include deletions, and copy the topic again; a compaction removes the "
                "covered objects, but not other objects that were deleted elsewhere",
            )


def _check_committed(snapshot: LogSnapshot) -> Iterator[Finding]:
    for name, folder in snapshot.partitions.items():
        if not folder.committed.is_known:
            says = f"{name}: {folder.committed.limit}"
            yield warning("high watermark", says, "start the broker, and stop it cleanly")


def _check_refused(snapshot: LogSnapshot) -> Iterator[Finding]:
    for name, folder in snapshot.partitions.items():
        if folder.refusal:
            yield warning("partition", f"{name} is not compacted: {folder.refusal}", "see lithify plan")
        found = snapshot.round(name)
        if found is not None and found.open_transaction is not None:
            says = f"{name}: {found.open_transaction}"
            yield warning("transactions", says, "until then nothing after it is compacted")


def _check_partitions(found: Status) -> Iterator[Finding]:
    """Find partitions whose last compaction failed at the first attempt, as with a damaged segment. Such a
    failure is not retried and is reported nowhere else."""
    rounds = found.snapshot.state.rounds
    last = {one.unit: one for one in found.failures if not (one.attempts or one.is_cancelled)}
    for name in found.snapshot.partitions:
        failure, done = last.get(name), rounds[name].done if name in rounds else ()
        if failure is not None and not any(step > failure.compaction for step in done):
            yield warning(
                "partition",
                f"{name}: its last compaction failed: {failure.reason}",
                f"remove the cause, then compact it again: lithify compact {found.url}",
            )


def _check_group(dataset: LogDataset, snapshot: LogSnapshot, now_ms: int) -> Iterator[Finding]:
    member, group = dataset.member, snapshot.group
    if member is None or group is None:
        return
    try:
        member.check(group, dataset.source_url)
    except Refused as error:
        yield problem("group", str(error), "nothing is compacted until then")
        return
    if group.expected:
        yield warning(
            "group",
            f"{', '.join(sorted(group.expected))} {_have(group.expected)} not joined the group yet, so no "
            "copy removes tombstones or markers",
            "compact these copies once, so that they join, or if one is gone for good: lithify group leave "
            "GROUP NAME",
        )
    for partition, both in sorted(group.differing.items()):
        yield problem(
            "group",
            f"partition {partition}: {' and '.join(both)} have different keys at the same offset, so they "
            "are not copies of one log with the same offsets; nothing is removed",
            "remove the copy that MirrorMaker or Replicator has written: lithify group leave GROUP NAME",
        )
    if not member.is_in(group, snapshot.state):
        try:
            member.check_offsets(snapshot.state)
        except Refused as error:
            yield problem("group", str(error), "tombstones and markers are kept until then")
            return
        yield warning(
            "group",
            f"this log is not a member of the group as {member.name} yet; tombstones and markers are kept",
            "compact it once, so that it joins; if it is too late to join, copy it again from a member",
        )
        return
    yield ok("group", f"{member.name} is one of {text.count(len(group.members), 'member')}")
    silent = [name for name, one in group.members.items() if one.role is GroupRole.COPY and not one.marks]
    for name in sorted(silent):
        yield warning(
            "group",
            f"the copy {name} has not reported its position yet, so no copy removes anything",
            f"compact it, or if it is gone for good: lithify group leave GROUP {name}",
        )
    for one in waiting(group):
        age_ms = 0 if one.since_ms is None else now_ms - one.since_ms
        if age_ms >= FROZEN_MS and one.by not in silent:
            yield warning(
                "group",
                f"partition {one.partition}: {WORDS[one.track]} from offset {one.position:,} on have waited "
                f"for {one.by} for {text.duration(age_ms)}",
                f"make sure that {one.by} continues, or if it is gone for good: lithify group leave GROUP "
                f"{one.by}",
            )


def _have(names: Collection[str]) -> str:
    return "has" if len(names) == 1 else "have"
