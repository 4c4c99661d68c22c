"""`make flaky`: whole runs over a store that fails now and then, judged by the official client.

Each run compacts a small database of its own, which the official client has written, and the official client
reads every row back. The store is `lithify.testing.s3` in a process of its own.

1. A hundred runs while a tenth of all connections are reset: before a request takes effect, after that, and
   in the middle of the answer. All have to end well.
2. Runs while 30 % of all requests are answered by 503, and as many without that, in turn, at 20 ms a request:
   what the faults cost, as the ratio of the medians of their walls, which may be `MAX_PRICE`. (Each 503
   takes its 20 ms, so that a run that waits for nothing but round trips takes 1.43 times as long without any
   pause; where several requests are made together, more.)
3. An outage in the middle of a run. Of four minutes, with real processes: `tests.processes.outages`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from dataclasses import dataclass, replace
from urllib.request import Request, urlopen

from lithify.base import events
from lithify.base.events import Event, Observer
from lithify.testing.engine import InlineEngine
from lithify.testing.s3 import Outage, S3Process, S3Server, Weather, latency_of_all
from tests.compacting import compact, dataset_at
from tests.judge.official import Put, open_db
from tests.s3 import store_options

FAIR = Weather()
FAR = Weather(latency=latency_of_all(20))
ROWS = 300
BATCHES = 5
RESETS = 0.1
BUSY = 0.3
MAX_PRICE = 1.5


def resets(share: float) -> Weather:
    """This share of all connections, in every way there is."""
    return replace(FAIR, lost_requests=share / 3, lost_answers=share / 3, cut_answers=share / 3)


def busy(share: float) -> Weather:
    return replace(FAIR, slowed_down=share)


@dataclass(frozen=True)
class Site:
    """A server with one bucket, and databases in it."""

    server: S3Server | S3Process
    bucket: str

    @property
    def options(self) -> dict[str, str]:
        return store_options(self.server.url)

    def url(self, name: str) -> str:
        return f"s3://{self.bucket}/{name}"

    def write(self, name: str) -> dict[bytes, bytes]:
        """A database with some L0 SSTs; what is in it."""
        model: dict[bytes, bytes] = {}
        with open_db(self.url(name), store_options=self.options) as database:
            for batch in range(BATCHES):
                rows = {b"k%05d" % n: b"%d" % batch * 50 for n in range(batch, ROWS, 2)}
                model |= rows
                database.write_batch([Put(key, value) for key, value in rows.items()])
                database.flush()
        return model

    def read(self, name: str) -> dict[bytes, bytes]:
        with open_db(self.url(name), store_options=self.options) as database:
            return dict(database.scan())

    def run(self, name: str, weather: Weather, observer: Observer = events.ignore) -> float:
        """Compact it in that weather; seconds."""
        dataset = dataset_at(self.url(name), store_options=self.options)
        self.server.weather = weather
        started_s = time.monotonic()
        try:
            result = compact(dataset, engine=InlineEngine(), observer=observer)
        finally:
            self.server.weather = FAIR
        assert result.failures == ()
        assert len(result.committed) == 1
        return time.monotonic() - started_s

    def judged_run(self, name: str, weather: Weather) -> float:
        """A run whose rows are read back."""
        model = self.write(name)
        took_s = self.run(name, weather)
        assert self.read(name) == model, f"{name} has other rows than were written"
        return took_s


def runs(site: Site, count: int) -> None:
    """Part 1."""
    walls = []
    for n in range(count):
        walls.append(site.judged_run(f"resets-{n}", resets(RESETS)))
        print(f"\r{n + 1} of {count} runs at {RESETS:.0%} resets", end="", flush=True)
    print(f": all ended well, in {statistics.median(walls):.2f} s each (median), {max(walls):.2f} s at most")


def price(site: Site, count: int) -> bool:
    """Part 2; whether the target is met."""
    walls: dict[str, list[float]] = {"fair": [], "busy": []}
    for n in range(count):
        for name, weather in (("fair", FAR), ("busy", replace(FAR, slowed_down=BUSY))):
            walls[name].append(site.judged_run(f"{name}-{n}", weather))
    fair_s, busy_s = statistics.median(walls["fair"]), statistics.median(walls["busy"])
    is_met = busy_s <= MAX_PRICE * fair_s
    verdict = "met" if is_met else "MISSED"
    print(f"{BUSY:.0%} of 503: {busy_s:.2f} s instead of {fair_s:.2f} s, ", end="")
    print(f"{busy_s / fair_s:.2f} times ≤ {MAX_PRICE:g} {verdict}")
    return is_met


def outage(site: Site, seconds: float) -> None:
    """Part 3."""
    for how in Outage:
        model, backs = site.write(how.name), list[threading.Timer]()

        def fall_away(event: Event, how: Outage = how, backs: list[threading.Timer] = backs) -> None:
            if isinstance(event, events.Claimed):
                site.server.weather = replace(FAIR, outage=how)
                backs.append(threading.Timer(seconds, lambda: setattr(site.server, "weather", FAIR)))
                backs[0].start()

        took_s = site.run(how.name, FAIR, fall_away)
        backs[0].join()
        assert site.read(how.name) == model
        print(f"an outage of {seconds:.0f} s ({how.value}): the run took {took_s:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=60, help="runs of part 2, of each kind")
    parser.add_argument("--outage", type=float, default=20.0, help="seconds")
    given = parser.parse_args()
    with S3Process() as server:
        urlopen(Request(f"{server.url}/flaky", method="PUT")).close()
        site = Site(server, "flaky")
        site.judged_run("first", FAIR)  # with the compiler's work
        runs(site, given.runs)
        is_met = price(site, given.pairs)
        outage(site, given.outage)
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
