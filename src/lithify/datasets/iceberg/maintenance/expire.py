"""One expiry run: expires the snapshots of a table that are not needed, and deletes their files.

1. Collect all needs (`snapshot_pins`) and the snapshots that the policy allows to expire (`expiry_policy`).
   Publish the threshold: the oldest needed time, or the time just after all that the policy expires if that
   is older. It never goes down, stays where it was if a need is unknown, and is published whatever the
   outcome of step 2. If the table records holds or readers that are not in Lithify's folder (`own_state`),
   the run ends before: another program removed them, and their needs are unknown.
2. Collect again: a hold placed in between is either found now, or its owner finds the threshold past it and
   gives up. Record the files that only the expired snapshots name (`pending`), then expire those that the
   policy allows, that are below the threshold and not needed. The commit asserts the table's UUID and every
   ref that was read; if the catalog checks requirements in this process, also that there are no other refs,
   that refs and properties are unchanged, and that no snapshot is gone. It also records in the table that
   files wait. After a conflict, repeat steps 1 and 2 a few times.
3. Delete the files that any run recorded and whose snapshots have been gone for the grace period
   (`expired_files`).

| outcome        | when                                                                     |
|----------------|--------------------------------------------------------------------------|
| EXPIRED        | snapshots or refs were expired                                           |
| NOTHING_TO_DO  | the policy expires nothing that still exists                             |
| HELD           | all that the policy would expire is needed                               |
| MISSING_READER | a registered reader's checkpoint is unreadable, or names expired history |
| UNPUBLISHED    | a registered reader has not begun                                        |
| NO_WATERMARK   | the policy expires nothing at all: `gc.enabled` is false, no snapshots   |
| REF_CHANGED    | a branch or tag was changed or created meanwhile, at each try            |
| LOST_RACE      | another commit came first, at each try                                   |
| REF_LOST       | a branch, tag or rule was made while its snapshots were expired          |
| STATE_LOST     | the table records holds or readers that are not in Lithify's folder      |
| NOT_ALONE      | files wait because another table may need them (`shared_locations`)      |

REF_LOST is possible only with catalogs that check Iceberg's own requirements alone (REST), since none of
these excludes new refs. With them, `expired_files` checks for new refs before it deletes a file, and the
grace period is at least `MIN_UNCHECKED_GRACE_MS`.

Invariants: of the outcomes only EXPIRED, REF_LOST and NOT_ALONE change snapshots. A snapshot that a hold,
reader or ref needs is never expired; a file that any snapshot names is never deleted. After a crash at any
point, the next run finds all remaining work. Runs may overlap. A dry run writes nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, cast

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePartitionStatisticsUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    RemoveStatisticsUpdate,
    TableRequirement,
    TableUpdate,
    ValidatableTableRequirement,
)

from lithify.base.clock import Clock
from lithify.base.errors import Refused, StoreError, VersionConflict
from lithify.base.ids import Ids
from lithify.coordination.expiry_runs import ExpiryRuns
from lithify.coordination.holds import ObjectHolds
from lithify.coordination.thresholds import ThresholdFiles
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.format.publish import commit_to, tries
from lithify.datasets.iceberg.format.table_properties import properties_of
from lithify.datasets.iceberg.io.places import is_plain
from lithify.datasets.iceberg.maintenance.deleting import whole_table
from lithify.datasets.iceberg.maintenance.expired_files import ExpiredFiles
from lithify.datasets.iceberg.maintenance.expiry_policy import (
    Expirable,
    TableRetention,
    and_descendants,
    expirable,
    low_watermark,
    may_expire,
    retention_of,
    rules_of,
)
from lithify.datasets.iceberg.maintenance.history_size import freed_bytes, needed_by_refs
from lithify.datasets.iceberg.maintenance.own_state import (
    LOST_ADVICE,
    FolderIdentity,
    conflicts_told,
    files_change,
    lost_text,
    missing,
    needs_recorded_in,
    recorded_in,
)
from lithify.datasets.iceberg.maintenance.pending import Pending, PendingFiles
from lithify.datasets.iceberg.maintenance.reachable import (
    FileKind,
    NamedFile,
    is_deletable,
    only_named_by,
    statistics_in,
)
from lithify.datasets.iceberg.maintenance.snapshot_pins import Needs, collect_needs
from lithify.store.times import MAX_BEHIND_MS, store_now_ms
from lithify.watermarks.model import BlockReason, Needed, Threshold
from lithify.watermarks.rules import cut, next_threshold

DEFAULT_GRACE_MS = 3_600_000
MIN_UNCHECKED_GRACE_MS = 300_000
"""The minimum if the catalog does not guarantee that no branch or tag was made meanwhile."""
MAX_TRIES = 5
"""How often a run starts over after conflicts."""


class ExpiryOutcome(StrEnum):
    """The outcome of a run; see the module."""

    EXPIRED = "expired"
    NOTHING_TO_DO = "nothing_to_do"
    HELD = "held"
    MISSING_READER = "missing_reader"
    UNPUBLISHED = "unpublished"
    NO_WATERMARK = "no_watermark"
    REF_CHANGED = "ref_changed"
    LOST_RACE = "lost_race"
    REF_LOST = "ref_lost"
    STATE_LOST = "state_lost"
    NOT_ALONE = "not_alone"


DONE = frozenset({ExpiryOutcome.EXPIRED, ExpiryOutcome.NOTHING_TO_DO, ExpiryOutcome.HELD})
"""Outcomes after which nothing remains to be done."""
NEWER = "newer than the store's clock, or than the newest snapshot of main"
"""Why snapshots stay although nothing holds them."""
_NOT_ALLOWED = ExpiryOutcome.NO_WATERMARK, "the table's property gc.enabled is not true"
_REMOVED = "Lithify's folder of the table was removed or replaced meanwhile; run this again"
_OUTCOMES = {
    BlockReason.MISSING_MEMBER: ExpiryOutcome.MISSING_READER,
    BlockReason.UNPUBLISHED: ExpiryOutcome.UNPUBLISHED,
    BlockReason.NO_WATERMARK: ExpiryOutcome.NO_WATERMARK,
    BlockReason.NOTHING_TO_DO: ExpiryOutcome.NOTHING_TO_DO,
    BlockReason.HELD: ExpiryOutcome.HELD,
}


@dataclass(frozen=True, slots=True)
class ExpireOptions:
    """Options of one run."""

    older_than_ms: int | None = None
    """Wall-clock milliseconds; `None`: as the table's properties say."""
    retain_last: int | None = None
    grace_ms: int = DEFAULT_GRACE_MS
    dry_run: bool = False
    accept_loss: bool = False
    """Whether to ignore holds and readers that the table records and the folder does not have."""

    def __post_init__(self) -> None:
        if self.grace_ms < 0:
            raise Refused(f"the grace period is {self.grace_ms} ms; it cannot be negative")


