"""What is compacted over S3. Names give the bytes of all L0s together."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.cases import CASES, Case

LATENCIES_MS = (0, 20, 100)
BANDWIDTH = 90e6
"""Bytes per second of each connection, as S3 gives within a region."""
IDLE = "S3 idle"
_GB = 1_000_000_000
_PLAIN = next(case for case in CASES if case.name == "200 B")
_ZSTD = next(case for case in CASES if case.name == "200 B zstd")
_BYTES = 450_000_000
"""Of the L0s of `_PLAIN`."""


@dataclass(frozen=True, slots=True)
class S3Case:
    """One compaction of everything."""

    name: str
    data: Case
    scale: float = 1.0
    """Of the rows of `data`."""
    master: str = "local[2]"
    max_sst_bytes: int | None = None
    """Of outputs, and so of ranges, on both sides; `None`: the default of both, 256 MiB."""
    repetitions: int = 3
    """Of each side; the run that takes neither the least nor the most time counts."""
    only_when_named: bool = False


def _sources(flushes: int, megabytes: float, name: str, **options: object) -> S3Case:
    """So many L0s of so many megabytes each."""
    case = S3Case(name, replace(_PLAIN, flushes=flushes), flushes * megabytes * 1e6 / _BYTES)
    return replace(case, **options)  # type: ignore[arg-type]  # fields of S3Case


S3_CASES = (
    _sources(8, 0.25, "S3 2 MB"),
    _sources(64, 1, "S3 64 x 1 MB"),
    _sources(8, 12.5, "S3 100 MB in one range"),
    _sources(2, 92, "S3 two sources of 92 MB"),
    _sources(2, 92, "S3 one task with two sources", master="local[1]", max_sst_bytes=_GB),
    S3Case("S3 450 MB", _PLAIN),
    S3Case("S3 450 MB zstd", _ZSTD),
    _sources(24, 208, "S3 5 GB in 24 sources", repetitions=1, only_when_named=True),
)
