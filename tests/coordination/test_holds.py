"""Holds as objects: who puts one first and asks then is safe, what lapses keeps nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lithify.base.errors import CorruptObject, HoldLapsed, LithifyError, ObjectNotFound, Refused
from lithify.base.ids import RandomIds
from lithify.coordination.holds import ObjectHolds, Placed
from lithify.coordination.thresholds import ThresholdFiles, decode
from lithify.store.objects import ObjectStore
from lithify.testing import ManualClock, MemoryStore
from lithify.testing.faulty import FaultyStore, StoreFault, crash_at_every_call
from lithify.watermarks.model import Needed, Threshold

HOUR_MS = 3_600_000


class World:
    """Holds beside one dataset, on one clock."""

    def __init__(self, wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(self.clock)
        self.store = wrap(self.memory)
        self.thresholds = ThresholdFiles(self.store, "own", self.clock, RandomIds())
        self.holds = ObjectHolds(self.store, "own", self.thresholds, self.clock, RandomIds())

    def take(self, position: int, name: str = "x", lease_ms: int = HOUR_MS) -> Placed:
        return self.holds.take(name, "me", position, lease_ms, {"snapshot_id": 7})

    def publish(self, position: int) -> None:
        self.thresholds.publish(lambda old: Threshold(position, Needed(position, "x", 1)))


@pytest.fixture
def world() -> World:
    return World()


def test_a_hold_says_what_it_keeps_and_until_when(world: World) -> None:
    placed = world.take(5)
    assert world.holds.list() == (placed,)
    assert (placed.name, placed.hold.owner, placed.hold.position, placed.about) == (
        "x",
        "me",
        5,
        {"snapshot_id": 7},
    )
    assert placed.hold.until_ms == world.clock.now_ms() + HOUR_MS
    world.holds.release("x")
    world.holds.release("x")
    assert world.holds.list() == ()


def test_what_is_older_than_the_watermark_is_refused_and_leaves_nothing(world: World) -> None:
    world.publish(6)
    with pytest.raises(Refused, match="too late"):
        world.take(5)
    assert world.holds.list() == ()
    assert world.take(6).hold.position == 6


def test_a_watermark_that_is_published_while_the_hold_is_put_is_seen() -> None:
    """The hold lies there before the watermark is read: a leader that has published lists it, or is seen."""
    world = World(lambda store: FaultyStore.scripted(store, {}))
    world.take(5)
    assert isinstance(world.store, FaultyStore)
    written = next(n for n, call in enumerate(world.store.calls) if call.method == "create")
    asked = [n for n, call in enumerate(world.store.calls) if "watermark" in (call.key or "")]
    assert asked
    assert min(asked) > written


def test_a_name_belongs_to_one(world: World) -> None:
    world.take(5)
    with pytest.raises(Refused, match="already"):
        world.take(5)


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".x", "x" * 101, "a b"])
def test_names(world: World, name: str) -> None:
    with pytest.raises(Refused, match="not a name"):
        world.take(5, name)


@pytest.mark.parametrize(("owner", "position"), [("\udcff", 5), ("me", -1), ("me", 1 << 62)])
def test_a_hold_that_nobody_could_read_is_refused_and_not_written(
    world: World, owner: str, position: int
) -> None:
    """It would stay, damaged, and nothing would ever expire."""
    with pytest.raises(Refused, match="nothing was written"):
        world.holds.take("x", owner, position, HOUR_MS, {})
    assert world.holds.list() == ()


def test_leases_are_not_too_short(world: World) -> None:
    with pytest.raises(Refused, match="too short"):
        world.take(5, lease_ms=9_999)


def test_renewing_begins_the_lease_anew(world: World) -> None:
    placed = world.take(5)
    world.clock.advance_s(3000)
    renewed = world.holds.renew(placed, 2 * HOUR_MS)
    assert renewed.hold.until_ms == world.clock.now_ms() + 2 * HOUR_MS
    assert world.holds.renew(renewed).lease_ms == 2 * HOUR_MS


def test_a_late_renewal_is_good_as_long_as_nothing_is_gone(world: World) -> None:
    placed = world.take(5)
    world.clock.advance_s(4000)
    world.publish(5)
    world.holds.remove_over(world.holds.list(), world.thresholds.read(), world.clock.now_ms())
    assert world.holds.renew(placed).hold.until_ms == world.clock.now_ms() + HOUR_MS


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_late_renewal_fails_once_the_watermark_is_past_it(world: World, is_removed: bool) -> None:
    placed = world.take(5)
    world.clock.advance_s(4000)
    world.publish(6)
    if is_removed:
        world.holds.remove_over(world.holds.list(), world.thresholds.read(), world.clock.now_ms())
        assert world.holds.list() == ()
    with pytest.raises(HoldLapsed):
        world.holds.renew(placed)


def test_a_live_hold_is_never_removed(world: World) -> None:
    placed = world.take(5)
    world.publish(6)  # no leader would
    world.holds.remove_over(world.holds.list(), world.thresholds.read(), world.clock.now_ms())
    assert world.holds.list() == (placed,)


def test_somebody_elses_hold_of_the_name_is_not_renewed(world: World) -> None:
    placed = world.take(5)
    world.holds.release("x")
    world.take(5)
    with pytest.raises(HoldLapsed):
        world.holds.renew(placed)


def test_who_ends_late_leaves_the_next_hold_of_the_name(world: World) -> None:
    placed = world.take(5)
    world.holds.release("x")
    later = world.take(5)
    world.holds.release(placed)
    assert world.holds.list() == (later,)
    world.holds.release("x")
    assert world.holds.list() == ()


def test_a_leader_that_is_late_leaves_the_next_hold_of_the_name(world: World) -> None:
    world.take(5)
    listed = world.holds.list()
    world.clock.advance_s(4000)
    world.publish(6)
    world.holds.remove_over(listed, world.thresholds.read(), world.clock.now_ms())
    later = world.take(50)
    world.holds.remove_over(listed, world.thresholds.read(), world.clock.now_ms())
    assert world.holds.list() == (later,)


def test_a_renewal_in_time_is_good_wherever_the_watermark_is(world: World) -> None:
    """A leader listed the holds before this one was put, and published after it was accepted."""
    placed = world.take(5)
    world.publish(6)
    for _ in range(2):
        world.clock.advance_s(3000)
        placed = world.holds.renew(placed)
        assert placed.hold.until_ms == world.clock.now_ms() + HOUR_MS
    world.clock.advance_s(3600)
    with pytest.raises(HoldLapsed, match="too late"):
        world.holds.renew(placed)


def test_a_renewal_follows_one_whose_answer_was_lost(world: World) -> None:
    placed = world.take(5)
    world.publish(6)
    world.clock.advance_s(3000)
    world.holds.renew(placed)
    world.clock.advance_s(3000)
    assert world.holds.renew(placed).hold.until_ms == world.clock.now_ms() + HOUR_MS


def test_a_renewal_does_not_follow_one_that_came_too_late(world: World) -> None:
    placed = world.take(5)
    world.clock.advance_s(3600)
    world.holds.renew(placed)
    world.publish(6)
    with pytest.raises(HoldLapsed, match="too late"):
        world.holds.renew(placed)


def test_a_hold_whose_renewal_came_too_late_leaves_nothing(world: World) -> None:
    placed = world.take(5)
    world.clock.advance_s(3600)
    world.publish(6)
    with pytest.raises(HoldLapsed):
        world.holds.renew(placed)
    assert world.holds.list() == ()


def test_a_renewal_whose_answer_was_lost_is_ones_own() -> None:
    world = World()
    placed = world.take(5)
    lossy = FaultyStore(
        world.memory, lambda _, call: StoreFault.FAIL_AFTER if call.method == "replace" else None
    )
    thresholds = ThresholdFiles(lossy, "own", world.clock, RandomIds())
    with pytest.raises(LithifyError):
        ObjectHolds(lossy, "own", thresholds, world.clock, RandomIds()).renew(placed)
    assert world.holds.renew(placed).token == placed.token


def test_dying_anywhere_leaves_a_hold_that_lapses_or_none() -> None:
    clock = ManualClock()

    def make() -> MemoryStore:
        store = MemoryStore(clock)
        ThresholdFiles(store, "own", clock, RandomIds()).publish(lambda old: Threshold(6))
        return store

    def run(store: ObjectStore) -> None:
        thresholds = ThresholdFiles(store, "own", clock, RandomIds())
        holds = ObjectHolds(store, "own", thresholds, clock, RandomIds())
        holds.take("good", "me", 6, HOUR_MS, {})
        with pytest.raises(Refused):
            holds.take("late", "me", 5, HOUR_MS, {})

    for site, store in crash_at_every_call(make, run):
        thresholds = ThresholdFiles(store, "own", clock, RandomIds())
        for placed in ObjectHolds(store, "own", thresholds, clock, RandomIds()).list():
            assert placed.hold.has_lapsed(clock.now_ms() + HOUR_MS), site


def test_a_hold_in_anothers_object_is_an_error(world: World) -> None:
    world.take(5)
    (meta,) = world.store.list("own/holds")
    world.store.put("own/holds/y~0.json", world.store.get(meta.key))
    with pytest.raises(CorruptObject, match="not a hold"):
        world.holds.list()


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"lease_ms": 1e400}', b"\xff", b"[" * 100_000])
def test_what_is_no_hold_is_an_error(world: World, data: bytes) -> None:
    """It may have been one, and somebody counts on it."""
    world.store.put("own/holds/x.json", data)
    with pytest.raises(CorruptObject, match="not a hold"):
        world.holds.list()


# The published watermark


def test_two_that_publish_at_once_never_lower_it(world: World) -> None:
    other = ThresholdFiles(world.store, "own", world.clock, RandomIds())
    world.publish(5)

    def slow(old: Threshold | None) -> Threshold:
        if old is not None and old.position < 9:
            other.publish(lambda _: Threshold(9))
        return Threshold(max(7, old.position if old is not None else 0))

    assert world.thresholds.publish(slow) == Threshold(9)
    assert other.read() == Threshold(9)


def test_the_same_is_not_published_again(world: World) -> None:
    world.publish(5)
    world.publish(5)
    assert world.thresholds.files.ids() == [1]


@pytest.mark.parametrize("data", [b"", b"[]", b'{"position": -1, "least": null}', b'{"position": 1}'])
def test_a_damaged_watermark_is_an_error(data: bytes) -> None:
    with pytest.raises(CorruptObject, match="watermark"):
        decode(data, "key")


def test_find_says_when_there_is_none(world: World) -> None:
    with pytest.raises(HoldLapsed):
        world.holds.find("x")
    with pytest.raises(ObjectNotFound):
        world.store.get("own/holds/x.json")
