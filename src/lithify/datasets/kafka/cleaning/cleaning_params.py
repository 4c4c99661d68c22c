"""On what terms a step is done: settings and thresholds as they were when it was planned.

They stand in the spec, so whoever carries a step out, or takes it up after somebody died, needs no settings
and makes of it what the one before would have made: finished ranges of the one fit the ranges of the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lithify.base.jsonvalues import whole_number
from lithify.datasets.kafka.cleaning.retention import NO_BOUND


@dataclass(frozen=True, slots=True)
class Terms:
    """Numbers are milliseconds, bytes or offsets."""

    min_compaction_lag_ms: int
    delete_retention_ms: int
    producer_id_expiration_ms: int
    segment_bytes: int
    keep_unkeyed: bool
    tombstones_below: int = NO_BOUND
    """Offset from which on tombstones stay, whatever their age: some copy may have what they delete."""
    markers_below: int = NO_BOUND
    """Offset from which on markers stay: some copy may have what they decide."""
    quiet_ms: int = 0
    """How long a broker has to have written nothing before its topic is changed; 0: it may write."""

    def keeps_to(self, tombstones_below: int, markers_below: int) -> bool:
        """Whether nothing is removed from these offsets on."""
        return self.tombstones_below <= tombstones_below and self.markers_below <= markers_below

    def fields(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Terms:
        """What `fields` gave; any `Exception` for what is none."""
        keep_unkeyed = found["keep_unkeyed"]
        if not isinstance(keep_unkeyed, bool):
            raise ValueError(f"{keep_unkeyed!r} is neither true nor false")
        numbers = {
            name: whole_number(value, most=NO_BOUND)
            for name, value in found.items()
            if name != "keep_unkeyed"
        }
        if not numbers["segment_bytes"]:
            raise ValueError("a segment of no bytes")
        return cls(keep_unkeyed=keep_unkeyed, **numbers)
