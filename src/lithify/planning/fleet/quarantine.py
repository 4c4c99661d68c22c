"""Datasets that are left alone because something is wrong with them: corrupt, of a newer version, forbidden,
failing.

1. A look that fails puts its dataset into quarantine: nothing is asked of it for a pause that grows with
   each failed look in a row. Nobody else waits meanwhile.
2. That is said once, and again only when something else is wrong (`failed` tells); one entry for each
   dataset stays until it is well.
3. A look that succeeds ends it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lithify.base.backoff import GrowingPause

QUARANTINE_PAUSE = GrowingPause(first_ms=5_000, max_ms=1_800_000)


@dataclass(frozen=True, slots=True)
class QuarantinedDataset:
    """One dataset in quarantine."""

    why: str
    """One sentence."""
    since_ms: int
    failed_ms: int
    """The last time."""
    failures: int
    """In a row."""

    @property
    def until_ms(self) -> int:
        """When it is looked at again."""
        return self.failed_ms + QUARANTINE_PAUSE.after_ms(self.failures)


class Quarantine:
    """All that are left alone, by URL."""

    def __init__(self) -> None:
        self._entries: dict[str, QuarantinedDataset] = {}

    @property
    def entries(self) -> dict[str, QuarantinedDataset]:
        """What there is to say, by URL."""
        return dict(self._entries)

    def failed(self, url: str, why: str, now_ms: int) -> bool:
        """A look failed. Whether that is news."""
        known = self._entries.get(url)
        since_ms, failures = (now_ms, 0) if known is None else (known.since_ms, known.failures)
        self._entries[url] = QuarantinedDataset(why, since_ms, now_ms, failures + 1)
        return known is None or known.why != why

    def well(self, url: str) -> bool:
        """A look succeeded. Whether that is news."""
        return self._entries.pop(url, None) is not None

    def keep(self, urls: Collection[str]) -> None:
        """Forget all but these."""
        self._entries = {url: entry for url, entry in self._entries.items() if url in urls}
