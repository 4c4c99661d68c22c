"""Questions in a lease, their answers, and what else is written to a lease at the worst moment."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TypeVar

import pytest

from lithify.base.errors import CoordinatorAlive, Fenced, PreconditionFailed, StoreError
from lithify.coordination.leadership import Leadership
from lithify.protocol.lease import LEASE_MS, LOOK_AFTER_MS, EpochClaim, Lease, encode_lease
from lithify.protocol.presence import Presence
from lithify.store.objects import ObjectStore
from lithify.store.wrapped import WrappedStore
from lithify.testing import Call, Crash, FaultyStore, ManualClock, StoreFault
from tests.coordination.worlds import LEASE_KEY, Database, found_in, lead, lease_of, unwrapped
from tests.protocol.rig import Interposed, manifest_write

ResultT = TypeVar("ResultT")
LOOK_S = LOOK_AFTER_MS / 1000
POLL_S = 5.0
OUTAGE_S = 240.0


class Watching(ManualClock):
    """The clock of one who watches, which is the world's; `meanwhile` is what others do while it sleeps."""

    def __init__(self, world: Database, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self._world = world
        self._meanwhile = meanwhile

    def now_ms(self) -> int:
        return self._world.clock.now_ms()

    def monotonic_s(self) -> float:
        return self._world.clock.monotonic_s()

    def sleep_s(self, duration_s: float) -> None:
        self._world.clock.advance_s(duration_s)
        self._meanwhile()


def lease_write(call: Call) -> bool:
    return call.method in ("create", "replace", "put") and call.key == LEASE_KEY


def writes_of(world: Database) -> tuple[list[Call], Callable[[ObjectStore], ObjectStore]]:
    """What one party writes to the lease; as its stores are used."""
    calls: list[Call] = []

    def note(_number: int, call: Call) -> None:
        if lease_write(call):
            calls.append(call)

    return calls, lambda store: FaultyStore(store, note)


def die(world: Database) -> str:
    """One becomes the coordinator and is killed; its name."""
    is_dead = False
    leadership = world.leadership(
        lambda store: FaultyStore(store, lambda *_: StoreFault.CRASH_BEFORE if is_dead else None)
    )
    with suppress(Crash), leadership.acquire():
        is_dead = True
    return leadership.holder


def live(world: Database, leadership: Leadership, duration_s: float) -> None:
    """Coordinate for so long, in rounds."""
    ends_s = world.clock.monotonic_s() + duration_s
    while world.clock.monotonic_s() < ends_s:
        leadership.renew()
        world.clock.advance_s(POLL_S)


# --------------------------------------------------------------------------------- who asks whom


def test_a_live_holder_answers_and_is_left_alone() -> None:
    world = Database()
    holder = world.leadership()
    with holder.acquire():
        live(world, holder, 70)
        before = lease_of(world)
        with pytest.raises(CoordinatorAlive, match="right now"):
            lead(world.leadership(clock=Watching(world, holder.renew)))
        after = lease_of(world)
        assert after.challenger is None
        assert after == replace(before, renewals=after.renewals)
        assert after.renewals > before.renewals
        live(world, holder, 70)
    assert lease_of(world).is_ended
    assert world.manifest.compactor_epoch == 1


def test_who_asks_changes_nothing_else_in_the_lease() -> None:
    world = Database()
    die(world)
    before = lease_of(world)
    asked: list[Lease] = []
    challenger = world.leadership(clock=Watching(world, lambda: asked.append(lease_of(world))))
    lead(challenger)
    assert asked[0] == replace(before, challenger=challenger.holder)


def test_two_who_ask_a_live_holder_ask_once() -> None:
    world = Database()
    holder, (second_writes, wrap) = world.leadership(), writes_of(world)
    with holder.acquire():

        def second_comes() -> None:
            with pytest.raises(CoordinatorAlive, match="right now"):
                lead(world.leadership(wrap, Watching(world, holder.renew)))

        with pytest.raises(CoordinatorAlive, match="right now"):
            lead(world.leadership(clock=Watching(world, second_comes)))
    assert second_writes == []


def test_of_two_who_find_a_holder_dead_one_becomes_the_coordinator() -> None:
    world = Database()
    die(world)
    second = world.leadership()

    def second_is_faster(store: ObjectStore) -> ObjectStore:
        return Interposed(store, lambda call: lease_write(call) and bool(watched), lambda: lead_on(second))

    watched: list[None] = []
    epochs: list[int] = []

    def lead_on(leadership: Leadership) -> None:
        epochs.append(stack.enter_context(leadership.acquire()).epoch)

    with ExitStack() as stack:
        first = world.leadership(second_is_faster, Watching(world, lambda: watched.append(None)))
        with pytest.raises(CoordinatorAlive, match="has just started"):
            lead(first)
        assert epochs == [2]
        assert lease_of(world).holder == second.holder
        live(world, second, 70)
    assert world.manifest.compactor_epoch == 2


def test_a_question_whose_author_died_serves_the_next() -> None:
    world = Database()
    dead = die(world)

    def dies() -> None:
        raise Crash

    with pytest.raises(Crash):
        lead(world.leadership(clock=Watching(world, dies)))
    calls, wrap = writes_of(world)
    started_s = world.clock.monotonic_s()
    with world.leadership(wrap).acquire() as term:
        assert term.predecessor == dead
    assert world.clock.monotonic_s() - started_s == LEASE_MS / 1000, "since when it stands is not known"
    assert len(calls) == 3, "the announcement, the epoch and the end"


def test_a_holder_that_resigns_while_it_is_watched_is_not_waited_for() -> None:
    world = Database()
    holder, acts = world.leadership(), iter([None, None, "resign"])
    held = ExitStack()
    held.enter_context(holder.acquire())
    clock = Watching(world, lambda: held.close() if next(acts) else None)
    started_s = world.clock.monotonic_s()
    with world.leadership(clock=clock).acquire() as term:
        assert term.epoch == 2
        assert term.predecessor is None
    assert world.clock.monotonic_s() - started_s == 3


def test_a_holder_of_a_version_that_knows_no_questions_is_alive(caplog: pytest.LogCaptureFixture) -> None:
    """It writes its lease every few seconds, over whatever is there."""
    world = Database()
    die(world)
    renewals = iter(range(1, 100))

    def renew() -> None:
        text = encode_lease(Lease("lithify-old", next(renewals), taken=1))
        world.memory.put(LEASE_KEY, text.replace(b', "challenger": null', b""))

    renew()
    with pytest.raises(CoordinatorAlive, match="lithify-old"):
        lead(world.leadership(clock=Watching(world, renew)))
    with caplog.at_level(logging.WARNING):
        lead(world.leadership())
    assert "watching the lease of memory://lithify-testing/db for 25 s" in caplog.text


def test_a_question_that_stands_for_long_shows_that_the_holder_is_dead() -> None:
    world = Database()
    die(world)
    world.clock.advance_s(3600)
    assert world.dataset().coordinator().presence is Presence.LOST
    question(world)
    world.clock.advance_s(LEASE_MS / 1000)
    assert world.dataset().coordinator().presence is Presence.LOST


# ------------------------------------------------------------------- others, at the worst moment


def announce(world: Database) -> Lease:
    """What one leaves who wrote his announcement, and is slow or dead. He was told to take over."""
    found = found_in(world)
    manifest = world.manifest
    taking = EpochClaim(manifest.compactor_epoch + 1, world.numbers[-1] + 1, "ab" * 16)
    lease = Lease("lithify-rival", 1, taken=manifest.compactor_epoch, taking=taking)
    world.dataset().lease.write(lease, found.etag)
    return lease


def question(world: Database) -> None:
    found = found_in(world)
    assert found.lease is not None
    world.dataset().lease.write(replace(found.lease, challenger="lithify-asks"), found.etag)


def nothing(world: Database) -> None:
    """Nobody comes."""


def delete(world: Database) -> None:
    world.memory.delete(LEASE_KEY)


def spoil(world: Database) -> None:
    world.memory.put(LEASE_KEY, b"junk")


def calls_of_renewals(is_asked: bool) -> list[Call]:
    """All calls of a holder from its epoch on: the first look, a later one, a renewal."""
    world = Database()
    calls: list[Call] = []
    rounds(world, lambda store: FaultyStore(store, lambda _, call: calls.append(call)), is_asked)
    return calls


def after_the_announcement(calls: list[Call]) -> int:
    """The number of the first call after the epoch was taken: the lease says so."""
    _, said, *_ = (n for n, call in enumerate(calls, 1) if lease_write(call))
    return said


def rounds(world: Database, wrap: Callable[[ObjectStore], ObjectStore], is_asked: bool) -> None:
    leadership = world.leadership(wrap)
    with leadership.acquire():
        for number in range(8):
            if is_asked and number == 2 and world.memory.head(LEASE_KEY):
                question(world)
            world.clock.advance_s(LOOK_S)
            leadership.renew()


def at_call(number: int, action: Callable[[], object]) -> Callable[[ObjectStore], ObjectStore]:
    """`action` happens just before this call."""
    calls = iter(range(1, 10_000))
    return lambda store: Interposed(store, lambda _: next(calls) == number, action)


@pytest.mark.parametrize("is_asked", [False, True])
@pytest.mark.parametrize("comes", [nothing, question, announce, delete, spoil])
def test_whatever_is_written_at_any_moment_a_holder_keeps_what_is_its_own(
    comes: Callable[[Database], object], is_asked: bool
) -> None:
    """One who only announces gets no epoch; the holder's lease is there again, and the next run knows it."""
    calls = calls_of_renewals(is_asked)
    first = after_the_announcement(calls)
    for number in range(first, len(calls)):  # up to the one that ends the lease
        world = Database()
        rounds(world, at_call(number, lambda: comes(world)), is_asked)  # noqa: B023
        started_s = world.clock.monotonic_s()
        assert lead(world.leadership()) == 2
        waited_s = world.clock.monotonic_s() - started_s
        assert waited_s == 0 or comes in (announce, spoil), calls[number - 1]


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_successor_at_any_moment_ends_the_holder_and_keeps_its_lease(is_asked: bool) -> None:
    calls = calls_of_renewals(is_asked)
    first = after_the_announcement(calls)
    for number in range(first, len(calls) + 1):
        world = Database()
        successor = world.leadership()
        with ExitStack() as stack:

            def take_over() -> None:
                stack.enter_context(successor.acquire(take_over=True))  # noqa: B023

            is_last = number == len(calls)
            try:
                rounds(world, at_call(number, take_over), is_asked)
            except Fenced:
                assert not is_last
            else:
                assert is_last or number == first, "only who ends anyway need not be fenced"
            lease = lease_of(world).unasked()
            assert lease.holder == successor.holder, calls[number - 1]
            assert not lease.is_ended
            live(world, successor, 70)
            assert lease_of(world).taken == 2


def test_one_who_announces_is_given_time_to_take_the_epoch() -> None:
    """Else what he takes could not be proved once he dies."""
    world = Database()
    holder = world.leadership()

    def look() -> None:
        world.clock.advance_s(LOOK_S)
        holder.renew()

    def die_then(_number: int, call: Call) -> StoreFault | None:
        return StoreFault.CRASH_AFTER if manifest_write(call) else None

    rival = world.leadership(lambda store: Interposed(FaultyStore(store, die_then), manifest_write, look))

    def hold() -> None:
        with holder.acquire():
            with pytest.raises(Crash):
                lead(rival, take_over=True)
            assert lease_of(world).holder == rival.holder
            world.clock.advance_s(LOOK_S)
            holder.renew()

    with pytest.raises(Fenced):
        hold()
    assert lead(world.leadership()) == 3, "Lithify's, though nobody could say so"


def test_a_holder_writes_over_an_announcement_that_comes_to_nothing() -> None:
    world = Database()
    holder = world.leadership()
    with holder.acquire():
        announce(world)
        live(world, holder, 3 * LOOK_S)
        assert lease_of(world).holder == holder.holder
        assert lease_of(world).taken == 1


def test_a_successor_writes_over_the_lease_of_one_who_was_fenced() -> None:
    """It was slow between announcement and epoch, for longer than it is given time."""
    world = Database()
    holder = world.leadership()

    def looks() -> None:
        for _ in range(3):
            world.clock.advance_s(LOOK_S)
            holder.renew()
        assert lease_of(world).holder == holder.holder

    successor = world.leadership(lambda store: Interposed(store, manifest_write, looks))
    with holder.acquire(), successor.acquire(take_over=True):
        world.clock.advance_s(LOOK_S)
        successor.renew()
        assert lease_of(world).holder == successor.holder
        world.clock.advance_s(LOOK_S)
        with pytest.raises(Fenced):
            holder.renew()
        assert lease_of(world).holder == successor.holder


# ------------------------------------------------------------------------------- lost answers


class Repeating(WrappedStore):
    """A store that repeats requests whose answer was lost, and then finds its own write there."""

    def create(self, key: str, data: bytes, put_id: str | None = None) -> str | None:
        super().create(key, data, put_id)
        return super().create(key, data, put_id)

    def replace(self, key: str, data: bytes, etag: str) -> str | None:
        super().replace(key, data, etag)
        return super().replace(key, data, etag)


def test_a_write_that_the_store_repeated_is_known_again() -> None:
    world = Database()
    rounds(world, Repeating, is_asked=True)
    lease = lease_of(world)
    assert lease.is_ended
    assert lease.taken == 1
    die(world)
    assert lead(world.leadership(Repeating)) == 3


@pytest.mark.parametrize("fault", [StoreFault.FAIL_BEFORE, StoreFault.FAIL_AFTER])
def test_a_renewal_in_doubt_is_made_again_at_once(fault: StoreFault) -> None:
    writes = [n for n, call in enumerate(calls_of_renewals(is_asked=True), 1) if lease_write(call)]
    assert len(writes) >= 5
    for number in writes[2:-1]:
        world = Database()
        leadership = world.leadership(lambda store: FaultyStore.scripted(store, {number: fault}))  # noqa: B023
        failures = 0
        with leadership.acquire():
            for turn in range(9):
                if turn == 2:
                    question(world)
                world.clock.advance_s(LOOK_S)
                try:
                    leadership.renew()
                except StoreError:
                    failures += 1
                    leadership.renew()
                assert lease_of(world).holder == leadership.holder
                assert lease_of(world).challenger is None
        assert failures == 1
        assert lease_of(world).is_ended


def test_the_lease_says_which_epoch_was_taken_before_anything_else_is_done() -> None:
    """The version with the mark may be collected: who is killed then left nobody else's epoch."""
    world = Database()
    with world.leadership().acquire():
        lease = lease_of(world)
        assert lease.taken == 1


@pytest.mark.parametrize("fault", [StoreFault.FAIL_BEFORE, StoreFault.FAIL_AFTER])
def test_what_could_not_be_said_of_the_epoch_is_said_by_the_first_renewal(fault: StoreFault) -> None:
    number = [n for n, call in enumerate(calls_of_renewals(is_asked=False), 1) if lease_write(call)][1]
    world = Database()
    leadership = world.leadership(lambda store: FaultyStore.scripted(store, {number: fault}))
    with leadership.acquire():
        world.clock.advance_s(LOOK_S)
        leadership.renew()
        assert lease_of(world).taken == 1
    assert lease_of(world).is_ended


def test_who_tries_again_does_not_wait_for_itself() -> None:
    """The announcement is there, and the store was away for everything after it."""
    world = Database()
    calls = itertools.count(1)
    announced = next(n for n, call in enumerate(calls_of_renewals(is_asked=False), 1) if lease_write(call))
    leadership = world.leadership(
        lambda store: FaultyStore(
            store,
            lambda _, call: StoreFault.FAIL_BEFORE if announced < next(calls) <= announced + 20 else None,
        )
    )
    started_s = world.clock.monotonic_s()
    for _ in range(30):
        try:
            with leadership.acquire():
                break
        except StoreError:
            continue
    else:
        raise AssertionError("it never came through")
    assert world.clock.monotonic_s() == started_s


@pytest.mark.parametrize("fault", [StoreFault.FAIL_BEFORE, StoreFault.FAIL_AFTER])
def test_an_announcement_in_doubt_ends_only_its_own_lease(fault: StoreFault) -> None:
    """The predecessor's name must stay: what its worker was running is taken back at once."""
    world = Database()
    dead = die(world)
    faults = iter([None, fault])  # the question, the announcement
    with pytest.raises(StoreError):
        lead(
            world.leadership(
                lambda store: FaultyStore(
                    store, lambda _, call: next(faults, None) if lease_write(call) else None
                )
            )
        )
    lease = lease_of(world)
    assert (lease.holder == dead) == (fault is StoreFault.FAIL_BEFORE)
    assert lease.is_ended == (fault is StoreFault.FAIL_AFTER)
    assert lead(world.leadership()) == 2


# ---------------------------------------------------------------------------------- outages


class Away:
    """A store that cannot be reached for a while."""

    def __init__(self) -> None:
        self.is_on = False

    def around(self, store: ObjectStore) -> ObjectStore:
        return FaultyStore(store, lambda _, call: StoreFault.FAIL_BEFORE if self.is_on else None)


def test_a_holder_goes_on_after_an_outage_of_minutes_if_nobody_came() -> None:
    world, away = Database(), Away()
    holder = world.leadership(away.around)
    with holder.acquire():
        live(world, holder, 70)
        away.is_on = True
        for _ in range(10):
            world.clock.advance_s(OUTAGE_S / 10)
            with pytest.raises(StoreError):
                holder.renew()
        away.is_on = False
        holder.renew()
        with pytest.raises(CoordinatorAlive):
            lead(world.leadership(clock=Watching(world, holder.renew)))


def test_a_holder_that_could_not_be_reached_is_fenced_and_writes_over_nobody() -> None:
    world, away = Database(), Away()
    holder, successor = world.leadership(away.around), world.leadership()
    with holder.acquire():
        live(world, holder, 70)
        away.is_on = True
        with successor.acquire() as term:
            assert term.epoch == 2
            away.is_on = False
            before = found_in(world)
            with pytest.raises(Fenced):
                holder.renew()
            assert found_in(world) == before


def test_time_in_which_the_store_does_not_answer_is_not_watched() -> None:
    """The holder had no chance to answer then either."""
    world, away = Database(), Away()
    holder = world.leadership()

    class Hanging(WrappedStore):
        def head(self, key: str):  # type: ignore[no-untyped-def]
            if away.is_on:
                away.is_on = False
                world.clock.advance_s(OUTAGE_S)
            return super().head(key)

    looks = iter([*[None] * 20, "hang"])

    def meanwhile() -> None:
        match next(looks, "over"):
            case "hang":
                away.is_on = True
            case "over":
                holder.renew()

    with holder.acquire(), pytest.raises(CoordinatorAlive, match="right now"):
        lead(world.leadership(Hanging, Watching(world, meanwhile)))
    assert world.manifest.compactor_epoch == 1


def test_who_cannot_watch_takes_nothing() -> None:
    world, away = Database(), Away()
    die(world)
    clock = Watching(world, lambda: setattr(away, "is_on", True))
    with pytest.raises(StoreError):
        lead(world.leadership(away.around, clock))
    assert world.manifest.compactor_epoch == 1
    away.is_on = False
    started_s = world.clock.monotonic_s()
    assert lead(world.leadership()) == 2
    assert world.clock.monotonic_s() - started_s == LEASE_MS / 1000, "it watches anew"


def test_the_clocks_of_a_holder_and_of_who_asks_may_jump() -> None:
    for jump_s in (-3600.0, 3600.0):
        world = Database()
        holder = world.leadership()

        def meanwhile() -> None:
            world.clock.jump_s(jump_s)  # noqa: B023
            holder.renew()  # noqa: B023

        with holder.acquire(), pytest.raises(CoordinatorAlive, match="right now"):
            lead(world.leadership(clock=Watching(world, meanwhile)))
        dead = die(world)
        monotonic_s = world.clock.monotonic_s()
        clock = Watching(world, lambda: world.clock.jump_s(jump_s))  # noqa: B023
        with world.leadership(clock=clock).acquire() as term:
            assert term.predecessor == dead
        assert world.clock.monotonic_s() - monotonic_s == LEASE_MS / 1000


def test_a_lease_is_written_over_what_was_seen_only() -> None:
    world = Database()
    file = world.dataset(unwrapped).lease
    first = file.write(Lease("lithify-1"), None)
    with pytest.raises(PreconditionFailed):
        file.write(Lease("lithify-2"), None)
    second = file.write(Lease("lithify-1", 1), first)
    with pytest.raises(PreconditionFailed):
        file.write(Lease("lithify-1", 2), first)
    assert file.look() == second
    world.memory.delete(LEASE_KEY)
    assert file.look() is None
    with pytest.raises(PreconditionFailed):
        file.write(Lease("lithify-1", 2), second)
