"""Leadership: what is taken for Lithify's, how long anybody waits, and what is left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import pytest
from simulator.core.waiting import AtOnce

from lithify.base import concurrency
from lithify.base.concurrency import Background
from lithify.base.errors import (
    CoordinatorAlive,
    CorruptObject,
    Fenced,
    ObjectExists,
    Refused,
    StoreError,
    StoreUnavailable,
)
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Leadership
from lithify.coordination.leases import ObjectLease
from lithify.coordination.ledger_documents import NEWEST_VERSION
from lithify.datasets.slatedb.model import ExternalDb
from lithify.protocol.lease import LEASE_MS, LOOK_AFTER_MS, MAX_EPOCH, RENEW_AFTER_MS, EpochClaim, Lease
from lithify.store.objects import ObjectStore
from lithify.store.wrapped import Call, WrappedStore
from lithify.testing import (
    CountingStore,
    Crash,
    CrashSite,
    FaultyStore,
    ManualClock,
    StoreFault,
    Verb,
    crash_at_every_call,
)
from lithify.testing.memory import MemoryStore
from tests.coordination.worlds import LEASE_KEY, Database, TableWorld, lead, lease_of
from tests.datasets.slatedb.trees import EMPTY
from tests.protocol.rig import Interposed, manifest_write

T = TypeVar("T")

HOUR_MS = 3_600_000


def fails_at(matches: Callable[[Call], bool], *faults: StoreFault) -> Callable[[ObjectStore], ObjectStore]:
    """The first calls that match fail so."""
    left = list(faults)

    def decide(_number: int, call: Call) -> StoreFault | None:
        return left.pop(0) if left and matches(call) else None

    return lambda store: FaultyStore(store, decide)


# ------------------------------------------------------------------------- whose an epoch is


def untouched() -> Database:
    return Database(keeps_put_ids=False)


def led_before() -> Database:
    """Lithify took its epoch, and stopped."""
    world = untouched()
    lead(world.leadership())
    return world


def died_before() -> Database:
    """A run of Lithify's took its epoch and died before it could say so."""
    world = untouched()
    with pytest.raises(Crash):
        lead(world.leadership(fails_at(manifest_write, StoreFault.CRASH_AFTER)))
    return world


def ask(world: Database) -> None:
    """Put a question in the lease that is there."""
    file = world.dataset().lease
    found = file.read()
    assert found is not None
    assert found.lease is not None
    file.write(replace(found.lease, challenger="lithify-somebody"), found.etag)


def deaths(world: Database, *, take_over: bool = False) -> list[tuple[CrashSite, Database]]:
    """A run that dies at each of its calls, before and after, and what each leaves behind."""
    copies: list[Database] = []

    def make_store() -> ObjectStore:
        copies.append(world.copy())
        return copies[-1].memory

    def run(store: ObjectStore) -> None:
        """Up to the end of its lease, by way of a renewal, a question and its answer."""
        leadership = copies[-1].leadership(lambda _: store)
        with leadership.acquire(take_over=take_over):
            for _ in range(2):
                copies[-1].clock.advance_s(LOOK_AFTER_MS / 1000)
                leadership.renew()
                ask(copies[-1])
            copies[-1].clock.advance_s(LOOK_AFTER_MS / 1000)
            leadership.renew()

    return [(site, copies[-1]) for site, _ in crash_at_every_call(make_store, run)]


@pytest.mark.parametrize("before", [untouched, led_before, died_before])
def test_wherever_a_run_dies_the_next_recognises_what_is_lithifys(before: Callable[[], Database]) -> None:
    left = deaths(before())
    assert len(left) > 20
    for site, world in left:
        was = world.manifest.compactor_epoch
        world.flush()  # the writer goes on
        assert lead(world.leadership()) == was + 1, site


