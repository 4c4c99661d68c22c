"""Many idle workers beside little work: few claims are lost, and few requests made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from lithify.base import events
from tests.fleet.playing import Play, play, url_of

WORKERS = 100
DATASETS = 40


@pytest.fixture
def world() -> Iterator[Play]:
    with play() as made:
        yield made


@pytest.mark.parametrize("at_once", [1, 10])
def test_a_hundred_idle_workers_lose_few_claims_and_ask_for_little(world: Play, at_once: int) -> None:
    for n in range(DATASETS):
        world.dataset(f"d{n:02}", 2)
    world.coordinator()
    for _ in range(WORKERS):
        world.worker(slots=1)
    world.run(60)
    world.requests()
    names = [f"d{n:02}" for n in range(DATASETS)]
    for first in range(0, DATASETS, at_once):
        for name in names[first : first + at_once]:
            world.dataset(name, 4)
            world.files.wakes.wake(url_of(name))
        world.run(3 * at_once)
    world.until(lambda: set(world.texts().values()) == {1}, 60)
    seconds = 3 * DATASETS
    assert world.claims[True] == DATASETS
    assert world.claims[False] <= 0.3 * DATASETS
    requests = Counter(world.requests())
    # The bell once a second each; every 30 s and after each compaction the boards, and who has one.
    assert requests["LIST"] <= WORKERS * seconds / 30 * 2 + DATASETS * 60
    assert requests["GET"] <= WORKERS * seconds * 1.5 + DATASETS * 200


def test_a_hint_whose_worker_is_gone_is_found_by_another(world: Play) -> None:
    world.dataset("a", 2)
    world.coordinator()
    workers = [world.worker(slots=1) for _ in range(20)]
    world.run(30)
    world.dataset("a", 4)
    world.files.wakes.wake(url_of("a"))
    world.workers.clear()
    world.until(lambda: bool(world.files.boards.read("Q0")), 30)
    (hint,) = world.files.boards.read("Q0")
    assert hint.worker in {worker.name for worker in workers}
    world.workers += [worker for worker in workers if worker.name != hint.worker]
    assert world.until(lambda: world.seen(events.Claimed)[url_of("a")] == 1, 90) <= 75
