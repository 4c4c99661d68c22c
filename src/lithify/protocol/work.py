"""The execution of a compaction: its ranges, and the outcome of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic

from lithify.protocol.model import OutputT, RangeT


@dataclass(frozen=True, slots=True)
class RangeWork(Generic[RangeT]):
    """One range of a compaction as the engine runs it."""

    range: RangeT
    function: Callable[[Any], Any]
    """An importable function; runs inside a Spark task."""
    argument: Any
    """Small and picklable."""
    cost_bytes: int
    """Estimate of the bytes this range reads."""


@dataclass(frozen=True, slots=True)
class RangeOutcome(Generic[OutputT]):
    """The outcome of a finished range."""

    outputs: tuple[OutputT, ...]
    """All outputs of the range, in order, including those of earlier attempts."""
    bytes_read: int
    bytes_written: int
    rows: Mapping[str, int]
    """Rows in, out and dropped by reason."""
    cpu_s: float
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True)
class RangeJob(Generic[RangeT]):
    """A compaction prepared to run: all its ranges, in key order."""

    works: tuple[RangeWork[RangeT], ...]
    horizon: int | None = None
