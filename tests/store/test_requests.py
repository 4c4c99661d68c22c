"""Requests that fail and hang: what is made again, what is told, and what the error at the end says."""

from __future__ import annotations

import itertools
import pickle
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from lithify.base.errors import ObjectNotFound, StoreError, StoreUnavailable
from lithify.base.events import Event, StoreBack, WaitingForStore
from lithify.store.resilience import hedging
from lithify.store.resilience.causes import UNKNOWN_NAME
from lithify.store.resilience.hedging import Traffic, Usual, followed
from lithify.store.resilience.requests import Requests
from lithify.store.resilience.waiting import StoreOutage, WaitPolicy
from lithify.testing import ManualClock

REFUSED = "connection refused"


def away(cause: str = REFUSED) -> StoreUnavailable:
    return StoreUnavailable(f"get x: {cause}", cause)


@dataclass
class World:
    """A store that is away until a time, as the clock tells it."""

    max_s: float = 300.0
    back_s: float = 0.0
    is_ending: bool = False
    clock: ManualClock = field(default_factory=ManualClock)
    told: list[Event] = field(default_factory=list)
    calls: int = 0
    unanswered_max_s: float = float("inf")

    def __post_init__(self) -> None:
        waiting = WaitPolicy(
            self.max_s,
            "s3://b/db",
            self.told.append,
            lambda: self.is_ending,
            tasks_max_s=9.0,
            unanswered_max_s=self.unanswered_max_s,
        )
        self.requests = Requests("s3://b", waiting, clock=self.clock, rng=random.Random(7))

    def call(self) -> str:
        self.calls += 1
        if self.clock.monotonic_s() < self.back_s:
            raise away()
        return "answer"


@pytest.mark.parametrize("verb", ["read", "write"])
def test_an_outage_of_minutes_is_waited_for_and_told(verb: str) -> None:
    world = World(back_s=240.0)
    assert getattr(world.requests, verb)(world.call) == "answer"
    assert 240 <= world.clock.monotonic_s() <= 245
    *waiting, back = world.told
    assert all(isinstance(event, WaitingForStore) and event.cause == REFUSED for event in waiting)
    since = [event.since_s for event in waiting if isinstance(event, WaitingForStore)]
    assert 4 <= since[0] < 5
    assert [b > 1.9 * a for a, b in itertools.pairwise(since)] == [True] * (len(since) - 1)
    assert isinstance(back, StoreBack)
    assert back.waited_s == world.clock.monotonic_s()
    assert back.dataset == "s3://b/db"


def test_a_hiccup_is_not_told() -> None:
    world = World(back_s=1.0)
    assert world.requests.read(world.call) == "answer"
    assert world.told == []


def test_what_the_store_has_decided_is_an_answer() -> None:
    world = World(back_s=20.0)

    def missing() -> None:
        world.call()
        raise ObjectNotFound("get x: no such object")

    with pytest.raises(ObjectNotFound):
        world.requests.read(missing)
    assert isinstance(world.told[-1], StoreBack)


def test_the_error_at_the_end_names_the_first_cause_and_the_time() -> None:
    world = World()
    causes = iter([REFUSED])

    def call() -> None:
        raise away(next(causes, "503 Service Unavailable"))

    said = r"get x: connection refused \(waited for the store for 300 s, \d+ tries, finally 503"
    with pytest.raises(StoreUnavailable, match=said) as caught:
        world.requests.read(call)
    assert caught.value.cause == REFUSED
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again), again.cause) == (StoreUnavailable, str(caught.value), REFUSED)


def test_who_cleans_up_after_that_does_not_wait_as_long_again_until_the_store_is_back() -> None:
    world = World(back_s=301.0)
    with pytest.raises(StoreUnavailable):
        world.requests.read(world.call)
    calls, now_s = world.calls, world.clock.monotonic_s()
    with pytest.raises(
        StoreUnavailable, match=r"^get x: connection refused \(the store has been unavailable for 300 s\)$"
    ):
        world.requests.write(world.call)
    assert (world.calls, world.clock.monotonic_s()) == (calls + 1, now_s)
    world.clock.advance_s(2)
    assert world.requests.read(world.call) == "answer"
    assert isinstance(world.told[-1], StoreBack)
    world.back_s = world.clock.monotonic_s() + 60
    assert world.requests.read(world.call) == "answer"