@pytest.mark.parametrize("before", [untouched, led_before, died_before])
def test_wherever_a_run_dies_a_coordinator_that_opens_afterwards_is_not_closed(
    before: Callable[[], Database],
) -> None:
    for site, world in deaths(before()):
        epoch = world.open_with_coordinator()
        for _ in range(2):
            with pytest.raises(CoordinatorAlive, match="--take-over"):
                lead(world.leadership())
            assert world.manifest.compactor_epoch == epoch, site
            world.flush()
        assert lead(world.leadership(), take_over=True) == epoch + 1


def test_a_run_that_was_told_to_take_over_and_dies_before_it_does_hands_nothing_on() -> None:
    """SlateDB's coordinator, which it was about to replace, lives on."""
    world = untouched()
    epoch = world.open_with_coordinator()
    for site, left in deaths(world, take_over=True):
        if left.manifest.compactor_epoch == epoch:
            with pytest.raises(CoordinatorAlive):
                lead(left.leadership())
        else:
            assert lead(left.leadership()) == epoch + 2, site


@pytest.mark.parametrize("keeps_put_ids", [True, False])
@pytest.mark.parametrize("fault", [StoreFault.FAIL_AFTER, StoreFault.FAIL_BEFORE])
def test_an_epoch_whose_answer_was_lost_is_taken_once(keeps_put_ids: bool, fault: StoreFault) -> None:
    world = Database(keeps_put_ids=keeps_put_ids)
    wrap = fails_at(manifest_write, fault)
    if fault is StoreFault.FAIL_BEFORE:  # whether it will still land is unknown
        with pytest.raises(StoreError, match="unknown"):
            lead(world.leadership(wrap))
    assert lead(world.leadership(wrap)) == 1
    assert world.manifest.compactor_epoch == 1


class Late(WrappedStore):
    """The first epoch is not there when its author gives up, but later: before a call of the next try."""

    def __init__(self, inner: ObjectStore, takes_epoch: Callable[[Call], bool]) -> None:
        super().__init__(inner)
        self._takes_epoch = takes_epoch
        self._under_way: Callable[[], object] | None = None
        self.calls_left = 0
        """Until it lands; 0: it does not yet, or has."""

    def around(self, call: Call, action: Callable[[], T]) -> T:
        if self._under_way is not None and self.calls_left:
            self.calls_left -= 1
            if self.calls_left == 0:
                with suppress(ObjectExists):
                    self._under_way()
        elif self._under_way is None and self._takes_epoch(call):
            self._under_way = action
            raise StoreUnavailable("the answer does not come", "no answer")
        return action()


def ledger_of_a_table(call: Call) -> bool:
    return call.method == "create" and "/ledger/" in call.key


@pytest.mark.parametrize("is_table", [False, True])
@pytest.mark.parametrize("keeps_put_ids", [True, False])
def test_an_epoch_that_lands_during_the_next_try_is_nobody_elses(
    tmp_path: Path, is_table: bool, keeps_put_ids: bool
) -> None:
    for lands_before in count(1):
        folder = tmp_path / str(lands_before)
        folder.mkdir()
        world: Database | TableWorld = (
            TableWorld(folder, keeps_put_ids=keeps_put_ids)
            if is_table
            else Database(keeps_put_ids=keeps_put_ids)
        )
        late: list[Late] = []

        def wrap(store: ObjectStore, late: list[Late] = late) -> ObjectStore:
            late.append(Late(store, ledger_of_a_table if is_table else manifest_write))
            return late[-1]

        leadership = world.leadership(wrap)
        with pytest.raises(StoreUnavailable):
            lead(leadership)
        late[-1].calls_left = lands_before
        assert lead(leadership) in (1, 2), lands_before
        assert lead(world.leadership()) in (2, 3), lands_before
        if late[-1].calls_left > 0:
            break
    assert lands_before > 5


