"""The data engine as a port.

A *job* is the name of a piece of work (one compaction); each submitted *call* is one range of it. The
function of a call is an importable top-level function of an installed package, because it is sent to other
machines by name; its argument and its result are small picklable values.

Every implementation guarantees:

1. A returned future always ends: with the result, an error, or `Cancelled`.
2. A function may run more than once for one call, even concurrently; one result is delivered.
3. `cancel` affects the calls submitted before it. The same job name may be used again afterwards.
4. All methods may be called from several threads; `close` may be called twice.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

from lithify.base.errors import LithifyError

ArgumentT = TypeVar("ArgumentT")
ResultT = TypeVar("ResultT")


class Engine(Protocol):
    """Runs calls and returns their results."""

    @property
    def slots(self) -> int:
        """How many calls run at once; 0 before the engine has started and knows the number."""
        ...

    @property
    def failure(self) -> LithifyError | None:
        """Why the engine can never run anything again, or `None`. An engine that went down and can be
        reopened has no failure: its running calls ended with `EngineDown`, and the next call reopens it."""
        ...

    def check(self) -> None:
        """Raise `EngineDown` if a requirement is plainly missing, such as a Spark master that does not
        answer. Quick; starts nothing. Call this before writing anything for the engine."""
        ...

    def start(self) -> None:
        """Start in the background what the first call will need."""
        ...

    def submit(
        self, job: str, function: Callable[[ArgumentT], ResultT], argument: ArgumentT
    ) -> Future[ResultT]:
        """Run `function(argument)` as a part of `job`, and return at once.

        The future raises the task's own `LithifyError`; `EngineDown` if the engine was lost or did not start;
        or another `EngineError` for every other failure.
        """
        ...

    def cancel(self, job: str) -> None:
        """Stop the calls of `job`. On return their futures have ended, with `Cancelled` for unfinished
        calls."""
        ...

    def close(self) -> None:
        """Cancel everything and release the engine's resources."""
        ...
