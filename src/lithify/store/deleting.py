"""Deletion of many objects, continuing if some cannot be deleted.

An object may be undeletable for good: by a retention rule, a legal hold, a policy. Stopping there would block
the deletion of all later objects, each time. So all are tried, and the first failure is raised at the end. An
unavailable store, and any error that is not a store's, ends the deletion at once.

Between listing and deletion a folder may be recreated, or restored from a backup: then a listed name may
belong to another object, which may be needed. So each object is checked right before it is deleted
(`delete_listed`); stores have no conditional delete.
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
"""Some stores report milliseconds in a listing, and whole seconds for one object."""


def delete_listed(store: ObjectStore, listed: ObjectMeta, *, may_change: bool = False) -> None:
    """Delete an object if it is still the listed one. If another object has its name, raise `Replaced`, or
    keep it if `may_change`."""
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
            f"{listed.key} was written again after it was listed as garbage, so the dataset was recreated or "
            "restored from a backup; nothing more is deleted"
        )


class Deleting:
    """A context manager that raises the first failure on exit, unless another error is being raised."""

    def __init__(self) -> None:
        self._failure: StoreError | None = None

    def all(self, deletions: Iterable[Callable[[], object]]) -> list[bool]:
        """Run all deletions, some concurrently. Return whether each succeeded, in order."""
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
    """Return why the object cannot be deleted, or `None`."""
    try:
        deletion()
    except StoreUnavailable:
        raise
    except StoreError as error:
        return error
    return None
