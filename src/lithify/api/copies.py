"""The Python API for mirrors, with the operations of `lithify mirror` and `lithify restore`.

    import lithify

    mirror = lithify.Mirror("s3://bucket/my-db", "s3://backup/my-db", keep_s=30 * 86_400)
    print(mirror.take_point().document["point"]["at"])
    lithify.restore("s3://backup/my-db", "s3://bucket/my-db-again")

All errors are `lithify.LithifyError`s. `Refused` is raised before anything is written.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from urllib.parse import quote, unquote

from lithify.api import arguments
from lithify.api.client import Settings, settled
from lithify.base.clock import Clock, SystemClock
from lithify.base.errors import Refused
from lithify.base.ids import Ids, RandomIds
from lithify.config.model import Config
from lithify.datasets.copies import Copies
from lithify.datasets.registry import registered_for
from lithify.datasets.waiting import command_waiting
from lithify.store.urls import split_scheme
from lithify.views.blocks import Shown

KEEP_S = 86_400.0


class Mirror:
    """A session that mirrors the database at `url` to `target`, which is an empty place or a mirror of this
    database. Any state of the last `keep_s` seconds can be restored, and the newest `keep_points` points. A
    later session for the same target ends this one (`Fenced`)."""

    def __init__(
        self,
        url: str | os.PathLike[str],
        target: str | os.PathLike[str],
        *,
        keep_s: float = KEEP_S,
        keep_points: int = 1,
        settings: Settings | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self.url = url = arguments.place("url", url)
        self.target = target = arguments.place("target", target)
        self._session = _copies(url).mirror(
            url,
            target,
            settled(settings),
            clock if clock is not None else SystemClock(),
            ids if ids is not None else RandomIds(),
            keep_ms=arguments.milliseconds("keep_s", keep_s),
            min_points=arguments.natural("keep_points", keep_points),
        )

    def take_point(self) -> Shown:
        """Copy what is new as a point in time that can be restored, unless nothing has changed; then drop the
        points that are not kept, and delete what only they need."""
        return self._session.take_point()


def restore(
    mirror: str | os.PathLike[str],
    url: str | os.PathLike[str],
    *,
    at: datetime | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> Shown:
    """Restore the newest point of a mirror, or the newest not later than `at`, to the empty place `url`. If a
    restore was interrupted, the same call continues it."""
    mirror, url = arguments.place("mirror", mirror), arguments.place("url", url)
    at_ms = arguments.optional(arguments.time_ms, "at", at)
    clock = clock if clock is not None else SystemClock()
    ids = ids if ids is not None else RandomIds()
    return _copies(url).restore(mirror, url, settled(settings), clock, ids, at_ms=at_ms)


def pairs(pattern: str, target: str, config: Config) -> list[tuple[str, str]]:
    """Return each place that matches a pattern with `*`, and its place below `target`: its path from the
    first part with a `*` on. Without `*`, return the two."""
    if "*" not in pattern:
        return [(pattern, target)]
    if "*" in target:
        raise Refused(f"{target}: the second place cannot have a *; it is a folder for all that match")
    if split_scheme(pattern)[0] is None:
        pattern = str(Path(pattern).absolute())
    fixed = next(n for n, part in enumerate(_parts(pattern)) if "*" in part)
    found = registered_for(pattern).find(pattern, config, command_waiting(pattern, config))
    return [(url, "/".join((target.rstrip("/"), *_as_in(target, _parts(url)[fixed:])))) for url in found]


def _parts(url: str) -> list[str]:
    """Return the parts of a path, or of a URL after its scheme, unquoted."""
    scheme, rest = split_scheme(url)
    parts = [part for part in rest.split("/") if part]
    return parts if scheme is None else list(map(unquote, parts))


def _as_in(target: str, parts: list[str]) -> list[str]:
    return parts if split_scheme(target)[0] is None else [quote(part) for part in parts]


def _copies(url: str) -> Copies:
    registered = registered_for(url)
    copies = registered.load_copies()
    if copies is None:
        raise Refused(f"{url}: Lithify mirrors databases, and not {registered.plural}")
    return copies
