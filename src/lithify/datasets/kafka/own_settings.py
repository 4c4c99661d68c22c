"""What a topic in a broker's bucket says of its own compaction: it goes before Lithify's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from lithify.datasets.kafka.layouts.contract import BrokerTopic
from lithify.errors import Refused

NumberT = TypeVar("NumberT", int, float)


@dataclass(frozen=True, slots=True)
class OwnSettings:
    """`None`: the topic does not say."""

    dirty_ratio: float | None = None
    """`min.cleanable.dirty.ratio`."""
    min_lag_ms: int | None = None
    """`min.compaction.lag.ms`."""
    max_lag_ms: int | None = None
    """`max.compaction.lag.ms`."""
    delete_retention_ms: int | None = None
    """`delete.retention.ms`."""

    @classmethod
    def of(cls, topic: BrokerTopic | None) -> OwnSettings:
        """Those of this topic; `Refused` for what is no number. Where there is no broker's topic, none."""
        if topic is None:
            return cls()
        configs = topic.configs
        return cls(
            _number(configs, "min.cleanable.dirty.ratio", float),
            _number(configs, "min.compaction.lag.ms", int),
            _number(configs, "max.compaction.lag.ms", int),
            _number(configs, "delete.retention.ms", int),
        )


def _number(configs: Mapping[str, str], name: str, read: Callable[[str], NumberT]) -> NumberT | None:
    if name not in configs:
        return None
    try:
        found = read(configs[name])
    except ValueError as error:
        raise Refused(f"{name} of the topic is {configs[name]!r}, which is no number") from error
    if not found >= 0:
        raise Refused(f"{name} of the topic is {configs[name]!r}, which is negative")
    return found
