"""Cutting a compaction into ranges: the work of single tasks.

1. The cuts of the spec (edges of chunks) divide time into pieces. Estimate the bytes of each from the
   inputs, as if the rows of a file were spread evenly over its interval.
2. A piece much larger than a range is cut again, at even shares of its estimated bytes. Each share
   is a whole number of target sizes, so that cutting results in at most one smaller file.
3. Consecutive pieces are combined until they have about the size of one range.

Invariants: ranges follow each other without a gap and cover all of time; every cut of the spec is an edge
or a cut of a range; the first range includes the rows without a time.

Files without a place on the axis are divided whole: a range is a few consecutive packs (`split_packs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np
import numpy.typing as npt

from lithify.datasets.iceberg.model import TimeRange
from lithify.planning.timeline.model import Interval, TimelineFile
from lithify.planning.timeline.packing import pack

RANGE_BYTES = 16 * 1024 * 1024
"""The estimated input of one task, if chunks allow it: about a second of work, so that even a small table
uses several cores and little is lost when a task fails."""
LARGE_PIECE = 2.0
"""The size, in ranges, from which a piece is cut."""
MAX_POINTS = 256
"""The maximum number of times at which the estimate is computed to cut a piece."""

Floats = npt.NDArray[np.float64]


def split(
    files: Sequence[TimelineFile], cuts: Sequence[int], target_bytes: int, range_bytes: int = RANGE_BYTES
) -> tuple[TimeRange, ...]:
    """Return the ranges of a compaction of these files."""
    unit_bytes = target_bytes * max(1, ceil(range_bytes / target_bytes))
    estimates = piece_bytes(files, cuts)
    bounds: list[int | None] = [None, *cuts, None]
    ranges: list[TimeRange] = []
    waiting: list[int] = []  # cuts inside the current range
    start: int | None = None
    collected = 0.0

    def close(end: int | None) -> None:
        nonlocal start, collected, waiting
        ranges.append(TimeRange(start, end, tuple(waiting), with_nulls=not ranges))
        start, collected, waiting = end, 0.0, []

    for number, size in enumerate(estimates):
        begin, end = bounds[number], bounds[number + 1]
        is_large = size >= LARGE_PIECE * unit_bytes
        if number and (is_large or collected >= range_bytes):
            close(begin)
        elif number:
            assert begin is not None
            waiting.append(begin)
        if is_large:
            for cut in _shares(files, begin, end, round(size / unit_bytes)):
                close(cut)
            collected = float(range_bytes)  # start another range
        else:
            collected += size
    close(None)
    return tuple(ranges)


def split_packs(
    files: Sequence[TimelineFile], target_bytes: int, range_bytes: int = RANGE_BYTES
) -> tuple[TimeRange, ...]:
    """Return the ranges of a compaction of files without a place: consecutive files, whose outputs have
    roughly the target size."""
    ranges: list[TimeRange] = []
    first = end = collected = 0
    for one in pack(files, target_bytes):
        end += len(one)
        collected += sum(file.size_bytes for file in one)
        if collected >= range_bytes or end == len(files):
            ranges.append(TimeRange(None, None, with_nulls=True, inputs=(first, end)))
            first, collected = end, 0
    return tuple(ranges)


def piece_bytes(files: Sequence[TimelineFile], cuts: Sequence[int]) -> Floats:
    """Return the estimated bytes of each piece; rows without a time count to the first."""
    sizes: Floats = np.zeros(len(cuts) + 1)
    edges = np.asarray(cuts, dtype=np.int64)
    for file in files:
        if not isinstance(file.times, Interval):
            sizes[0] += file.size_bytes
            continue
        start, end = file.times.start_us, file.times.end_us
        first, last = np.searchsorted(edges, [start, end - 1], side="right")
        inner = np.clip(edges[first:last], start, end)
        lengths = np.diff(np.concatenate(([start], inner, [end])))
        sizes[first : last + 1] += file.size_bytes * (lengths / (end - start))
    return sizes


def _shares(files: Sequence[TimelineFile], begin: int | None, end: int | None, parts: int) -> list[int]:
    """Return times strictly inside the piece that divide its estimated bytes into about equal parts."""
    inside = [f for f in files if isinstance(f.times, Interval) and _meets(f.times, begin, end)]
    if not inside:
        return []
    starts = np.array([f.times.start_us for f in inside if isinstance(f.times, Interval)], dtype=np.int64)
    ends = np.array([f.times.end_us for f in inside if isinstance(f.times, Interval)], dtype=np.int64)
    sizes = np.array([f.size_bytes for f in inside], dtype=np.float64)
    low = int(starts.min()) if begin is None else max(begin, int(starts.min()))
    high = int(ends.max()) if end is None else min(end, int(ends.max()))
    points = np.unique(np.linspace(low, high, MAX_POINTS).astype(np.int64))
    shares = np.clip((points[:, None] - starts) / (ends - starts), 0.0, 1.0)
    total = shares @ sizes
    total -= total[0]
    wanted = total[-1] * np.arange(1, parts) / parts
    found = np.unique(np.interp(wanted, total, points).astype(np.int64))
    return [int(cut) for cut in found if low < cut < high]


def _meets(times: Interval, begin: int | None, end: int | None) -> bool:
    return (end is None or times.start_us < end) and (begin is None or begin < times.end_us)
