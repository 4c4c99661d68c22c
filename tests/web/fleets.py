"""A fleet that is kept in this process, and its dashboard beside that."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lithify
from lithify.api.client import settled
from lithify.api.fleets import WatchedFleet
from lithify.base.clock import SystemClock
from lithify.fleet.fleet_mirror import SharedFleet
from lithify.testing.engine import InlineEngine
from lithify.web import serving
from tests.web.dashboards import TOKEN

SETTINGS: dict[str, Any] = {
    "service.poll_interval": "50ms",
    "service.commit_compacted_interval": "50ms",
    "slatedb.scheduler_options.min_compaction_sources": 3,
    "web.port": 0,
    "web.token": TOKEN,
}


@contextmanager
def kept(folder: Path, *others: str, works: bool = True) -> Iterator[tuple[WatchedFleet, str]]:
    """A fleet of the databases of `folder/tenants`, the tables of `iceberg://lake/db` and `others`, with its
    dashboard, in one process; where that is."""
    fleet = lithify.Fleet(str(folder / "fleet"), settings=SETTINGS)
    fleet.init()
    fleet.add(str(folder / "tenants" / "*" / "db"), tenant="*")
    fleet.add("iceberg://lake/db.*", *others)
    shared, stop = SharedFleet(SystemClock()), threading.Event()
    watched, config = WatchedFleet(fleet.url, shared, settings=SETTINGS), settled(SETTINGS)

    def serve() -> None:
        fleet.run(stop, works=works, engine=InlineEngine(), shared=shared)

    thread = threading.Thread(target=serve, name="service")
    with serving.served([], watched, config, watched) as where:
        thread.start()
        try:
            yield watched, where
        finally:
            stop.set()
            thread.join()
