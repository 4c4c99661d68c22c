"""Deletes garbage in a log's output. One collection:

1. List the work folders by compaction. A step writes into `work` before the output, so an id in `work` proves
   that the output's folder of this id is Lithify's.
2. Then read ledger and state. Keep compactions that are active or named by the state, or have objects younger
   than the minimum age, by the store's clock.
3. Delete each other compaction's output first and its work folder last, so that the next collection can
   resume.
4. Delete indexes of objects that are not listed any more, their facts first. While the log cannot be listed,
   keep all.
5. Delete old versions of ledger and state, except the newest `KEPT_VERSIONS`, and notes about ended
   compactions.

Published output is kept for ever, since its readers are unknown.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import compress

from lithify.base.errors import CorruptObject, DatasetNotFound, Refused
from lithify.base.events import GarbageCollected
from lithify.base.ids import Ulid, parse_ulid
from lithify.datasets.kafka.cleaning.kept_indexes import index_key, index_of_object, is_facts
from lithify.datasets.kafka.dataset import LogDataset
from lithify.store.deleting import Deleting
from lithify.store.keys import join
from lithify.store.objects import ObjectMeta, ObjectStore
from lithify.store.times import store_now_ms
from lithify.store.versions import VersionedFiles

KEPT_VERSIONS = 10
KINDS = ("segments", "work", "indexes", "versions", "notes")


@dataclass(slots=True)
class GarbageReport:
    """The deletions of a collection, or those a dry run would make."""

    dry_run: bool
    deleted: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    bytes_deleted: int = 0

    def event(self, url: str) -> GarbageCollected:
        return GarbageCollected(url, self.dry_run, self.deleted, self.left, self.bytes_deleted)


def collect(dataset: LogDataset, *, min_age_ms: int, dry_run: bool) -> GarbageReport:
    """Find garbage, and delete it unless this is a dry run."""
    report, store = GarbageReport(dry_run), dataset.store
    if dataset.ledger() is None:  # Lithify has written nothing yet
        dataset.snapshot()  # raises if there is no log
        return report
    dataset.state()  # raises if the output is another log's
    works = join(dataset.own_folder, "work")
    listed = {
        found: list(store.list(folder))
        for folder in store.folder(works).folders
        if (found := _id(folder)) is not None
    }
    before_ms = store_now_ms(store, dataset.time_key) - min_age_ms
    needed = _needed(dataset)
    with Deleting() as deleting:
        garbage = _Garbage(store, report, deleting)
        for compaction_id, metas in listed.items():
            outputs = list(store.list(join(dataset.output_root, compaction_id)))
            is_young = any(meta.last_modified_ms >= before_ms for meta in (*metas, *outputs))
            for kind, objects in (("segments", outputs), ("work", metas)):
                if compaction_id in needed or is_young:
                    report.left[kind] += len(objects)
                else:
                    garbage.remove(kind, objects)
        _collect_indexes(dataset, garbage, before_ms)
        for files in (dataset.states, dataset.ledger_versions):
            _collect_versions(garbage, files, before_ms)
        for compaction_id in sorted(dataset.journal.compactions() - _active(dataset)):
            if not dry_run:
                dataset.journal.clear(compaction_id)
            report.deleted["notes"] += 1
    return report


class _Garbage:
    """The deletions of a collection; in a dry run they are only counted."""

    def __init__(self, store: ObjectStore, report: GarbageReport, deleting: Deleting) -> None:
        self._store, self.report, self._deleting = store, report, deleting

    def remove(self, kind: str, metas: list[ObjectMeta]) -> list[ObjectMeta]:
        """Delete the objects, and return those that could not be deleted."""
        gone = [True] * len(metas)
        if not self.report.dry_run:
            gone = self._deleting.all(partial(self._store.delete, meta.key) for meta in metas)
        self.report.deleted[kind] += sum(gone)
        self.report.bytes_deleted += sum(meta.size for meta in compress(metas, gone))
        return [meta for meta, is_gone in zip(metas, gone, strict=True) if not is_gone]


def _active(dataset: LogDataset) -> frozenset[Ulid]:
    dataset.ledger_versions.confirmed()  # a stale ledger would make active compactions garbage
    ledger = dataset.ledger()
    return frozenset() if ledger is None else frozenset(one.id for one in ledger.active())


def _needed(dataset: LogDataset) -> frozenset[Ulid]:
    """Read the ledger first: a compaction enters the state before it leaves the ledger."""
    active = _active(dataset)
    dataset.states.confirmed()
    return active | dataset.state().named()


def _collect_indexes(dataset: LogDataset, garbage: _Garbage, before_ms: int) -> None:
    report = garbage.report
    listed = list(dataset.store.list(join(dataset.own_folder, "index")))
    try:
        partitions = dataset.partitions()
    except DatasetNotFound:
        partitions = {}
    except (Refused, CorruptObject):  # a broker writes there, or it is damaged
        report.left["indexes"] += len(listed)
        return
    if any(folder.refusal for folder in partitions.values()):  # it may be listed differently later
        report.left["indexes"] += len(listed)
        return
    needed = {
        index_key(dataset.index_folder(name), segment)
        for name, folder in partitions.items()
        for segment in folder.parts
    }
    old = [
        meta
        for meta in listed
        if meta.last_modified_ms < before_ms and index_of_object(meta.key) not in needed
    ]
    report.left["indexes"] += len(listed) - len(old)
    # Facts mark an index as complete, so the rest is deleted only once they are gone.
    held = garbage.remove("indexes", [meta for meta in old if is_facts(meta.key)])
    whole = {index_of_object(meta.key) for meta in held}
    garbage.remove(
        "indexes",
        [meta for meta in old if not is_facts(meta.key) and index_of_object(meta.key) not in whole],
    )


def _collect_versions(garbage: _Garbage, files: VersionedFiles, before_ms: int) -> None:
    report = garbage.report
    listed = files.listed()
    old = [(number, m) for number, m in listed[:-KEPT_VERSIONS] if m.last_modified_ms < before_ms]
    if old and not report.dry_run:
        files.advance_boundary(old[-1][0])
    report.left["versions"] += len(listed) - len(old)
    garbage.remove("versions", [meta for _, meta in old])


def _id(folder: str) -> Ulid | None:
    try:
        return parse_ulid(folder.rpartition("/")[2])
    except ValueError:
        return None
