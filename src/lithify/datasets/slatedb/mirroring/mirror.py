"""Mirroring a database: `DatabaseMirror.take_point` adds one restore point to a mirror.

1. Read the latest manifest. If it differs from the newest point's in more than checkpoints and epochs, it is
   the new point's manifest; otherwise that of the newest point goes on.
2. If SSTs of the new manifest are missing, add a checkpoint to the database: its manifest is the one to copy.
   Note in the mirror's state which SSTs will be copied, and copy them. The checkpoint is prolonged meanwhile.
3. Copy the files of the write-ahead log that follow, in order, up to the first that does not exist. The point
   ends with the last one. A collector may delete files that a newer manifest does not need: then begin again.
4. Write the manifest and the list of its SSTs, and then, on condition that no other session has begun, the
   state with the new point. Remove the checkpoint.
5. Drop the points that the policy does not keep, in a version of the state that lists the objects to delete.
   Delete them, and note that.

The process may die between any two writes. An SST or file of the log that was copied completely is not copied
again, unless nothing has named it and its size differs. A point is there only if everything it needs is.
Nothing is written to the database but the checkpoint, which expires if it is left behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, takewhile

from lithify.base.clock import Clock
from lithify.base.concurrency import all_of, each_of
from lithify.base.errors import CorruptObject, ObjectNotFound, Refused, Replaced, StoreError
from lithify.base.ids import Ids, Ulid
from lithify.datasets.slatedb.compaction.sources import Locator
from lithify.datasets.slatedb.files import DatabaseFiles
from lithify.datasets.slatedb.format.clients import why_too_old
from lithify.datasets.slatedb.format.manifest import decode_manifest, may_follow
from lithify.datasets.slatedb.format.paths import MANIFEST_SUFFIX, DatabasePaths
from lithify.datasets.slatedb.mirroring import state as states
from lithify.datasets.slatedb.mirroring.copying import COPIES_AT_ONCE, ObjectCopier
from lithify.datasets.slatedb.mirroring.needs import lacking_wal
from lithify.datasets.slatedb.mirroring.pin import PinLapsed, SourcePin
from lithify.datasets.slatedb.mirroring.state import CopiedManifest, KeepPolicy, MirrorState, RestorePoint
from lithify.datasets.slatedb.mirroring.target import MirrorTarget
from lithify.datasets.slatedb.model import Manifest, View
from lithify.store.keys import format_id, join
from lithify.store.objects import ObjectMeta

MAX_TRIES = 5
"""Times a point is begun again because files vanished that were to be copied."""
MAX_WINDOW = 16
"""Files of the write-ahead log copied at once, after a few."""
_WHOLE_SECOND_MS = 1_000


class _Vanished(Exception):
    """Files that a point needs were deleted before they were copied; a newer manifest does without them."""


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """What `take_point` has done."""

    point: RestorePoint
    """The newest point."""
    is_new: bool
    """False: nothing has changed since that point."""
    points: int
    """All points that can be restored."""
    oldest: RestorePoint
    ssts: int = 0
    """Copied SSTs."""
    wal_files: int = 0
    """Copied files of the write-ahead log."""
    bytes: int = 0
    deleted: int = 0
    """Objects that no point needs any more."""


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A manifest to copy: decoded, as bytes, and when it was written."""

    id: int
    manifest: Manifest
    data: bytes
    written_ms: int


