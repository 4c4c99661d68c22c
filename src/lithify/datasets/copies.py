"""The contract for copies of datasets, as commands and programs use it: mirrors and restores.

A kind whose datasets are not mirrored does not implement it (`Registered.copies`).
"""

from __future__ import annotations

from typing import Protocol

from lithify.base.clock import Clock
from lithify.base.ids import Ids
from lithify.config.model import Config
from lithify.views.blocks import Shown


class MirrorSession(Protocol):
    """One process that mirrors one dataset."""

    def take_point(self) -> Shown:
        """Copy what is new as a point in time that can be restored, and drop the points that the policy does
        not keep. Nothing is added if nothing has changed."""
        ...


class Copies(Protocol):
    """Mirrors of the datasets of one kind."""

    def mirror(
        self,
        url: str,
        target: str,
        config: Config,
        clock: Clock,
        ids: Ids,
        *,
        keep_ms: int,
        min_points: int,
    ) -> MirrorSession:
        """Return a session that mirrors the dataset at `url` to `target`, and keeps what is needed to restore
        any state of the last `keep_ms`, and the newest `min_points` points. Writes nothing yet."""
        ...

    def restore(
        self, target: str, url: str, config: Config, clock: Clock, ids: Ids, *, at_ms: int | None
    ) -> Shown:
        """Restore the newest point of the mirror at `target`, or the newest not later than `at_ms` (wall-
        clock milliseconds by the clock of the dataset's store), to the empty place `url`."""
        ...
