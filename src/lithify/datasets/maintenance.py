"""What a dataset's history is kept for and let go by, as commands and programs ask for it.

A kind whose datasets have no history of their own to expire has none of this (`Kind.maintenance`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lithify.coordination.holds import Placed
from lithify.views.blocks import Shown

PARTS = ("data", "deletes", "manifests", "expiry", "files")
"""Of maintenance, in the order in which they are done: each leaves something to the ones after it."""
ORPHANS = "orphans"
"""A part that is done only where it is asked for by its own command, or by the dataset's policy."""


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """What to hold: by default, what is newest."""

    version: int | None = None
    """By its number."""
    at_ms: int | None = None
    """What was current then; wall-clock milliseconds."""


@dataclass(frozen=True, slots=True)
class ExpiryAsked:
    """What of a history may be let go."""

    older_than_ms: int | None = None
    """Wall-clock milliseconds; `None`: as the dataset says itself."""
    retain_last: int | None = None
    """So many of the newest versions stay; `None`: as the dataset says itself."""
    grace_ms: int | None = None
    """How long files stay that nothing names any more; `None`: the kind's own default."""
    dry_run: bool = False
    accept_loss: bool = False
    """Whether what is needed now is all there is, although more was recorded and is lost."""


@dataclass(frozen=True, slots=True)
class OrphansAsked:
    """Which files that nothing names may be deleted."""

    older_than_ms: int | None = None
    """Wall-clock milliseconds; `None`: the kind's own default."""
    delete: bool = False
    """Without it, they are only found."""
    max_percent: int | None = None
    """Of all files there; nothing is deleted where it would be more. `None`: the kind's own default."""


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """What came of one piece of maintenance."""

    outcome: str
    """In one word of the kind's."""
    is_done: bool
    """Whether all was done that there was to do; else something stands in the way."""
    shown: Shown


class Maintenance(Protocol):
    """The history of one dataset."""

    def left_out(self) -> frozenset[str]:
        """Those of `PARTS` that the dataset itself wants left out, whoever looks after it."""
        ...

    def hold(self, wanted: HoldRequest, lease_ms: int, name: str | None, owner: str) -> Placed:
        """Keep a version and all that came after it, until the lease ends. `Refused` when it may be gone."""
        ...

    def renew(self, placed: Placed | str, lease_ms: int | None = None) -> Placed:
        """Begin the lease of a hold anew, found by its name or as it was put. `HoldLapsed` when it is too
        late."""
        ...

    def release(self, placed: Placed | str) -> None:
        """Give a hold up, this very one or whatever has a name."""
        ...

    def holds(self) -> tuple[Placed, ...]:
        """All holds that have not lapsed."""
        ...

    def show_hold(self, placed: Placed) -> Shown:
        """One hold."""
        ...

    def show_holds(self) -> Shown:
        """All holds."""
        ...

    def add_reader(self, reader: str, name: str | None, options: Mapping[str, Any]) -> Shown:
        """Register a reader that nothing may be taken from. `Refused` when what it needs may be gone."""
        ...

    def drop_reader(self, name: str) -> Shown:
        """Forget a reader."""
        ...

    def show_readers(self) -> Shown:
        """All readers, and where they stand."""
        ...

    def remove_orphans(self, asked: OrphansAsked, tell: Callable[[str], None]) -> Shown:
        """Delete files in the dataset's place that nothing names; `tell` is told how far it is. `Refused`
        when nobody can be sure that they are its own."""
        ...

    def expire(self, asked: ExpiryAsked) -> MaintenanceResult:
        """Let go what the dataset's policy lets go and nobody needs."""
        ...

    def rewrite_deletes(self, *, dry_run: bool) -> MaintenanceResult:
        """Drop the files of deletes that apply to nothing, and merge small ones."""
        ...

    def rewrite_manifests(self, *, dry_run: bool) -> MaintenanceResult:
        """Write what lists the dataset's files anew where that saves its readers work."""
        ...
