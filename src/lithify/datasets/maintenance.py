"""The contract for history maintenance, as commands and programs use it: holds, readers and expiry.

A kind whose datasets have no history to expire does not implement it (`Kind.maintenance`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lithify.coordination.holds import Placed
from lithify.views.blocks import Shown

PARTS = ("data", "deletes", "manifests", "expiry", "files")
"""Parts of maintenance in their order: each part leaves work for later ones."""
ORPHANS = "orphans"
"""A part that runs only by its own command, or by the dataset's policy."""


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """The version to hold; by default the newest."""

    version: int | None = None
    """The version's number."""
    at_ms: int | None = None
    """Hold the version that was current at this wall-clock time, in milliseconds."""


@dataclass(frozen=True, slots=True)
class ExpiryAsked:
    """Limits of an expiry."""

    older_than_ms: int | None = None
    """Wall-clock milliseconds; `None`: the dataset's own policy."""
    retain_last: int | None = None
    """The number of newest versions to retain; `None`: the dataset's own policy."""
    grace_ms: int | None = None
    """How long unreferenced files are kept; `None`: the kind's own default."""
    dry_run: bool = False
    accept_loss: bool = False
    """Whether to treat the current needs as complete although recorded ones were lost."""


@dataclass(frozen=True, slots=True)
class OrphansAsked:
    """Limits of the removal of unreferenced files."""

    older_than_ms: int | None = None
    """Wall-clock milliseconds; `None`: the kind's own default."""
    delete: bool = False
    """If false, the files are only found."""
    max_percent: int | None = None
    """Percentage of all files; if more would be deleted, nothing is. `None`: the kind's own default."""


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """The result of one part of maintenance."""

    outcome: str
    """One word of the kind's own."""
    is_done: bool
    """Whether all necessary work was done; if not, something prevented it."""
    shown: Shown


class Maintenance(Protocol):
    """Maintenance of one dataset's history."""

    def left_out(self) -> frozenset[str]:
        """Return those of `PARTS` that the dataset's policy excludes, for every process that maintains it."""
        ...

    def hold(self, wanted: HoldRequest, lease_ms: int, name: str | None, owner: str) -> Placed:
        """Hold a version and all later ones until the lease expires. Raise `Refused` if it may be gone."""
        ...

    def renew(self, placed: Placed | str, lease_ms: int | None = None) -> Placed:
        """Renew the lease of a hold, given by name or value. Raise `HoldLapsed` if it is too late."""
        ...

    def release(self, placed: Placed | str) -> None:
        """Release a hold: exactly this one, or any with that name."""
        ...

    def holds(self) -> tuple[Placed, ...]:
        """Return all holds that have not expired."""
        ...

    def show_hold(self, placed: Placed) -> Shown: ...

    def show_holds(self) -> Shown: ...

    def add_reader(self, reader: str, name: str | None, options: Mapping[str, Any]) -> Shown:
        """Register a reader, whose data must be kept. Raise `Refused` if data that it needs may be gone."""
        ...

    def drop_reader(self, name: str) -> Shown:
        """Remove a reader."""
        ...

    def show_readers(self) -> Shown:
        """Show all readers and their positions."""
        ...

    def remove_orphans(self, asked: OrphansAsked, tell: Callable[[str], None]) -> Shown:
        """Delete unreferenced files in the dataset's folder; report progress to `tell`. Raise `Refused` if it
        is not certain that they belong to the dataset."""
        ...

    def expire(self, asked: ExpiryAsked) -> MaintenanceResult:
        """Expire the versions that the dataset's policy gives up and nothing needs."""
        ...

    def rewrite_equality_deletes(self, *, dry_run: bool) -> MaintenanceResult:
        """Delete rows by position that are deleted by equal keys, and remove these deletes."""
        ...

    def rewrite_deletes(self, *, dry_run: bool) -> MaintenanceResult:
        """Drop dangling delete files, and merge small ones."""
        ...

    def rewrite_manifests(self, *, dry_run: bool) -> MaintenanceResult:
        """Rewrite the manifests if that saves readers work."""
        ...
