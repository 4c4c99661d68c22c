"""Quarantine of datasets that cannot be polled: corrupt, of a newer version, forbidden, failing.

1. A failed poll puts its dataset into quarantine: it is not read for a pause that grows with each failed poll
in a row. Other datasets are not delayed.
2. The reason is reported once, and again only if it changes (`failed` returns that); each dataset keeps one
entry until a poll succeeds.
3. A successful poll ends the quarantine.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lithify.base.backoff import GrowingPause

QUARANTINE_PAUSE = GrowingPause(first_ms=5_000, max_ms=1_800_000)


@dataclass(frozen=True, slots=True)
class QuarantinedDataset:
    why: str
    """The reason, in one sentence."""
    since_ms: int
    failed_ms: int
    """The time of the last failure."""
    failures: int
    """Number of failures in a row."""

    @property
    def until_ms(self) -> int:
        """When it is polled again."""
        return self.failed_ms + QUARANTINE_PAUSE.after_ms(self.failures)


class Quarantine:
    """All datasets in quarantine, by URL."""

    def __init__(self) -> None:
        self._entries: dict[str, QuarantinedDataset] = {}

    @property
    def entries(self) -> dict[str, QuarantinedDataset]:
        """Return the entries by URL."""
        return dict(self._entries)

    def failed(self, url: str, why: str, now_ms: int) -> bool:
        """Record a failed poll. Return whether to report it."""
        known = self._entries.get(url)
        since_ms, failures = (now_ms, 0) if known is None else (known.since_ms, known.failures)
        self._entries[url] = QuarantinedDataset(why, since_ms, now_ms, failures + 1)
        return known is None or known.why != why

    def well(self, url: str) -> bool:
        """Record a successful poll. Return whether to report it."""
        return self._entries.pop(url, None) is not None

    def keep(self, urls: Collection[str]) -> None:
        """Forget all other datasets."""
        self._entries = {url: entry for url, entry in self._entries.items() if url in urls}
