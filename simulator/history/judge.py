"""The judge: sees every commit, every deletion and what is written to the store, and knows what must hold
(`rules`).

What somebody may rely on begins when the call that promised it has returned: a hold is kept from then on
until its lease ends by the store's clock, a reader from when it is registered. A reader that had not begun
then is kept from the next run on: nobody could compare its position with the watermark.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import RemoveSnapshotRefUpdate, TableUpdate

from lithify.coordination.holds import Placed
from lithify.coordination.thresholds import decode
from lithify.datasets.iceberg.documents import LEDGERS
from lithify.datasets.iceberg.maintenance.expire import MIN_UNCHECKED_GRACE_MS
from lithify.datasets.iceberg.maintenance.own_state import FOREVER_MS, recorded_in
from simulator.core.outcome import Violation
from simulator.history import rules
from simulator.history.lake import ROOT
from simulator.history.world import Process, World

_BEGINNING = -1


@dataclass(slots=True)
class _Checkpoint:
    """What a checkpoint folder says, as it was written."""

    initial: int | None = None
    offsets: dict[int, int] = field(default_factory=dict)
    committed: int = -1
    """The number of the last batch."""

    @property
    def stands_on(self) -> int | None:
        return self.initial if self.committed < 0 else self.offsets[self.committed]


@dataclass(slots=True)
class _Reader:
    since_ms: int
    was_begun: bool
    initial: int | None
    """Where it began, if it may need that again and it was there when it was registered."""


class Judge:
    """Watches; raises `Violation`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._held: dict[str, Placed] = {}
        """Holds that were accepted, by their tokens."""
        self._since_ms: dict[str, int] = {}
        """When each was."""
        self._readers: dict[str, _Reader] = {}
        self._checkpoints: dict[str, _Checkpoint] = {}
        self._compactions: dict[str, tuple[int, int]] = {}
        """The active ones of the ledger: what each was planned on, and since when it is there."""
        self.watermark = 0
        """The highest that was published."""
        self._names: dict[int, frozenset[str]] = {}
        """What each snapshot names that was ever committed."""
        self._named: Counter[str] = Counter()
        """How many snapshots of the table name a file."""
        self._gone_ms: dict[str, int] = {}
        """Since when no snapshot names a file that some have named."""
        self._removed_ms: int | None = None
        """When Lithify's folder was removed."""
        self._removed: set[str] = set()
        """The tokens of the holds that went with it."""
        self._excused: set[str] = set()
        """Files that may be left: what waited for them to be deleted was in that folder."""
        self._lost: set[int] = set()
        """Snapshots that went with a branch or tag, where the catalog could not prevent it."""
        self._add(world.lake.metadata, {s.snapshot_id for s in world.lake.metadata.snapshots})

    # What is removed

    @property
    def was_removed(self) -> bool:
        """Whether Lithify's folder was removed, or a part of it."""
        return self._removed_ms is not None

    def removed(self, keys: Sequence[str]) -> None:
        """These objects were. Promises stay; what is not promised begins anew."""
        self._removed_ms = self._world.now_ms
        self._removed = {key.rpartition("~")[2].removesuffix(".json") for key in keys if "~" in key}
        self._excused.update(self._gone_ms)
        self._compactions.clear()
        self.watermark = 0
        if all(until_ms != FOREVER_MS for until_ms in recorded_in(self._metadata).files.values()):
            self._lost.clear()

    def accepted(self) -> None:
        """A person says that what is in the folder now is all there is."""
        there = {meta.key.rpartition("/")[2] for meta in self._world.objects.list(f"{ROOT}/_lithify")}
        tokens = {name.partition("~")[2].removesuffix(".json") for name in there}
        self._held = {token: placed for token, placed in self._held.items() if token in tokens}
        self._readers = {n: one for n, one in self._readers.items() if f"{n}.json" in there}
        self._lost.clear()

    @property
    def _metadata(self) -> TableMetadata:
        return self._world.lake.metadata

    def _was_surprised(self, began_ms: int) -> bool:
        """Whether a run began before the folder was removed."""
        return self._removed_ms is not None and began_ms <= self._removed_ms

    def _is_unseen(self, since_ms: int, began_ms: int) -> bool:
        """Whether a promise was made after the folder was removed, which a run did not see that began before.
        A catalog that asserts nothing lets its commit pass."""
        is_surprised = not self._world.scenario.is_exact and self._was_surprised(began_ms)
        return is_surprised and since_ms >= (self._removed_ms or 0)

    # What is promised

    def held(self, placed: Placed) -> None:
        """A hold was accepted, or renewed."""
        self._held[placed.token] = placed
        self._since_ms.setdefault(placed.token, self._world.now_ms)

    def given_up(self, placed: Placed) -> None:
        self._held.pop(placed.token, None)

    def has_lapsed(self, placed: Placed, until_ms: int) -> bool:
        """Whether a renewal may be refused: it comes too late, or the hold was removed."""
        return placed.token in self._removed or self._world.now_ms >= until_ms

    def registered(self, name: str, is_continuous: bool, *, is_begun: bool) -> None:
        """A reader was registered."""
        initial = self._checkpoint(name).initial
        there = {snapshot.snapshot_id for snapshot in self._world.lake.metadata.snapshots}
        needs_initial = not is_continuous and initial in there
        reader = _Reader(self._world.now_ms, is_begun, initial if needs_initial else None)
        self._readers[name] = reader

    def dropped(self, name: str) -> None:
        self._readers.pop(name, None)

    def is_owed(self, name: str) -> bool:
        """Whether a registered reader has to find everything."""
        return name in self._readers and self._readers[name].was_begun

    # What is written

    def wrote(self, process: Process, key: str, data: bytes) -> None:
        folder, _, name = key.rpartition("/")
        if key.startswith("checkpoints/"):
            self._wrote_checkpoint(key.split("/")[1:], data)
        elif folder.endswith("/watermark") and folder.startswith(ROOT):
            position = decode(data, key).position
            if position < self.watermark:
                text = f"{process.name} publishes {position} in {name} after {self.watermark}"
                raise self._world.fail(rules.WATERMARK, text)
            self.watermark = position
        elif folder.endswith("/ledger") and folder.startswith(ROOT):
            now_ms = self._world.now_ms
            self._compactions = {
                c.id: self._compactions.get(c.id, (c.spec.snapshot_id, now_ms))
                for c in LEDGERS.decode(data, key).active()
            }

    def _wrote_checkpoint(self, path: list[str], data: bytes) -> None:
        checkpoint = self._checkpoint(path[0])
        if path[1] == "commits":
            checkpoint.committed = int(path[2])
            return
        snapshot_id: int = json.loads(data.decode().splitlines()[-1])["snapshot_id"]
        if path[1] == "offsets":
            checkpoint.offsets[int(path[2])] = snapshot_id
        else:
            checkpoint.initial = snapshot_id

    def _checkpoint(self, name: str) -> _Checkpoint:
        return self._checkpoints.setdefault(name, _Checkpoint())

    # What is committed

    def committed(
        self,
        process: Process,
        began_ms: int,
        before: TableMetadata,
        after: TableMetadata,
        updates: tuple[TableUpdate, ...],
    ) -> None:
        """A commit took effect; of an expiry, `began_ms` is when its run began."""
        there, now_there = ({s.snapshot_id for s in m.snapshots} for m in (before, after))
        gone = there - now_there
        self._add(after, now_there - there)
        if process.kind in _RUNS:
            dropped = {u.ref_name for u in updates if isinstance(u, RemoveSnapshotRefUpdate)}
            self._check_refs(process, began_ms, before, after, dropped, gone)
        if not gone:
            return
        self._world.count("event: expiry took effect")
        if process.kind in ("coordinator", "finisher"):
            self._check_policy(process, before, gone)
        self._check_needed(process, began_ms, before, gone)
        for snapshot_id in gone:
            self._remove(snapshot_id)
        if self._was_surprised(began_ms):
            self._excused.update(path for path in self._gone_ms if self._world.now_ms == self._gone_ms[path])

    def _check_refs(
        self,
        process: Process,
        began_ms: int,
        before: TableMetadata,
        after: TableMetadata,
        dropped: set[str],
        gone: set[int],
    ) -> None:
        for name, ref in before.refs.items():
            if name in after.refs:
                continue
            snapshot = before.snapshot_by_id(ref.snapshot_id)
            assert snapshot is not None
            age_ms = self._world.now_ms - snapshot.timestamp_ms
            if name in dropped and ref.max_ref_age_ms is not None and age_ms > ref.max_ref_age_ms:
                continue
            if name == "main" or self._world.scenario.is_exact or name in dropped:
                raise self._world.fail(rules.REFS, f"{process.name} expires what {name} names: {ref}")
            self._world.count("event: a ref was lost")
            if not self._was_surprised(began_ms):
                self._lost.update(gone if ref.snapshot_ref_type != SnapshotRefType.TAG else {ref.snapshot_id})

    def _check_policy(self, process: Process, before: TableMetadata, gone: set[int]) -> None:
        """What the rules of the table keep, as its documentation says. A catalog that checks nothing cannot
        promise it of a branch that was made meanwhile."""
        scenario, world = self._world.scenario, self._world
        by_id = {snapshot.snapshot_id: snapshot for snapshot in before.snapshots}
        for name, ref in before.refs.items():
            if ref.snapshot_ref_type == SnapshotRefType.TAG or (name != "main" and not scenario.is_exact):
                continue
            if ref.max_ref_age_ms is not None:
                continue  # it may have been too old itself
            least = scenario.min_kept if ref.min_snapshots_to_keep is None else ref.min_snapshots_to_keep
            now: int | None = ref.snapshot_id
            for number in range(len(by_id)):
                if now is None or now not in by_id:
                    break
                age_ms = world.now_ms - by_id[now].timestamp_ms
                if number >= least and age_ms >= scenario.max_age_ms:
                    break
                if now in gone:
                    text = f"{process.name} expires {now}, number {number} of {name}, {age_ms} ms old"
                    raise world.fail(rules.POLICY, text)
                now = by_id[now].parent_snapshot_id

    def _check_needed(self, process: Process, began_ms: int, before: TableMetadata, gone: set[int]) -> None:
        now_ms, fail = self._world.now_ms, self._world.fail
        for token in list(self._held):
            placed = self._held[token]
            until_ms = placed.hold.until_ms
            if until_ms is None or now_ms >= until_ms:
                del self._held[token]
            elif self._is_unseen(self._since_ms[token], began_ms):
                continue
            elif lost := gone & _and_after(before, placed.about["snapshot_id"]):
                whose = f"hold {placed.name} of {placed.hold.owner}"
                text = f"{process.name} expires {min(lost)}, which {whose} keeps"
                raise fail(rules.HOLDS, text)
        for name, reader in self._readers.items():
            if not reader.was_begun and began_ms <= reader.since_ms:
                continue
            if self._is_unseen(reader.since_ms, began_ms):
                continue
            if lost := gone & self._needs(name, reader, before, gone):
                raise fail(rules.READERS, f"{process.name} expires {min(lost)}, which {name} needs")
        for compaction_id, (snapshot_id, since_ms) in self._compactions.items():
            if since_ms < began_ms and gone & _and_after(before, snapshot_id):
                text = f"{process.name} expires {snapshot_id}, on which {compaction_id} was planned"
                raise fail(rules.COMPACTED, text)

    def _needs(self, name: str, reader: _Reader, before: TableMetadata, gone: set[int]) -> set[int]:
        stands_on = self._checkpoint(name).stands_on
        if stands_on is None or stands_on == _BEGINNING:
            return gone
        needed = _and_after(before, stands_on)
        return needed if reader.initial is None else needed | _and_after(before, reader.initial)

    def _add(self, metadata: TableMetadata, new: set[int]) -> None:
        for snapshot in metadata.snapshots:
            if snapshot.snapshot_id in new:
                names = self._world.lake.files.names_of(snapshot.manifest_list)
                self._names[snapshot.snapshot_id] = names
                self._named.update(names)
                for path in names:
                    self._gone_ms.pop(path, None)

    def _remove(self, snapshot_id: int) -> None:
        for path in self._names[snapshot_id]:
            self._named[path] -= 1
            if not self._named[path]:
                self._gone_ms[path] = self._world.now_ms

    # What is deleted

    def deletes(self, process: Process, path: str) -> None:
        """A file of the table is about to be deleted."""
        world, scenario = self._world, self._world.scenario
        if not world.lake.files.has(path):
            return
        if path not in self._gone_ms:
            raise world.fail(rules.NAMED, f"{process.name} deletes {path}, which is needed")
        lost = [s for s in self._lost if path in self._names[s]]
        if lost:
            raise world.fail(rules.REFS, f"{process.name} deletes {path} of {lost[0]}, which lost its ref")
        grace_ms = scenario.grace_ms if scenario.is_exact else max(scenario.grace_ms, MIN_UNCHECKED_GRACE_MS)
        passed_ms = world.now_ms - self._gone_ms[path]
        if passed_ms < grace_ms:
            text = f"{process.name} deletes {path} {passed_ms} ms after its last snapshot was expired"
            raise world.fail(rules.GRACE, text)

    # What is left

    @property
    def has_readers(self) -> bool:
        return bool(self._readers)

    def left(self, blocked: frozenset[int]) -> Violation | None:
        """What should have been deleted. `blocked` are snapshots of which somebody decided that their files
        stay."""
        stays = {path for s in (*self._lost, *blocked) for path in self._names.get(s, ())}
        stays |= self._excused
        left = sorted(p for p in self._gone_ms if self._world.lake.files.has(p) and p not in stays)
        if not left:
            return None
        return self._world.fail(
            rules.LEFT, f"{len(left)} files are left that nothing names, such as {left[0]}"
        )


_RUNS = ("coordinator", "person by hand", "finisher")


def _and_after(metadata: TableMetadata, snapshot_id: int) -> set[int]:
    """A snapshot and all that descend from it."""
    found = {snapshot_id}
    is_growing = True
    while is_growing:
        more = {s.snapshot_id for s in metadata.snapshots if s.parent_snapshot_id in found} - found
        is_growing = bool(more)
        found |= more
    return found
