"""What the last look for orphan files came to: `orphan-run.json` beside a table, so that `lithify plan` can
say what there is without listing anything, and a coordinator knows when the next look is due.

It may be lost: then nothing is known, and the next look is due.
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
    """A look at all files under a table's location."""

    at_ms: int
    """When it ended; wall-clock milliseconds, as all times here."""
    older_than_ms: int
    """What it looked at."""
    listed: int = 0
    listed_bytes: int = 0
    left: int = 0
    """Orphans that it did not delete."""
    left_bytes: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    why: str = ""
    """Why it was refused, if it was."""
    deleting_ms: int = 0
    """When the last one ended that was to delete."""


class OrphanRuns:
    """The last one at the table whose own folder is `folder` of `store`."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store = store
        self._key = join(folder, "orphan-run.json")

    def read(self) -> OrphanRun | None:
        """`None` when nobody has looked. `CorruptObject` when it does not decode."""
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
        """One has ended."""
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
        """One that was to delete was refused."""
        self._put(OrphanRun(now_ms, older_than_ms, why=why[:MAX_WHY]), is_dry=False)

    def known(self) -> OrphanRun | None:
        """The same as `read`, but for a damaged one, which tells nothing."""
        try:
            return self.read()
        except CorruptObject:
            return None

    def _put(self, run: OrphanRun, *, is_dry: bool) -> None:
        last = self.known() if is_dry else None
        deleting_ms = run.at_ms if not is_dry else last.deleting_ms if last is not None else 0
        self._store.put(self._key, json.dumps(asdict(replace(run, deleting_ms=deleting_ms))).encode())


def orphans_json(run: OrphanRun | None) -> dict[str, Any] | None:
    """What is known of orphan files, as a JSON value."""
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
