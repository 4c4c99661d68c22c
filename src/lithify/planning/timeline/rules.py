"""The rules that judge a chunk, and the default rules.

In this order; the first that gives a verdict decides:

1. `DeletedRowsRule` (only with `max_deleted_ratio`): so many rows are deleted that rewriting saves space.
2. `NoRows`: no rows are left: empty.
3. `Sizes`: no file is too large, and there are no more files than their bytes need. Such a chunk is stable;
when it shares files with a neighbour there is no opinion. Any other chunk is to be compacted, but may wait
while more data is to come, if that saves fewer than `min_saved_files` files or these have less than
`min_new_ratio` of its bytes.

Priority grows with the number of files that compaction would save or cut, from 0 towards 1.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

from rich.filesize import decimal

from lithify.planning.timeline.model import (
    Chunk,
    ChunkAction,
    ChunkBucket,
    ChunkRule,
    ChunkVerdict,
    TimelinePolicy,
)

_HALF_URGENT_FILES = 16
"""The number of files to save that gives a priority of one half."""
FILE_COST_BYTES = 128 * 1024
"""Reading a file costs as much as reading this many bytes more; the minimum that a surplus file counts
for."""


@dataclass(frozen=True, slots=True)
class DeletedRowsRule:
    """Compacts a chunk once this fraction of its rows is deleted. Delete files with an unknown number of rows
    are reason enough."""

    max_ratio: float

    def __call__(self, chunk: Chunk) -> ChunkVerdict | None:
        if any(file.deletes and not file.deleted_rows for file in chunk.files):
            return ChunkVerdict(
                ChunkAction.COMPACT, "delete files apply that hide an unknown number of rows", 0.5
            )
        if chunk.key.bucket is ChunkBucket.NULL:
            return self._any_file(chunk)
        if not chunk.deleted_rows or chunk.deleted_rows < self.max_ratio * chunk.rows:
            return None
        ratio = chunk.deleted_rows / chunk.rows
        return ChunkVerdict(
            ChunkAction.COMPACT, f"{ratio:.0%} of {chunk.rows:,} rows deleted (max_deleted_ratio)", ratio
        )

    def _any_file(self, chunk: Chunk) -> ChunkVerdict | None:
        """Judge each file by itself, since those that need no rewriting are in another pack."""
        files = [file for file in chunk.files if file.has_deleted(self.max_ratio)]
        if not files:
            return None
        noun = "file" if len(files) == 1 else "files"
        ratio = max(file.deleted_rows / file.rows for file in files)
        reason = f"up to {ratio:.0%} of the rows of {len(files)} {noun} deleted (max_deleted_ratio)"
        return ChunkVerdict(ChunkAction.COMPACT, reason, ratio)


@dataclass(frozen=True, slots=True)
class NoRows:
    """Drops files without rows, which costs no more than a commit. A chunk whose rows are all deleted is
    empty."""

    def __call__(self, chunk: Chunk) -> ChunkVerdict | None:
        if chunk.key.bucket is ChunkBucket.NULL or not chunk.rows:
            without = sum(not file.rows for file in chunk.files)
            if without:
                noun = "file" if without == 1 else "files"
                return ChunkVerdict(ChunkAction.COMPACT, f"{without} {noun} without rows", urgency(without))
        if chunk.rows > chunk.deleted_rows:
            return None
        return ChunkVerdict(ChunkAction.EMPTY, "all rows are deleted")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Judges number and sizes of the files."""

    max_file_bytes: int
    tolerance: float = 0.0
    min_saved_files: int = 1
    min_new_ratio: float = 0.0

    def __call__(self, chunk: Chunk) -> ChunkVerdict | None:
        count, total = len(chunk.files), decimal(chunk.size_bytes)
        most = _pieces(chunk.size_bytes, math.ceil(self.max_file_bytes * (1 - self.tolerance)))
        too_large = chunk.largest_bytes > math.floor(self.max_file_bytes * (1 + self.tolerance))
        needed = _pieces(chunk.size_bytes, self.max_file_bytes)
        saved = max(0, count - needed)
        noun = "file" if count == 1 else "files"
        if not too_large and count <= most:
            reason = f"{count} {noun} ({total}), as few as needed"
            if chunk.overlaps:
                return ChunkVerdict(ChunkAction.NO_OPINION, f"{reason}, shared with a neighbouring chunk")
            return ChunkVerdict(ChunkAction.STABLE, reason)
        cut = _pieces(chunk.largest_bytes, self.max_file_bytes) - 1 if too_large else 0
        effect = saved + cut
        priority = urgency(effect)
        if too_large:
            reason = (
                f"{count} {noun} ({total}), the largest {decimal(chunk.largest_bytes)}, "
                f"above max_file_bytes {decimal(self.max_file_bytes)}"
            )
        else:
            reason = f"{count} {noun} ({total}) where {most} would do"
        may_wait = not too_large and (saved < self.min_saved_files or not self._is_worth(chunk, needed))
        return ChunkVerdict(ChunkAction.COMPACT, reason, priority, may_wait)

    def _is_worth(self, chunk: Chunk, needed: int) -> bool:
        """Return whether enough of the bytes are in other files than the largest `needed`."""
        sizes = [file.size_bytes for file in chunk.files]
        kept = heapq.nlargest(needed, sizes)
        cost_bytes = sum(max(size, FILE_COST_BYTES) for size in sizes) - sum(
            max(size, FILE_COST_BYTES) for size in kept
        )
        return cost_bytes >= self.min_new_ratio * chunk.size_bytes


def urgency(files: int) -> float:
    """Return the priority of saving or cutting this many files."""
    return files / (files + _HALF_URGENT_FILES)


def default_rules(policy: TimelinePolicy) -> tuple[ChunkRule, ...]:
    """Return the rules of a policy that names none."""
    deletes = () if policy.max_deleted_ratio is None else (DeletedRowsRule(policy.max_deleted_ratio),)
    sizes = Sizes(policy.max_file_bytes, policy.size_tolerance, policy.min_saved_files, policy.min_new_ratio)
    return (*deletes, NoRows(), sizes)


def rules_of(policy: TimelinePolicy) -> tuple[ChunkRule, ...]:
    """Return the policy's own rules, or the default ones."""
    return policy.rules if policy.rules is not None else default_rules(policy)


def judge(chunk: Chunk, rules: tuple[ChunkRule, ...]) -> ChunkVerdict:
    """Return the verdict on a chunk. Rules do not apply to buckets without times, except to packs."""
    if chunk.key.bucket is ChunkBucket.UNKNOWN:
        return ChunkVerdict(
            ChunkAction.NO_OPINION, f"{len(chunk.files)} files are excluded, or their times are unknown"
        )
    if chunk.key.bucket is ChunkBucket.WIDE:
        return ChunkVerdict(
            ChunkAction.COMPACT,
            f"{len(chunk.files)} files span too many chunks (max_chunks_per_file)",
            0.5,
        )
    if chunk.key.is_well_sized:
        noun = "file" if len(chunk.files) == 1 else "files"
        return ChunkVerdict(ChunkAction.STABLE, f"{len(chunk.files)} {noun} of a good size")
    for rule in rules:
        verdict = rule(chunk)
        if verdict is not None:
            return verdict
    return ChunkVerdict(ChunkAction.NO_OPINION, "no rule applies")


def _pieces(size_bytes: int, piece_bytes: int) -> int:
    """Return how many files of `piece_bytes` hold `size_bytes`; at least one."""
    return max(1, -(-size_bytes // piece_bytes))
