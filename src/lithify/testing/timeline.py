"""A model of a table's time chunks, which has only sizes: the effect of tasks on a timeline."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from lithify.planning.timeline.model import ChunkBucket, Interval, TimelineFile, TimelinePolicy


@dataclass(frozen=True)
class _Share:
    start_us: int
    end_us: int
    size_bytes: float
    rows: int


@dataclass
class ModelTable:
    """A table whose tasks rewrite evenly: each chunk's part of the inputs becomes the fewest files of equal
    size within `max_file_bytes`. A file's bytes and rows are spread evenly over its time interval."""

    policy: TimelinePolicy
    files: dict[str, TimelineFile] = field(default_factory=dict)
    version: int = 1
    ratio: float = 1.0
    """Bytes written per byte read."""
    _written: int = 0

    @classmethod
    def of(cls, files: Iterable[TimelineFile], policy: TimelinePolicy, ratio: float = 1.0) -> ModelTable:
        return cls(policy, {f.id: f for f in files}, ratio=ratio)

    def listing(self) -> list[TimelineFile]:
        return list(self.files.values())

    def rows(self) -> int:
        return sum(f.rows for f in self.files.values())

    def rewrite(self, ids: Sequence[str]) -> list[TimelineFile]:
        """Replace the files by a task's outputs. Return these."""
        inputs = [self.files.pop(id) for id in ids]
        shares: dict[tuple[str, int | None], list[_Share]] = {}
        for f in inputs:
            for edge, share in self._cut(f):
                shares.setdefault((f.group, edge), []).append(share)
        added = []
        for (group, edge), parts in sorted(shares.items(), key=repr):
            size_bytes = max(1, round(sum(part.size_bytes for part in parts) * self.ratio))
            rows = sum(part.rows for part in parts)
            if not rows:
                continue  # without rows no file is written
            start, end = min(part.start_us for part in parts), max(part.end_us for part in parts)
            pieces = max(1, -(-size_bytes // self.policy.max_file_bytes))
            for i in range(pieces):
                self._written += 1
                added.append(
                    TimelineFile(
                        f"out{self._written}",
                        ChunkBucket.NULL if edge is None else Interval(start, end),
                        size_bytes * (i + 1) // pieces - size_bytes * i // pieces,
                        rows * (i + 1) // pieces - rows * i // pieces,
                        version=self.version,
                        group=group,
                    )
                )
        self.files.update({f.id: f for f in added})
        return added

    def _cut(self, f: TimelineFile) -> Iterator[tuple[int | None, _Share]]:
        """Split a file by chunk. Yield each share with the start of its chunk."""
        if not isinstance(f.times, Interval):
            yield None, _Share(0, 1, f.size_bytes, f.rows)
            return
        start, end = f.times.start_us, f.times.end_us
        rows_left = f.rows
        for edge, following in itertools.pairwise(self.policy.calendar.edges(start, end)):
            low, high = max(edge, start), min(following, end)
            fraction = (high - low) / (end - start)
            rows = rows_left if high == end else min(rows_left, round(f.rows * fraction))
            rows_left -= rows
            yield edge, _Share(low, high, f.size_bytes * fraction, rows)