def test_waiting_for_ever() -> None:
    world = World(max_s=float("inf"), back_s=10_000.0)
    assert world.requests.read(world.call) == "answer"
    assert len(world.told) < 50


def test_a_store_that_never_answered_is_given_up_sooner() -> None:
    world = World(unanswered_max_s=30.0, back_s=1000.0)
    with pytest.raises(StoreUnavailable, match="waited for the store for 30 s"):
        world.requests.read(world.call)
    assert {event.limit for event in world.told if isinstance(event, WaitingForStore)} == {" (at most 30 s)"}
    world.back_s = 0.0
    assert world.requests.read(world.call)
    world.told.clear()
    world.back_s = world.clock.monotonic_s() + 100
    assert world.requests.read(world.call), "it has answered before, so it is only away"
    assert {event.limit for event in world.told if isinstance(event, WaitingForStore)} == {" (at most 300 s)"}


def test_nobody_waits_when_the_process_is_to_end() -> None:
    world = World(back_s=100.0)

    def call() -> str:
        world.is_ending = world.clock.monotonic_s() > 10
        return world.call()

    with pytest.raises(StoreUnavailable):
        world.requests.read(call)
    assert world.clock.monotonic_s() < 20


def test_doubtful_failures_are_given_up_after_seconds() -> None:
    world = World()

    def call() -> None:
        raise StoreUnavailable("get x: no credentials", "no credentials", is_doubtful=True)

    with pytest.raises(StoreUnavailable, match="waited for the store for 10 s"):
        world.requests.read(call)


def test_an_interrupt_ends_the_wait_at_once() -> None:
    class Interrupted(ManualClock):
        def sleep_s(self, duration_s: float) -> None:
            raise KeyboardInterrupt

    told: list[Event] = []
    requests = Requests("s3://b", WaitPolicy(300.0, "", told.append), clock=Interrupted())

    def call() -> None:
        raise away()

    with pytest.raises(KeyboardInterrupt):
        requests.read(call)


def test_requests_travel_to_other_processes_without_whom_to_tell() -> None:
    world = World(max_s=7.0)
    travelled = pickle.loads(pickle.dumps(world.requests))
    assert (travelled.url, travelled.policy.max_wait_s) == ("s3://b", 9.0)


# A service, which comes back to a store.


class Probing(World):
    """The party comes back, and a probe tells whether the store does; it probes when the test lets it."""

    def __post_init__(self) -> None:
        self.may_probe = threading.Event()
        self.is_over = threading.Event()

        def tell(event: Event) -> None:
            self.told.append(event)
            if isinstance(event, StoreBack):
                self.is_over.set()

        def probe() -> None:
            self.may_probe.wait(20)
            self.call()

        waiting = WaitPolicy(5.0, "s3://b/db", tell, lambda: self.is_ending, comes_back=True)
        self.requests = Requests("s3://b", waiting, clock=self.clock, rng=random.Random(7), probe=probe)


def test_who_comes_back_is_refused_at_once_until_a_probe_has_seen_the_store() -> None:
    world = Probing(back_s=1000.0)
    with pytest.raises(StoreUnavailable, match="waited for the store for 5 s"):
        world.requests.read(world.call)
    calls = world.calls
    for _ in range(10):
        with pytest.raises(
            StoreUnavailable, match=r"s3://b has been unavailable for \d+ s: connection refused"
        ):
            world.requests.write(world.call)
    assert world.calls == calls
    world.may_probe.set()
    assert world.is_over.wait(20)
    assert world.requests.read(world.call) == "answer"
    assert world.clock.monotonic_s() >= 1000


def test_an_answer_of_whatever_kind_shows_that_the_store_is_back() -> None:
    world = Probing(back_s=1000.0)
    world.call = lambda: _raise(StoreError("403") if world.may_probe.is_set() else away())  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        world.requests.read(world.call)
    world.may_probe.set()
    assert world.is_over.wait(20)