class DatabaseMirror:
    """The session of one process that mirrors a database to a target."""

    def __init__(
        self,
        paths: DatabasePaths,
        files: DatabaseFiles,
        target: MirrorTarget,
        copier: ObjectCopier,
        clock: Clock,
        ids: Ids,
    ) -> None:
        """The database at `paths` of the copier's source has the manifests `files`."""
        self._paths = paths
        self._store = copier.source
        self._files = files
        self._target = target
        self._copier = copier
        self._clock = clock
        self._ids = ids
        self._session = ids.uuid().hex
        self._state: MirrorState | None = None
        self._sizes: dict[Ulid, int] = {}
        """The SSTs in the target."""
        self._wal: dict[int, int] = {}
        """Sizes of the files of the write-ahead log in the target that the newest point has."""
        self._uses: Counter[Ulid] = Counter()
        """How many manifests of points name each SST."""
        self._newest: tuple[int, Manifest] | None = None
        """The newest point's manifest."""

    def take_point(self, policy: KeepPolicy) -> MirrorReport:
        """Add a point, unless nothing has changed, and drop those that `policy` does not keep. Raise
        `Refused` before the first write if the database or the target is not suitable."""
        latest = self._files.latest_manifest()[1]
        if not latest.initialized:
            raise Refused(
                f"{self._files.url} is not initialized yet: open it with SlateDB once if it is a clone; if "
                "it is a restore that was stopped, repeat that"
            )
        if too_old := why_too_old(latest):
            raise Refused(f"{self._files.url}: {too_old}")
        if self._state is None:
            self._begin()
        for tries in range(1, MAX_TRIES + 1):
            try:
                report = self._try_point()
                break
            except (_Vanished, PinLapsed) as reason:
                if tries == MAX_TRIES:
                    raise StoreError(
                        f"{self._files.url}: {reason}, {MAX_TRIES} times in a row; its garbage is collected "
                        "faster than it is copied: give the collector a larger minimum age"
                    ) from reason
        return self._drop_points(report, policy)

    def _begin(self) -> None:
        state = self._target.begin(self._files.url, self._session)
        self._uses = self._target.uses(state.points)
        there = self._target.ssts()
        proved: dict[Ulid, int] = {}
        if state.points:
            newest = state.points[-1]
            self._newest = newest.manifest_id, self._newest_manifest(newest.manifest_id)
            proved = dict(self._target.copied(newest.manifest_id).ssts)
            wal = self._target.wal()
            if not any(lacking_wal(newest, wal)):
                self._wal = {i: m.size for i, m in wal.items() if newest.wal_after < i <= newest.wal_to}
        self._sizes = {i: meta.size for i, meta in there.items() if i not in proved or proved[i] == meta.size}
        self._state = state

    def _newest_manifest(self, manifest_id: int) -> Manifest:
        """Return the newest point's manifest. Raise `Replaced` if the database has another one of this
        number."""
        data = self._target.manifest_bytes(manifest_id)
        with suppress(ObjectNotFound):  # collected
            if self._store.get(self._manifest_key(manifest_id)) != data:
                raise self._replaced()
        return decode_manifest(data, self._target.manifest_key(manifest_id))

    def _try_point(self) -> MirrorReport:
        state = self._now()
        last = state.points[-1] if state.points else None
        pin: SourcePin | None = None
        chosen, missing = self._chosen(), {}
        if chosen is not None:
            missing = self._missing(chosen.manifest)
        try:
            if chosen is not None and missing:
                pin = SourcePin(self._files, self._clock, self._ids)
                chosen = self._read(pin.take())
                pin.saw(chosen.written_ms)
                missing = self._missing(chosen.manifest)
            copied_bytes = self._copy_ssts(chosen, missing, pin) if chosen is not None else 0
            manifest_id, manifest = (chosen.id, chosen.manifest) if chosen is not None else self._known()
            after = manifest.replay_after_wal_id
            wal_to, wal = self._copy_wal(after)
            needed = max(manifest.wal_id_last_seen, last.wal_to if last is not None else 0)
            if needed > wal_to:
                raise self._without_wal(wal_to + 1, needed)
            times = [last.at_ms] if last is not None else []
            times += [_rounded_up(meta.last_modified_ms) for meta in wal]
            if chosen is not None:
                times.append(_rounded_up(chosen.written_ms))
            point = RestorePoint(max(times), manifest_id, after, wal_to, sum(self._wal.values()))
            is_new = last is None or chosen is not None or wal_to > last.wal_to
            if is_new:
                self._publish(point, chosen)
        finally:
            if pin is not None:
                with suppress(StoreError):  # it expires by itself
                    pin.release()
        state = self._now()
        size = copied_bytes + sum(meta.size for meta in wal)
        points = state.points
        return MirrorReport(points[-1], is_new, len(points), points[0], len(missing), len(wal), size)

    # The manifest

    def _chosen(self) -> _Chosen | None:
        """Return the latest manifest, or `None` if the newest point's goes on."""
        manifest_id, latest = self._files.latest_manifest()
        if self._newest is not None:
            before_id, before = self._newest
            if manifest_id < before_id or not may_follow(before, latest):
                raise self._replaced()
            if _content(before) == _content(latest):
                return None
        return self._read(manifest_id)

    def _replaced(self) -> Replaced:
        return Replaced(
            f"{self._files.url} is not the database of the newest point of its mirror {self._target.url}: it "
            "was created again or restored from a backup; mirror it to another place"
        )

    def _manifest_key(self, manifest_id: int) -> str:
        return join(self._paths.manifest_folder, f"{format_id(manifest_id)}{MANIFEST_SUFFIX}")

    def _read(self, manifest_id: int) -> _Chosen:
        key = self._manifest_key(manifest_id)
        try:
            data, meta = self._store.get_with_meta(key)
        except ObjectNotFound as error:
            raise _Vanished(f"{key} was deleted") from error
        return _Chosen(manifest_id, decode_manifest(data, key), data, meta.last_modified_ms)

    def _known(self) -> tuple[int, Manifest]:
        assert self._newest is not None
        return self._newest

    # SSTs

    def _missing(self, manifest: Manifest) -> dict[Ulid, View]:
        """Return a view of each SST that the target lacks."""
        return {
            i: view
            for i, view in manifest.views_by_sst().items()
            if i not in self._sizes or i not in self._uses
        }

    def _copy_ssts(self, chosen: _Chosen, missing: Mapping[Ulid, View], pin: SourcePin | None) -> int:
        """Copy the SSTs. Return their bytes, without those that were there."""
        if not missing:
            return 0
        ids = tuple(sorted(missing))
        self._change(lambda state: replace(state, copying=tuple(sorted({*state.copying, *ids}))))
        locate = Locator(self._store, self._paths, chosen.manifest)
        copied = 0
        keep = pin.keep if pin is not None else None
        copies = (partial(self._copy_sst, locate, missing[i], keep) for i in ids)
        for sst_id, size, is_new in each_of(copies, COPIES_AT_ONCE):
            self._sizes[sst_id] = size
            copied += size * is_new
        return copied

    def _copy_sst(
        self, locate: Callable[[View], str], view: View, keep: Callable[[], None] | None
    ) -> tuple[Ulid, int, bool]:
        if keep is not None:
            keep()
        key, sst_id = locate(view), view.sst.id
        there = self._sizes.get(sst_id)
        try:
            if there is not None and self._store.head(key).size == there:
                return sst_id, there, False
            return sst_id, self._copier.copy(key, self._target.paths.sst(sst_id), keep).size, True
        except ObjectNotFound as error:
            raise _Vanished(f"{key} was deleted") from error

    # The write-ahead log

    def _copy_wal(self, after: int) -> tuple[int, list[ObjectMeta]]:
        """Copy the files of the write-ahead log after `after` up to the first that does not exist, except
        those that are there. Return the last one, and the metadata of the copied ones in order."""
        known = takewhile(self._wal.__contains__, count(after + 1))
        self._wal = {n: self._wal[n] for n in known}
        found: list[ObjectMeta] = []
        window = 1
        while True:
            begin = after + 1 + len(self._wal)
            copies = [partial(self._copy_wal_file, n) for n in range(begin, begin + window)]
            for n, meta in enumerate(all_of(copies, window), begin):
                if meta is None:
                    return n - 1, found
                self._wal[n] = meta.size
                found.append(meta)
            window = min(2 * window, MAX_WINDOW)

    def _copy_wal_file(self, wal_id: int) -> ObjectMeta | None:
        try:
            return self._copier.copy(self._paths.wal(wal_id), self._target.paths.wal(wal_id))
        except ObjectNotFound:
            return None

    def _without_wal(self, wal_id: int, needed: int) -> Exception:
        """Return the error for a missing file of the write-ahead log, which is needed up to `needed`."""
        if self._files.latest_manifest()[1].replay_after_wal_id >= wal_id:
            return _Vanished(f"file {wal_id} of the write-ahead log was deleted")
        return CorruptObject(
            self._paths.wal(wal_id),
            f"is missing, although the database has had files up to {needed}; if the "
            "write-ahead log is in a store of its own, Lithify cannot mirror the database",
        )

    # The target

    def _publish(self, point: RestorePoint, chosen: _Chosen | None) -> None:
        uses = self._uses
        if chosen is not None:
            ssts = {i: self._sizes[i] for i in chosen.manifest.views_by_sst()}
            self._target.add_manifest(chosen.id, chosen.data, CopiedManifest(ssts))
            if all(p.manifest_id != chosen.id for p in self._now().points):
                uses = uses + Counter(ssts.keys())
        self._change(lambda state: states.with_point(state, point, uses.keys()))
        self._uses = uses
        if chosen is not None:
            self._newest = chosen.id, chosen.manifest

    def _drop_points(self, report: MirrorReport, policy: KeepPolicy) -> MirrorReport:
        state = self._now()
        known = states.kept_points(state.points, policy, self._clock.now_ms())
        if not report.is_new and state.doomed.is_empty and known == state.points:
            return report
        now_ms = min(self._clock.now_ms(), self._target.changed_ms())
        kept = states.kept_points(state.points, policy, now_ms)
        if kept != state.points:
            gone = {p.manifest_id for p in state.points} - {p.manifest_id for p in kept}
            uses = Counter(self._uses)
            for manifest_id in gone:
                uses.subtract(self._target.named_by(manifest_id))
            unused = [i for i, count in uses.items() if count <= 0]
            state = self._change(lambda now: states.without_points(now, kept, unused))
            self._uses = Counter({i: count for i, count in uses.items() if count > 0})
        state, deleted = self._sweep(state)
        self._target.trim()
        return replace(report, points=len(state.points), oldest=state.points[0], deleted=deleted)

    def _sweep(self, state: MirrorState) -> tuple[MirrorState, int]:
        """Delete what is doomed."""
        if state.doomed.is_empty:
            return state, 0
        deleted = self._target.delete(state.doomed)
        for sst_id in state.doomed.ssts:
            self._sizes.pop(sst_id, None)
        return self._change(states.swept), deleted

    def _now(self) -> MirrorState:
        assert self._state is not None, "the session has begun"
        return self._state

    def _change(self, change: Callable[[MirrorState], MirrorState]) -> MirrorState:
        self._state = self._target.change(self._session, change)
        return self._state


def _content(manifest: Manifest) -> Manifest:
    """Return what readers see of a manifest together with the write-ahead log."""
    return replace(
        manifest, checkpoints=(), external_dbs=(), writer_epoch=0, compactor_epoch=0, wal_id_last_seen=0
    )


def _rounded_up(ms: int) -> int:
    """Return a store's time, not too early: stores cut it to milliseconds, or to whole seconds."""
    return ms + (_WHOLE_SECOND_MS if ms % _WHOLE_SECOND_MS == 0 else 1)
