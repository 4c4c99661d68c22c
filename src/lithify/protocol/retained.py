"""What of its past a dataset keeps, how much that is, and who needs it: values for status, metrics and
checks, the same for all kinds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lithify.watermarks.model import Needed, Threshold


@dataclass(frozen=True, slots=True)
class Past:
    """How much of its past there is, told from a snapshot alone."""

    versions: int
    """That can be read, the newest too."""
    oldest_ms: int | None
    """Wall-clock milliseconds; `None` without any."""
    only_history_bytes: int
    """Of files that only older versions need, as far as these say."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs that were to let history go and that ended alike."""

    count: int
    last_ms: int
    why: str = ""
    """Of the last one: what stood in the way."""


@dataclass(frozen=True, slots=True)
class Retained:
    """What is kept, and for whom."""

    past: Past
    needed: tuple[Needed, ...] = ()
    """Who needs what, the oldest first. What a reader needs is told as a run found it last."""
    readers: int = 0
    """That are registered."""
    threshold: Threshold | None = None
    """The published one."""
    pending_files: int = 0
    """That wait to be deleted."""
    pending_bytes: int = 0
    blocked: tuple[str, ...] = ()
    """Why others that were to be deleted stay for good."""
    runs: Mapping[str, Runs] = field(default_factory=dict)
    """By outcome, in the kind's own words."""
    lost: str = ""
    """What ought to be kept and is not on record any more; empty when that is nothing."""
    damaged: tuple[str, ...] = ()
    """What of all this could not be read, and why."""
