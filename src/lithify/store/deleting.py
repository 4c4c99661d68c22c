"""Deletes many objects, and goes on though some cannot be deleted.

An object may be held back for good: by a retention rule, a legal hold, a policy. Who stopped there would
begin with it again the next time, and never come to what lies behind it. So all are tried, and the first
failure is raised at the end. A store that is away ends it at once, and so does what is no failure of a store.

Between a listing and a deletion by it a folder may be made anew, or restored from a backup: then another
object has the name of one that was listed, and may be needed. So each is looked at once more right before it
is deleted (`delete_listed`); stores have no condition for deletions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType

from lithify.base.concurrency import all_of
from lithify.base.errors import ObjectNotFound, Replaced, StoreError, StoreUnavailable
from lithify.store.objects import ObjectMeta, ObjectStore

MAX_IN_FLIGHT = 8
_WHOLE_SECOND_MS = 1_000
"""Some stores tell milliseconds in a listing, and whole seconds of one object."""


def delete_listed(store: ObjectStore, listed: ObjectMeta, *, may_change: bool = False) -> None:
    """Delete an object, if it is still the one that was listed. `Replaced` when another has its name, unless
    objects like this one `may_change`: then that one stays."""
    try:
        now = store.head(listed.key)
    except ObjectNotFound:
        return
    is_same_etag = listed.etag is None or now.etag is None or listed.etag == now.etag
    is_as_old = abs(listed.last_modified_ms - now.last_modified_ms) < _WHOLE_SECOND_MS
    if is_same_etag and is_as_old and listed.size == now.size:
        store.delete(listed.key)
    elif not may_change:
        raise Replaced(
            f"{listed.key} was written again after it was listed as garbage, so it is of another dataset in "
            "the same place, made anew or restored from a backup; nothing more is deleted"
        )


class Deleting:
    """A context: leaving it raises the first failure, unless something else is raised already."""

    def __init__(self) -> None:
        self._failure: StoreError | None = None

    def all(self, deletions: Iterable[Callable[[], object]]) -> list[bool]:
        """Carry these out, some at once; whether each was, in their order."""
        failures = all_of((partial(_tried, deletion) for deletion in deletions), MAX_IN_FLIGHT)
        self._failure = self._failure or next(filter(None, failures), None)
        return [failure is None for failure in failures]

    def __enter__(self) -> Deleting:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._failure is not None:
            raise self._failure


def _tried(deletion: Callable[[], object]) -> StoreError | None:
    """Why the object cannot be deleted, if so."""
    try:
        deletion()
    except StoreUnavailable:
        raise
    except StoreError as error:
        return error
    return None
