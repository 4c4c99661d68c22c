"""What a keeper has read of its fleet, for a dashboard beside it: watching costs no request.

1. The keeper's handles of datasets note what they read and write in one `DatasetMirror` for each
   (`lithify.mirror.dataset_mirror`); those that are not its own any more are let go (`keep`).
2. What no keeper reads (who holds a table's history, earlier commits, who else coordinates) is read beside,
   of those that have changed, so many in a second at most, the one that waits longest first (`due`).
3. How the fleet is (members, queues) is read once in `BESIDE_S`, which is when its pages change.

So it costs the same whether nobody looks or a hundred do. Any thread may note and ask.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, cast

from lithify.base.clock import Clock
from lithify.base.errors import LithifyError, StoreUnavailable
from lithify.coordination.commit_records import CommitRecords
from lithify.datasets.kind import DatasetPort
from lithify.fleet.catalog.model import DatasetRule
from lithify.fleet.status import FleetStatus
from lithify.mirror.dataset_mirror import BESIDE_S, DatasetMirror, watching

MOST_BESIDE_PER_S = 5
MAX_OPENED = 300
"""Handles for who looks, of what was read last."""
MAX_COMMITS = 5
"""Of each dataset: a fleet has thousands."""


class SharedFleet:
    """What is known here of a fleet."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._shared: dict[str, DatasetMirror] = {}
        self._opened: OrderedDict[str, DatasetPort] = OrderedDict()
        self._own: frozenset[str] = frozenset()
        """The keeper's datasets."""
        self._datasets: tuple[Mapping[str, DatasetRule], Mapping[str, LithifyError]] | None = None
        self._status: FleetStatus | None = None
        self._status_read_s: float | None = None

    # What the keeper's process notes

    def of(self, url: str) -> DatasetMirror:
        """Where what is read of a dataset is noted."""
        with self._lock:
            if url not in self._shared:
                self._shared[url] = DatasetMirror(
                    url, self._clock, asks_coordinator=True, most_commits=MAX_COMMITS
                )
            return self._shared[url]

    def keep(self, urls: Iterable[str]) -> None:
        """These are the keeper's; let go of all others."""
        with self._lock:
            self._own = frozenset(urls)
            for url in self._shared.keys() - self._own:
                del self._shared[url]
                self._opened.pop(url, None)

    def saw_datasets(self, found: Mapping[str, DatasetRule], problems: Mapping[str, LithifyError]) -> None:
        """These are all that the fleet has."""
        with self._lock:
            self._datasets = found, dict(problems)

    def read_beside(self, shared: DatasetMirror, dataset: DatasetPort, records: CommitRecords) -> None:
        """Read what is due of it, with a handle of its own, which is for who looks from then on."""
        shared.read_beside(dataset, records)
        with self._lock:
            self._opened[shared.url] = dataset
            self._opened.move_to_end(shared.url)
            if len(self._opened) > MAX_OPENED:
                self._opened.popitem(last=False)

    def is_status_due(self) -> bool:
        """Whether it is time to read how the fleet is."""
        with self._lock:
            last_s = self._status_read_s
        return last_s is None or self._clock.monotonic_s() - last_s >= BESIDE_S

    def saw_status(self, status: FleetStatus) -> None:
        """It was read."""
        with self._lock:
            self._status, self._status_read_s = status, self._clock.monotonic_s()

    def due(self) -> list[DatasetMirror]:
        """Of what something is to be read beside, now; as many as may be in a second."""
        with self._lock:
            due = [shared for shared in self._shared.values() if shared.is_beside_due()]
        return sorted(due, key=lambda shared: shared.beside_read_s)[:MOST_BESIDE_PER_S]

    # What a dashboard asks

    def has(self, url: str) -> bool:
        """Whether the keeper here reads it."""
        with self._lock:
            return url in self._own

    def opened(self, url: str) -> DatasetPort | None:
        """A handle of it for one who looks, which nobody else uses; `None` where he has to open one himself,
        because it is another keeper's, or there are too many."""
        with self._lock:
            if url in self._own and (url not in self._shared or not self._shared[url].was_read_beside):
                raise StoreUnavailable(f"{url}: this process has not read it yet")
            return self._opened.pop(url, None)

    def datasets(self) -> tuple[Mapping[str, DatasetRule], Mapping[str, LithifyError]]:
        """As `lithify.Fleet.datasets`."""
        with self._lock:
            if self._datasets is None:
                raise StoreUnavailable("the datasets of the fleet are being looked up")
            return self._datasets

    def status(self) -> FleetStatus:
        """As `lithify.Fleet.status`."""
        with self._lock:
            if self._status is None:
                raise StoreUnavailable("how the fleet is was not read yet")
            return self._status


def watched_here(dataset: DatasetPort, url: str, fleet: SharedFleet) -> DatasetPort:
    """The dataset at `url` as the keeper here reads it, while it is that one's; else as it is."""
    return cast(DatasetPort, _Here(dataset, url, fleet))


class _Here:
    def __init__(self, dataset: DatasetPort, url: str, fleet: SharedFleet) -> None:
        self._dataset = dataset
        self._url = url
        self._fleet = fleet

    def __getattr__(self, name: str) -> Any:
        if self._fleet.has(self._url):
            return getattr(watching(self._dataset, self._fleet.of(self._url)), name)
        return getattr(self._dataset, name)
