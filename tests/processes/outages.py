"""The last part of `make flaky`: `lithify compact`, as a process, over a store that is away for minutes.

A database and a table are compacted at the same time, each by a process of its own. The store is a process
too. It falls away for both once each of them has claimed its compaction; every request takes long enough that
most are still to come. Both commands have to say so, within `NOTICED_S`, and to end well. The official client
reads the database, PyIceberg the table.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import Request, urlopen

from lithify.testing.s3 import Outage, S3Process, Weather, latency_of_all
from tests.engine.waiting import wait_until
from tests.flaky import FAIR, Site
from tests.processes.lakes import Lake, s3_properties
from tests.processes.nodes import Process, nodes_in

FAR = Weather(latency=latency_of_all(200))
NOTICED_S = 5.0
LIMIT_S = 200.0
"""For what a command does beside waiting; Spark has to start."""


class Subjects:
    """A database and a table in one bucket."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site, self.folder = site, folder
        self._model = site.write("database")
        self._lake = Lake(folder, site.url("warehouse"), s3_properties(site.options))
        self._lake.add()
        self.urls = (site.url("database"), self._lake.url)
        self.environment: Mapping[str, str] = {
            "LITHIFY_LOG__FORMAT": "json",
            "LITHIFY_LOG__LEVEL": "info",
            **self._lake.environment,
            **{name.upper(): value for name, value in site.options.items()},
        }

    def check_database(self) -> None:
        """It has its rows."""
        assert self.site.read("database") == self._model

    def check(self) -> None:
        """Both are compacted and have their rows."""
        self.check_database()
        assert self._lake.is_compacted
        self._lake.check()


@contextmanager
def subjects() -> Iterator[Subjects]:
    """Newly made."""
    with S3Process() as server, TemporaryDirectory() as folder:
        urlopen(Request(f"{server.url}/outage", method="PUT")).close()
        yield Subjects(Site(server, "outage"), Path(folder))


@dataclass(frozen=True)
class Said:
    """What a command said of the outage."""

    cause: str
    noticed_s: float
    """For how long the store had been away when that was said first."""
    back_s: float


def outlive(these: Subjects, how: Outage, seconds: float) -> dict[str, Said]:
    """What each of the commands said of the outage, by URL."""
    with nodes_in(these.folder / "logs") as nodes:
        these.site.server.weather = FAR
        commands = {url: nodes.command("compact", url, environment=these.environment) for url in these.urls}
        try:
            for url, command in commands.items():
                wait_until(partial(_has_claimed_or_ended, command), LIMIT_S)
                assert command.exit_code is None, f"{url}: {command.errors}"
            these.site.server.weather = replace(FAR, outage=how)
            time.sleep(seconds)
        finally:
            these.site.server.weather = FAIR
        for url, command in commands.items():
            assert command.wait(LIMIT_S) == 0, f"{url}: {command.errors}"
        return {url: _said(url, command) for url, command in commands.items()}


def _has_claimed_or_ended(command: Process) -> bool:
    return bool(command.events("Claimed")) or command.exit_code is not None


def _said(url: str, command: Process) -> Said:
    waiting, back = command.events("WaitingForStore"), command.events("StoreBack")
    assert waiting, f"{url}: {command.errors}"
    assert back, f"{url}: {command.errors}"
    assert "The store is available again, after" in command.errors
    return Said(waiting[0]["cause"], waiting[0]["since_s"], back[-1]["waited_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=240.0, help="of each outage")
    parser.add_argument("--how", type=Outage, action="append", choices=list(Outage), help="default: all")
    given = parser.parse_args()
    is_met = True
    for how in given.how or Outage:
        with subjects() as these:
            for url, said in outlive(these, how, given.seconds).items():
                is_met = is_met and said.noticed_s <= NOTICED_S
                print(
                    f"an outage of {given.seconds:.0f} s ({how.value}), compact {url}: {said.cause}, said "
                    f"after {said.noticed_s:.1f} s ≤ {NOTICED_S:g}, back after {said.back_s:.0f} s",
                    flush=True,
                )
            these.check()
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
