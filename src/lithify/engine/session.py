"""A connection to Spark, classic or Connect: the port that the engine uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from lithify.engine import settings
from lithify.engine.classic import open_classic
from lithify.engine.connect import open_connect


class Session(Protocol):
    """One connection to Spark. Methods may be called from several threads."""

    @property
    def max_attempts(self) -> int:
        """How often Spark runs a task before it fails."""
        ...

    def slots(self) -> int:
        """Return how many tasks run at once, as far as Spark knows now."""
        ...

    def run(self, request: bytes, *, tag: str, pool: str, description: str) -> bytes:
        """Run a request as a Spark job of one task and wait for its outcome."""
        ...

    def interrupt(self, tag: str) -> None:
        """Stop the jobs that are running with the tag."""
        ...

    def is_over(self) -> bool:
        """Return whether the connection cannot run anything any more. Call this after a failure."""
        ...

    def close(self) -> None: ...


def open_session(
    master: str = "local[*]",
    app_name: str = "lithify",
    conf: Mapping[str, str] | None = None,
    preload: str | None = None,
) -> Session:
    """Connect to Spark: `sc://host:port` is a Connect server, everything else a classic master.

    `conf` has the user's Spark settings, which override Lithify's. `preload` names a function
    (`package.module:function`) that Python workers of a classic session call before their first task.
    """
    if settings.is_connect(master):
        return open_connect(master, app_name, conf or {})
    return open_classic(master, app_name, conf, preload)
