"""Committing a snapshot on top of a branch, and finding out whether the commit took effect.

1. The commit asserts the table's UUID and the head it was made on. The branch keeps its retention.
2. The snapshot is never older than the table's last change, whatever this machine's clock says: Java refuses
   a history that is not in order.
3. If the catalog's response is lost or a conflict, reload the table. The snapshot was committed if the table
   has it, or if the head names one of its manifests: another writer may have built on it and expired it.
4. A commit to another branch takes the sequence number and the row ids, and leaves the head. A catalog that
   checks this in this process raises `ValueError`, and Java's REST catalog responds 400 (bad request). If the
   number was taken, both are treated as a conflict.
5. After a conflict, the caller reloads the table and tries again, after a pause (`tries`).
6. Until the commit, no snapshot or ledger names new manifests. So the collector keeps those younger than
   `MIN_MANIFEST_AGE_MS`, and a commit is given up after half of that time (`Uncommitted`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pyiceberg.exceptions import BadRequestError
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from lithify.base.backoff import RandomPause
from lithify.base.clock import Clock, monotonic_ms
from lithify.base.errors import StoreError, VersionConflict
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.format.manifest_list import WrittenList
from lithify.datasets.iceberg.format.manifests import manifests_of
from lithify.datasets.iceberg.format.old_metadata import delete_old_metadata
from lithify.datasets.iceberg.io.catalog_requests import asked_commit

MAX_TRIES = 20
"""The most tries of a commit that meets conflicts."""
CONFLICT_PAUSE = RandomPause(first_s=0.1, max_s=3.0)
"""The pause after a conflict."""


MIN_MANIFEST_AGE_MS = 600_000
"""The least age at which the collector deletes a manifest. A commit takes seconds; with a slow catalog,
minutes."""
MAX_COMMIT_MS = MIN_MANIFEST_AGE_MS // 2
"""The most time from the first new manifest to the commit that names it."""


@dataclass(frozen=True, slots=True)
class Uncommitted:
    """The time since when there are new files that no snapshot names, by two clocks: one may stop in a
    suspended machine, the other may be set."""

    since_ms: int
    monotonic_since_ms: int

    @classmethod
    def from_now(cls, clock: Clock) -> Uncommitted:
        return cls(clock.now_ms(), monotonic_ms(clock))

    def is_too_late(self, clock: Clock) -> bool:
        """Return whether the collector could delete the files soon."""
        passed_ms = clock.now_ms() - self.since_ms, monotonic_ms(clock) - self.monotonic_since_ms
        return max(passed_ms) > MAX_COMMIT_MS


@dataclass(frozen=True, slots=True)
class PreparedSnapshot:
    """A snapshot that is written and not committed."""

    branch: str
    snapshot_id: int
    sequence_number: int
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]
    written: tuple[str, ...]
    """Paths of the files written for it alone: its manifest list, and manifests."""
    named: frozenset[str]
    """Paths of all its manifests that no earlier snapshot names."""


def tries(clock: Clock, rng: random.Random, most: int = MAX_TRIES) -> Iterator[int]:
    """Yield the numbers of the tries, from 1, with a pause between them."""
    for number in range(1, most + 1):
        if number > 1:
            clock.sleep_s(CONFLICT_PAUSE.after_s(number - 1, rng))
        yield number


def prepare(
    table: Table,
    branch: str,
    parent: Snapshot,
    snapshot_id: int,
    manifest_list: WrittenList,
    summary: Summary,
    now_ms: int,
    written: Iterable[str],
    named: Iterable[str],
) -> PreparedSnapshot:
    """Return the commit of a snapshot on top of `parent`, the loaded head of the branch."""
    metadata, row_ids = table.metadata, manifest_list.row_ids
    snapshot = Snapshot.model_validate(
        {
            "snapshot-id": snapshot_id,
            "parent-snapshot-id": parent.snapshot_id,
            "manifest-list": manifest_list.path,
            "sequence-number": metadata.next_sequence_number(),
            "timestamp-ms": max(now_ms, metadata.last_updated_ms),
            "summary": summary,
            "schema-id": metadata.current_schema_id,
            "first-row-id": None if row_ids is None else row_ids.first,
            "added-rows": None if row_ids is None else row_ids.count,
        }
    )
    now_at = metadata.refs[branch]
    ref = {
        "snapshot-id": snapshot_id,
        "ref-name": branch,
        "type": SnapshotRefType.BRANCH,
        "min-snapshots-to-keep": now_at.min_snapshots_to_keep,
        "max-snapshot-age-ms": now_at.max_snapshot_age_ms,
        "max-ref-age-ms": now_at.max_ref_age_ms,
    }
    expected = {"snapshot-id": parent.snapshot_id, "ref": branch}
    return PreparedSnapshot(
        branch=branch,
        snapshot_id=snapshot_id,
        sequence_number=metadata.next_sequence_number(),
        requirements=(
            AssertTableUUID(uuid=metadata.table_uuid),
            AssertRefSnapshotId.model_validate(expected),
        ),
        updates=(AddSnapshotUpdate(snapshot=snapshot), SetSnapshotRefUpdate.model_validate(ref)),
        written=tuple(written),
        named=frozenset(named),
    )


def publish(table: Table, prepared: PreparedSnapshot, load: Callable[[], Table]) -> bool:
    """Commit the snapshot and return whether the table has it; `False` after a conflict, when it never will.

    Raise `StoreError` if that is unknown: it may still take effect, so none of its files may be deleted.
    """
    try:
        commit_to(table, prepared.updates, prepared.requirements, f"committing to {'.'.join(table.name())}")
    except VersionConflict:
        return _has_landed(prepared, load())
    except (ValueError, StoreError) as error:
        try:
            now = load()
            landed = _has_landed(prepared, now)
        except StoreError as lookup_error:
            if isinstance(error, ValueError):
                raise
            error.add_note(f"and it is unknown whether it took effect: {lookup_error}")
            raise error from None
        is_refused = isinstance(error, ValueError) or isinstance(error.__cause__, BadRequestError)
        is_taken = now.metadata.next_sequence_number() > prepared.sequence_number
        if not landed and not (is_refused and is_taken):
            raise
        return landed
    return True


def commit_to(
    table: Table, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...], what: str
) -> None:
    """Commit to the table as loaded, and delete old metadata files if its properties ask for it. `what`
    describes the commit in errors. Raise as `asked_commit` does."""
    catalog = table.catalog
    answer = asked_commit(catalog, what, lambda: catalog.commit_table(table, requirements, updates))
    delete_old_metadata(table.io, table.metadata, answer.metadata)


def discard(io: FileIO, paths: Iterable[str]) -> None:
    """Delete manifests and manifest lists that were not committed and never will be."""
    for path in paths:
        with translated(f"deleting {path}"):
            try:
                io.delete(path)
            except FileNotFoundError:
                continue


def _has_landed(prepared: PreparedSnapshot, table: Table) -> bool:
    if table.metadata.snapshot_by_id(prepared.snapshot_id) is not None:
        return True
    head = table.metadata.snapshot_by_name(prepared.branch)
    if head is None:
        return False
    with translated(f"listing the manifests of {'.'.join(table.name())}"):
        return any(manifest.manifest_path in prepared.named for manifest in manifests_of(table.io, head))
