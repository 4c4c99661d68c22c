"""A dataset says what no document holds: nobody else suffers, and members are still heard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from lithify.base import events
from lithify.base.errors import Refused
from lithify.fleet.members import Amounts, FleetMember, FleetRole, Load, Running
from lithify.fleet.status import fleet_status
from tests.fleet.playing import Play, play, url_of

TOO_LARGE = (1 << 53, (1 << 53) // 3, 1 << 63, 1 << 200, -1)
"""Two of the second are too many."""


@pytest.fixture
def world() -> Iterator[Play]:
    with play() as made:
        yield made


def says_it_is_large(world: Play, name: str, size: int) -> None:
    """By its index, which its owner writes."""
    world.dataset(name, 5)._change(lambda texts: tuple((key, size) for key, _ in texts))


@pytest.mark.parametrize("size", TOO_LARGE)
def test_the_other_datasets_of_its_coordinator_are_compacted_all_the_same(world: Play, size: int) -> None:
    says_it_is_large(world, "bad", size)
    world.dataset("good", 5)
    world.coordinator()
    world.worker()
    world.until(lambda: world.texts()["good"] == 1, 60)


@pytest.mark.parametrize("size", TOO_LARGE)
def test_its_coordinator_and_who_works_on_it_are_heard(world: Play, size: int) -> None:
    for name in ("bad", "worse"):
        says_it_is_large(world, name, size)
    world.coordinator()
    worker = world.worker(stepped=True)
    world.until(lambda: len(world.seen(events.Claimed)) == 2, 60)
    world.run(20)
    status = fleet_status(world.files, world.clock.now_ms())
    assert all(member.says is not None for member in status.members)
    (queue,) = status.queues
    assert (queue.slots, queue.running) == (2, 2)
    world.engines[worker.name].run_all()
    world.run(20)
    assert url_of("bad") in world.committed()
    assert all(member.says is not None for member in fleet_status(world.files, 0).members)


@pytest.mark.parametrize("why", ["x" * 2_000_000, "names \ud800"])
def test_its_coordinator_is_heard_whatever_is_wrong_with_it(world: Play, why: str) -> None:
    world.dataset("bad", 5)
    world.broken[url_of("bad")] = Refused(why)
    world.coordinator()
    world.run(20)
    (member,) = fleet_status(world.files, world.clock.now_ms()).members
    assert member.says is not None
    assert list(member.says.troubled) == [url_of("bad")]


def test_a_member_is_heard_whatever_its_datasets_and_tenants_are_called(world: Play) -> None:
    load = {"Q": Load(tenants={"red\udcff": Amounts(running=1)})}
    running = (Running("s3://b/\udcff", "C", "Q", 1, 2, "red\udcff"),)
    member = FleetMember("worker-1", FleetRole.WORKER, "h", "1", 1, load=load, running=running)
    world.files.members.beat(replace(member, troubled={"s3://b/\ud800": "names \ud800"}))
    (listed,) = world.files.members.listed()
    assert listed.says is not None
    assert list(listed.says.troubled) == ["s3://b/\ufffd"]
    assert list(listed.says.load["Q"].tenants) == ["red\ufffd"]
