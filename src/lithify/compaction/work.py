"""A compaction as it is carried out: its ranges, and what came of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RangeWork:
    """One range of a compaction as the engine runs it."""

    range: Any
    function: Callable[[Any], Any]
    """An importable function; runs inside a Spark task."""
    argument: Any
    """Small and picklable."""
    cost_bytes: int
    """Estimate of the bytes this range reads."""


@dataclass(frozen=True, slots=True)
class RangeOutcome:
    """What the service needs to know of a finished range."""

    outputs: tuple[Any, ...]
    """All outputs of the range, in order, those of earlier attempts included."""
    bytes_read: int
    bytes_written: int
    rows: Mapping[str, int]
    """Rows in, out and dropped by reason."""
    cpu_s: float
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True)
class Job:
    """A compaction made ready to run: all its ranges, in key order."""

    works: tuple[RangeWork, ...]
    horizon: int | None = None
