"""How mirrors and restores are displayed."""

from __future__ import annotations

from typing import Any

from lithify.datasets.slatedb.mirroring.mirror import MirrorReport
from lithify.datasets.slatedb.mirroring.restore import RestoreReport, time_text
from lithify.datasets.slatedb.mirroring.state import MirrorState, RestorePoint
from lithify.views import text
from lithify.views.blocks import Line, Shown, Table, columns

__all__ = ["Shown", "show_mirrored", "show_points", "show_restored"]


def point_json(point: RestorePoint) -> dict[str, Any]:
    return {
        "at": time_text(point.at_ms),
        "manifest_id": point.manifest_id,
        "wal_from": point.wal_after + 1,
        "wal_to": point.wal_to,
    }


def show_mirrored(url: str, target: str, report: MirrorReport) -> Shown:
    document = {
        "url": url,
        "mirror": target,
        "is_new": report.is_new,
        "point": point_json(report.point),
        "oldest": point_json(report.oldest),
        "points": report.points,
        "ssts": report.ssts,
        "wal_files": report.wal_files,
        "bytes": report.bytes,
        "deleted": report.deleted,
    }
    at = time_text(report.point.at_ms)
    if report.is_new:
        copied = f"{text.count(report.ssts, 'SST')}, {text.count(report.wal_files, 'file')} of the log"
        says = f"{url}: mirrored up to {at} ({copied}, {text.size(report.bytes)})"
    else:
        says = f"{url}: nothing has changed since {at}"
    kept = f"{text.count(report.points, 'point')} from {time_text(report.oldest.at_ms)}"
    deleted = f"; {text.count(report.deleted, 'old object')} deleted" if report.deleted else ""
    return Shown(document, (Line(f"{says}; {kept}{deleted}."),))


def show_restored(mirror: str, url: str, report: RestoreReport) -> Shown:
    document = {
        "mirror": mirror,
        "source": report.source,
        "url": url,
        "point": point_json(report.point),
        "ssts": report.ssts,
        "wal_files": report.wal_files,
        "bytes": report.bytes,
    }
    at = time_text(report.point.at_ms)
    copied = f"{text.count(report.ssts, 'SST')}, {text.count(report.wal_files, 'file')} of the log"
    line = f"{url}: restored as {report.source} was at {at} ({copied}, {text.size(report.bytes)})."
    return Shown(document, (Line(line),))


def show_points(mirror: str, state: MirrorState) -> Shown:
    """Show the points of a mirror, the newest first."""
    points = tuple(reversed(state.points))
    rows = [
        (
            time_text(p.at_ms),
            str(p.manifest_id),
            f"{p.wal_after + 1} to {p.wal_to}" if p.wal_to > p.wal_after else "–",
        )
        for p in points
    ]
    table = Table("Points in time", columns("=at", ">manifest", "log"), rows, of="points")
    document = {"mirror": mirror, "source": state.source, "points": [point_json(p) for p in points]}
    return Shown(document, (Line(f"Mirror of {state.source}."), table))
