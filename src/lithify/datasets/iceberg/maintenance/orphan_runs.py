"""The result of the last search for orphan files, stored as `orphan-run.json` in Lithify's folder of a table.
So `lithify plan` shows it without listing anything, and coordinators know when the next run is due.

If it is lost, nothing is known, and the next run is due.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from lithify.base.errors import CorruptObject, ObjectNotFound
from lithify.base.jsonvalues import UNDECODABLE, text, whole_number
from lithify.coordination.expiry_runs import MAX_WHY
from lithify.datasets.iceberg.maintenance.orphans import Orphans
from lithify.store.keys import join
from lithify.store.objects import ObjectStore

MAX_NUMBER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class OrphanRun:
    """A search of all files under a table's location."""

    at_ms: int
    """When it ended. This and all other times are wall-clock milliseconds."""
    older_than_ms: int
    """The search covered only files older than this."""
    listed: int = 0
    listed_bytes: int = 0
    left: int = 0
    """Orphans that were not deleted."""
    left_bytes: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    why: str = ""
    """Why the run was refused; empty if it was not."""
    deleting_ms: int = 0
    """When the last run that was to delete ended."""


class OrphanRuns:
    """Stores the last run for the table whose own folder is `folder` of `store`."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store = store
        self._key = join(folder, "orphan-run.json")

    def read(self) -> OrphanRun | None:
        """Return the last run; `None` if there was none. Raise `CorruptObject` if it does not decode."""
        try:
            fields = json.loads(self._store.get(self._key))
            why = text(fields.pop("why"))
            numbers = {name: whole_number(value, most=MAX_NUMBER) for name, value in fields.items()}
            return OrphanRun(why=why, **numbers)
        except ObjectNotFound:
            return None
        except UNDECODABLE as error:
            raise CorruptObject(self._key, f"does not decode: {error}; delete it") from error

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
        self._store.put(self._key, json.dumps(asdict(replace(run, deleting_ms=deleting_ms))).encode())


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
