"""The history that a dataset keeps, its size, and its readers and holds: values for status, metrics and
checks, the same for all kinds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lithify.base.documents import Count
from lithify.watermarks.model import Needed, Threshold


@dataclass(frozen=True, slots=True)
class Past:
    """The size of the history, computed from a snapshot alone."""

    versions: int
    """Number of readable versions, including the newest."""
    oldest_ms: int | None
    """Wall-clock milliseconds; `None` without any version."""
    only_history_bytes: int
    """Bytes of files that only older versions need, as far as these record it."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs that expire history and ended alike."""

    count: Count
    last_ms: Count
    why: str = ""
    """The obstacle of the last run."""


@dataclass(frozen=True, slots=True)
class Retained:
    """The kept history, and its users."""

    past: Past
    needed: tuple[Needed, ...] = ()
    """The users and what they need, the oldest first. A reader's needs are as of the last run."""
    readers: int = 0
    """Number of registered readers."""
    threshold: Threshold | None = None
    """The published one."""
    pending_files: int = 0
    """Number of files that wait to be deleted."""
    pending_bytes: int = 0
    blocked: tuple[str, ...] = ()
    """Reasons why other files are never deleted."""
    runs: Mapping[str, Runs] = field(default_factory=dict)
    """By outcome, in the kind's own words."""
    lost: str = ""
    """Records of required history that are missing; empty if none."""
    damaged: tuple[str, ...] = ()
    """Unreadable records, with reasons."""
