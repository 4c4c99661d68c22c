"""Turn judged chunks into tasks, in pure steps over runs of chunks.

1. *Candidates*: go through the chunks in order. A chunk that must not be rewritten ends the current
candidate. A chunk that shares files with the one before joins its candidate; any other begins a new one.
Chunks without an opinion may join, but those that share no file with a chunk that must be compacted are
removed again: rewriting them would gain nothing, and would never come to an end.
2. *Combine*: a small candidate joins the one before if that is small too, both are of one group, the gap
between them is not too wide and the result is within the limit.
3. *Split*: a candidate above the limit is cut at chunk edges into pieces within it. A single chunk above the
limit stays whole and is *oversize*.
4. Pieces in which no chunk must be compacted are dropped: they depend on their neighbours.
5. *Bundle*: small pieces of several groups that share no file with any other piece are put together, the most
urgent first, as long as the bundle itself is small. So a table of thousands of small partitions is a few
tasks and not thousands.

A run's cost counts each file once. Files are only ever shared by neighbours, so when a chunk is added to a
run that ends just before it, the cost grows by the files that begin in it.

Buckets without times have no neighbours. Packs share no file, so those of one group are combined up to the
limit. Of wide files as many are rewritten as the limit allows, since each that is cut leaves the bucket, and
the next plan takes the rest.

Invariants: combining and splitting keep the chunks and their order; every task has a chunk that must be
compacted; no task has one that must not be rewritten.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from lithify.planning.timeline.model import Chunk, ChunkBucket, Interval, TimelineFile, TimelinePolicy


@dataclass(frozen=True, slots=True)
class CandidatePart:
    """A chunk as a part of a candidate."""

    chunk: Chunk
    must: bool
    """Whether it must be compacted; otherwise it may be."""
    priority: float
    reason: str


Run = tuple[CandidatePart, ...]
"""Chunks to be rewritten together, ascending."""


def candidates(parts: Iterable[CandidatePart | None]) -> list[Run]:
    """Do step 1. `None` stands for a chunk that must not be rewritten."""
    runs: list[list[CandidatePart]] = []
    is_open = False
    for part in parts:
        if part is None:
            is_open = False
        elif is_open and part.chunk.overlap_prior:
            runs[-1].append(part)
        else:
            runs.append([part])
            is_open = True
    return [trimmed for run in runs for trimmed in _trim(run)]


def combine(runs: Iterable[Run], policy: TimelinePolicy) -> list[Run]:
    """Do step 2."""
    combined: list[Run] = []
    last_cost = 0
    for run in runs:
        cost = cost_bytes(run)
        if (
            combined
            and last_cost + cost <= policy.max_task_bytes
            and (
                _are_packs(combined[-1], run)
                or (
                    max(cost, last_cost) < policy.small_task_bytes
                    and _gap_us(combined[-1], run) <= policy.max_combine_gap_us
                )
            )
        ):
            combined[-1] = combined[-1] + run
            last_cost += cost
        else:
            combined.append(run)
            last_cost = cost
    return combined


def split(runs: Iterable[Run], policy: TimelinePolicy) -> list[Run]:
    """Do step 3."""
    return [piece for run in runs for piece in _pieces(run, policy.max_task_bytes)]


def form(
    parts: Iterable[CandidatePart | None], policy: TimelinePolicy, alone: Collection[str] = frozenset()
) -> list[Run]:
    """Do all steps. Groups in `alone` are in no bundle."""
    pieces = split(combine(candidates(parts), policy), policy)
    return bundle([piece for piece in pieces if any(part.must for part in piece)], policy, alone)


def bundle(runs: Sequence[Run], policy: TimelinePolicy, alone: Collection[str] = frozenset()) -> list[Run]:
    """Do step 5. Runs that are not bundled come first, in their order."""
    may = (run for run in runs if policy.max_bundle_files and run[0].chunk.key.group not in alone)
    small = [run for run in may if _is_apart(run) and _is_small(run, policy)]
    if len({run[0].chunk.key.group for run in small}) < 2:
        return list(runs)
    small.sort(key=lambda run: (-max(part.priority for part in run), run[0].chunk.key))
    apart = {id(run) for run in small}
    bundles: list[list[CandidatePart]] = []
    cost = files = 0
    for run in small:
        run_files = sum(len(part.chunk.files) for part in run)
        is_open = cost < policy.small_task_bytes and files + run_files <= policy.max_bundle_files
        if bundles and is_open and cost + cost_bytes(run) <= policy.max_task_bytes:
            bundles[-1] += run
        else:
            bundles.append(list(run))
            cost = files = 0
        cost, files = cost + cost_bytes(run), files + run_files
    whole = (sorted(parts, key=lambda part: part.chunk.key) for parts in bundles)
    return [*(run for run in runs if id(run) not in apart), *map(tuple, whole)]


def _is_small(run: Run, policy: TimelinePolicy) -> bool:
    return cost_bytes(run) < policy.small_task_bytes


def _is_apart(run: Run) -> bool:
    """Return whether the run shares no file with chunks of other runs."""
    return not run[0].chunk.overlap_prior and not run[-1].chunk.overlap_later


def inputs(chunks: Iterable[Chunk], policy: TimelinePolicy) -> tuple[TimelineFile, ...]:
    """Return the files a task over these chunks rewrites, each once, in order."""
    files: dict[str, TimelineFile] = {}
    for chunk in chunks:
        is_wide = chunk.key.bucket is ChunkBucket.WIDE
        for file in _portion(chunk.files, policy.max_task_bytes) if is_wide else chunk.files:
            files.setdefault(file.id, file)
    return tuple(files.values())


def cost_bytes(run: Sequence[CandidatePart]) -> int:
    """Return the bytes of the files of a run; an upper bound when it is not contiguous."""
    total = 0
    previous: Chunk | None = None
    for part in run:
        follows = previous is not None and _touch(previous, part.chunk)
        total += part.chunk.starting_bytes if follows else part.chunk.size_bytes
        previous = part.chunk
    return total


def _trim(run: Sequence[CandidatePart]) -> Iterator[Run]:
    """Return the run without chunks that may be rewritten but share no file with one that must be. That takes
    two passes, since sharing with the nearest such chunk on either side is what counts."""
    keep = [part.must for part in run]
    if all(keep) or not any(keep):
        if run and keep[0]:
            yield tuple(run)
        return
    needy: Chunk | None = None
    for index, part in enumerate(run):
        if part.must:
            needy = part.chunk
        elif needy is not None and _reaches(needy, part.chunk):
            keep[index] = True
    needy = None
    for index in reversed(range(len(run))):
        if run[index].must:
            needy = run[index].chunk
        elif needy is not None and _reaches(run[index].chunk, needy):
            keep[index] = True
    kept: list[CandidatePart] = []
    for index, part in enumerate(run):
        if keep[index]:
            kept.append(part)
        elif kept:
            yield tuple(kept)
            kept = []
    if kept:
        yield tuple(kept)


def _pieces(run: Run, limit_bytes: int) -> Iterator[Run]:
    piece: list[CandidatePart] = []
    piece_bytes = 0
    for part in run:
        follows = bool(piece) and _touch(piece[-1].chunk, part.chunk)
        added_bytes = part.chunk.starting_bytes if follows else part.chunk.size_bytes
        if piece and piece_bytes + added_bytes > limit_bytes:
            yield tuple(piece)
            piece, piece_bytes, added_bytes = [], 0, part.chunk.size_bytes
        piece.append(part)
        piece_bytes += added_bytes
    if piece:
        yield tuple(piece)


def _reaches(earlier: Chunk, later: Chunk) -> bool:
    """Return whether a file of the later chunk begins before the earlier one ends: they share it."""
    assert earlier.interval is not None
    times = later.files[0].times
    return isinstance(times, Interval) and times.start_us < earlier.interval.end_us


def _touch(first: Chunk, second: Chunk) -> bool:
    return (
        first.key.group == second.key.group
        and first.interval is not None
        and second.interval is not None
        and first.interval.end_us == second.interval.start_us
    )


def _are_packs(first: Run, second: Run) -> bool:
    """Return whether both are packs of one group."""
    keys = first[-1].chunk.key, second[0].chunk.key
    return keys[0].group == keys[1].group and all(key.bucket is ChunkBucket.NULL for key in keys)


def _gap_us(first: Run, second: Run) -> float:
    """Return the time between two runs; infinite between groups and where there are no times."""
    before, after = first[-1].chunk, second[0].chunk
    if before.key.group != after.key.group or before.interval is None or after.interval is None:
        return math.inf
    return after.interval.start_us - before.interval.end_us


def _portion(files: Sequence[TimelineFile], limit_bytes: int) -> tuple[TimelineFile, ...]:
    """Return as many of the smallest files as the limit allows, at least one."""
    taken: list[TimelineFile] = []
    total_bytes = 0
    for file in sorted(files, key=lambda file: (file.size_bytes, file.id)):
        total_bytes += file.size_bytes
        if taken and total_bytes > limit_bytes:
            break
        taken.append(file)
    return tuple(taken)
