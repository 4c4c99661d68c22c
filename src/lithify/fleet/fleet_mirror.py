"""A coordinator's reads of its fleet, shared with a dashboard in the same process: viewing costs no request.

1. The coordinator's handle of each dataset records its reads and writes in a `DatasetMirror`
   (`lithify.mirror.dataset_mirror`); mirrors of datasets it owns no longer are dropped (`keep`).
2. Details that coordinators do not read (holds on a table's history, earlier commits, other coordinators)
   are read separately, for datasets that have changed, up to a limit per second, the longest waiting first
   (`due`).
3. The state of the fleet (members, queues) is read once in `BESIDE_S`, which is how often its pages change.

So the cost is the same for no viewers and for a hundred. Any thread may record and query.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from lithify.base.clock import Clock
from lithify.base.errors import LithifyError, StoreUnavailable
from lithify.coordination.commit_records import CommitRecords
from lithify.datasets.kind import DatasetPort, DatasetState
from lithify.fleet.catalog.model import DatasetRule
from lithify.fleet.status import FleetStatus
from lithify.mirror.dataset_mirror import BESIDE_S, DatasetMirror, NotReadYet

MOST_BESIDE_PER_S = 5
MAX_OPENED = 300
"""Handles kept for viewers, of the datasets read last."""
MAX_COMMITS = 5
"""Limit for each dataset: a fleet has thousands."""


class SharedFleet:
    """The state of a fleet, as known in this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._shared: dict[str, DatasetMirror] = {}
        self._opened: OrderedDict[str, DatasetPort] = OrderedDict()
        self._own: frozenset[str] = frozenset()
        """Datasets that the coordinator owns."""
        self._datasets: tuple[Mapping[str, DatasetRule], Mapping[str, LithifyError]] | None = None
        self._status: FleetStatus | None = None
        self._status_read_s: float | None = None

    # Recording by the coordinator's process

    def of(self, url: str) -> DatasetMirror:
        """Return the mirror that records reads of a dataset."""
        with self._lock:
            if url not in self._shared:
                self._shared[url] = DatasetMirror(
                    url, self._clock, asks_coordinator=True, most_commits=MAX_COMMITS
                )
            return self._shared[url]

    def keep(self, urls: Iterable[str]) -> None:
        """Keep the mirrors of these datasets, which the coordinator owns; drop all others."""
        with self._lock:
            self._own = frozenset(urls)
            for url in self._shared.keys() - self._own:
                del self._shared[url]
                self._opened.pop(url, None)

    def saw_datasets(self, found: Mapping[str, DatasetRule], problems: Mapping[str, LithifyError]) -> None:
        """Record all datasets of the fleet."""
        with self._lock:
            self._datasets = found, dict(problems)

    def read_beside(self, shared: DatasetMirror, dataset: DatasetPort, records: CommitRecords) -> None:
        """Read the details of a dataset that are due, with a separate handle, which viewers use from then
        on."""
        shared.read_beside(dataset, records)
        with self._lock:
            self._opened[shared.url] = dataset
            self._opened.move_to_end(shared.url)
            if len(self._opened) > MAX_OPENED:
                self._opened.popitem(last=False)

    def is_status_due(self) -> bool:
        """Return whether the state of the fleet is due to be read."""
        with self._lock:
            last_s = self._status_read_s
        return last_s is None or self._clock.monotonic_s() - last_s >= BESIDE_S

    def saw_status(self, status: FleetStatus) -> None:
        """Record the state of the fleet."""
        with self._lock:
            self._status, self._status_read_s = status, self._clock.monotonic_s()

    def due(self) -> list[DatasetMirror]:
        """Return the datasets with details to read now, at most as many as allowed per second."""
        with self._lock:
            due = [shared for shared in self._shared.values() if shared.is_beside_due()]
        return sorted(due, key=lambda shared: shared.beside_read_s)[:MOST_BESIDE_PER_S]

    # Queries of a dashboard

    def has(self, url: str) -> bool:
        """Return whether the coordinator here reads the dataset."""
        with self._lock:
            return url in self._own

    def opened(self, url: str) -> DatasetPort | None:
        """Return a handle of the dataset for viewers, which only they use; `None` if the viewer must open its
        own, because another coordinator owns the dataset or there are too many handles."""
        with self._lock:
            if url in self._own and (url not in self._shared or not self._shared[url].was_read_beside):
                raise NotReadYet(url)
            return self._opened.pop(url, None)

    def state(self, url: str, dataset: DatasetPort) -> DatasetState:
        """Return the state of the dataset at `url` as the coordinator here has read it, while it owns the
        dataset; else `dataset` itself, which reads."""
        return self.of(url).state(dataset) if self.has(url) else dataset

    def datasets(self) -> tuple[Mapping[str, DatasetRule], Mapping[str, LithifyError]]:
        """Return the same as `lithify.Fleet.datasets`."""
        with self._lock:
            if self._datasets is None:
                raise StoreUnavailable("the datasets of the fleet are still being listed")
            return self._datasets

    def status(self) -> FleetStatus:
        """Return the same as `lithify.Fleet.status`."""
        with self._lock:
            if self._status is None:
                raise StoreUnavailable("the state of the fleet has not been read yet")
            return self._status
