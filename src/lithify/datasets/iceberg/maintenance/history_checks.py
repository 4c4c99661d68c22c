"""Checks of a table's history. Writes nothing.

1. No record of needs is damaged, and no files stay for good because of an accident.
2. The needs of every registered reader are known, and it advances: it has committed within a day, or has read
   everything.
3. The policy keeps some of the history but not everything, its snapshots do expire, and the last run was not
   blocked.
4. If coordinators are to remove orphan files, they do.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from lithify.base.errors import CorruptObject, Refused
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.format.table_properties import properties_of
from lithify.datasets.iceberg.maintenance.expire import DONE
from lithify.datasets.iceberg.maintenance.expiry_policy import expirable, may_expire, retention_of
from lithify.datasets.iceberg.maintenance.orphan_runs import OrphanRuns
from lithify.datasets.iceberg.maintenance.own_state import LOST_ADVICE, lost_text
from lithify.datasets.iceberg.maintenance.readers import ReaderNeed
from lithify.protocol.finding import Finding, ok, problem, warning
from lithify.protocol.retained import Retained
from lithify.views.text import duration, size
from lithify.watermarks.model import BlockReason

STOPPED_MS = 24 * 3_600_000
"""A reader without progress for so long, although there is data to read, was stopped or hangs."""
SHORTEST_MS = 3_600_000
"""A query may take so long, and needs its snapshot until it ends."""
LONGEST_MS = 10 * 365 * 24 * 3_600_000
MOST_KEPT = 100_000
FORGOTTEN = 100
"""So many expirable snapshots indicate that nothing expires them."""


def check_history(dataset: IcebergDataset, retained: Retained, now_ms: int) -> Iterator[Finding]:
    table = dataset.load()
    yield _check_kept(retained)
    if retained.readers:
        yield from _check_readers(dataset, table, now_ms)
    policy = dataset.policy(table, of_data=False)
    is_on = bool(policy.expire_snapshots) and "expiry" not in policy.left_out
    yield _check_policy(table.metadata, is_on, dataset.url, now_ms)
    if policy.remove_orphans:
        yield _check_orphans(dataset, policy.orphan_interval_seconds * 1000, now_ms)
    last = max(retained.runs.items(), key=lambda run: run[1].last_ms, default=None)
    if last is not None and last[0] not in DONE:
        yield warning(
            "expiry",
            f"the last run of {duration(max(now_ms - last[1].last_ms, 0))} ago ended with {last[0]}: "
            f"{last[1].why}",
            f"remove the cause, then: lithify expire {dataset.url}",
        )


def _check_orphans(dataset: IcebergDataset, interval_ms: int, now_ms: int) -> Finding:
    run = OrphanRuns(dataset.store, dataset.own_folder).known()
    look = f"lithify remove-orphans {dataset.url}"
    if run is not None and run.why:
        ago = duration(max(now_ms - run.at_ms, 0))
        return warning(
            "orphans",
            f"a search for orphan files {ago} ago was refused: {run.why}",
            f"remove the cause, then: {look}",
        )
    if run is None or not run.deleting_ms:
        return ok("orphans", "no coordinator has searched for orphan files yet")
    ago_ms = max(now_ms - run.deleting_ms, 0)
    if ago_ms > 2 * interval_ms:
        return warning(
            "orphans",
            f"coordinators should search for orphan files every {duration(interval_ms)}, but the last "
            f"search was {duration(ago_ms)} ago",
            f"check that a coordinator runs, and its log; or once: {look} --delete",
        )
    return ok("orphans", f"{run.deleted} orphan files were deleted {duration(ago_ms)} ago")


def _check_kept(retained: Retained) -> Finding:
    if retained.damaged:
        return problem(
            "history",
            f"it is unknown which history is needed: {'; '.join(retained.damaged)}",
            "restore that object, or delete it if it is not needed; nothing is expired until then",
        )
    if retained.lost:
        return problem("history", f"nothing is expired: {lost_text(retained.lost)}", LOST_ADVICE)
    if retained.blocked:
        return problem(
            "history",
            f"files of expired snapshots are never deleted: {'; '.join(retained.blocked)}",
            "docs/iceberg.md explains how to recover such snapshots",
        )
    past = retained.past
    oldest = f"; the oldest is needed by {retained.needed[0].by}" if retained.needed else ""
    kept = f"{past.versions} snapshots, {size(past.only_history_bytes)} needed only by older ones{oldest}"
    return ok("history", kept)


def _check_readers(dataset: IcebergDataset, table: Table, now_ms: int) -> Iterator[Finding]:
    try:
        standings = dataset.standings(table)
    except CorruptObject:
        return  # reported already
    found = [finding for s in standings if (finding := _reader(s, table.metadata, dataset.url, now_ms))]
    yield from found
    if not found:
        yield ok("readers", f"{len(standings)} readers are registered, and their positions are known")


def _reader(standing: ReaderNeed, metadata: TableMetadata, url: str, now_ms: int) -> Finding | None:
    name = standing.reader.name
    drop = f"lithify readers drop {url} {name}"
    if standing.reason is BlockReason.MISSING_MEMBER:
        return problem(
            "readers",
            f"reader {name} keeps all history: {standing.why}",
            f"repair its checkpoint {standing.reader.checkpoint}; if it is gone for good: {drop}",
        )
    if standing.reason is not None:
        return warning(
            "readers",
            f"reader {name} keeps all history: {standing.why}",
            f"start it; if it is gone for good: {drop}",
        )
    stands = standing.committed_ms if standing.committed_ms is not None else standing.reader.added_ms
    if metadata.current_snapshot_id not in standing.read and now_ms - stands > STOPPED_MS:
        return warning(
            "readers",
            f"reader {name} has read nothing for {duration(now_ms - stands)}, although there is data to read",
            f"start it, so that history can expire; if it is gone for good: {drop}",
        )
    return None


def _check_policy(metadata: TableMetadata, is_on: bool, url: str, now_ms: int) -> Finding:
    """Check the retention policy; `is_on` is whether coordinators expire snapshots."""
    properties = properties_of(metadata)
    try:
        retention = retention_of(properties, now_ms)
    except Refused as error:
        return problem("policy", str(error), "set it to such a number; nothing is expired until then")
    age_ms = now_ms - retention.older_than_ms
    if is_on and not may_expire(properties):
        return warning(
            "policy",
            "the table keeps all of its history for ever: gc.enabled is not true",
            "set gc.enabled to true if no other table uses its files, or lithify.expire-snapshots to 0",
        )
    if age_ms > LONGEST_MS or retention.min_kept > MOST_KEPT:
        return warning(
            "policy",
            f"the table keeps all of its history for ever: {_numbers(age_ms, retention.min_kept)}",
            "if that is not intended, set history.expire.max-snapshot-age-ms and "
            "history.expire.min-snapshots-to-keep to what readers need",
        )
    if age_ms < SHORTEST_MS and retention.min_kept == 1:
        return warning(
            "policy",
            f"the table keeps no history: {_numbers(age_ms, retention.min_kept)}; a query that is running "
            "loses its snapshot with the next commit",
            "set history.expire.max-snapshot-age-ms to longer than the longest query takes",
        )
    if is_on or not may_expire(properties):
        return ok("policy", _numbers(age_ms, retention.min_kept))
    free = len(expirable(metadata, retention).snapshots)
    if free >= FORGOTTEN:
        return warning(
            "policy",
            f"by the policy {free} snapshots can expire, but nothing expires them",
            f"run `lithify expire {url}`, or set the table's property lithify.expire-snapshots to 1",
        )
    return ok("policy", _numbers(age_ms, retention.min_kept))


def _numbers(age_ms: int, min_kept: int) -> str:
    return f"snapshots are kept for {duration(age_ms)}, and at least {min_kept}"
