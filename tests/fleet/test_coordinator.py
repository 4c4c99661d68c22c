"""A coordinator and its worker: what is to be done is done, what is idle is not touched, whoever dies."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from lithify.base import events
from lithify.base.errors import CorruptObject, DatasetNotFound, Refused, StoreError
from lithify.coordination.leadership import Leadership
from lithify.fleet.catalog import changes
from lithify.fleet.catalog.model import Coordinates, DatasetRule
from lithify.fleet.members import FORGOTTEN_AFTER_MS, IDLE_BEAT_EVERY_MS
from lithify.fleet.status import fleet_status
from lithify.planning.fleet.task_offers import ClaimOffer
from lithify.protocol.lease import Lease
from lithify.protocol.model import CompactionState
from lithify.protocol.proposal import Plan
from lithify.service.coordinator import Coordinator
from tests.fleet.playing import ALL, Play, play, url_of
from tests.kinds.texts import TextDataset


@pytest.fixture
def world() -> Iterator[Play]:
    with play() as made:
        yield made


def test_what_has_work_is_compacted_and_what_is_idle_never_written(world: Play) -> None:
    for name in ("a", "b", "c"):
        world.dataset(name, 6)
    world.dataset("idle", 2)
    before = world.objects("idle")
    world.coordinator()
    world.worker()
    world.until(lambda: world.texts() == {"a": 1, "b": 1, "c": 1, "idle": 2}, 60)
    world.run(3_600)
    assert world.objects("idle") == before
    assert world.committed() == {url_of(name): 1 for name in ("a", "b", "c")}


def test_leadership_is_held_until_ten_minutes_of_rest(world: Play) -> None:
    dataset = world.dataset("a", 6)
    (coordinator,) = (world.coordinator(),)
    world.worker()
    world.until(lambda: world.texts() == {"a": 1}, 60)
    lease = dataset.lease.read()
    assert lease is not None
    assert lease.lease is not None
    assert (lease.lease.holder, lease.lease.is_ended) == (coordinator.name, False)
    world.run(590)
    assert coordinator.watched[url_of("a")].is_led
    world.run(60)
    assert not coordinator.watched[url_of("a")].is_led
    lease = dataset.lease.read()
    assert lease is not None
    assert lease.lease is not None
    assert lease.lease.is_ended
    at_rest = world.objects("a")
    world.run(3_600)
    assert world.objects("a") == at_rest
    assert dataset.epoch() == 1


def test_new_work_is_found_and_done(world: Play) -> None:
    world.dataset("a", 2)
    world.coordinator()
    world.worker()
    world.run(600)
    dataset = world.dataset("a", 3)
    # It had been silent for 600 s, so it is looked at every 60.
    assert world.until(lambda: world.texts() == {"a": 1}, 100) <= 75
    assert dataset.epoch() == 1


def test_what_is_woken_is_looked_at_within_ten_seconds(world: Play) -> None:
    world.dataset("a", 2)
    world.coordinator()
    world.worker()
    world.run(7_200)
    world.dataset("a", 3)
    world.files.wakes.wake(url_of("a"))
    assert world.until(lambda: world.committed()[url_of("a")] == 1, 20) <= 15
    assert world.files.wakes.listed() == ()


def test_each_worker_takes_the_work_of_its_queues(world: Play) -> None:
    world.queue("small", 1_000)
    world.dataset("small", 5, size=10)
    world.dataset("large", 5, size=1_000)
    world.coordinator()
    worker = world.worker("small")
    world.run(60)
    assert world.texts() == {"small": 1, "large": 5}
    assert world.seen(events.Claimed) == {url_of("small"): 1}
    assert not worker.is_over
    world.worker("default")
    world.until(lambda: world.texts() == {"small": 1, "large": 1}, 60)


def test_a_rule_names_the_queue(world: Play) -> None:
    world.queue("even", 1)
    world.queue("odd", 2)
    rules = [DatasetRule(url_of(str(n)), queue=("even", "odd")[n % 2]) for n in range(6)]
    world.change(lambda catalog: changes.add_rules(catalog, rules))
    for n in range(6):
        world.dataset(str(n), 5)
    world.coordinator()
    world.worker("even")
    world.run(60)
    assert world.texts() == {str(n): (1, 5)[n % 2] for n in range(6)}
    world.worker("odd")
    world.until(lambda: set(world.texts().values()) == {1}, 60)


def test_nothing_of_a_paused_queue_is_admitted_until_it_is_resumed(world: Play) -> None:
    queue_id = world.queue("small", 1_000)
    world.change(lambda catalog: changes.pause_queue(catalog, queue_id))
    world.dataset("a", 5)
    coordinator = world.coordinator()
    world.worker()
    world.run(120)
    assert world.texts() == {"a": 5}
    assert not coordinator.watched[url_of("a")].is_led, "and its dataset was not written"
    world.change(lambda catalog: changes.resume_queue(catalog, queue_id))
    world.until(lambda: world.texts() == {"a": 1}, 60)


def test_what_a_draining_queue_would_get_goes_to_the_next(world: Play) -> None:
    queue_id = world.queue("small", 1_000)
    world.dataset("a", 5)
    world.change(lambda catalog: changes.drain_queue(catalog, queue_id))
    world.coordinator()
    world.worker("default")
    world.until(lambda: world.texts() == {"a": 1}, 60)


def test_a_queue_that_is_deleted_ends_its_workers_and_its_work_goes_on_elsewhere(world: Play) -> None:
    queue_id = world.queue("small", 1_000)
    world.dataset("a", 5)
    world.coordinator()
    gone, stays = world.worker("small", stepped=True), world.worker()
    world.workers.remove(stays)
    world.until(lambda: world.seen(events.Claimed)[url_of("a")] == 1, 60)
    world.change(lambda catalog: changes.delete_queue(catalog, queue_id))
    again = world.queue("small", 1_000)
    world.until(lambda: gone.is_over, 20)
    world.workers.remove(gone)
    gone.close()
    world.workers.append(stays)
    world.until(lambda: world.texts() == {"a": 1}, 60)
    assert again != queue_id
    assert world.committed() == {url_of("a"): 1}


def test_a_second_coordinator_takes_its_share_and_all_when_the_first_dies(world: Play) -> None:
    names = [f"d{n}" for n in range(20)]
    for name in names:
        world.dataset(name, 5)
    first, second = world.coordinator(), world.coordinator()
    world.run(20)
    shares = [set(coordinator.watched) for coordinator in (first, second)]
    assert shares[0] | shares[1] == {url_of(name) for name in names}
    assert not shares[0] & shares[1]
    assert all(len(share) > 2 for share in shares)
    slow = world.worker(slots=40, stepped=True)
    world.until(lambda: len(world.seen(events.Claimed)) == 20, 60)
    world.coordinators.remove(first)  # it dies, with everything it leads
    started_s = world.clock.monotonic_s()
    for _ in range(60):
        world.engines[slow.name].step()
        world.run(1)
    world.until(lambda: set(world.texts().values()) == {1}, 60)
    assert set(second.watched) == {url_of(name) for name in names}
    assert world.committed() == {url_of(name): 1 for name in names}, "each once"
    assert world.clock.monotonic_s() - started_s <= 90


def test_a_dead_coordinators_lease_needs_no_waiting(world: Play) -> None:
    world.dataset("a", 5)
    first = world.coordinator()
    worker = world.worker(stepped=True)
    world.until(lambda: world.seen(events.Claimed)[url_of("a")] == 1, 30)
    world.coordinators.remove(first)
    second = world.coordinator()
    world.while_waiting = partial(pytest.fail, "it asks the holder of the lease")

    def is_led() -> bool:
        return url_of("a") in second.watched and second.watched[url_of("a")].is_led

    assert world.until(is_led, 60) <= 45
    world.engines[worker.name].run_all()
    world.until(lambda: world.texts() == {"a": 1}, 30)
    assert world.seen(events.Reclaimed) == {}, "what runs goes on"


def test_a_lease_whose_end_could_not_be_written_is_not_waited_for_for_ever(world: Play) -> None:
    """Its holder is alive, and has nothing to do with the dataset any more."""
    dataset = world.dataset("a", 1)
    coordinators = world.coordinator(), world.coordinator()
    world.worker()
    world.until(lambda: sorted(len(coordinator.watched) for coordinator in coordinators) == [0, 1], 60)
    (other,) = [coordinator for coordinator in coordinators if not coordinator.watched]
    dataset.lease.write(Lease(other.name, renewals=1), None)
    world.dataset("a", 4)
    world.until(lambda: world.texts() == {"a": 1}, 180)


def test_what_another_lithify_coordinates_is_left_to_it(world: Play) -> None:
    dataset = world.dataset("a", 5)
    leadership = Leadership(dataset, world.clock, world.ids)
    with leadership.acquire() as term:
        coordinator = Coordinator(dataset, world.clock, world.ids)
        coordinator.start(term)

        def coordinate() -> None:
            leadership.renew()
            coordinator.tick()

        world.while_waiting = coordinate
        world.coordinator()
        world.worker()
        world.run(200, coordinate)
        assert world.texts() == {"a": 1}
        assert dataset.epoch() == 1


def test_what_its_owner_coordinates_is_served_and_never_led(world: Play) -> None:
    dataset = world.dataset("a", 5)
    world.change(lambda catalog: changes.add_rules(catalog, [DatasetRule(url_of("a"), Coordinates.OWNER)]))
    fleet_coordinator = world.coordinator()
    world.worker()
    world.run(60)
    assert dataset.ledger() is None
    leadership = Leadership(dataset, world.clock, world.ids)
    with leadership.acquire() as term:
        coordinator = Coordinator(dataset, world.clock, world.ids)
        coordinator.start(term)

        def coordinate() -> None:
            coordinator.tick()

        world.run(60, coordinate)
    assert world.texts() == {"a": 1}
    assert dataset.epoch() == 1
    assert not fleet_coordinator.watched[url_of("a")].is_led


def test_one_bad_dataset_stops_nobody_and_is_told_once(world: Play) -> None:
    for name in ("a", "bad", "b"):
        world.dataset(name, 5)
    world.broken[url_of("bad")] = CorruptObject("index", "is junk")
    coordinator = world.coordinator()
    world.worker()
    world.run(1_200)
    assert world.texts() == {"a": 1, "bad": 5, "b": 1}
    assert world.seen(events.Quarantined) == {url_of("bad"): 1}
    assert list(coordinator.quarantined) == [url_of("bad")]
    assert world.opened[url_of("bad")] < 10
    world.broken.clear()
    world.files.wakes.wake(url_of("bad"))
    world.until(lambda: world.texts()["bad"] == 1, 60)
    assert coordinator.quarantined == {}
    assert world.seen(events.Recovered) == {url_of("bad"): 1}


def test_poison_does_not_use_up_the_rest(world: Play) -> None:
    world.dataset("bad", 5)
    world.poisoned.add("bad")
    world.coordinator()
    world.worker(slots=1)
    world.run(30)
    for name in ("a", "b", "c"):
        world.dataset(name, 5)
        world.files.wakes.wake(url_of(name))
    world.until(
        lambda: {n: t for n, t in world.texts().items() if n != "bad"} == {"a": 1, "b": 1, "c": 1}, 400
    )
    world.run(1_800)
    assert 1 <= world.seen(events.Failed)[url_of("bad")] <= 5
    assert world.seen(events.AttemptFailed)[url_of("bad")] <= 25
    world.poisoned.clear()
    world.run(3_700)  # at the latest after the longest pause
    assert world.texts()["bad"] == 1


def test_a_sick_worker_uses_up_nobodys_attempts(world: Play) -> None:
    """However much it fails, fast, others do all of it, and nothing is given up."""
    names = [f"d{n}" for n in range(12)]
    world.coordinator()
    bad, _ = world.worker(slots=4), world.worker(slots=1)
    world.sick.add(bad.name)
    world.run(15)
    for name in names:
        world.dataset(name, 5)
        world.files.wakes.wake(url_of(name))
    world.until(lambda: set(world.texts().values()) == {1}, 600)
    assert world.seen(events.Failed) == {}
    assert world.seen(events.AttemptFailed).total() <= 40


def test_a_tenant_has_no_more_than_its_cap_and_others_the_rest(world: Play) -> None:
    rules = [
        DatasetRule(url_of(f"{tenant}{n}"), tenant=tenant) for tenant in ("red", "blue") for n in range(6)
    ]
    world.change(lambda catalog: changes.add_rules(catalog, rules))
    world.change(lambda catalog: changes.set_tenant(catalog, "red", most_running=2))
    for rule in rules:
        world.dataset(rule.pattern.rpartition("/")[2], 5)
    world.coordinator()
    worker = world.worker(slots=8, stepped=True)
    world.run(40)
    tenants = fleet_status(world.files, world.clock.now_ms()).queue("default").tenants
    assert (tenants["red"].running, tenants["blue"].running) == (2, 6)
    world.change(lambda catalog: changes.remove_tenant(catalog, "red"))

    def step() -> None:
        world.engines[worker.name].run_all()

    world.run(120, step)
    assert set(world.texts().values()) == {1}


def test_tenants_have_turns_by_weight(world: Play) -> None:
    rules = [
        DatasetRule(url_of(f"{tenant}{n}"), tenant=tenant) for tenant in ("red", "blue") for n in range(20)
    ]
    world.change(lambda catalog: changes.add_rules(catalog, rules))
    world.change(lambda catalog: changes.set_tenant(catalog, "red", weight=3))
    for rule in rules:
        world.dataset(rule.pattern.rpartition("/")[2], 5)
    world.coordinator()
    world.worker(slots=16, stepped=True)
    world.run(40)
    tenants = fleet_status(world.files, world.clock.now_ms()).queue("default").tenants
    # Every fourth claim goes to who has waited longest, whose tenant's it may be.
    assert tenants["red"].running > tenants["blue"].running + 2


def test_a_folder_that_is_no_dataset_is_looked_at_once_an_hour(world: Play) -> None:
    world.names.append("nothing")
    world.broken[url_of("nothing")] = DatasetNotFound("there is nothing")
    world.coordinator()
    world.run(3_500)
    assert world.opened == {url_of("nothing"): 1}
    world.run(200)
    assert world.opened == {url_of("nothing"): 2}
    assert world.events == []


def test_the_fleets_own_hints_may_be_lost_at_any_time(world: Play) -> None:
    rng = random.Random(7)
    for n in range(12):
        world.dataset(f"d{n}", 5)
    world.coordinator()
    world.coordinator()
    world.worker(slots=1)

    def lose() -> None:
        keys = [
            meta.key
            for part in ("boards", "bells", "memory", "members", "wakes")
            for meta in world.memory.list(f"fleet/{part}")
        ]
        for key in keys:
            if rng.random() < 0.2:
                world.memory.delete(key)

    world.run(400, lose)
    # Of an idle worker nobody knows until it beats again, and nothing is admitted for nobody.
    world.run(2 * IDLE_BEAT_EVERY_MS // 1000)
    assert set(world.texts().values()) == {1}
    assert world.committed() == {url_of(f"d{n}"): 1 for n in range(12)}


def test_what_a_dead_coordinator_left_goes_though_its_object_was_lost(world: Play) -> None:
    world.dataset("a", 5)
    first = world.coordinator()
    world.worker(slots=1, stepped=True).close()
    world.run(90)
    queue_id = world.files.catalog.read().catalog.queues[0].id
    hint = ClaimOffer(url_of("a"), "01HF7YATZ8R1RWQ3926H4NHA1C", 0, 1.0, 1, 0)
    world.files.boards.write(queue_id, first.name, [hint])
    assert first.name in world.files.memory.members()
    world.coordinators.remove(first)
    world.files.members.leave(first.name)
    second = world.coordinator()
    world.run(FORGOTTEN_AFTER_MS // 1000 + 400)
    assert world.files.boards.read(queue_id) == ()
    assert world.files.memory.members() == (second.name,)


def test_every_request_may_fail_or_only_seem_to() -> None:
    with play(faults=0.05) as world:
        for n in range(10):
            world.dataset(f"d{n}", 5)
        for party in (world.coordinator, world.coordinator, world.worker):
            until_it_starts(party)
        world.run(2700)
        assert set(world.texts().values()) == {1}
        assert world.seen(events.Quarantined), "or nothing has failed"
        assert all(count <= 2 for count in world.committed().values()), "told again where the answer was lost"


def until_it_starts(make: Callable[[], object]) -> None:
    for _ in range(20):
        try:
            make()
        except StoreError:
            continue
        return
    raise AssertionError("it never starts")


def test_a_coordinator_that_was_frozen_does_not_fight_for_what_it_had(world: Play) -> None:
    names = [f"d{n}" for n in range(8)]
    for name in names:
        world.dataset(name, 5)
    first, second = world.coordinator(), world.coordinator()
    worker = world.worker(slots=10, stepped=True)
    world.until(lambda: len(world.seen(events.Claimed)) == 8, 60)
    assert any(watched.is_led for watched in first.watched.values())
    world.coordinators.remove(first)
    world.run(60)
    assert len(second.watched) == 8
    world.coordinators.append(first)
    world.run(60)
    assert not set(first.watched) & set(second.watched)
    world.engines[worker.name].run_all()
    world.until(lambda: set(world.texts().values()) == {1}, 120)
    assert world.committed() == {url_of(name): 1 for name in names}
    assert max(world.dataset(name).epoch() for name in names) <= 3, "there and back again"


def test_no_more_is_admitted_than_the_workers_have_slots_and_one_ahead(world: Play) -> None:
    for n in range(30):
        world.dataset(f"d{n:02}", 5)
    coordinator = world.coordinator()
    world.worker(slots=3, stepped=True)
    world.run(60)
    led = [watched for watched in coordinator.watched.values() if watched.is_led]
    assert len(led) == 3 + 1
    status = fleet_status(world.files, world.clock.now_ms())
    (queue,) = status.queues
    assert (queue.slots, queue.running, queue.waiting) == (3, 3, 26)
    assert len(queue.hints) == 1


def test_without_workers_nothing_is_begun(world: Play) -> None:
    world.dataset("a", 5)
    before = world.objects("a")
    world.coordinator()
    world.run(300)
    assert world.objects("a") == before


def test_what_a_rule_names_no_more_is_given_back(world: Play) -> None:
    dataset = world.dataset("a", 5)
    coordinator = world.coordinator()
    world.worker(stepped=True)
    world.until(lambda: world.seen(events.Claimed)[url_of("a")] == 1, 30)
    world.change(lambda catalog: changes.remove_rules(catalog, [ALL]))
    world.run(15)
    assert coordinator.watched == {}
    lease = dataset.lease.read()
    assert lease is not None
    assert lease.lease is not None
    assert lease.lease.is_ended
    ledger = dataset.ledger()
    assert ledger is not None
    assert [c.state for c in ledger.active()] == [CompactionState.RUNNING], "what runs goes on"


def test_of_what_was_watched_before_nothing_is_left(world: Play) -> None:
    world.dataset("a", 5)
    coordinator = world.coordinator()
    world.worker()
    world.until(lambda: world.committed()[url_of("a")] == 1, 60)
    world.change(lambda catalog: changes.add_rules(catalog, [DatasetRule(ALL, tenant="red")]))
    world.run(30)
    assert world.left == [], "treated otherwise, it is watched on"
    world.change(lambda catalog: changes.remove_rules(catalog, [ALL]))
    world.run(7_200)
    assert (coordinator.watched, world.left, world.collected) == ({}, [url_of("a")], [])
    world.change(lambda catalog: changes.add_rules(catalog, [DatasetRule(ALL)]))
    world.dataset("a", 4)
    world.until(lambda: world.committed()[url_of("a")] == 2, 60)
    world.run(500)
    assert world.collected == [], "not by when it was committed to in its life before"
    world.run(200)
    assert world.collected == [url_of("a")]


def test_garbage_is_collected_ten_minutes_after_the_last_commit(world: Play) -> None:
    world.dataset("a", 5)
    world.dataset("idle", 2)
    world.coordinator()
    world.worker()
    done_s = world.until(lambda: world.texts()["a"] == 1, 60)
    world.run(590 - done_s)
    assert world.collected == []
    world.run(60)
    assert world.collected == [url_of("a")]
    world.run(7_200)
    assert Counter(world.collected) == {url_of("a"): 1, url_of("idle"): 1}, "until the next day"


@pytest.mark.parametrize("plan", [Plan(refusal="it has no time column"), Plan(is_left_out=True)])
def test_a_dataset_that_is_never_compacted_has_its_duties_done_all_the_same(
    world: Play, monkeypatch: pytest.MonkeyPatch, plan: Plan
) -> None:
    world.dataset("never", 6)
    monkeypatch.setattr(TextDataset, "propose", lambda *_: plan)
    coordinator = world.coordinator()
    world.worker()
    world.run(7_000)
    assert world.texts() == {"never": 6}
    assert world.collected == [url_of("never")] * 2, "once an hour"
    assert coordinator.quarantined == {}
    assert world.seen(events.CannotCompact) == ({url_of("never"): 1} if plan.refusal else {})
    (status,) = fleet_status(world.files, world.clock.now_ms()).members[:1]
    assert bool(status.says and status.says.troubled) == bool(plan.refusal)


def test_what_a_member_knew_at_its_end_is_known_though_it_was_read_before(world: Play) -> None:
    names = [f"d{n}" for n in range(12)]
    for name in names:
        world.dataset(name, 2)
    first, second = world.coordinator(), world.coordinator()
    world.worker()
    world.run(120)
    for n in range(12):
        world.dataset(f"late{n}", 2)
    world.until(lambda: any("late" in url for url in second.watched), 400)  # it has read what first knows
    (name, *_) = [name for name in names if url_of(name) in first.watched]
    world.dataset(name, 3)
    world.files.wakes.wake(url_of(name))
    world.until(lambda: world.committed()[url_of(name)] == 1, 60)
    committed_ms = first.watched[url_of(name)].known.committed_ms
    world.coordinators.remove(first)
    first.close()
    world.until(lambda: url_of(name) in second.watched, 30)
    assert second.watched[url_of(name)].known.committed_ms == committed_ms is not None
    world.collected.clear()
    world.run(700)
    assert world.collected.count(url_of(name)) == 1


def test_the_newest_of_what_several_knew_counts(world: Play) -> None:
    world.dataset("a", 5)
    world.worker()
    committed: list[int | None] = []
    for number in (1, 2):
        coordinator = world.coordinator()
        world.dataset("a", 4)
        world.until(lambda number=number: world.committed()[url_of("a")] == number, 60)  # type: ignore[misc]
        committed.append(coordinator.watched[url_of("a")].known.committed_ms)
        world.coordinators.remove(coordinator)
        coordinator.close()
    last = world.coordinator()
    world.run(2)
    assert committed[0] != committed[1] == last.watched[url_of("a")].known.committed_ms


def test_a_dataset_that_is_treated_otherwise_is_known_as_it_was(world: Play) -> None:
    world.dataset("a", 5)
    coordinator = world.coordinator()
    world.worker()
    world.until(lambda: world.texts()["a"] == 1, 60)
    known = coordinator.watched[url_of("a")].known
    world.change(lambda catalog: changes.add_rules(catalog, [DatasetRule(url_of("a"), tenant="red")]))
    world.until(lambda: coordinator.watched[url_of("a")].rule.tenant == "red", 30)
    assert coordinator.watched[url_of("a")].known.committed_ms == known.committed_ms is not None
    world.run(700)
    assert world.collected == [url_of("a")]


@pytest.mark.parametrize("is_opened", [True, False])
def test_a_rule_that_a_coordinator_cannot_read_keeps_no_garbage_of_others(
    world: Play, is_opened: bool
) -> None:
    """It is of a newer version, and its datasets have garbage of before."""
    bad, error = DatasetRule(url_of("bad")), Refused("there is no setting by that name")
    world.change(lambda catalog: changes.add_rules(catalog, [bad]))
    for name in ("bad", "good"):
        world.dataset(name, 5)
    first = world.coordinator()
    world.worker()
    world.until(lambda: world.texts() == {"bad": 1, "good": 1}, 60)
    world.coordinators.remove(first)
    first.close()

    def collects(rule: DatasetRule) -> bool:
        if rule == bad:
            raise error
        return True

    world.collects = collects
    if not is_opened:
        world.broken[url_of("bad")] = error
    second = world.coordinator()
    world.run(700)
    assert world.collected == [url_of("good")]
    assert second.name in world.files.memory.members(), "its rounds end"
    world.collects, world.broken = lambda rule: True, {}
    world.files.wakes.wake(url_of("bad"))
    world.run(30)
    assert world.collected == [url_of("good"), url_of("bad")], "once it can be read"


def test_an_idle_fleet_costs_little(world: Play) -> None:
    for n in range(50):
        world.dataset(f"d{n}", 2)
    world.coordinator()
    world.worker()
    world.run(3_000)
    world.requests()
    world.run(3_600)
    requests = world.requests()
    # Every five minutes a look at each: the next ledger, or that there is none, and the next manifest.
    assert requests["PUT"] <= 2 * 360 + 60
    assert requests["LIST"] <= 360 + 720 + 3_600 / 30 + 50 * 12 + 60
    assert requests["GET"] <= 50 * 12 * 4 + 360 * 4 + 3_600


def test_a_coordinator_that_leaves_leaves_nothing_led(world: Play) -> None:
    dataset = world.dataset("a", 5)
    coordinator = world.coordinator()
    world.worker()
    world.until(lambda: world.texts() == {"a": 1}, 60)
    world.coordinators.remove(coordinator)
    coordinator.close()
    lease = dataset.lease.read()
    assert lease is not None
    assert lease.lease is not None
    assert lease.lease.is_ended
    assert coordinator.name not in {seen.name for seen in world.files.members.listed()}
    next_one = world.coordinator()
    world.run(2)
    known = next_one.watched[url_of("a")].known
    assert known.committed_ms is not None, "what it knew is known"


def test_a_bad_catalog_changes_nothing(world: Play) -> None:
    coordinator = world.coordinator()
    world.worker()
    number = world.files.catalog.read().number
    world.store.put(f"fleet/catalog/{number + 1:020}.json", b"{}")
    world.dataset("a", 5)
    world.until(lambda: world.texts() == {"a": 1}, 400)
    assert isinstance(coordinator.problem, CorruptObject)