def test_an_epoch_whose_answer_was_lost_is_found_under_what_others_wrote_since() -> None:
    world = untouched()

    class Busy(FaultyStore):
        """The writer publishes as soon as the epoch is there; the answer comes later, and is lost."""

        def create(self, key: str, data: bytes, put_id: str | None = None) -> str | None:
            try:
                return super().create(key, data, put_id)
            finally:
                if key.endswith(".manifest"):
                    world.flush()

    faults = iter([StoreFault.FAIL_AFTER])

    def decide(_number: int, call: Call) -> StoreFault | None:
        return next(faults, None) if manifest_write(call) else None

    assert lead(world.leadership(lambda store: Busy(store, decide))) == 1
    assert world.manifest.compactor_epoch == 1


@pytest.mark.parametrize("take_over", [False, True])
def test_a_coordinator_that_opens_between_the_look_and_the_epoch(take_over: bool) -> None:
    world = untouched()

    def wrap(store: ObjectStore) -> ObjectStore:
        return Interposed(store, manifest_write, world.open_with_coordinator)

    if take_over:
        assert lead(world.leadership(wrap), take_over=True) == 2
        return
    with pytest.raises(CoordinatorAlive, match="has just started"):
        lead(world.leadership(wrap))
    assert world.manifest.compactor_epoch == 1
    found = world.dataset().lease.read()
    assert found is not None
    assert found.lease is not None
    assert found.lease.is_ended
    with pytest.raises(CoordinatorAlive, match="--take-over"):
        lead(world.leadership())


def test_a_number_that_was_collected_before_it_was_written_proves_nothing() -> None:
    """The run slept between the announcement and the epoch. Meanwhile SlateDB took that epoch, went on, and
    collected the number, under which the run then finds nobody."""
    world = untouched()

    def meanwhile() -> None:
        number = world.numbers[-1] + 1
        world.open_with_coordinator()
        world.flush()
        world.memory.put("db/gc/manifest.boundary", b"%d" % number)
        for old in world.numbers[:-1]:
            world.memory.delete(f"db/manifest/{old:020}.manifest")

    dies = fails_at(manifest_write, StoreFault.CRASH_AFTER)
    with pytest.raises(Crash):
        lead(world.leadership(lambda store: dies(Interposed(store, manifest_write, meanwhile))))
    assert world.numbers[0] == 2, "it was created again, with the mark"
    with pytest.raises(CoordinatorAlive):
        lead(world.leadership())


def test_a_proof_that_was_collected_is_missing() -> None:
    """Then nobody knows; that costs `--take-over`, and nothing else."""
    world = died_before()
    world.flush()
    world.memory.put("db/gc/manifest.boundary", b"%d" % (world.numbers[-1] - 1))
    for old in world.numbers[:-1]:
        world.memory.delete(f"db/manifest/{old:020}.manifest")
    with pytest.raises(CoordinatorAlive):
        lead(world.leadership())
    lead(world.leadership(), take_over=True)
    lead(world.leadership())


def test_after_its_first_look_a_coordinator_needs_no_mark() -> None:
    world = untouched()
    leadership = world.leadership()
    with leadership.acquire():
        world.clock.advance_s(LOOK_AFTER_MS / 1000)
        leadership.renew()
        copy = world.copy()  # as if it died now
    copy.flush()
    copy.memory.put("db/gc/manifest.boundary", b"%d" % (copy.numbers[-1] - 1))
    for old in copy.numbers[:-1]:
        copy.memory.delete(f"db/manifest/{old:020}.manifest")
    assert lead(copy.leadership()) == 2


def clone(world: Database) -> None:
    """As SlateDB makes one of a database whose epoch is 5."""
    parent = ExternalDb("parent", uuid4(), uuid4(), ())
    for number in world.numbers:
        world.memory.delete(f"db/manifest/{number:020}.manifest")
    world.publish(replace(EMPTY, compactor_epoch=5, external_dbs=(parent,)))


