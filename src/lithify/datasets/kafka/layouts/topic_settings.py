"""A topic's own compaction settings, as far as they are known. They override Lithify's settings.

Kafka's brokers accept any whole number up to 2⁶³ − 1 as milliseconds, and any from 0 to 1 as a ratio. Other
brokers check less. Here, numbers above the range mean its end; anything else is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lithify.base.errors import Refused
from lithify.datasets.kafka.format.kernel.layout import MAX_OFFSET_DELTA

_WHOLE = re.compile(r"[+-]?[0-9]{1,1000}")
_RATIO = re.compile(r"[+-]?([0-9]{1,1000}\.?[0-9]{0,1000}|\.[0-9]{1,1000})([eE][+-]?[0-9]{1,9})?")
_MOST_MS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class OwnSettings:
    """A topic's own settings; `None` where the topic has none."""

    dirty_ratio: float | None = None
    """`min.cleanable.dirty.ratio`."""
    min_lag_ms: int | None = None
    """`min.compaction.lag.ms`."""
    max_lag_ms: int | None = None
    """`max.compaction.lag.ms`."""
    delete_retention_ms: int | None = None
    """`delete.retention.ms`."""
    segment_bytes: int | None = None
    """`segment.bytes`."""

    @classmethod
    def of(cls, configs: Mapping[str, str] | None) -> OwnSettings:
        """Return the settings of a topic, by Kafka's names; none if these are not known. Raise `Refused` if a
        setting is not a number, or is negative."""
        if configs is None:
            return cls()
        segment_bytes = _number(configs, "segment.bytes", _WHOLE)
        return cls(
            _ratio(configs, "min.cleanable.dirty.ratio"),
            _milliseconds(configs, "min.compaction.lag.ms"),
            _milliseconds(configs, "max.compaction.lag.ms"),
            _milliseconds(configs, "delete.retention.ms"),
            None if segment_bytes is None else min(max(int(segment_bytes), 1), MAX_OFFSET_DELTA),
        )


def is_compacted(policy: str) -> bool:
    """Return whether a topic with this `cleanup.policy` is compacted, perhaps beside being deleted by age."""
    return "compact" in [one.strip() for one in policy.split(",")]


def _milliseconds(configs: Mapping[str, str], name: str) -> int | None:
    found = _number(configs, name, _WHOLE)
    return None if found is None else min(int(found), _MOST_MS)


def _ratio(configs: Mapping[str, str], name: str) -> float | None:
    found = _number(configs, name, _RATIO)
    return None if found is None else min(float(found), 1.0)


def _number(configs: Mapping[str, str], name: str, form: re.Pattern[str]) -> str | None:
    """Return the text of a setting after checking it; `None` without the setting."""
    if name not in configs:
        return None
    text = configs[name].strip()
    if not form.fullmatch(text):
        raise Refused(f"{name} of the topic is {configs[name][:40]!r}, which is not a number")
    if text.startswith("-") and text.strip("-0.") != "":
        raise Refused(f"{name} of the topic is {configs[name][:40]!r}, which is negative")
    return text
