"""Packs of files by size, for files whose order does not matter.

A *pack* is the analogue of a time chunk: it is judged, and rewritten, by itself. Files are taken in order of
age, so rows that arrived together stay together. A pack ends as soon as its bytes fill files of the target
size to `MIN_FILL`; only the last pack may fill them less. A pack does not depend on files before it, so a
pack that is not rewritten is the same in the next plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from lithify.planning.timeline.model import TimelineFile

MIN_FILL = Fraction(7, 8)
"""The part of the target size that the files written from a pack have at least, by estimate: less than 1, so
that few files fill a pack, and more than the least good size, so that files are not rewritten again if they
become a little smaller than estimated."""


def pack(
    files: Sequence[TimelineFile], target_bytes: int, limit_bytes: int | None = None
) -> list[tuple[TimelineFile, ...]]:
    """Return the files as packs of consecutive ones. A pack of several files has at most `limit_bytes`."""
    packs: list[tuple[TimelineFile, ...]] = []
    first = filled_bytes = cost_bytes = 0
    for index, file in enumerate(files):
        is_beyond = limit_bytes is not None and cost_bytes + file.size_bytes > limit_bytes
        if index > first and (is_beyond or _is_full(filled_bytes, target_bytes)):
            packs.append(tuple(files[first:index]))
            first, filled_bytes, cost_bytes = index, 0, 0
        filled_bytes += _live_bytes(file)
        cost_bytes += file.size_bytes
    if first < len(files):
        packs.append(tuple(files[first:]))
    return packs


def _is_full(filled_bytes: int, target_bytes: int) -> bool:
    outputs = -(-filled_bytes // target_bytes)
    return outputs > 0 and filled_bytes >= MIN_FILL * outputs * target_bytes


def _live_bytes(file: TimelineFile) -> int:
    """Estimate the bytes of the rows that are not deleted."""
    if not file.deleted_rows:
        return file.size_bytes
    return file.size_bytes * (file.rows - file.deleted_rows) // file.rows