def test_the_epoch_of_a_clone_is_its_parents_until_a_coordinator_takes_the_next() -> None:
    world = untouched()
    clone(world)
    world.flush()
    assert lead(world.copy().leadership()) == 6
    # One that stopped, perhaps for a moment only, before it made its ledger.
    world.publish(replace(world.manifest, compactor_epoch=6))
    with pytest.raises(CoordinatorAlive):
        lead(world.leadership())


def test_an_epoch_of_a_table_whose_answer_was_lost_is_taken_once(tmp_path: Path) -> None:
    world = TableWorld(tmp_path, keeps_put_ids=False)
    assert lead(world.leadership()) == 1

    def publishes(call: Call) -> bool:
        return call.method == "create" and "/ledger/" in call.key

    assert lead(world.leadership(fails_at(publishes, StoreFault.FAIL_AFTER))) == 2


def test_two_runs_that_start_at_the_same_time_do_not_fence_each_other() -> None:
    world = untouched()
    other = world.leadership()
    with pytest.raises(CoordinatorAlive):
        lead(world.leadership(lambda store: Interposed(store, manifest_write, lambda: lead(other))))
    assert world.manifest.compactor_epoch == 1


# ----------------------------------------------------------------------------- nothing is left


def is_not_initialized(world: Database) -> None:
    world.publish(replace(world.manifest, initialized=False))


def has_the_last_epoch(world: Database) -> None:
    world.publish(replace(world.manifest, compactor_epoch=MAX_EPOCH))


def has_a_ledger_ahead(world: Database) -> None:
    world.open_with_coordinator()
    world.publish(replace(world.manifest, compactor_epoch=0))


def has_a_newer_manifest(world: Database) -> None:
    world.memory.create(f"db/manifest/{world.numbers[-1] + 1:020}.manifest", b"\x00\x09")


def has_a_newer_ledger(world: Database) -> None:
    world.memory.create(f"db/compactions/{1:020}.compactions", b"\x00\x09")


@pytest.mark.parametrize("take_over", [False, True])
@pytest.mark.parametrize(
    "spoil",
    [
        is_not_initialized,
        has_the_last_epoch,
        has_a_ledger_ahead,
        has_a_newer_manifest,
        has_a_newer_ledger,
    ],
)
def test_what_is_refused_writes_nothing(spoil: Callable[[Database], None], take_over: bool) -> None:
    world = untouched()
    spoil(world)
    store = CountingStore(world.memory)
    with pytest.raises((Refused, CorruptObject)) as error:
        lead(world.leadership(lambda _: store), take_over=take_over)
    assert not isinstance(error.value, CoordinatorAlive)
    assert not store.requests[Verb.PUT]


@pytest.mark.parametrize("spoil", ["the last epoch", "a newer ledger", "a huge epoch"])
def test_what_is_refused_of_a_table_writes_nothing(tmp_path: Path, spoil: str) -> None:
    world = TableWorld(tmp_path)
    if spoil == "the last epoch":
        world.publish(MAX_EPOCH)
    else:
        epoch, version = ("1e999", "1") if spoil == "a huge epoch" else ("1", str(NEWEST_VERSION + 1))
        text = f'{{"version": {version}, "epoch": {epoch}, "compactions": []}}'
        world.publish_bytes(text.encode())
    store = CountingStore(world.memory)
    with pytest.raises((Refused, CorruptObject)):
        lead(world.leadership(lambda _: store), take_over=True)
    assert not store.requests[Verb.PUT]


def test_whatever_ends_the_leadership_ends_the_lease() -> None:
    world = untouched()

    def is_ended() -> bool:
        found = world.dataset().lease.read()
        return found is not None and found.lease is not None and found.lease.is_ended

    def interrupted() -> None:
        with world.leadership().acquire():
            assert not is_ended()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert is_ended()
    with pytest.raises(StoreError):
        lead(world.leadership(fails_at(manifest_write, StoreFault.FAIL_BEFORE)))
    assert is_ended()
    world = untouched()

    def unable_to_make_its_ledger() -> None:
        with world.leadership().acquire():
            raise StoreError("injected")

    with pytest.raises(StoreError):
        unable_to_make_its_ledger()
    assert is_ended()
    started_ms = world.clock.now_ms()
    assert lead(world.leadership()) == 2, "the one that could not make its ledger was taken"
    assert world.clock.now_ms() == started_ms, "nobody has to be waited for"


