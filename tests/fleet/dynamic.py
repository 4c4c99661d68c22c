"""A fleet's worker on a standalone cluster of this machine whose executors come and go: `make dynamic`.

Databases of the official client get work twice. As Spark's REST API has it there are no executors before,
two while there is work, and none again after each time; the rows are equal at the end.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import lithify
from lithify.base import events
from tests.cluster import cluster_conf, standalone_cluster
from tests.judge.official import Put, copy_database, open_db
from tests.judge.rows import read_database, visible_rows

DATABASES = 12
LIMIT_S = 240.0


def busy(path: Path) -> None:
    for n in range(5):
        with open_db(path) as database:
            database.write_batch([Put(b"%03d" % key, b"%d" % n) for key in range(200)])
            database.flush()


class Executors:
    """Those of the one application whose pages are at this port."""

    def __init__(self, port: int) -> None:
        self._api = f"http://127.0.0.1:{port}/api/v1/applications"
        self.seen: list[int] = []

    def look(self) -> int:
        """How many there are; none while there is no application."""
        try:
            (application,) = self._get("")
            count: int = sum(one["id"] != "driver" for one in self._get(f"/{application['id']}/executors"))
        except (URLError, ConnectionError, TimeoutError, json.JSONDecodeError):
            count = 0  # its pages are not there yet
        if not self.seen or self.seen[-1] != count:
            self.seen.append(count)
            print(f"{count} executors", flush=True)
        return count

    def _get(self, path: str) -> Any:
        with urlopen(self._api + path, timeout=5) as answer:
            return json.load(answer)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    port = free_port()
    with (
        TemporaryDirectory(prefix="lithify-dynamic-") as folder,
        standalone_cluster(Path(folder)) as master,
    ):
        play(Path(folder), master, port)


def play(folder: Path, master: str, port: int) -> None:
    conf = {
        **cluster_conf(),
        "spark.executor.cores": "1",
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.initialExecutors": "0",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.dynamicAllocation.executorIdleTimeout": "5s",
        "spark.ui.enabled": "true",
        "spark.ui.port": str(port),
    }
    settings = {"spark.master": master, **{f"spark.conf.{name}": value for name, value in conf.items()}}
    fleet = lithify.Fleet(str(folder / "fleet"), settings=settings)
    fleet.init()
    fleet.add(str(folder / "databases" / "*"))
    busy(folder / "template")
    before = visible_rows(read_database(folder / "template"))
    executors, committed = Executors(port), set[str]()

    def observe(event: events.Event) -> None:
        if isinstance(event, events.Committed):
            committed.add(event.dataset)

    def more_work(name: str) -> list[Path]:
        paths = [folder / "databases" / f"{name}-{n}" for n in range(DATABASES)]
        for path in paths:
            copy_database(folder / "template", path)
        fleet.add(*(str(path) for path in paths))
        return paths

    def until(count: int, total: int) -> None:
        deadline_s = time.monotonic() + LIMIT_S
        while executors.look() != count or len(committed) != total:
            assert time.monotonic() < deadline_s, (executors.seen, len(committed))
            assert serving.is_alive()
            time.sleep(0.2)

    stop = threading.Event()
    serving = threading.Thread(target=lambda: fleet.run(stop, on_event=observe))
    paths = more_work("first")
    serving.start()
    try:
        until(0, DATABASES)
        paths += more_work("second")
        until(0, 2 * DATABASES)
    finally:
        stop.set()
        serving.join()
    assert max(executors.seen) == 2, executors.seen
    assert executors.seen[0] == executors.seen[-1] == 0
    assert sum(count == 0 for count in executors.seen) >= 3, f"none between: {executors.seen}"
    assert all(visible_rows(read_database(path)) == before for path in paths)
    print("passed", executors.seen)


if __name__ == "__main__":
    main()
