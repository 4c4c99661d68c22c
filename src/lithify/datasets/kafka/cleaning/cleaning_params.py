"""The parameters of a step: settings and thresholds as they were when the step was planned.

They are part of the spec. So a worker that takes a step over needs no settings, and its ranges fit those that
its predecessor finished.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lithify.base.jsonvalues import whole_number
from lithify.datasets.kafka.cleaning.retention import NO_BOUND

_FLAGS = ("keep_unkeyed", "newest_segment")


@dataclass(frozen=True, slots=True)
class Terms:
    """Numbers are milliseconds, bytes or offsets."""

    min_compaction_lag_ms: int
    delete_retention_ms: int
    producer_id_expiration_ms: int
    segment_bytes: int
    keep_unkeyed: bool
    tombstones_below: int = NO_BOUND
    """Tombstones from here on are kept, whatever their age: a copy may still have the records they delete."""
    markers_below: int = NO_BOUND
    """Markers from here on are kept: a copy may still have the records they decide."""
    quiet_ms: int = 0
    """Required time without a write by the broker before its topic is changed; 0 permits writes."""
    newest_segment: bool = False
    """Whether the newest segment is compacted too."""

    def keeps_to(self, tombstones_below: int, markers_below: int) -> bool:
        """Return whether nothing at or above these offsets is removed."""
        return self.tombstones_below <= tombstones_below and self.markers_below <= markers_below

    def fields(self) -> dict[str, Any]:
        """Return JSON values, which `of` reads."""
        found = asdict(self)
        if not self.newest_segment:  # older versions of Lithify do not know it
            del found["newest_segment"]
        return found

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Terms:
        """Return the terms with these `fields`; raise any `Exception` if they are invalid."""
        keep_unkeyed, newest_segment = found["keep_unkeyed"], found.get("newest_segment", False)
        if not (isinstance(keep_unkeyed, bool) and isinstance(newest_segment, bool)):
            raise ValueError(f"{keep_unkeyed!r} or {newest_segment!r} is neither true nor false")
        numbers = {
            name: whole_number(value, most=NO_BOUND) for name, value in found.items() if name not in _FLAGS
        }
        if not numbers["segment_bytes"]:
            raise ValueError("a segment of no bytes")
        return cls(keep_unkeyed=keep_unkeyed, newest_segment=newest_segment, **numbers)
