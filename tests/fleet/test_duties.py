"""Garbage and history are cared for again and again, also of datasets that are idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.garbage import collection
from lithify.datasets.slatedb.garbage.collector import garbage_collector
from lithify.datasets.slatedb.kind import SlateKind
from lithify.fleet.catalog import changes
from lithify.fleet.catalog.model import Coordinates, DatasetRule
from lithify.fleet.garbage_times import (
    COLLECT_AFTER_S,
    COLLECT_AT_LEAST_S,
    COLLECT_EVERY_S,
    COLLECT_FIRST_S,
)
from lithify.store import times
from lithify.store.metered import MeteredStore, RequestOutcome, Verb
from lithify.store.objects import ObjectStore
from lithify.store.resilience.waiting import WaitPolicy
from tests.fleet.playing import Play, play, playing, url_of
from tests.fleet.test_official import Fleet, fill, rows
from tests.kinds.texts import TextDataset

IDLE_REQUESTS = {Verb.LIST: 11, Verb.GET: 8, Verb.HEAD: 1, Verb.PUT: 1}
"""What the duties of an idle database cost; docs/fleet.md says so."""


@pytest.fixture
def world() -> Iterator[Play]:
    with play() as made:
        yield made


def collected_in(world: Play, seconds: float) -> Counter[str]:
    """What is collected in the time; nothing happens but what members do by the minute."""
    before = len(world.collected)
    for _ in range(round(seconds / 60)):
        world.run(1)
        world.clock.advance_s(59)
    return Counter(url.rpartition("/")[2] for url in world.collected[before:])


def test_an_idle_dataset_is_cared_for_within_an_hour_and_then_once_a_day(world: Play) -> None:
    names = [f"d{n}" for n in range(8)]
    for name in names:
        world.dataset(name, 2)
    before = {name: world.objects(name) for name in names}
    world.coordinator()
    assert collected_in(world, COLLECT_FIRST_S / 20) != Counter(names), "not all at once"
    collected_in(world, COLLECT_FIRST_S)
    assert Counter(world.collected) == Counter(url_of(name) for name in names)
    assert collected_in(world, COLLECT_EVERY_S - 2 * COLLECT_FIRST_S) == Counter()
    assert collected_in(world, 2 * COLLECT_FIRST_S) == Counter(names)
    assert {name: world.objects(name) for name in names} == before, "polling writes nothing"


def test_what_is_due_later_is_cared_for_then(world: Play) -> None:
    """A checkpoint ends, a grace period is over: as the last collection said."""
    world.dataset("a", 5)
    world.coordinator()
    world.worker()
    world.due_in_ms[url_of("a")] = 3 * 3_600_000
    assert collected_in(world, 1_200) == Counter({"a": 1}), "after the commit"
    del world.due_in_ms[url_of("a")]
    assert collected_in(world, 2.5 * 3_600) == Counter()
    assert collected_in(world, 3_600) == Counter({"a": 1}), "three hours after the first time"
    assert collected_in(world, 12 * 3_600) == Counter()


def test_what_is_due_at_once_for_ever_does_not_fill_the_day(world: Play) -> None:
    world.dataset("a", 2)
    world.coordinator()
    world.due_in_ms[url_of("a")] = 0
    collected_in(world, COLLECT_FIRST_S)
    assert collected_in(world, 6 * COLLECT_AFTER_S)["a"] <= 6


def test_a_dataset_that_changes_is_cared_for_each_hour(world: Play) -> None:
    """Also one that needs no compaction, such as a table whose snapshots expire."""
    world.dataset("a", 1)
    world.coordinator()
    collected_in(world, COLLECT_FIRST_S + 60)
    world.dataset("a", 1)
    assert collected_in(world, 2 * COLLECT_AT_LEAST_S) == Counter({"a": 1})
    assert collected_in(world, 2 * COLLECT_AT_LEAST_S) == Counter(), "it has not changed again"


def test_what_failed_is_tried_again_after_an_hour(world: Play) -> None:
    world.dataset("a", 2)
    world.coordinator()
    world.uncollectable.add(url_of("a"))
    collected_in(world, COLLECT_FIRST_S)
    assert world.collected == [url_of("a")]
    assert collected_in(world, COLLECT_AT_LEAST_S + 120) == Counter({"a": 1})
    world.uncollectable.clear()
    assert collected_in(world, 3 * COLLECT_AT_LEAST_S) == Counter({"a": 1}), "and once more, which is enough"


@pytest.mark.parametrize("is_remembered", [True, False])
def test_after_a_change_of_its_coordinator(
    world: Play, monkeypatch: pytest.MonkeyPatch, is_remembered: bool
) -> None:
    """The next one does what the one before has not said to have done."""
    monkeypatch.setattr(TextDataset, "newest_ms", lambda *_: 0)
    world.dataset("a", 2)
    first = world.coordinator()
    collected_in(world, COLLECT_FIRST_S + 120)
    assert world.collected == [url_of("a")]
    world.coordinators.remove(first)
    if is_remembered:
        first.close()
    else:
        for meta in list(world.memory.list("fleet/memory")):
            world.memory.delete(meta.key)
    world.coordinator()
    expected = Counter() if is_remembered else Counter({"a": 1})
    assert collected_in(world, COLLECT_FIRST_S + 120) == expected
    assert collected_in(world, COLLECT_EVERY_S)["a"] == 1


def test_what_its_owner_coordinates_its_owner_cares_for(world: Play) -> None:
    world.dataset("a", 2)
    rule = DatasetRule(url_of("a"), Coordinates.OWNER)
    world.change(lambda catalog: changes.add_rules(catalog, [rule]))
    world.coordinator()
    assert collected_in(world, 2 * COLLECT_EVERY_S) == Counter()


class Collecting(Fleet):
    """Collects with the collector of databases, by the time of its clock."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked: Counter[Verb] = Counter()

    def counted(self, path: Path) -> SlateDataset:
        def count(verb: Verb, _: RequestOutcome) -> None:
            self.asked[verb] += 1

        def wrap(store: ObjectStore) -> ObjectStore:
            return MeteredStore(store, count)

        return SlateKind().open(str(path), self.config, self.clock, self.ids, wrap, WaitPolicy())

    def collect_really(self, url: str) -> int | None:
        collector = garbage_collector(self.counted(Path(url)), self.clock, self.ids)
        collector.tick()
        return collector.due_in_ms


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collecting]:
    with playing(Collecting(tmp_path)) as made:

        def store_now_ms(store: ObjectStore, key: str) -> int:
            times.store_now_ms(store, key)  # for its requests; the time of files is the machine's
            return made.clock.now_ms()

        monkeypatch.setattr(collection, "store_now_ms", store_now_ms)
        made.collect = made.collect_really
        yield made