class WhenWaitedFor(Background):
    """What is to be done beside the caller is done as late as can be."""

    def start(self, action: Callable[[], T]) -> Callable[[], T]:
        return action


def test_the_lease_says_that_the_epoch_was_taken_before_it_is_renewed_or_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(concurrency, "background", WhenWaitedFor())
    world = untouched()
    with world.leadership().acquire():
        announced = lease_of(world)
        assert (announced.taken, announced.taking is None) == (None, False)
    ended = lease_of(world)
    assert (ended.taken, ended.taking, ended.is_ended) == (1, announced.taking, True)
    leadership = world.leadership()
    with leadership.acquire():
        world.clock.advance_s(LOOK_AFTER_MS / 1000)
        leadership.renew()
        assert lease_of(world).taken == 2


def test_who_is_fenced_before_its_lease_says_so_writes_over_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "background", WhenWaitedFor())
    world = untouched()
    first, second = world.leadership(), world.leadership()
    with first.acquire():
        monkeypatch.setattr(concurrency, "background", AtOnce())
        with second.acquire(take_over=True):
            world.clock.advance_s(LOOK_AFTER_MS / 1000)
            with pytest.raises(Fenced):
                first.renew()
            assert lease_of(world).holder == second.holder
    assert lease_of(world).holder == second.holder


def test_a_lease_that_cannot_be_ended_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    world = untouched()
    lost = False
    store = FaultyStore(world.memory, lambda _, call: StoreFault.FAIL_BEFORE if lost else None)
    with world.leadership(lambda _: store).acquire():
        lost = True
    assert "could not be ended" in caplog.text


def test_nothing_is_written_over_the_lease_of_a_successor() -> None:
    world = untouched()
    first, second = world.leadership(), world.leadership()
    with first.acquire(), second.acquire(take_over=True):
        pass
    found = world.dataset().lease.read()
    assert found is not None
    assert found.lease is not None
    assert (found.lease.holder, found.lease.taken) == (second.holder, 2)


# ------------------------------------------------------------------------------- signs of life


def test_a_dead_run_is_waited_for_and_named(tmp_path: Path) -> None:
    for world in (untouched(), TableWorld(tmp_path)):
        dead = world.leadership()
        never_left = dead.acquire()
        assert never_left.__enter__().predecessor is None
        started_ms = world.clock.now_ms()
        with world.leadership().acquire() as term:
            assert term.predecessor == dead.holder
        assert world.clock.now_ms() - started_ms == LEASE_MS
        started_ms = world.clock.now_ms()
        with world.leadership().acquire() as term:
            assert term.predecessor is None
        assert world.clock.now_ms() == started_ms