def test_what_one_dataset_knows_of_a_store_another_need_not_find_out() -> None:
    world, known = Probing(back_s=1000.0), StoreOutage()
    waiting = WaitPolicy(5.0, "db", world.told.append, comes_back=True)
    one, other = (
        Requests("s3://b", waiting, clock=world.clock, probe=lambda: world.may_probe.wait(20), known=known)
        for _ in range(2)
    )
    with pytest.raises(StoreUnavailable, match="waited for the store"):
        one.read(world.call)
    calls = world.calls
    with pytest.raises(StoreUnavailable, match=r"s3://b has been unavailable for \d+ s: connection refused"):
        other.read(world.call)
    assert world.calls == calls
    world.clock.advance_s(1000)
    world.may_probe.set()
    while known.is_given_up:
        time.sleep(0.01)
    assert other.read(world.call) == "answer"


def test_who_looks_for_the_stores_return_survives_whatever_comes(defects: list[str]) -> None:
    world = Probing(back_s=1000.0)
    errors = iter([ZeroDivisionError("unforeseen")])
    call = world.call

    def fail_once() -> str:
        for error in errors:
            raise error
        return call()

    with pytest.raises(StoreUnavailable):
        world.requests.read(world.call)
    world.call = fail_once  # type: ignore[method-assign]
    world.may_probe.set()
    assert world.is_over.wait(20)
    assert "ZeroDivisionError: unforeseen" in defects.pop()


def test_what_may_be_a_mistake_in_the_settings_is_none_once_the_store_has_answered() -> None:
    world = World(max_s=60.0)
    assert world.requests.read(lambda: 1) == 1

    def call() -> None:
        raise StoreUnavailable("get x: no such name", UNKNOWN_NAME, is_doubtful=True)

    with pytest.raises(StoreUnavailable, match="waited for the store for 60 s"):
        world.requests.read(call)


# Senders that repeat by themselves, and are watched.


