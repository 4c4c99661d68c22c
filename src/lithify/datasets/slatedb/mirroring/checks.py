"""Checks of a mirror. They write nothing.

1. The state can be read, and has a point.
2. Each point has everything it needs: its manifest, and its SSTs and files of the write-ahead log, with the
   right sizes.
3. The newest point is not old.
"""

from __future__ import annotations

from collections.abc import Iterator

from lithify.base.errors import CorruptObject, ObjectNotFound, StoreError, Unsupported
from lithify.datasets.slatedb.mirroring.needs import lacking
from lithify.datasets.slatedb.mirroring.restore import time_text
from lithify.datasets.slatedb.mirroring.state import CopiedManifest
from lithify.datasets.slatedb.mirroring.target import MirrorTarget
from lithify.datasets.slatedb.model import Manifest
from lithify.protocol.finding import Finding, advice, ok, problem, warning
from lithify.views.text import count, duration

OLD_MS = 86_400_000
_SHOWN = 3
_CHECK = "mirror"


def check_mirror(mirror: MirrorTarget, now_ms: int) -> Iterator[Finding]:
    """Return all findings about the mirror; none if there is no mirror."""
    try:
        state = mirror.find()
    except Unsupported as error:
        yield problem(_CHECK, str(error), "upgrade Lithify")
        return
    except CorruptObject as error:
        yield problem(_CHECK, str(error), "mirror the database to another, empty place")
        return
    except StoreError as error:
        yield problem(_CHECK, f"the state cannot be read: {error}", advice(error, "check the access rights"))
        return
    if state is None:
        return
    if not state.points:
        yield problem(
            _CHECK, f"no point of {state.source} can be restored yet", "run `lithify mirror` to its end"
        )
        return
    newest = state.points[-1]
    yield ok(
        _CHECK,
        f"a mirror of {state.source} with {count(len(state.points), 'point')}, from "
        f"{time_text(state.points[0].at_ms)} to {time_text(newest.at_ms)}",
    )
    yield from _check_points(mirror)
    age_ms = now_ms - mirror.changed_ms()
    if age_ms > OLD_MS:
        yield warning(
            "age",
            f"the last copy was {duration(age_ms)} ago",
            f"run `lithify mirror {state.source} {mirror.url}`, if that database has changed since",
        )


def _check_points(mirror: MirrorTarget) -> Iterator[Finding]:
    points = mirror.read().points
    ssts, wal = mirror.ssts(), mirror.wal()
    known: dict[int, tuple[Manifest, CopiedManifest] | str] = {}
    bad: list[str] = []
    for point in points:
        if point.manifest_id not in known:
            known[point.manifest_id] = _manifest_of(mirror, point.manifest_id)
        found = known[point.manifest_id]
        first = found if isinstance(found, str) else next(lacking(point, *found, ssts, wal), None)
        if first is not None:
            bad.append(f"{time_text(point.at_ms)} ({first})")
    if bad:
        more = f", and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        yield problem(
            "points",
            f"{count(len(bad), 'point')} cannot be restored: {'; '.join(bad[:_SHOWN])}{more}",
            "run `lithify mirror` again: it copies what the newest state lacks; older points stay lost",
        )
    else:
        yield ok("points", "each has its manifest, SSTs and files of the log, with the right sizes")


def _manifest_of(mirror: MirrorTarget, manifest_id: int) -> tuple[Manifest, CopiedManifest] | str:
    """Return a manifest and the list of its SSTs, or why they cannot be read."""
    try:
        return mirror.manifest(manifest_id), mirror.copied(manifest_id)
    except (ObjectNotFound, CorruptObject, Unsupported) as error:
        return str(error)
