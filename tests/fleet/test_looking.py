"""What a coordinator makes of datasets that come, go and change while nobody looks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lithify.fleet.status import fleet_status
from tests.fleet.playing import Play, play, url_of

HOUR_MS = 3_600_000


@pytest.fixture
def world() -> Iterator[Play]:
    with play() as made:
        yield made


def waiting(world: Play) -> int:
    return fleet_status(world.files, world.clock.now_ms()).queue("default").waiting


def test_wants_vanish_when_they_are_no_longer_needed(world: Play) -> None:
    dataset = world.dataset("a", 5)
    world.coordinator()
    world.run(25)
    assert waiting(world) == 1
    dataset._change(lambda texts: texts[:1])  # its writer has dropped the rest
    world.files.wakes.wake(url_of("a"))
    world.run(25)
    assert waiting(world) == 0


def test_what_is_written_between_want_and_admission_is_compacted_with_it(world: Play) -> None:
    world.dataset("a", 5)
    world.coordinator()
    world.run(60)
    assert waiting(world) == 1
    dataset = world.dataset("a", 3)
    world.worker()
    world.until(lambda: world.texts() == {"a": 1}, 60)
    assert world.committed() == {url_of("a"): 1}, "all of it at once"
    ((_, size),) = dataset.snapshot()
    assert size == 8 * 10


def test_new_folders_are_found_and_deleted_ones_dropped(world: Play) -> None:
    world.dataset("a", 2)
    coordinator = world.coordinator()
    world.worker()
    world.run(30)
    world.dataset("new", 5)
    world.until(lambda: world.texts()["new"] == 1, 340)
    world.names.remove("a")
    world.run(340)
    assert set(coordinator.watched) == {url_of("new")}


def test_a_change_is_seen_although_all_that_was_known_was_collected(world: Play) -> None:
    """Then the number after the last one that was seen is not there, which looks like no change."""
    world.dataset("a", 2)
    world.coordinator()
    world.worker()
    world.run(1_200)
    index = world.dataset("a", 6)._index
    latest = index.ids()[-1]
    index.advance_boundary(latest - 1)
    for number in index.ids()[:-1]:
        world.memory.delete(index.key(number))
    world.until(lambda: world.texts() == {"a": 1}, 400)


def test_clocks_an_hour_off_change_nothing(world: Play) -> None:
    names = [f"d{n}" for n in range(12)]
    for name in names:
        world.dataset(name, 5)
    world.coordinator(skew_ms=HOUR_MS)
    world.coordinator(skew_ms=-HOUR_MS)
    world.worker(slots=1, skew_ms=-HOUR_MS)
    world.worker(slots=1, skew_ms=HOUR_MS)
    world.until(lambda: set(world.texts().values()) == {1}, 120)
    assert world.committed() == {url_of(name): 1 for name in names}
    status = fleet_status(world.files, world.clock.now_ms())
    assert all(member.seen.is_alive for member in status.members)
