"""The coordinator of a dataset, and whether it is alive, as far as that is visible."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Presence(Enum):
    """The state of a dataset's coordinator."""

    NEVER = "none has ever run"
    ALIVE = "Lithify's, alive"
    STOPPED = "Lithify's, stopped"
    LOST = "Lithify's, silent: killed, or hanging"
    UNCLEAR = "Lithify's; whether it is alive cannot be seen from here"
    FOREIGN = "another system's, if its process is still open"


@dataclass(frozen=True, slots=True)
class CoordinatorStatus:
    """The coordinator of a dataset."""

    presence: Presence
    epoch: int
    holder: str | None = None
    """The name of Lithify's process."""
    lease_ends_ms: int | None = None
    """When its lease ends, or ended; milliseconds of the store's clock."""
    system: str | None = None
    """The owner of a foreign coordinator."""

    @property
    def says(self) -> str:
        """A description for display."""
        if self.system is None:
            return self.presence.value
        return f"{self.system}'s, if its process is still open"

    @property
    def is_alive(self) -> bool | None:
        """`None` if unknown."""
        if self.presence in (Presence.FOREIGN, Presence.UNCLEAR):
            return None
        return self.presence is Presence.ALIVE
