"""Whole runs over a store that fails now and then, or is away for a while."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from lithify.base import events
from lithify.base.clock import SystemClock
from lithify.base.errors import StoreUnavailable
from lithify.base.events import Event
from lithify.base.ids import RandomIds
from lithify.config.model import Config
from lithify.datasets.slatedb.compaction import execute, split
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.kind import KIND
from lithify.store.resilience.waiting import WaitPolicy
from lithify.testing.engine import InlineEngine
from lithify.testing.s3 import Outage, S3Server
from tests.compacting import compact
from tests.flaky import FAIR, RESETS, Site, busy, resets
from tests.outages import is_told_with_its_end

RUNS = 20


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with S3Server(seed=1) as server:
        server.create_bucket("b")
        yield Site(server, "b")


def opened(site: Site, name: str, waiting: WaitPolicy) -> SlateDataset:
    """As a command opens it, which waits for its store like this."""
    config = Config(store_options=site.options)
    return KIND.open(site.url(name), config, SystemClock(), RandomIds(), lambda s: s, waiting)


def test_runs_end_well_at_a_tenth_of_resets(site: Site) -> None:
    """The official client reads the last one back; `make flaky` does so for a hundred."""
    for n in range(RUNS - 1):
        site.write(f"resets-{n}")
        site.run(f"resets-{n}", resets(RESETS))
    site.judged_run("resets-last", resets(RESETS))


def test_a_run_ends_well_at_a_third_of_503(site: Site) -> None:
    site.judged_run("busy", busy(0.3))


@pytest.mark.parametrize("how", [Outage.RESET, Outage.SLOW_DOWN])
def test_a_run_outlives_an_outage_and_tells_of_it(site: Site, how: Outage) -> None:
    name = f"outage-{how}"
    model = site.write(name)
    told: list[Event] = []
    waiting = WaitPolicy(60.0, name, told.append)
    dataset = opened(site, name, waiting)
    is_back = threading.Timer(6.0, lambda: setattr(site.server, "weather", FAIR))

    def fall_away(event: Event) -> None:
        # What comes next is the commit, by who tells; a task waits in silence.
        if isinstance(event, events.Compacted):
            site.server.weather = replace(FAIR, outage=how)
            is_back.start()

    result = compact(dataset, engine=InlineEngine(), observer=fall_away)
    is_back.join()
    assert result.failures == ()
    assert is_told_with_its_end(told)
    assert site.read(name) == model


@pytest.mark.parametrize("how", list(Outage))
def test_an_outage_while_a_compaction_is_foreseen_is_waited_for(
    site: Site, how: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (split, execute):
        monkeypatch.setattr(module, "SMALL_BYTES", 0)  # nothing is too small to be cut
    name = f"foreseen-{how}"
    model = site.write(name)
    told: list[Event] = []
    dataset = opened(site, name, WaitPolicy(60.0, name, told.append))
    prefetch = dataset.prefetch
    is_back = threading.Timer(6.0, lambda: setattr(site.server, "weather", FAIR))

    def fall_away(*compaction: Any) -> None:
        site.server.weather = replace(FAIR, outage=how)
        is_back.start()
        prefetch(*compaction)

    monkeypatch.setattr(dataset, "prefetch", fall_away)
    result = compact(dataset, engine=InlineEngine())
    is_back.join()
    assert (len(result.committed), result.failures) == (1, ())
    assert is_told_with_its_end(told)
    assert site.read(name) == model


def test_the_error_of_a_run_is_what_ended_it_and_not_the_clean_up(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.write("gone")
    waiting = WaitPolicy(1.0, "gone", events.ignore, tasks_max_s=1.0)
    dataset = opened(site, "gone", waiting)

    def fall_away(event: Event) -> None:
        if isinstance(event, events.Claimed):
            site.server.weather = replace(FAIR, outage=Outage.SLOW_DOWN)

    try:
        with (
            caplog.at_level(logging.ERROR),
            pytest.raises(
                StoreUnavailable, match=r"(?s)503 .*(waited for the store for|been unavailable for) \d s"
            ) as caught,
        ):
            compact(dataset, engine=InlineEngine(), observer=fall_away)
    finally:
        site.server.weather = FAIR
    assert caught.value.cause.startswith("503")
    (note,) = caught.value.__notes__
    assert note.startswith("and unfinished compactions could not be released")
