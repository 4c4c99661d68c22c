"""The result of the last search for orphan files, stored as `orphan-run.json` in Lithify's folder of a table.
So `lithify plan` shows it without listing anything, and coordinators know when the next run is due.

If it is lost, nothing is known, and the next run is due.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lithify.base.documents import Count, DocumentCodec
from lithify.base.errors import CorruptObject, ObjectNotFound
from lithify.coordination.expiry_runs import MAX_WHY
from lithify.datasets.iceberg.errors import advised
from lithify.datasets.iceberg.maintenance.orphans import Orphans
from lithify.store.keys import join
from lithify.store.objects import ObjectStore


@dataclass(frozen=True, slots=True)
class OrphanRun:
    """A search of all files under a table's location."""

    at_ms: Count
    """When it ended. This and all other times are wall-clock milliseconds."""
    older_than_ms: Count
    """The search covered only files older than this."""
    listed: Count = 0
    listed_bytes: Count = 0
    left: Count = 0
    """Orphans that were not deleted."""
    left_bytes: Count = 0
    deleted: Count = 0
    deleted_bytes: Count = 0
    why: str = ""
    """Why the run was refused; empty if it was not."""
    deleting_ms: Count = 0
    """When the last run that was to delete ended."""


_RUNS = DocumentCodec(OrphanRun, mends_text=True)


class OrphanRuns:
    """Stores the last run for the table whose own folder is `folder` of `store`."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store = store
        self._key = join(folder, "orphan-run.json")

    def read(self) -> OrphanRun | None:
        """Return the last run; `None` if there was none. Raise `CorruptObject` if it does not decode."""
        try:
            with advised("delete it"):
                return _RUNS.decode(self._store.get(self._key), self._key)
        except ObjectNotFound:
            return None

    def note(self, found: Orphans, now_ms: int) -> None:
        """Store the result of a run."""
        run = OrphanRun(
            now_ms,
            found.older_than_ms,
            found.listed,
            found.listed_bytes,
            found.found - found.deleted,
            found.found_bytes - found.deleted_bytes,
            found.deleted,
            found.deleted_bytes,
        )
        self._put(run, is_dry=found.dry_run)

    def note_refused(self, why: str, older_than_ms: int, now_ms: int) -> None:
        """Store that a run that was to delete was refused."""
        self._put(OrphanRun(now_ms, older_than_ms, why=why[:MAX_WHY]), is_dry=False)

    def known(self) -> OrphanRun | None:
        """Return the last run; `None` also if its record is damaged."""
        try:
            return self.read()
        except CorruptObject:
            return None

    def _put(self, run: OrphanRun, *, is_dry: bool) -> None:
        last = self.known() if is_dry else None
        deleting_ms = run.at_ms if not is_dry else last.deleting_ms if last is not None else 0
        self._store.put(self._key, _RUNS.encode(replace(run, deleting_ms=deleting_ms)))


def orphans_json(run: OrphanRun | None) -> dict[str, Any] | None:
    """Return the last run as a JSON value."""
    if run is None:
        return None
    return {
        "looked_ms": run.at_ms,
        "older_than_ms": run.older_than_ms,
        "listed_files_count": run.listed,
        "listed_bytes": run.listed_bytes,
        "orphan_files_count": run.left,
        "orphan_bytes": run.left_bytes,
        "deleted_orphan_files_count": run.deleted,
        "deleted_bytes": run.deleted_bytes,
        "why": run.why,
    }
