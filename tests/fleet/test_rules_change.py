"""A rule changes while compactions are under way: each goes on as it was admitted."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import MappingProxyType

import pytest

from lithify.base import events
from lithify.fleet.catalog import changes
from lithify.fleet.catalog.model import DatasetRule
from lithify.store.keys import join
from tests.fleet.playing import Play, play, url_of


@pytest.fixture
def world() -> Iterator[Play]:
    with play() as made:
        made.names.append("a")
        yield made


def treat(world: Play, name: str, **settings: str) -> None:
    rule = DatasetRule(url_of(name), settings=MappingProxyType(settings))
    world.change(partial(changes.add_rules, rules=[rule]))


def admitted(world: Play) -> int:
    """A compaction that was admitted, and that nobody has claimed; the catalog it was admitted under."""
    treat(world, "a", size="old")
    world.dataset("a", 5)
    worker = world.worker()
    world.run(1)
    world.workers.remove(worker)  # it has said that there is room, and takes nothing
    world.coordinator()
    world.until(lambda: bool(world.files.boards.read("Q0")), 20)
    assert not world.seen(events.Claimed)
    return world.files.catalog.read().number


def test_what_was_admitted_is_worked_on_with_the_settings_of_then(world: Play) -> None:
    number = admitted(world)
    treat(world, "a", size="new")
    world.run(30)  # the coordinator watches it by the new rule
    assert {hint.catalog for hint in world.files.boards.read("Q0")} == {number}
    world.worker()
    world.until(lambda: world.texts() == {"a": 1}, 60)
    assert world.worked_with == [(url_of("a"), {"size": "old"})]
    world.dataset("a", 5)
    world.until(lambda: world.texts() == {"a": 1}, 90)
    assert world.worked_with[1:] == [(url_of("a"), {"size": "new"})]


def test_a_rule_that_is_gone_is_still_that_of_what_was_admitted(world: Play) -> None:
    admitted(world)
    world.change(partial(changes.remove_rules, patterns=[url_of("a")]))
    world.worker()
    world.until(lambda: world.texts() == {"a": 1}, 90)
    assert world.worked_with == [(url_of("a"), {"size": "old"})]


def test_what_runs_goes_on_when_its_rule_changes_and_is_resumed_as_it_was(world: Play) -> None:
    treat(world, "a", size="old")
    world.dataset("a", 5)
    world.coordinator()
    worker = world.worker(stepped=True)
    world.until(lambda: world.seen(events.Claimed)[url_of("a")] == 1, 60)
    treat(world, "a", size="new")
    world.run(30)
    world.workers.remove(worker)  # killed
    world.worker()
    world.until(lambda: world.texts() == {"a": 1}, 120)
    assert {settings["size"] for _, settings in world.worked_with} == {"old"}
    assert world.committed() == {url_of("a"): 1}


def test_what_was_admitted_under_a_catalog_that_is_gone_has_the_newest_settings(world: Play) -> None:
    number = admitted(world)
    treat(world, "a", size="new")
    world.files.catalog.versions.advance_boundary(number)
    world.worker()
    world.until(lambda: world.texts() == {"a": 1}, 60)
    assert world.worked_with == [(url_of("a"), {"size": "new"})]


def test_what_was_admitted_under_a_catalog_nobody_can_read_waits(world: Play) -> None:
    number = admitted(world)
    key = join("fleet", "catalog", f"{number:020}.json")
    data = world.memory.get(key)
    treat(world, "a", size="new")
    world.run(15)  # the coordinator goes by that now
    world.memory.put(key, b"{}")
    world.worker()
    world.run(60)
    assert not world.worked_with
    world.memory.put(key, data)
    world.until(lambda: world.texts() == {"a": 1}, 60)
    assert world.worked_with == [(url_of("a"), {"size": "old"})]
