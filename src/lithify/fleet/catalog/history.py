"""Old versions of the catalog: which are needed, and how they are deleted.

See `lithify.watermarks`; a position is a number of the catalog. Each process records its needs and is never
asked:

| process | needs | recorded in |
|---|---|---|
| a member | the version it uses | its object, with every heartbeat |
| a compaction | the version it was admitted under | its coordinator's object; once claimed, its worker's |
| a reader | the version it holds | a hold (`lithify.coordination.holds`) |

A task that was admitted by a coordinator that is gone, and is not claimed yet, counts as admitted by the
coordinator that took over. A member counts until its object is deleted, an hour after its last write, even
if it is frozen. A member that finds the threshold above its need, because it was away for longer, uses the
newest version from then on, and treats its admitted or running tasks as admitted under that (`allows`).

A *run*, by the first live coordinator every `RUN_EVERY_S` and when it becomes the first:

1. *Publish*: collect all needs, and raise the threshold to the lowest, but not above the version that was
   the newest `KEEP_MS` ago.
2. *Cut off*: only then, collect the needs again. Versions below both become invalid: first the boundary is
   raised (`lithify.store.versions`), then their objects are deleted. A crash between the two leaves objects
   that the next run deletes.

A run that cannot determine a need ends with the reason (`watermarks.Reason`); so does one that has nothing
to cut off. Two coordinators that both believe they are the first do no harm: threshold and boundary only
rise, and both are below all needs.

Times are when a version was written, by the store's clock.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from lithify.base.clock import Clock
from lithify.base.errors import ObjectNotFound, Refused
from lithify.base.ids import Ids
from lithify.coordination.holds import ObjectHolds
from lithify.coordination.thresholds import ThresholdFiles
from lithify.fleet.catalog.documents import decode
from lithify.fleet.catalog.model import Catalog
from lithify.fleet.members import MemberFiles
from lithify.store.deleting import delete_listed
from lithify.store.keys import join
from lithify.store.objects import ObjectStore
from lithify.store.versions import VersionedFiles
from lithify.watermarks.model import BlockReason, GroupMember, Mark
from lithify.watermarks.rules import Collected, admits, collect, cut, next_threshold

RUN_EVERY_S = 300.0
KEEP_MS = 86_400_000
"""Every version that was the newest at some time within this period can be read."""
FOLDER = "catalog-history"


@dataclass(frozen=True, slots=True)
class HistoryRunEnd:
    """The result of a run."""

    cut_below: int | None = None
    """Versions below this are deleted."""
    reason: BlockReason | None = None
    """The reason why none was deleted."""
    by: str = ""
    """The process with the oldest need, or the one whose need is missing."""


class CatalogHistory:
    """The catalog versions `files` of the fleet at `url`, which is `folder` of `store`."""

    def __init__(
        self,
        url: str,
        store: ObjectStore,
        folder: str,
        files: VersionedFiles,
        members: MemberFiles,
        clock: Clock,
        ids: Ids,
        rng: random.Random | None = None,
    ) -> None:
        self._url = url
        self._store = store
        self._files = files
        self._members = members
        self._thresholds = ThresholdFiles(store, join(folder, FOLDER), clock, ids, rng)
        self.holds = ObjectHolds(store, join(folder, FOLDER), self._thresholds, clock, ids)

    # Reading

    def at(self, number: int) -> Catalog:
        """Return a version. Raise `Refused` if it is too old or does not exist yet."""
        try:
            data = self._files.read(number) if number > 0 else b""
        except ObjectNotFound:
            data = b""
        # Read the boundary last: the objects found may have been created again behind it.
        boundary = self._files.boundary()
        if number <= boundary:
            raise Refused(f"{self._url}: catalog {number} is too old: those up to {boundary} were deleted")
        if not data:
            raise Refused(f"{self._url}: there is no catalog {number} yet")
        return decode(data, self._files.key(number))

    def number_at(self, at_ms: float) -> int:
        """Return the number of the version that was the newest at that time. Raise `Refused` if the time is
        too long ago or there was none."""
        listed = self._files.listed()
        boundary = self._files.boundary()
        there = [(number, meta.last_modified_ms) for number, meta in listed if number > boundary]
        before = [number for number, written_ms in there if written_ms <= at_ms]
        if before:
            return before[-1]
        if boundary:
            raise Refused(
                f"{self._url}: the catalog of that time is too old: those up to {boundary} were deleted"
            )
        raise Refused(f"{self._url}: there was no fleet at that time")

    def allows(self, number: int) -> bool:
        """Return whether a process that has recorded its need of a version may keep using it."""
        return admits(self._thresholds.read(), number)

    # Truncation

    def run(self) -> HistoryRunEnd:
        """Run the algorithm above once."""
        low_watermark = self._low_watermark()
        if low_watermark is None:
            return HistoryRunEnd(reason=BlockReason.NOTHING_TO_DO)
        before = self._collected()
        if before.reason is not None:
            return HistoryRunEnd(reason=before.reason, by=before.by)
        published = self._thresholds.publish(lambda now: next_threshold(now, low_watermark, before))
        after = self._collected()
        below = cut(published, low_watermark, after)
        by = after.by or (after.least.by if after.least is not None else "")
        if isinstance(below, BlockReason):
            return HistoryRunEnd(reason=below, by=by)
        old = [meta for number, meta in self._files.listed() if number < below]
        if not old:
            return HistoryRunEnd(reason=BlockReason.HELD, by=by)
        self._files.advance_boundary(below - 1)
        for meta in old:
            delete_listed(self._store, meta)
        now_ms = self._now_ms()
        self.holds.remove_over(self.holds.list(), published, now_ms)
        return HistoryRunEnd(cut_below=below, by=by)

    def _low_watermark(self) -> int | None:
        """Return the version that was the newest `KEEP_MS` ago; `None` if there is none before it."""
        now_ms, listed = self._now_ms(), self._files.listed()
        old = [number for number, meta in listed if meta.last_modified_ms <= now_ms - KEEP_MS]
        return old[-1] if len(old) > 1 else None

    def _collected(self) -> Collected:
        """Collect the needs of members and holders. A listed member whose need is missing makes the result
        unknown."""
        listed = self._members.listed()
        marks = [
            Mark(GroupMember(seen.name), seen.says.needs or None) for seen in listed if seen.says is not None
        ]
        holds = [placed.hold for placed in self.holds.list()]
        return collect({GroupMember(seen.name) for seen in listed}, marks, holds, self._now_ms())

    def _now_ms(self) -> int:
        """Return the time by the store's clock, as far as members have written lately. If none has, nothing
        is old."""
        return max((seen.last_ms for seen in self._members.listed()), default=0)
