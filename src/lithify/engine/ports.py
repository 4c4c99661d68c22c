"""The data engine as a port.

A *job* is the name of a piece of work (one compaction); each submitted *call* is one range of it.
The function of a call is an importable top-level function of an installed package, because it
travels to other machines by name; its argument and its result are small picklable values.

Every implementation keeps:

1. A returned future always ends: with the result, with the error, or with `Cancelled`.
2. A function may run more than once for one call, even at the same time; one result is delivered.
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
        """How many calls run at once; 0 while that is unknown, because the engine has not started yet."""
        ...

    @property
    def failure(self) -> LithifyError | None:
        """The reason why nothing will ever run on it again, or `None`. An engine that went down and can be
        opened again has none: the calls it ran ended with `EngineDown`, and the next call opens it."""
        ...

    def check(self) -> None:
        """Raise `EngineDown` when a requirement is plainly missing, such as a Spark master that does not
        answer. Quick; starts nothing. Call this before anything is written for the engine."""
        ...

    def start(self) -> None:
        """Begin to start what the first call will need, if that takes time; return at once."""
        ...

    def submit(
        self, job: str, function: Callable[[ArgumentT], ResultT], argument: ArgumentT
    ) -> Future[ResultT]:
        """Run `function(argument)` as a part of `job`; returns at once.

        The future raises the task's own `LithifyError`, `EngineDown` when the engine was lost or did not
        start, or another `EngineError` for every other failure.
        """
        ...

    def cancel(self, job: str) -> None:
        """Stop the calls of `job`: when this returns, their futures have ended. Calls that had
        not finished end with `Cancelled`."""
        ...

    def close(self) -> None:
        """Cancel everything and release the engine's resources."""
        ...
