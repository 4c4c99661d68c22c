"""What a fleet asks of the databases that it watches, as the log of an S3 server has it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lithify.datasets.registry import config_type
from lithify.fleet.catalog import changes
from lithify.fleet.catalog.model import DatasetRule
from lithify.testing.s3.requests import Operation
from tests.fleet.playing import playing
from tests.fleet.test_official import DAY_S, Fleet, fill
from tests.s3 import S3

NAMES = ("a", "b")
READING = {Operation.GET, Operation.HEAD, Operation.LIST}
WOKEN_S = 10
"""Within which is looked at what somebody has said to look at."""


class FleetOnS3(Fleet):
    """Databases in a bucket; what the fleet itself keeps is elsewhere."""

    def __init__(self, folder: Path, s3: S3) -> None:
        super().__init__(folder)
        self.config = config_type()(store_options=s3.options)
        self._server, self._bucket = s3.server, s3.bucket()
        self.change(partial(changes.remove_rules, patterns=[str(folder / "*")]))
        self.change(partial(changes.add_rules, rules=[DatasetRule(self.url("*"))]))

    def url(self, name: str) -> str:
        return f"s3://{self._bucket}/tenants/{name}"

    def load(self, template: Path, name: str) -> None:
        """One more database."""
        self._server.load(template, self._bucket, f"tenants/{name}/")

    def asked(self, name: str) -> list[Operation]:
        """Of this database since the last call."""
        return [
            request.operation
            for request in self._server.log
            if request.bucket == self._bucket and request.key.startswith(f"tenants/{name}/")
        ]

    def forget(self) -> None:
        self._server.forget()

    def idle(self, seconds: int) -> None:
        """Everybody acts when it is due."""
        end_s = self.clock.monotonic_s() + seconds
        while self.clock.monotonic_s() < end_s:
            for worker in self.workers:
                worker.tick()
            pauses_s = [coordinator.tick() for coordinator in self.coordinators]
            self.clock.advance_s(max(1.0, min(pauses_s)))


@pytest.fixture
def fleet(tmp_path: Path, s3: S3) -> Iterator[FleetOnS3]:
    with playing(FleetOnS3(tmp_path, s3)) as made:
        template = fill(tmp_path / "template", 2)
        for name in NAMES:
            made.load(template, name)
        made.coordinator()
        made.worker()
        yield made


def test_an_idle_database_is_asked_for_little_and_not_written_in_a_day(fleet: FleetOnS3) -> None:
    fleet.idle(DAY_S)
    for name in NAMES:
        asked = fleet.asked(name)
        assert set(asked) <= READING
        assert 0 < len(asked) <= 6 * DAY_S / 300, "some requests for a look, every five minutes"


def test_what_is_woken_after_hours_is_asked_for_within_ten_seconds(fleet: FleetOnS3) -> None:
    fleet.idle(4 * 3_600)
    (coordinator,) = fleet.coordinators
    while min(w.next_look_s for w in coordinator.watched.values()) < fleet.clock.monotonic_s() + 6 * WOKEN_S:
        fleet.idle(WOKEN_S)
    fleet.forget()
    fleet.files.wakes.wake(fleet.url("a"))
    fleet.run(WOKEN_S)
    assert fleet.asked("a")
    assert not fleet.asked("b"), "it is minutes until the next look"