class Skewed(ManualClock):
    """The same time by a clock that is off; others renew while this one sleeps."""

    def __init__(self, clock: ManualClock, skew_ms: int, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self._clock = clock
        self._skew_ms = skew_ms
        self._meanwhile = meanwhile

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._skew_ms

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s() + self._skew_ms / 1000

    def sleep_s(self, duration_s: float) -> None:
        self._clock.sleep_s(duration_s)
        self._meanwhile()


def test_a_holder_of_whom_it_is_known_that_it_is_dead_is_not_waited_for() -> None:
    database = Database()
    dead = database.leadership()
    held = dead.acquire()
    held.__enter__()  # it dies here
    before_s = database.clock.monotonic_s()
    with database.leadership().acquire(is_dead={dead.holder}.__contains__) as term:
        assert (term.epoch, term.predecessor) == (2, dead.holder)
        assert database.clock.monotonic_s() == before_s
    assert held is not None


def test_an_owner_is_not_closed_however_dead_the_holder_of_the_lease_is() -> None:
    database = Database()
    with database.leadership().acquire():
        pass
    database.open_with_coordinator()
    with pytest.raises(CoordinatorAlive), database.leadership().acquire(is_dead=lambda holder: True):
        pass


@pytest.mark.parametrize("skew_ms", [-HOUR_MS, 0, HOUR_MS])
def test_clocks_that_are_an_hour_off_keep_nobody_waiting_and_disturb_nobody(skew_ms: int) -> None:
    world = untouched()
    holder = world.leadership(clock=Skewed(world.clock, skew_ms, lambda: None))
    with holder.acquire():
        started_ms = world.clock.now_ms()
        with pytest.raises(CoordinatorAlive, match="right now"):
            lead(world.leadership(clock=Skewed(world.clock, 0, holder.renew)))
        assert world.clock.now_ms() - started_ms == LOOK_AFTER_MS, "the first look is answered"
        started_ms = world.clock.now_ms()
        assert lead(world.leadership()) == 2  # it does not look any more
        assert world.clock.now_ms() - started_ms == LEASE_MS


@pytest.mark.parametrize("jump_s", [-3600, 0, 3600])
def test_a_lease_is_renewed_when_it_is_time_whatever_the_wall_clock_shows(jump_s: int) -> None:
    world = untouched()
    store = CountingStore(world.memory)
    leadership = world.leadership(lambda _: store)
    with leadership.acquire():
        world.clock.jump_s(jump_s)
        store.reset()
        for renewals in range(1, 4):
            world.clock.advance_s((RENEW_AFTER_MS - 1) / 1000)
            leadership.renew()
            assert store.requests[Verb.PUT] == renewals - 1
            world.clock.advance_s((LOOK_AFTER_MS + 1) / 1000)
            leadership.renew()
            assert store.requests[Verb.PUT] == renewals
        assert not store.requests[Verb.GET], "neither a look nor a renewal reads the lease"


def test_who_slept_through_its_lease_does_not_write_over_its_successors() -> None:
    world = untouched()
    sleeper, second = world.leadership(), world.leadership()
    with sleeper.acquire():
        world.clock.advance_s(HOUR_MS / 1000)
        sleeper.renew()  # nobody came
        with second.acquire():
            before = world.dataset().lease.read()
            world.clock.advance_s(HOUR_MS / 1000)
            with pytest.raises(Fenced):
                sleeper.renew()
            assert world.dataset().lease.read() == before


# ------------------------------------------------------------------------- what is not a lease

JUNK = (
    b"",
    b"\x00\xff" * 50,
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b" " * 1_000_000,
    b"null",
    b"[]",
    b"7",
    b'{"holder": "\\ud800", "renewals": 0, "is_ended": true, "taken": null, "taking": null}',
    b'{"holder": "lithify-1", "epoch": 3, "base_epoch": 2, "expires_at_ms": 99999999999999}',
    *(
        b'{"holder": "x", "renewals": 0, "is_ended": true, "taken": %s, "taking": null}' % number
        for number in (b"1e999", b"-1", b"3.0", b"NaN", b"Infinity", b"true", b'"3"', b"[3]", b"1" * 5_000)
    ),
    *(
        b'{"holder": "x", "renewals": 0, "is_ended": true, "taken": null, "taking": %s}' % taking
        for taking in (
            b"3",
            b"[]",
            b"{}",
            b'{"epoch": 3, "version": 1, "mark": ""}',
            b'{"epoch": 3, "version": 1, "mark": "00"}',
            b'{"epoch": 3, "version": 0, "mark": "%s"}' % (b"00" * 16),
            b'{"epoch": 3, "version": 1e999, "mark": "%s"}' % (b"00" * 16),
            b'{"epoch": 3, "version": 1, "mark": "%s"}' % (b"zz" * 16),
            b'{"epoch": 3, "version": 18446744073709551616, "mark": "%s"}' % (b"00" * 16),
            b'{"epoch": 3, "version": 1, "mark": "%s"}' % (b"ab" * 16),
            b'{"epoch": 3, "version": 18446744073709551615, "mark": "%s"}' % (b"ab" * 16),
        )
    ),
    b'{"holder": 7, "renewals": 0, "is_ended": true, "taken": 3, "taking": null}',
    b'{"holder": "x", "renewals": 0, "is_ended": true, "taken": 3, "taking": null, "challenger": 7}',
)


@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: repr(junk[:60]))
def test_what_cannot_be_read_proves_nothing_and_costs_one_lease_at_most(junk: bytes) -> None:
    world = untouched()
    world.memory.put(LEASE_KEY, junk)
    started_ms = world.clock.now_ms()
    assert lead(world.leadership()) == 1
    assert world.clock.now_ms() - started_ms in (0, LEASE_MS)

    world.memory.put(LEASE_KEY, junk)
    while world.open_with_coordinator() < 3:
        pass
    assert world.dataset().coordinator().is_alive is None
    store = CountingStore(world.memory)
    with pytest.raises(CoordinatorAlive):
        lead(world.leadership(lambda _: store))
    assert not store.requests[Verb.PUT]
    assert lead(world.leadership(), take_over=True) == 4


