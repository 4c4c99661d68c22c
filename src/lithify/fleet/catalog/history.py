"""Old versions of the catalog: what needs them, and how they go (`lithify.watermarks`; a position is a number
of the catalog).

Who needs one says so and is never asked:

| who | needs | says it in |
|---|---|---|
| a member | the version it works with | its object, at every beat |
| a compaction | the version it was admitted under | the object of its keeper; once claimed of its worker |
| a reader | the version it holds | a hold (`lithify.coordination.holds`) |

What was admitted by a keeper that is gone and is not claimed yet counts as admitted by who took it over.
A member counts until its object is gone, which is an hour after it fell silent, so also one that is frozen.
Who finds that the threshold is past what it needs, because it was away for longer, works with the newest
version from then on, and takes what it admitted, or runs, to be admitted under that (`allows`).

A *run*, by the first live keeper every `RUN_EVERY_S` and when it becomes the first:

1. *Publish*: what all need is collected, and the threshold is raised to the least of it, but not past the
   version that was the newest `KEEP_MS` ago.
2. *Cut off*: only then it is collected once more. Below both, versions do not count any more: the boundary
   says so (`lithify.store.versions`), then their objects are deleted. A crash between the two leaves objects
   that the next run deletes.

A run that cannot tell what somebody needs ends, and says why (`watermarks.Reason`); so does one in which
nothing is to be cut off. Two keepers that both believe to be the first do no harm: the threshold and the
boundary only rise, and both are below what is needed.

Times are the store's: when a version was written.
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
"""What was the newest version at any time since then can be asked for."""
FOLDER = "catalog-history"


@dataclass(frozen=True, slots=True)
class HistoryRunEnd:
    """How a run has ended."""

    cut_below: int | None = None
    """Versions below this are gone."""
    reason: BlockReason | None = None
    """Why none went."""
    by: str = ""
    """Who needs the oldest, or whose mark is missing."""


class CatalogHistory:
    """The versions `files` of the catalog of the fleet at `url`, which lies below `folder` of `store`."""

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
        """A version. `Refused` when it is too old, or not there yet."""
        try:
            data = self._files.read(number) if number > 0 else b""
        except ObjectNotFound:
            data = b""
        # What lies there may have been created again behind the boundary, so that is read last.
        boundary = self._files.boundary()
        if number <= boundary:
            raise Refused(f"{self._url}: catalog {number} is too old: those up to {boundary} are gone")
        if not data:
            raise Refused(f"{self._url}: there is no catalog {number} yet")
        return decode(data, self._files.key(number))

    def number_at(self, at_ms: int) -> int:
        """The number of the version that was the newest at that time. `Refused` when it is too old, or there
        was none."""
        listed = self._files.listed()
        boundary = self._files.boundary()
        there = [(number, meta.last_modified_ms) for number, meta in listed if number > boundary]
        before = [number for number, written_ms in there if written_ms <= at_ms]
        if before:
            return before[-1]
        if boundary:
            raise Refused(
                f"{self._url}: the catalog of that time is too old: those up to {boundary} are gone"
            )
        raise Refused(f"{self._url}: there was no fleet at that time")

    def allows(self, number: int) -> bool:
        """Whether who has said that it needs a version may go on with it."""
        return admits(self._thresholds.read(), number)

    # Truncation

    def run(self) -> HistoryRunEnd:
        """One run of the algorithm above."""
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
        """The version that was the newest so long ago; `None` when there is none before it."""
        now_ms, listed = self._now_ms(), self._files.listed()
        old = [number for number, meta in listed if meta.last_modified_ms <= now_ms - KEEP_MS]
        return old[-1] if len(old) > 1 else None

    def _collected(self) -> Collected:
        """What members and holders need. What a member that was listed has not said, nobody knows."""
        listed = self._members.listed()
        marks = [
            Mark(GroupMember(seen.name), seen.says.needs or None) for seen in listed if seen.says is not None
        ]
        holds = [placed.hold for placed in self.holds.list()]
        return collect({GroupMember(seen.name) for seen in listed}, marks, holds, self._now_ms())

    def _now_ms(self) -> int:
        """By the store's clock, as far as members have written lately. Where none has, nothing is old."""
        return max((seen.last_ms for seen in self._members.listed()), default=0)