class Watching(World):
    """A probe answers once the store is back."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.asked = threading.Event()

        def probe() -> None:
            self.asked.set()
            self.call()

        waiting = WaitPolicy(300.0, "s3://b/db", self.tell)
        self.requests = Requests("s3://b", waiting, clock=self.clock, rng=random.Random(7), probe=probe)
        self.is_told = threading.Event()
        self.is_over = threading.Event()

    def tell(self, event: Event) -> None:
        self.told.append(event)
        (self.is_told if isinstance(event, WaitingForStore) else self.is_over).set()


def test_who_waits_for_a_sender_asks_whether_the_store_is_there() -> None:
    world = Watching(back_s=20.0)
    world.requests.watch(64 << 20).look()
    assert world.is_over.wait(20)
    waiting = world.told[0]
    assert isinstance(waiting, WaitingForStore)
    assert (waiting.cause, waiting.since_s < 5) == (REFUSED, True)
    assert isinstance(world.told[-1], StoreBack)


def test_it_does_not_ask_while_anything_comes_from_the_store() -> None:
    world = Watching()
    assert world.requests.read(lambda: 1) == 1
    world.requests.watch(64 << 20).look()
    assert not world.asked.wait(0.05)


def test_a_sender_of_which_nothing_is_heard_for_long_is_told_of_though_the_store_is_there() -> None:
    world = Watching()
    watch = world.requests.watch(8 << 20)
    for _ in range(13):
        watch.look()
        world.clock.advance_s(1)
    assert [type(event) for event in world.told] == [WaitingForStore]
    watch.got_on()
    assert isinstance(world.told[-1], StoreBack)
    watch.look()
    watch.end()
    assert len(world.told) == 2


def test_who_looks_after_a_sender_has_ended_waits_for_nothing() -> None:
    """The sender may end between two looks of who waits for it."""
    world = Watching()
    watch = world.requests.watch(8 << 20)
    watch.look()
    world.clock.advance_s(13)
    watch.end()
    watch.look()
    assert not [event for event in world.told if isinstance(event, WaitingForStore)]


# Requests that hang. These take real time, a little.


@pytest.mark.parametrize("verb", ["read", "write"])
def test_a_service_does_not_wait_within_a_try_for_longer_than_its_bound(
    over: threading.Event, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hedging, "LOOK_S", 0.01)
    clock = _Real(step_s=0.5)
    waiting = WaitPolicy(5.0, "db", lambda _: None, comes_back=True)
    requests = Requests("s3://b", waiting, clock=clock, probe=lambda: over.wait(20))
    with pytest.raises(StoreUnavailable, match=r"no answer for \d s"):
        getattr(requests, verb)(lambda: over.wait(20))
    with pytest.raises(StoreUnavailable, match="has been unavailable for"):
        getattr(requests, verb)(lambda: over.wait(20))


def test_a_look_for_the_stores_return_that_hangs_is_made_again(
    over: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hedging, "LOOK_S", 0.01)
    is_back = threading.Event()

    def tell(event: Event) -> None:
        if isinstance(event, StoreBack):
            is_back.set()

    waiting = WaitPolicy(5.0, "db", tell, comes_back=True)
    looks = in_turn(lambda: str(over.wait(60)), lambda: str(over.wait(60)), lambda: "there")
    requests = Requests("s3://b", waiting, clock=_Real(step_s=0.5), probe=looks)
    with pytest.raises(StoreUnavailable):
        requests.read(lambda: over.wait(60))
    assert is_back.wait(30)


def test_the_bound_counts_from_the_first_failure_and_not_from_the_first_try() -> None:
    world = World(max_s=5.0)
    calls = []

    def hang_once() -> str:
        calls.append(1)
        if len(calls) == 1:
            world.clock.advance_s(10)
            raise away("no answer in time")
        return "answer"

    assert world.requests.write(hang_once) == "answer"


@pytest.fixture
def over() -> Iterator[threading.Event]:
    """Set at the end, so that nothing goes on hanging."""
    over = threading.Event()
    yield over
    over.set()


def in_turn(*calls: Callable[[], str]) -> Callable[[], str]:
    """A request that does these one after another."""
    left = list(calls)
    return lambda: left.pop(0)()


def impatient(call: Callable[[], str]) -> str:
    clock = _Real()
    return followed(lambda _: call(), clock, Traffic(clock), patience_s=0.02, silent=lambda _: None)


class _Real(ManualClock):
    """Time passes with every look."""

    def __init__(self, step_s: float = 0.01) -> None:
        super().__init__()
        self._step_s = step_s

    def monotonic_s(self) -> float:
        self.advance_s(self._step_s)
        return super().monotonic_s()


def test_a_read_that_hangs_is_made_again_and_the_first_answer_counts(over: threading.Event) -> None:
    def hang() -> str:
        over.wait(20)
        return "late"

    assert impatient(in_turn(hang, lambda: "second")) == "second"
    assert impatient(in_turn(hang, hang, lambda: "third")) == "third"


def test_an_error_on_the_way_does_not_end_a_request_while_another_is_under_way(
    over: threading.Event,
) -> None:
    asked = threading.Event()

    def fail_later() -> str:
        asked.wait(20)
        raise away()

    def answer_later() -> str:
        asked.set()
        over.wait(0.05)
        return "second"

    def hang() -> str:
        over.wait(20)
        return "late"

    assert impatient(in_turn(fail_later, answer_later, hang)) == "second"


def test_what_the_store_has_decided_ends_it_whatever_is_under_way(over: threading.Event) -> None:
    def hang() -> str:
        over.wait(20)
        return "late"

    def missing() -> str:
        raise ObjectNotFound("get x: no such object")

    with pytest.raises(ObjectNotFound):
        impatient(in_turn(hang, missing))


def test_a_write_that_hangs_is_not_made_again_beside_itself_and_its_silence_is_told(
    over: threading.Event,
) -> None:
    calls, silences = [], []

    def hang() -> str:
        calls.append(1)
        over.wait(20)
        return "done"

    def silent(for_s: float) -> None:
        silences.append(for_s)
        over.set()

    clock = _Real()
    assert followed(lambda _: hang(), clock, Traffic(clock), patience_s=None, silent=silent) == "done"
    assert len(calls) == 1
    assert silences


def test_a_store_that_answers_others_is_busy_and_not_asked_twice(over: threading.Event) -> None:
    clock, calls = _Real(), list[int]()
    traffic = Traffic(clock)

    def slow() -> str:
        calls.append(1)
        over.wait(20)
        return "done"

    def silent(for_s: float) -> None:
        traffic.got_on()
        if for_s > 0.1:
            over.set()

    traffic.got_on()
    assert followed(lambda _: slow(), clock, traffic, patience_s=0.05, silent=silent) == "done"
    assert len(calls) == 1


def test_few_requests_of_a_store_are_hedged_at_once() -> None:
    traffic = Traffic(ManualClock())
    begun = [traffic.begin_hedge(0.0, 0, 1.0) for _ in range(10)]
    assert begun.count(True) == hedging.MAX_HEDGES
    traffic.end_hedge()
    assert traffic.begin_hedge(0.0, 0, 1.0)


@pytest.mark.parametrize(
    ("size_bytes", "overtakers", "is_asked_again"), [(1000, 3, True), (1000, 2, False), (10, 5, False)]
)
def test_what_others_overtake_hangs_although_the_store_answers_them(
    over: threading.Event, size_bytes: int, overtakers: int, is_asked_again: bool
) -> None:
    """Others that began later; what is for less shows nothing."""
    clock, calls = _Real(), list[int]()
    traffic, left = Traffic(clock), [overtakers]

    def other(for_bytes: int) -> None:
        followed(lambda _: None, clock, traffic, size_bytes=for_bytes, patience_s=9.0, silent=lambda _: None)

    def hang_once() -> str:
        calls.append(1)
        if len(calls) == 1:
            over.wait(20)
        return "answer"

    def silent(for_s: float) -> None:
        if left[0]:
            left[0] -= 1
            other(size_bytes)
        traffic.got_on()
        if for_s > 0.5:
            over.set()

    asked = followed(lambda _: hang_once(), clock, traffic, size_bytes=1000, patience_s=0.05, silent=silent)
    assert (asked, len(calls)) == ("answer", 2 if is_asked_again else 1)


def test_an_answer_that_has_begun_is_not_asked_for_again(over: threading.Event) -> None:
    clock, calls = _Real(), list[int]()

    def slow(got_on: Callable[[], None]) -> str:
        calls.append(1)
        got_on()
        over.wait(20)
        return "done"

    def silent(for_s: float) -> None:
        if for_s > 0.2:
            over.set()

    assert followed(slow, clock, Traffic(clock), patience_s=0.02, silent=silent) == "done"
    assert len(calls) == 1


FORKING = """
import os, time
from lithify.store.resilience.requests import Requests
requests = Requests("s3://b")
assert requests.read(lambda: 1) == 1
time.sleep(0.2)  # for the thread to wait for the next request
child = os.fork()
if not child:
    os._exit(requests.write(lambda: 7))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""


def test_a_process_that_was_forked_has_threads_of_its_own() -> None:
    """As the workers of Spark's daemon are."""
    subprocess.run([sys.executable, "-c", FORKING], check=True, timeout=20)


def test_patience_follows_what_the_store_usually_takes() -> None:
    usual = Usual()
    assert usual.patience_s(0) == 3.0
    assert usual.patience_s(8 << 20) == 11.0
    for _ in range(100):
        usual.note(2.0, 0)
    assert usual.patience_s(0) == pytest.approx(8.0)
    for _ in range(100):
        usual.note(0.02, 1 << 20)
    assert usual.patience_s(8 << 20) == 3.0
    assert usual.patience_s(0) == pytest.approx(8.0), "others than ranges"
    for _ in range(100):
        usual.note_unfinished(4.0, 1 << 20)
        usual.note_unfinished(0.01, 1 << 20)
    assert usual.patience_s(1 << 20) == pytest.approx(16.0, rel=0.01)


def test_what_nobody_foresaw_comes_out_as_it_is() -> None:
    def call() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        World().requests.read(call)
    with pytest.raises(StoreError, match="bad request"):
        World().requests.write(in_turn(lambda: _raise(StoreError("bad request"))))


def _raise(error: Exception) -> str:
    raise error
