"""What a fleet keeps in the store: races, what may be lost, and what it costs."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import pytest

from lithify.base.errors import CorruptObject, DatasetNotFound, LithifyError, Refused, StoreError
from lithify.base.ids import RandomIds
from lithify.fleet.catalog import changes
from lithify.fleet.catalog.files import FollowedCatalog, Numbered
from lithify.fleet.catalog.model import MAX_TENANTS, Catalog, DatasetRule, Queue
from lithify.fleet.discovery import LOOK_EVERY_S, Discovery
from lithify.fleet.files import FleetFiles
from lithify.fleet.handover import DatasetCheckpoint
from lithify.fleet.members import IDLE_BEAT_EVERY_MS, Amounts, FleetMember, FleetRole, Load, Running
from lithify.fleet.notifications import Ear
from lithify.fleet.task_queue_files import MAX_HINTS, order
from lithify.planning.fleet.notifications import MAX_RINGS
from lithify.planning.fleet.task_offers import ClaimOffer
from lithify.planning.fleet.waits import Waits
from lithify.store.objects import ObjectStore
from lithify.testing import ManualClock, MemoryStore, crash_at_every_call
from tests.fleet.worlds import World

HINT = ClaimOffer("s3://b/db", "01ARZ3NDEKTSV4RRFFQ69G5FAV", 3, 0.5, 1_000, 1)


@pytest.fixture
def world() -> World:
    made = World()
    made.init()
    return made


# Catalog


def test_a_fleet_is_made_once(world: World) -> None:
    with pytest.raises(Refused, match="a fleet exists already"):
        world.process().catalog.create(changes.first_catalog("Q1"))
    assert world.process().catalog.read().catalog.default_queue == "default"


def test_where_there_is_no_fleet_nothing_can_be_done() -> None:
    files = World().files
    actions: list[Callable[[], object]] = [
        files.catalog.read,
        lambda: files.catalog.update(lambda catalog: catalog),
    ]
    for action in actions:
        with pytest.raises(DatasetNotFound, match="lithify fleet init"):
            action()


def test_of_many_who_create_a_queue_of_one_name_one_wins(world: World) -> None:
    outcomes: list[str] = []

    def create(number: int) -> None:
        queue = Queue("small", f"Q{number}", 1_000)
        try:
            world.process().catalog.update(lambda catalog: changes.create_queue(catalog, queue))
            outcomes.append(queue.id)
        except Refused:
            outcomes.append("refused")

    threads = [threading.Thread(target=create, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = (outcome for outcome in outcomes if outcome != "refused")
    assert world.process().catalog.read().catalog.queue("small").id == winner
    assert len(outcomes) == 8


def test_changes_of_two_that_do_not_concern_each_other_both_count(world: World) -> None:
    one, two = world.process(), world.process()
    one.catalog.read()
    two.catalog.read()
    one.catalog.update(lambda catalog: changes.create_queue(catalog, Queue("a", "A", 1)))
    number = two.catalog.update(lambda catalog: changes.create_queue(catalog, Queue("b", "B", 2))).number
    assert number == 3
    assert [queue.name for queue in world.process().catalog.read().catalog.queues] == ["a", "b", "default"]


def test_who_dies_while_it_creates_a_queue_leaves_it_or_nothing() -> None:
    """And whoever does it again with the same id meets its own result."""
    queue = Queue("small", "Q1", 1_000)

    def make_store() -> MemoryStore:
        world = World()
        world.init()
        return world.memory

    def create(store: ObjectStore) -> Numbered:
        files = FleetFiles("x", store, "fleet", ManualClock(), RandomIds(random.Random(3)))
        return files.catalog.update(lambda catalog: changes.create_queue(catalog, queue))

    sites = []
    for site, store in crash_at_every_call(make_store, create):
        sites.append(site)
        again = create(store)
        assert (again.number, again.catalog.queue("small")) == (2, queue), site
    assert len(sites) > 4


def test_a_bad_catalog_is_reported_and_the_old_one_stays(world: World) -> None:
    followed = FollowedCatalog(world.process().catalog)
    before = followed.now
    bad = f"fleet/catalog/{before.number + 1:020}.json"
    world.store.put(bad, b'{"format": 1}')
    assert not followed.refresh()
    assert followed.now == before
    problem = followed.problem
    assert isinstance(problem, CorruptObject)
    with pytest.raises(CorruptObject):  # nobody builds upon it either
        world.process().catalog.update(lambda catalog: changes.add_rules(catalog, [DatasetRule("s3://b/x")]))
    world.store.delete(bad)
    world.process().catalog.update(lambda catalog: changes.add_rules(catalog, [DatasetRule("s3://b/x")]))
    assert followed.refresh()
    assert followed.problem is None
    assert len(followed.now.catalog.rules) == 1


def test_following_a_catalog_that_does_not_change_is_one_get(world: World) -> None:
    followed = FollowedCatalog(world.process().catalog)
    world.requests()
    assert not followed.refresh()
    assert world.requests() == {"GET": 1}


# Members


LOAD = Load(
    slots=4,
    bytes_per_s=9,
    resting=1,
    demand={3: 2},
    tenants={
        None: Amounts(running=1),
        "red": Amounts(waiting=2, lowest_priority=0.5, oldest_ms=7, youngest_ms=0, waits=Waits().plus(400)),
    },
)


def member(name: str, **fields: object) -> FleetMember:
    role = FleetRole(name.partition("-")[0])
    return replace(FleetMember(name, role, "host", "0.1.0", 1), **fields)  # type: ignore[arg-type]


def test_who_is_30_s_older_than_the_newest_is_dead(world: World) -> None:
    members = world.files.members
    members.beat(member("coordinator-1"))
    world.clock.advance_s(10)
    runs = Running("s3://b/db", "C", "Q0", 3, 5)
    worker = member(
        "worker-1", load={"Q0": LOAD}, running=(runs,), troubled={"u": "why"}, quarantined=1, at_ms=9
    )
    members.beat(worker)
    world.clock.advance_s(19.9)
    members.beat(member("coordinator-2"))
    alive = {seen.name: seen.is_alive for seen in members.listed()}
    assert alive == {"coordinator-1": True, "coordinator-2": True, "worker-1": True}
    world.clock.advance_s(0.1)
    members.beat(member("coordinator-2"))
    alive = {seen.name: seen.is_alive for seen in members.listed()}
    assert alive == {"coordinator-1": False, "coordinator-2": True, "worker-1": True}
    assert [seen.says for seen in members.listed() if seen.name == "worker-1"] == [worker]


def test_one_with_something_of_every_tenant_in_many_queues_is_heard(world: World) -> None:
    """As many tenants as a fleet may have policies for."""
    amounts = replace(LOAD.tenants["red"], waiting=10**9, queued_bytes=10**15, backlog_ms=10**12)
    load = replace(LOAD, tenants={f"a tenant of a usual name {n}": amounts for n in range(MAX_TENANTS)})
    coordinator = member("coordinator-1", load={f"Q{n}": load for n in range(20)})
    world.files.members.beat(coordinator)
    assert [seen.says for seen in world.files.members.listed()] == [coordinator]


def test_who_beats_more_rarely_is_dead_later(world: World) -> None:
    members = world.files.members
    members.beat(member("worker-1", beats_ms=IDLE_BEAT_EVERY_MS))
    world.clock.advance_s(179.9)
    members.beat(member("coordinator-1"))
    assert [seen.is_alive for seen in members.listed()] == [True, True]
    world.clock.advance_s(0.1)
    members.beat(member("coordinator-1"))
    assert [seen.is_alive for seen in members.listed()] == [True, False]


def test_nobody_is_alive_for_ever_by_what_it_says(world: World) -> None:
    members = world.files.members
    members.beat(member("worker-1", beats_ms=IDLE_BEAT_EVERY_MS + 1))
    members.beat(member("worker-2"))
    world.clock.advance_s(30)
    members.beat(member("coordinator-1"))
    assert [(seen.name, seen.is_alive) for seen in members.listed()] == [
        ("coordinator-1", True),
        ("worker-1", False),
        ("worker-2", False),
    ]


def test_only_who_has_written_since_is_read_again(world: World) -> None:
    members = world.files.members
    for number in range(3):
        members.beat(member(f"worker-{number}"))
    world.requests()
    before = members.listed()
    assert world.requests() == {"LIST": 1, "GET": 3}
    members.beat(member("worker-1", quarantined=1))
    members.leave("worker-2")
    world.requests()
    after = members.listed()
    assert world.requests() == {"LIST": 1, "GET": 1}
    assert [seen.says for seen in after] == [before[0].says, member("worker-1", quarantined=1)]


def test_no_clock_but_the_stores_counts(world: World) -> None:
    """Nobody gives a time: however wrong the clock of a reader or a member is, one listing says it all."""
    members = world.files.members
    members.beat(member("coordinator-1"))
    world.clock.advance_s(3_600)  # nobody wrote for an hour: there is nobody who could take anything over
    world.requests()
    (seen,) = members.listed()
    assert seen.is_alive
    assert world.requests() == {"LIST": 1, "GET": 1}


def test_who_leaves_is_gone_and_strangers_do_not_count(world: World) -> None:
    members = world.files.members
    members.beat(member("coordinator-1"))
    world.store.put("fleet/members/readme.txt", b"x")
    world.store.put("fleet/members/worker-2.json", b"junk")
    assert [(seen.name, seen.says) for seen in members.listed()] == [
        ("coordinator-1", member("coordinator-1")),
        ("worker-2", None),
    ]
    members.leave("coordinator-1")
    assert [seen.name for seen in members.listed()] == ["worker-2"]


# Boards and bells


def test_boards_of_all_members_are_read_together_the_best_first(world: World) -> None:
    boards = world.files.boards
    one, two = replace(HINT, compaction="A"), replace(HINT, compaction="B", band=0)
    boards.write("Q1", "coordinator-1", [one])
    boards.write("Q1", "coordinator-2", [one, two])
    boards.write("Q2", "coordinator-2", [HINT])
    assert boards.read("Q1") == (two, one)
    assert [hint.board for hint in boards.read("Q1")] == ["coordinator-2", "coordinator-1"]
    boards.write("Q1", "coordinator-2", [])
    assert boards.read("Q1") == (one,)
    assert boards.read("Q3") == ()


def test_a_board_has_the_best_128_hints(world: World) -> None:
    hints = [replace(HINT, compaction=f"{n:03}", band=n % 7, priority=n / 1000) for n in range(500)]
    world.files.boards.write("Q1", "coordinator-1", hints)
    found = world.files.boards.read("Q1")
    assert len(found) == MAX_HINTS
    assert list(found) == sorted(hints, key=order)[:MAX_HINTS]


def test_a_board_that_cannot_be_read_counts_as_not_there(world: World) -> None:
    boards = world.files.boards
    boards.write("Q1", "coordinator-1", [HINT])
    for number, data in enumerate((b"", b"{}", b'{"hints": [{}]}', b'{"hints": 7}', b"[" * 100_000)):
        world.store.put(f"fleet/boards/Q1/coordinator-bad{number}.json", data)
    assert boards.read("Q1") == (HINT,)
    boards.forget(["coordinator-1"])
    assert boards.read("Q1") == ()


def test_a_bad_hint_hides_no_other(world: World) -> None:
    bad: tuple[Any, ...] = (
        {},
        None,
        {"bytes": 1 << 63},
        {"bytes": -1},
        {"priority": float("nan")},
        {"url": "\ud800"},
    )
    good = asdict(HINT)
    hints = [*({**good, **one, "compaction": "other"} if one else one for one in bad), good]
    world.store.put("fleet/boards/Q1/coordinator-1.json", json.dumps({"hints": hints}).encode())
    assert world.files.boards.read("Q1") == (HINT,)


def test_a_bell_is_heard_once_by_each_and_costs_a_get(world: World) -> None:
    bells = world.files.bells
    one, two = Ear(bells, "Q1"), Ear(bells, "Q1")
    assert one.hears() is None, "who begins to listen looks"
    world.requests()
    assert one.hears() == ()
    assert world.requests() == {"GET": 1}
    bells.ring("Q1", "coordinator-1", [replace(HINT, worker="worker-1", idle_workers=9)])
    bells.ring("Q2", "coordinator-1", [HINT])
    (ring,) = one.hears() or ()
    assert (ring.board, ring.workers, ring.is_open, ring.idle_workers) == (
        "coordinator-1",
        ("worker-1",),
        False,
        9,
    )
    assert one.hears() == ()
    assert two.hears() is None
    for _ in range(MAX_RINGS):
        bells.ring("Q1", "coordinator-2", [HINT])
    assert one.hears() is None, "it may have missed one"
    bells.ring("Q1", "coordinator-2", [HINT])
    assert [ring.is_open for ring in one.hears() or ()] == [True]
    world.store.put("fleet/bells/Q1", b"junk")
    assert one.hears() is None


def test_of_two_who_ring_at_once_both_are_heard(world: World) -> None:
    bells = world.files.bells
    ear = Ear(bells, "Q1")
    ear.hears()
    bells.ring("Q1", "coordinator-0", [HINT], partial(bells.ring, "Q1", "coordinator-1", [HINT]))
    assert {ring.board for ring in bells.rings("Q1")} == {"coordinator-0", "coordinator-1"}
    bells.ring("Q1", "coordinator-2", [HINT], partial(bells.ring, "Q1", "coordinator-3", [HINT]))
    assert {ring.board for ring in ear.hears() or ()} == {f"coordinator-{number}" for number in range(4)}


# Wakes and memory


def test_waking_twice_is_waking_once(world: World) -> None:
    wakes = world.files.wakes
    wakes.wake("s3://b/db")
    wakes.wake("s3://b/db/")
    wakes.wake("s3://b/other")
    found = {wake.url: wake for wake in wakes.listed()}
    assert set(found) == {"s3://b/db", "s3://b/other"}
    wakes.done(found["s3://b/db"])
    assert [wake.url for wake in wakes.listed()] == ["s3://b/other"]


def test_what_a_coordinator_knows_is_read_by_the_next(world: World) -> None:
    known = {f"s3://b/{n}": DatasetCheckpoint(n, None, 7) for n in range(1_000)}
    world.files.memory.write("coordinator-1", known)
    assert world.process().memory.read("coordinator-1") == known
    assert world.files.memory.members() == ("coordinator-1",)
    world.files.memory.forget("coordinator-1")
    assert world.files.memory.read("coordinator-1") == {}


def test_a_memory_that_cannot_be_read_is_none(world: World) -> None:
    world.files.memory.write("coordinator-1", {"s3://b/x": DatasetCheckpoint(1, 2, 3)})
    key = "fleet/memory/coordinator-1.json.zst"
    whole = world.store.get(key)
    for data in (b"", b"junk", whole[:-3], whole[:5]):
        world.store.put(key, data)
        assert world.files.memory.read("coordinator-1") == {}


def test_what_others_know_is_read_the_newest_first_and_once(world: World) -> None:
    memory = world.files.memory
    for number in (2, 1, 3):
        memory.write(f"coordinator-{number}", {"s3://b/x": DatasetCheckpoint(number)})
        world.clock.advance_s(1)
    world.requests()
    assert [known["s3://b/x"].changed_ms for known in memory.others("coordinator-3")] == [1, 2]
    assert world.requests() == {"LIST": 1, "GET": 2}
    memory.write("coordinator-2", {"s3://b/x": DatasetCheckpoint(4)})
    memory.forget("coordinator-3")
    world.requests()
    assert [known["s3://b/x"].changed_ms for known in memory.others("coordinator-4")] == [4, 1]
    assert world.requests() == {"LIST": 1, "GET": 1}


def test_what_cannot_be_read_of_a_memory_hides_nothing_else(world: World) -> None:
    known: dict[str, DatasetCheckpoint] = {
        "s3://b/\ud800": DatasetCheckpoint(1),
        "s3://b/late": DatasetCheckpoint(1 << 60),
    }
    world.files.memory.write("coordinator-1", {**known, "s3://b/x": DatasetCheckpoint(1, 2, 3)})
    assert world.files.memory.read("coordinator-1") == {"s3://b/x": DatasetCheckpoint(1, 2, 3)}


# Discovery


def catalog_of(*rules: DatasetRule) -> Catalog:
    return changes.add_rules(changes.first_catalog("Q0"), rules)


def test_a_pattern_is_looked_up_every_five_minutes(world: World) -> None:
    asked: list[str] = []
    there = ["s3://b/1/db", "s3://b/2/db"]

    def find(rule: DatasetRule) -> list[str]:
        asked.append(rule.pattern)
        return list(there)

    discovery, catalog = (
        Discovery(find, world.clock),
        catalog_of(DatasetRule("s3://b/*/db"), DatasetRule("s3://b/9/db")),
    )
    assert sorted(discovery.datasets(catalog)) == [*there, "s3://b/9/db"]
    there.append("s3://b/3/db")
    assert len(discovery.datasets(catalog)) == 3
    world.clock.advance_s(LOOK_EVERY_S)
    assert len(discovery.datasets(catalog)) == 4
    del there[0]
    world.clock.advance_s(LOOK_EVERY_S)
    assert sorted(discovery.datasets(catalog)) == [*there, "s3://b/9/db"]
    assert asked == ["s3://b/*/db"] * 3
    assert discovery.datasets(catalog_of(DatasetRule("s3://b/9/db"))).keys() == {"s3://b/9/db"}


def test_a_pattern_that_cannot_be_looked_up_keeps_what_it_had(world: World) -> None:
    fails = False

    def find(rule: DatasetRule) -> list[str]:
        if fails and "bad" in rule.pattern:
            raise StoreError("it is forbidden")
        return [rule.pattern.replace("*", "x")]

    discovery = Discovery(find, world.clock)
    catalog = catalog_of(DatasetRule("s3://bad/*"), DatasetRule("s3://good/*"))
    before = discovery.datasets(catalog)
    fails = True
    world.clock.advance_s(LOOK_EVERY_S)
    assert discovery.datasets(catalog) == before
    found: dict[str, LithifyError] = dict(discovery.problems)
    assert {pattern: str(error) for pattern, error in found.items()} == {"s3://bad/*": "it is forbidden"}


def test_of_several_rules_one_counts(world: World) -> None:
    discovery = Discovery(lambda rule: ["s3://b/a/db"], world.clock)
    first, second, own = (
        DatasetRule("s3://b/*/db"),
        DatasetRule("s3://b/a*/db"),
        DatasetRule("s3://b/a/db", tenant="t"),
    )
    assert discovery.datasets(catalog_of(first, second)) == {"s3://b/a/db": second}
    assert discovery.datasets(catalog_of(first, second, own)) == {"s3://b/a/db": own}
