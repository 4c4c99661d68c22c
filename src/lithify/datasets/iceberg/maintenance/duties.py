"""Periodic maintenance of a table by its coordinator, besides compaction.

1. Garbage is collected, each kind as the settings say (`garbage`).
2. If the table has more equality delete files than `lithify.max-equality-delete-files` in its properties or
   the settings, unless that is 0, their rows are deleted by position instead (`rewrite_equality`).
3. If `lithify.rewrite-position-delete-files` is 1, delete files are dropped and merged once that is worth a
   snapshot (`rewrite_deletes`).
4. Likewise manifests are rewritten (`lithify.rewrite-manifests`; `rewrite_manifests`).
5. Likewise unneeded snapshots are expired, and files whose grace period is over are deleted
   (`lithify.expire-snapshots`; `expire`). Otherwise nothing is expired.
6. If `lithify.remove-orphans` is 1, orphan files are deleted (`orphans`) once in each
   `lithify.orphan-interval-seconds`, over all coordinators (`orphan_runs`). A refused run also waits for the
   interval, because it costs a listing of the whole location.

`lithify.skip-parts` excludes files, deletes, manifests or expiry.

Each step runs even if an earlier one failed or was refused. The first failure is raised after the last step,
the others are logged. Garbage comes first, since it may be collected from tables that the other steps must
not touch. A blocked run is logged, and retried after the interval.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from enum import StrEnum
from typing import Any

from lithify.base import events
from lithify.base.clock import Clock
from lithify.base.defects import contained
from lithify.base.errors import CorruptObject, LithifyError, Refused
from lithify.base.events import GarbageCollected, HistoryRun, Observer
from lithify.base.ids import Ids
from lithify.config.sections import CollectionSettings
from lithify.datasets.collecting import Due, PeriodicCollector, sooner
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.maintenance.expire import DEFAULT_GRACE_MS, DONE, ExpireOptions, Expirer, Expiry
from lithify.datasets.iceberg.maintenance.garbage import GarbageKind, collect_due
from lithify.datasets.iceberg.maintenance.orphan_runs import OrphanRuns
from lithify.datasets.iceberg.maintenance.orphans import OrphanOptions, remove_orphans
from lithify.datasets.iceberg.policy import TablePolicy
from lithify.datasets.iceberg.rewriting.rewrite_deletes import DeleteRewriter
from lithify.datasets.iceberg.rewriting.rewrite_equality import EqualityRewriter
from lithify.datasets.iceberg.rewriting.rewrite_manifests import ManifestRewriter

_log = logging.getLogger("lithify")

ORPHANS_INTERVAL = timedelta(hours=1)
"""How often a coordinator checks whether orphan removal is due; failed runs are retried then."""


_Step = Callable[[GarbageCollected], GarbageCollected]


class Duty(StrEnum):
    """Duties other than collecting garbage."""

    REWRITE = "delete files and manifests that are rewritten"
    SNAPSHOT = "snapshots that nobody needs"
    ORPHAN = "orphan files"


def duties(
    dataset: IcebergDataset,
    clock: Clock,
    ids: Ids,
    garbage: Mapping[GarbageKind, CollectionSettings],
    observer: Observer = events.ignore,
) -> PeriodicCollector[Any]:
    """Return the periodic maintenance of one table."""

    def carry_out(due: Due[Any]) -> GarbageCollected:
        done = GarbageCollected(dataset.url, due.dry_run, {}, {}, 0)
        failures: list[LithifyError] = []
        for what, run in _steps(dataset, clock, ids, due, observer, failures):
            try:
                with contained(f"{what} of {dataset.url}"):
                    done = run(done)
            except LithifyError as error:
                if failures:  # the first one is raised below
                    _log.error("%s: %s failed: %s", dataset.url, what, error)
                failures.append(error)
        if not failures:
            return done
        if done.deleted:
            observer(done)  # the steps that succeeded count nevertheless
        raise failures[0]

    usual = CollectionSettings(min_age=timedelta(milliseconds=DEFAULT_GRACE_MS))
    settings: dict[Any, CollectionSettings] = dict(garbage)
    settings[Duty.REWRITE] = settings[Duty.SNAPSHOT] = usual
    settings[Duty.ORPHAN] = usual.model_copy(update={"interval": ORPHANS_INTERVAL})
    return PeriodicCollector(settings, carry_out, clock, observer)


def _steps(
    dataset: IcebergDataset,
    clock: Clock,
    ids: Ids,
    due: Due[Any],
    observer: Observer,
    failures: list[LithifyError],
) -> Iterator[tuple[str, _Step]]:
    """Yield the due steps: each step's name, and a function that adds its outcome to that of earlier steps.
    An error that prevents reading the table or its policy goes to `failures` if a due step needs them."""
    garbage = due.kinds - frozenset(Duty)
    wanted: TablePolicy | None = None
    left_out = frozenset[str]()
    try:
        table = dataset.load()
        left_out = dataset.left_out(table)
        wanted = dataset.policy(table, of_data=False)
    except LithifyError as error:
        if due.kinds != garbage:
            failures.append(error)
    if garbage and "files" not in left_out:
        collection = Due(due.min_age_ms, due.dry_run, garbage)
        yield "collecting the garbage", lambda _: collect_due(dataset, clock, collection)
    if wanted is None:
        return
    if Duty.REWRITE in due.kinds:
        # Each step leaves files for the next: new position delete files, and then manifests.
        if wanted.max_equality_delete_files and "deletes" not in left_out:
            yield "rewriting equality deletes", lambda done: _rewrite_equality(dataset, clock, done)
        if wanted.rewrite_position_delete_files and "deletes" not in left_out:
            yield "rewriting delete files", lambda done: _rewrite_deletes(dataset, clock, done)
        if wanted.rewrite_manifests and "manifests" not in left_out:
            yield "rewriting manifests", lambda done: _rewrite_manifests(dataset, clock, done)
    if wanted.expire_snapshots and Duty.SNAPSHOT in due.kinds and "expiry" not in left_out:
        yield "expiring snapshots", lambda done: _expire(dataset, clock, ids, due, done, observer)
    if wanted.remove_orphans and Duty.ORPHAN in due.kinds:
        yield "removing orphan files", lambda done: _remove_orphans(dataset, clock, ids, wanted, done)


def _rewrite_equality(dataset: IcebergDataset, clock: Clock, done: GarbageCollected) -> GarbageCollected:
    found = EqualityRewriter(dataset, clock).run(unasked=True)
    if not found.is_done:
        _log.warning("%s: no equality deletes were rewritten: %s", dataset.url, found.why)
    elif found.removed:
        _log.info(
            "%s: rewrote %d equality delete files: %d rows are deleted by position now",
            dataset.url,
            len(found.removed),
            found.deleted_rows,
        )
    return done


def _rewrite_deletes(dataset: IcebergDataset, clock: Clock, done: GarbageCollected) -> GarbageCollected:
    found = DeleteRewriter(dataset, clock).run(unasked=True)
    if not found.is_done:
        _log.warning("%s: no delete files were rewritten: %s", dataset.url, found.why)
    elif found.removed:
        _log.info("%s: rewrote %d delete files as %d", dataset.url, len(found.removed), len(found.added))
    return done


def _rewrite_manifests(dataset: IcebergDataset, clock: Clock, done: GarbageCollected) -> GarbageCollected:
    found = ManifestRewriter(dataset, clock).run(unasked=True)
    if not found.is_done:
        _log.warning("%s: no manifests were rewritten: %s", dataset.url, found.why)
    elif found.rewritten:
        _log.info("%s: rewrote %d manifests as %d", dataset.url, found.rewritten, found.added)
    return done


def _expire(
    dataset: IcebergDataset,
    clock: Clock,
    ids: Ids,
    due: Due[Any],
    done: GarbageCollected,
    observer: Observer,
) -> GarbageCollected:
    options = ExpireOptions(grace_ms=due.min_age_ms, dry_run=due.dry_run)
    found = Expirer(dataset, clock, ids).run(options)
    if found.outcome not in DONE:
        _log.warning("%s: no snapshots were expired (%s): %s", dataset.url, found.outcome.value, found.why)
    observer(_event(dataset.url, found))
    return GarbageCollected(
        done.dataset,
        done.dry_run,
        {
            **done.deleted,
            Duty.SNAPSHOT.value: len(found.expired),
            "files of expired snapshots": sum(found.deleted.values()),
        },
        {**done.left, Duty.SNAPSHOT.value: found.snapshots},
        done.bytes_deleted + found.deleted_bytes,
        sooner(done.due_in_ms, due.min_age_ms if any(not one.blocked for one in found.pending) else None),
    )


def _remove_orphans(
    dataset: IcebergDataset, clock: Clock, ids: Ids, policy: TablePolicy, done: GarbageCollected
) -> GarbageCollected:
    runs, now_ms = OrphanRuns(dataset.store, dataset.own_folder), clock.now_ms()
    last, interval_ms = runs.known(), policy.orphan_interval_seconds * 1000
    if last is not None and abs(now_ms - last.deleting_ms) < interval_ms:
        left_ms = interval_ms - abs(now_ms - last.deleting_ms)
        return replace(done, due_in_ms=sooner(done.due_in_ms, left_ms))
    options = OrphanOptions(min_age_ms=policy.orphan_age_seconds * 1000, dry_run=False)
    try:
        found = remove_orphans(dataset, clock, ids, options)
    except (Refused, CorruptObject) as error:
        runs.note_refused(str(error), now_ms - options.min_age_ms, now_ms)
        raise
    runs.note(found, clock.now_ms())
    _log.info("%s: deleted %d orphan files of %d files", dataset.url, found.deleted, found.listed)
    return GarbageCollected(
        done.dataset,
        done.dry_run,
        {**done.deleted, Duty.ORPHAN.value: found.deleted},
        done.left,
        done.bytes_deleted + found.deleted_bytes,
        sooner(done.due_in_ms, interval_ms),
    )


def _event(url: str, found: Expiry) -> HistoryRun:
    least = found.needed[0] if found.needed else None
    waiting = [entry for entry in found.pending if not entry.blocked]
    return HistoryRun(
        url,
        outcome=found.outcome.value,
        why=found.why,
        versions_expired=len(found.expired),
        files_deleted=sum(found.deleted.values()),
        bytes_deleted=found.deleted_bytes,
        pending_files=sum(entry.files for entry in waiting),
        pending_bytes=sum(entry.size_bytes for entry in waiting),
        needed_by="" if least is None else least.by,
        needed_ms=None if least is None else least.position,
    )
