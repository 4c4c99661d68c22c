"""Deletes many objects, and goes on though some cannot be deleted.

An object may be held back for good: by a retention rule, a legal hold, a policy. Who stopped there would
begin with it again the next time, and never come to what lies behind it. So all are tried, and the first
failure is raised at the end. A store that is away ends it at once, and so does what is no failure of a store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType

from lithify.errors import StoreError, StoreUnavailable
from lithify.store.together import all_of

MAX_IN_FLIGHT = 8


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