def size_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in (path / "compacted").rglob("*.sst"))


def test_a_database_that_is_compacted_once_does_not_keep_its_inputs(fleet: Collecting) -> None:
    path = fill(fleet.folder / "a", 6, size=5_000)
    before, inputs = rows(path), size_bytes(path)
    fleet.coordinator()
    fleet.worker()
    fleet.compact_all([path])
    assert size_bytes(path) > inputs, "inputs and outputs"
    for _ in range(2 * 60):
        fleet.run(1)
        fleet.clock.advance_s(59)
    assert size_bytes(path) < 0.4 * inputs, "each row was written six times; the newest L0 SST stays"
    assert rows(path) == before
    collections = len(fleet.collected)
    for _ in range(6 * 60):
        fleet.run(1)
        fleet.clock.advance_s(59)
    assert len(fleet.collected) - collections <= 2, "then it is idle"


def test_the_duties_of_an_idle_database_cost_what_is_stated(fleet: Collecting) -> None:
    path = fill(fleet.folder / "a", 2)
    for _ in range(3):
        fleet.clock.advance_s(86_400)
        fleet.collect_really(str(path))
    fleet.asked.clear()
    assert fleet.collect_really(str(path)) is None
    assert fleet.asked == IDLE_REQUESTS
    text = " ".join((Path(__file__).parents[2] / "docs" / "fleet.md").read_text().split())
    lists, total = IDLE_REQUESTS[Verb.LIST], sum(IDLE_REQUESTS.values())
    assert f"{total} requests, {lists} of them listings" in text