def test_what_is_no_lease_keeps_no_table_from_being_coordinated(tmp_path: Path) -> None:
    world = TableWorld(tmp_path)
    for epoch, junk in enumerate(JUNK, start=1):
        world.memory.put(world.lease_key, junk)
        world.dataset().coordinator()
        assert lead(world.leadership()) == epoch


def test_what_is_no_lease_but_changes_is_alive(tmp_path: Path) -> None:
    """A program of another version, perhaps."""
    world = TableWorld(tmp_path)
    world.memory.put(world.lease_key, b"one")

    class Busy(ManualClock):
        def sleep_s(self, duration_s: float) -> None:
            super().sleep_s(duration_s)
            world.memory.put(world.lease_key, b"another")

    with pytest.raises(CoordinatorAlive, match="right now"):
        lead(Leadership(world.dataset(), Busy(), RandomIds()))


def test_a_lease_reads_as_it_was_written() -> None:
    world = untouched()
    taking = EpochClaim(MAX_EPOCH, MAX_EPOCH, "ab" * 16)
    lease = Lease("lithify-1", 7, False, MAX_EPOCH - 1, taking, "lithify-2")
    world.dataset().lease.write(lease, None)
    found = world.dataset().lease.read()
    assert found is not None
    assert found.lease == lease
    assert json.loads(world.memory.get(LEASE_KEY))["taken"] == MAX_EPOCH - 1


def test_a_lease_of_a_version_that_asks_nobody_is_read() -> None:
    world = untouched()
    text = b'{"holder": "lithify-1", "renewals": 7, "is_ended": false, "taken": 4, "taking": null}'
    world.memory.put(LEASE_KEY, text)
    found = world.dataset().lease.read()
    assert found is not None
    assert found.lease == Lease("lithify-1", 7, taken=4)


@pytest.mark.parametrize(("url", "seconds"), [("gs://bucket", 2.0), ("s3://bucket", 0.0)])
def test_a_store_that_takes_one_write_per_second_gets_no_more(url: str, seconds: float) -> None:
    """A term that ends within a second has three writes: its announcement, its epoch, its end."""

    class Elsewhere(WrappedStore):
        @property
        def url(self) -> str:
            return url

    clock = ManualClock()
    lease = ObjectLease(Elsewhere(MemoryStore()), "db/lithify", clock)
    etag = lease.write(Lease("one"), None)
    for renewals in (1, 2):
        etag = lease.write(Lease("one", renewals), etag)
    assert clock.monotonic_s() == seconds
    clock.advance_s(10)
    lease.write(Lease("one", 3), etag)
    assert clock.monotonic_s() == seconds + 10
