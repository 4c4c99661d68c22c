"""What is measured, and what must be reached."""

from __future__ import annotations

from dataclasses import dataclass

FLUSHES = 8
"""Overlapping L0s of a database, unless a case says else; the official scheduler would take up to 8 at
once."""
MAX_PEAK_MEMORY_BYTES = 600_000_000
MIN_INPUT_BYTES = 400_000_000


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of data. Each flush writes a random part of `rows` keys, an eighth if there are eight
    flushes, so that about a third of the rows are older versions that a compaction drops."""

    name: str
    value_bytes: int
    rows: int
    min_cpu_ratio: float
    """Target: bytes per CPU second of Lithify's kernel over those of the official compactor."""
    codec: str | None = None
    delete_fraction: float = 0.0
    max_cp_ratio: float | None = None
    """Target: CPU of Lithify's kernel over the CPU of `cp` of its input."""
    min_wall_ratio: float | None = None
    """Target: end-to-end throughput over that of the official compactor. Set where it is measured."""
    flushes: int = FLUSHES
    """L0s."""


CASES = (
    Case("32 B", 32, 8_000_000, min_cpu_ratio=14, delete_fraction=0.05),
    Case("200 B", 200, 2_000_000, min_cpu_ratio=10, max_cp_ratio=3.2, min_wall_ratio=6),
    Case("1 KB", 1024, 410_000, min_cpu_ratio=6),
    Case("8 KB", 8192, 52_000, min_cpu_ratio=4.5),
    Case("200 B zstd", 200, 4_000_000, min_cpu_ratio=3, codec="Zstd"),
    Case("200 B lz4", 200, 3_100_000, min_cpu_ratio=4.5, codec="Lz4"),
    Case("200 B snappy", 200, 3_100_000, min_cpu_ratio=4, codec="Snappy"),
)