@dataclass(slots=True)
class Expiry:
    """The result of a run, or of a dry run."""

    dry_run: bool
    outcome: ExpiryOutcome = ExpiryOutcome.NOTHING_TO_DO
    why: str = ""
    snapshots: int = 0
    """Remaining snapshots."""
    expired: tuple[int, ...] = ()
    refs: tuple[str, ...] = ()
    """Expired branches and tags."""
    kept: int = 0
    """Snapshots that the policy would expire and that are needed."""
    needed: tuple[Needed, ...] = ()
    """All needs, the oldest first."""
    watermark_ms: int | None = None
    """The published threshold."""
    deleted: Counter[FileKind] = field(default_factory=Counter)
    deleted_bytes: int = 0
    pending: tuple[PendingFiles, ...] = ()
    """Files that wait for their grace period to end."""
    would_delete: tuple[int, int] = (0, 0)
    """Of a dry run: the number of files that only the expired snapshots name, and their bytes."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Outlook:
    """The expected result of a run now, estimated without reading manifests."""

    outcome: ExpiryOutcome
    why: str
    versions: int
    """Existing snapshots."""
    going: int
    going_bytes: int
    """A lower bound of the bytes that would be freed (`history_size`)."""
    staying: int
    """Snapshots older than the table's maximum age that would stay."""
    staying_bytes: int
    """A lower bound of the bytes that these keep."""
    needed: tuple[Needed, ...]
    """All needs, the oldest first."""
    min_kept: int
    """How many of the newest snapshots the table keeps whatever their age."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """Expirable snapshots, by one reading of the needs and the table."""

    table: Table
    policy: Expirable
    needs: Needs
    low_watermark: int | None
    retention: TableRetention
    readers: frozenset[str]
    """The names of the registered readers."""
    state: FolderIdentity | None
    lost: str
    """Recorded state that the folder does not have; empty if nothing is lost."""


class AssertSameHistory(ValidatableTableRequirement):
    """Asserts that the table has exactly these refs, history rules and statistics, at least these snapshots,
    and no further records of holds and readers: new ones are in a folder that was not read. Not part of
    Iceberg's protocol: only for catalogs that check requirements in this process, against the metadata that
    they replace."""

    type: Literal["lithify-assert-same-history"] = "lithify-assert-same-history"
    rules: dict[str, Any]
    statistics: list[list[Any]]
    snapshots: list[int]
    recorded: list[str]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        if base_metadata is None or rules_of(base_metadata) != self.rules:
            raise CommitFailedException("Requirement failed: branches, tags or rules were changed meanwhile")
        if not set(self.snapshots) <= {s.snapshot_id for s in base_metadata.snapshots}:
            raise CommitFailedException("Requirement failed: snapshots were expired meanwhile")
        if not needs_recorded_in(base_metadata) <= set(self.recorded):
            raise CommitFailedException("Requirement failed: holds or readers were recorded meanwhile")
        if _statistics_of(base_metadata) != self.statistics:
            raise CommitFailedException("Requirement failed: statistics were changed meanwhile")


class Expirer:
    """Expires snapshots of one table."""

    def __init__(
        self, dataset: IcebergDataset, clock: Clock, ids: Ids, rng: random.Random | None = None
    ) -> None:
        self._dataset = dataset
        self._clock = clock
        self._rng = rng if rng is not None else random.Random()
        store, folder = dataset.store, dataset.own_folder
        self._thresholds = ThresholdFiles(store, folder, clock, ids, self._rng)
        self._holds = ObjectHolds(store, folder, self._thresholds, clock, ids)
        self._readers = dataset.readers()
        self._pending = Pending(store, folder, clock, ids, self._rng)
        self._files = ExpiredFiles(
            dataset.url, self._pending, self._load, dataset.known_others, self._keep_on_record
        )
        self._runs = ExpiryRuns(store, folder)

    def run(self, options: ExpireOptions | None = None) -> Expiry:
        """Run once. Raise `Refused` if the table must not be changed."""
        options = options if options is not None else ExpireOptions()
        done = Expiry(options.dry_run)
        self._dataset.check_not_moved(self._load())
        for _ in tries(self._clock, self._rng, MAX_TRIES):
            done.outcome, done.why = self._try(options, done)
            if done.outcome not in (ExpiryOutcome.REF_CHANGED, ExpiryOutcome.LOST_RACE):
                break
        if options.dry_run:
            done.pending = self._pending.read()
            if done.pending or done.would_delete[0]:
                self._note_shared(self._files.why_shared(), done)
        else:
            self._delete_files(options, done)
            self._runs.add(done.outcome.value, done.why, self._clock.now_ms())
        return done

    def outlook(self) -> Outlook:
        """Return what a run would do, without writing. Raise `Refused` if the table must not be changed."""
        options = ExpireOptions(dry_run=True)
        self._dataset.check_not_moved(self._load())
        seen = self._look_twice(options)
        metadata, needs = seen.table.metadata, seen.needs
        going, reason = _decide(seen, self._publish(seen, options))
        old = {s.snapshot_id for s in metadata.snapshots if s.timestamp_ms < seen.retention.older_than_ms}
        old = (old | seen.policy.snapshots) - {metadata.current_snapshot_id}
        outcome, why = (
            (ExpiryOutcome.EXPIRED, "") if reason is None else (_OUTCOMES[reason], _why(reason, seen))
        )
        if seen.lost:
            going, (outcome, why) = (
                frozenset(),
                (ExpiryOutcome.STATE_LOST, f"{lost_text(seen.lost)}; {LOST_ADVICE}"),
            )
        if not may_expire(properties_of(metadata)):
            going, (outcome, why) = frozenset(), _NOT_ALLOWED
        freed = freed_bytes(metadata, going)
        by_refs = (n for n in needed_by_refs(metadata) if n.position < seen.retention.older_than_ms)
        return Outlook(
            outcome=outcome,
            why=why,
            versions=len(metadata.snapshots),
            going=len(going),
            going_bytes=freed,
            staying=len(old - going),
            staying_bytes=freed_bytes(metadata, old) - freed,
            needed=tuple(sorted((*needs.by, *by_refs), key=lambda one: (one.position, one.by))),
            min_kept=seen.retention.min_kept,
        )

    def _delete_files(self, options: ExpireOptions, done: Expiry) -> None:
        if done.outcome is ExpiryOutcome.STATE_LOST:
            return
        found = self._files.delete_due(options.grace_ms, lambda: self._now_ms(options))
        done.deleted, done.deleted_bytes, done.pending = found.deleted, found.deleted_bytes, found.pending
        done.notes += found.notes
        self._note_shared(found.shared, done)
        if found.lost:
            done.outcome, done.why = ExpiryOutcome.REF_LOST, found.lost

    def _keep_on_record(self, table: Table, now_ms: int) -> None:
        self._dataset.record.files_for_good(table, self._dataset.begin_state(table), now_ms)

    @staticmethod
    def _note_shared(shared: str, done: Expiry) -> None:
        if shared and done.outcome in DONE:
            done.outcome, done.why = ExpiryOutcome.NOT_ALONE, shared
        elif shared:
            done.notes.append(shared)

    # Steps 1 and 2

    def _try(self, options: ExpireOptions, done: Expiry) -> tuple[ExpiryOutcome, str]:
        seen = self._look_twice(options)
        done.notes = []
        done.snapshots = len(seen.table.metadata.snapshots)
        if not may_expire(properties_of(seen.table.metadata)):
            return _NOT_ALLOWED
        if not seen.table.metadata.snapshots:
            return ExpiryOutcome.NO_WATERMARK, "the table has no snapshots"
        if seen.lost and not options.accept_loss:
            return ExpiryOutcome.STATE_LOST, f"{lost_text(seen.lost)}; {LOST_ADVICE}"
        if seen.lost:
            done.notes.append(f"accepted as lost: {seen.lost}")
        state = seen.state
        if not options.dry_run:
            state = self._dataset.begin_state(seen.table)
            if options.accept_loss:
                self._dataset.record.accept(seen.table, state, seen.readers)
        published = self._publish(seen, options)
        plan = self._look_twice(options)
        if plan.lost and not (options.accept_loss and options.dry_run):
            return ExpiryOutcome.STATE_LOST, f"{lost_text(plan.lost)}; {LOST_ADVICE}"
        if state is not None and plan.state != state:
            return ExpiryOutcome.STATE_LOST, _REMOVED
        if not may_expire(properties_of(plan.table.metadata)):
            return _NOT_ALLOWED
        done.watermark_ms = None if published is None else published.position
        done.needed = plan.needs.by
        done.snapshots = len(plan.table.metadata.snapshots)
        if not options.dry_run:
            now_ms = self._now_ms(options)
            self._holds.remove_over(self._holds.list(), published, now_ms)
        going, reason = _decide(plan, published)
        done.kept = len(plan.policy.snapshots) - len(going)
        if reason is not None:
            return _OUTCOMES[reason], _why(reason, plan)
        if options.dry_run:
            self._foresee(plan, going, done)
            return ExpiryOutcome.EXPIRED, ""
        return self._expire(plan, going, done, options.grace_ms)

    def _look_twice(self, options: ExpireOptions) -> _Plan:
        """Call `_look`, and again if something seems lost: a reader may have been registered after the
        readers were listed and before the table was loaded."""
        seen = self._look(options)
        return self._look(options) if seen.lost else seen

    def _look(self, options: ExpireOptions) -> _Plan:
        """Read the needs, then the table. The time is read first, so that needs renewed meanwhile count."""
        now_ms = self._now_ms(options)
        ledger = self._dataset.stored_ledger()  # uncached: compactions that it does not name pin nothing
        holds, readers = self._holds.list(), self._readers.list()
        table = self._load()
        standings = [self._readers.standing(reader, table) for reader in readers]
        needs = collect_needs(table.metadata, holds, standings, ledger, now_ms)
        properties = properties_of(table.metadata)
        retention = retention_of(properties, now_ms, options.older_than_ms, options.retain_last)
        policy = expirable(table.metadata, retention)
        latest_ms = now_ms + MAX_BEHIND_MS
        names = frozenset(reader.name for reader in readers)
        # Read last: a removal by age takes the folder's identity first, so earlier losses show here.
        state = self._dataset.state.read()
        return _Plan(
            table,
            policy,
            needs,
            low_watermark(table.metadata, policy, latest_ms),
            retention,
            names,
            state,
            missing(recorded_in(table.metadata), state, names, now_ms),
        )

    def _publish(self, plan: _Plan, options: ExpireOptions) -> Threshold | None:
        def change(old: Threshold | None) -> Threshold | None:
            return next_threshold(old, plan.low_watermark, plan.needs.collected)

        return change(self._thresholds.read()) if options.dry_run else self._thresholds.publish(change)

    def _expire(
        self, plan: _Plan, going: frozenset[int], done: Expiry, grace_ms: int
    ) -> tuple[ExpiryOutcome, str]:
        table = plan.table
        what = f"expiring snapshots of {self._dataset.url}"
        entry, recorded = None, tuple[TableUpdate, ...]()
        if going:
            now_ms = store_now_ms(self._dataset.store, self._dataset.time_key)
            own, base = self._only_named_by(plan, going, done), ""
            if not _checks_here(table):
                grace_ms, base = max(grace_ms, MIN_UNCHECKED_GRACE_MS), table.metadata_location
            entry = self._pending.write(own, going, now_ms, grace_ms, base)
            assert plan.state is not None, "the state was begun"
            recorded = files_change(table.metadata, plan.state, now_ms + grace_ms, now_ms).updates()
        if self._dataset.state.read() != plan.state:  # reading the manifests may have taken long
            if entry is not None:
                self._pending.drop(entry)
            return ExpiryOutcome.STATE_LOST, _REMOVED
        try:
            updates = (*updates_of(table.metadata, plan.policy.refs, going), *recorded)
            with conflicts_told(what):
                commit_to(table, updates, requirements_of(table), what)
        except (VersionConflict, StoreError) as error:
            now = self._dataset.load()
            if not self._has_landed(now, plan, going):
                if not isinstance(error, VersionConflict):
                    raise
                if entry is not None:
                    self._pending.drop(entry)
                if rules_of(now.metadata) != rules_of(table.metadata):
                    return (
                        ExpiryOutcome.REF_CHANGED,
                        "branches or tags were changed while snapshots were expired",
                    )
                return ExpiryOutcome.LOST_RACE, "another commit was published first"
        self._dataset.lineage.advance(self._dataset.load())
        done.expired, done.refs = tuple(sorted(going)), plan.policy.refs
        done.snapshots -= len(going)
        return ExpiryOutcome.EXPIRED, ""

    def _has_landed(self, now: Table, plan: _Plan, going: frozenset[int]) -> bool:
        """Return whether the commit seems to have taken effect. If another run expired the same snapshots, it
        has recorded the same files."""
        there = {snapshot.snapshot_id for snapshot in now.metadata.snapshots}
        return there.isdisjoint(going) and now.metadata.refs.keys().isdisjoint(plan.policy.refs)

    def _foresee(self, plan: _Plan, going: frozenset[int], done: Expiry) -> None:
        sizes = [file.size_bytes for file in self._only_named_by(plan, going, done)] if going else []
        done.would_delete = len(sizes), sum(sizes)
        done.expired, done.refs = tuple(sorted(going)), plan.policy.refs
        done.snapshots -= len(going)

    def _only_named_by(self, plan: _Plan, going: frozenset[int], done: Expiry) -> Iterator[NamedFile]:
        with translated(f"reading the snapshots of {self._dataset.url}"):
            yield from _own(only_named_by(plan.table, going), plan.table.metadata, done)

    def _load(self) -> Table:
        return whole_table(self._dataset)

    def _now_ms(self, options: ExpireOptions) -> int:
        if options.dry_run:
            return self._clock.now_ms()
        return store_now_ms(self._dataset.store, self._dataset.time_key)


def _decide(plan: _Plan, published: Threshold | None) -> tuple[frozenset[int], BlockReason | None]:
    """Return the snapshots to expire, or why there are none (pure)."""
    below = cut(published, plan.low_watermark, plan.needs.collected)
    if plan.needs.collected.reason is not None:
        return frozenset(), plan.needs.collected.reason
    going: frozenset[int] = frozenset()
    if isinstance(below, int):
        metadata = plan.table.metadata
        stay = {s.snapshot_id for s in metadata.snapshots if s.timestamp_ms >= below}
        going = plan.policy.snapshots - and_descendants(metadata, plan.needs.snapshots | stay)
    if going or plan.policy.refs:
        return going, None
    if isinstance(below, BlockReason):
        return going, below
    return going, BlockReason.HELD if plan.needs.by else BlockReason.NOTHING_TO_DO


def _why(reason: BlockReason, plan: _Plan) -> str:
    needs = plan.needs
    match reason:
        case BlockReason.MISSING_MEMBER | BlockReason.UNPUBLISHED:
            return f"{needs.why}; nothing is expired until that is known: see `lithify readers list`"
        case BlockReason.HELD:
            return f"needed by {needs.by[0].by}"
        case BlockReason.NOTHING_TO_DO if plan.policy.snapshots:
            return NEWER
        case _:
            return str(reason)


def requirements_of(table: Table) -> tuple[TableRequirement, ...]:
    metadata = table.metadata
    refs = [
        AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": ref.snapshot_id})
        for name, ref in metadata.refs.items()
    ]
    exact: list[Any] = []
    if _checks_here(table):
        exact = [
            AssertSameHistory(
                rules=rules_of(metadata),
                statistics=_statistics_of(metadata),
                snapshots=[snapshot.snapshot_id for snapshot in metadata.snapshots],
                recorded=sorted(needs_recorded_in(metadata)),
            )
        ]
    return cast("tuple[TableRequirement, ...]", (AssertTableUUID(uuid=metadata.table_uuid), *refs, *exact))


def updates_of(
    metadata: TableMetadata, refs: Sequence[str], going: frozenset[int]
) -> tuple[TableUpdate, ...]:
    """Return the commit's updates: remove refs, statistics and snapshots."""
    found: list[TableUpdate] = [RemoveSnapshotRefUpdate.model_validate({"ref-name": name}) for name in refs]
    for update, files in (
        (RemoveStatisticsUpdate, metadata.statistics),
        (RemovePartitionStatisticsUpdate, metadata.partition_statistics),
    ):
        described = sorted({file.snapshot_id for file in files} & going)
        found += [update.model_validate({"snapshot-id": snapshot_id}) for snapshot_id in described]
    if going:
        found.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": sorted(going)}))
    return tuple(found)


def _statistics_of(metadata: TableMetadata) -> list[list[Any]]:
    return sorted([snapshot_id, file.path] for snapshot_id, file in statistics_in(metadata))


def _checks_here(table: Table) -> bool:
    """Return whether the catalog checks requirements in this process."""
    return isinstance(table.catalog, MetastoreCatalog)


def _own(files: Iterable[NamedFile], metadata: TableMetadata, done: Expiry) -> Iterator[NamedFile]:
    """Yield the deletable files, then note in `done` how many others stay."""
    odd = elsewhere = 0
    for file in files:
        if is_deletable(file.path, metadata):
            yield file
        elif is_plain(file.path):
            elsewhere += 1
        else:
            odd += 1
    if odd:
        done.notes.append(
            f"{odd} files are kept because their paths contain a '#', '?', '*', '[' or control character: "
            "such a path can be mistaken for another file's"
        )
    if elsewhere:
        done.notes.append(
            f"{elsewhere} files outside the table's location are kept: other tables may use them"
        )
