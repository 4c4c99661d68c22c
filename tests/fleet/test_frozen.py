"""A coordinator that is suspended right before one of its requests, until another has done all there is to do
and has heard that this one lives, and then goes on: what is done it does not take back.
"""

from __future__ import annotations

from lithify.store.wrapped import Call
from lithify.testing import FaultyStore
from lithify.testing.faulty import StoreFault
from tests.fleet.playing import Play, play
from tests.parts import in_parts

NAMES = tuple(f"d{n}" for n in range(4))
LONGER_THAN_A_BEAT_S = 12
"""Time for another coordinator to hear of this one, and to give it what is its own."""
ALONE_S = (0, 1, 4)
"""How long the other coordinator has been there before, in turn."""
REQUESTS = 150
"""Of a coordinator, until it has taken the leadership of all that is its own, and some more."""
PARTS = 5


def epochs(world: Play) -> dict[str, int]:
    return {name: world.dataset(name).epoch() for name in NAMES}


class Frozen:
    """Before so many requests of its coordinator, another one does all that there is to do."""

    def __init__(self, world: Play, request: int) -> None:
        self._world = world
        self._first: int | None = None
        """The number of the first request after the coordinator was made."""
        self.taken: dict[str, int] | None = None
        """The epochs when the coordinator goes on."""
        self._request = request
        self.is_over = False
        store = FaultyStore(world.store, self._before)
        self._coordinator = world.coordinator(store=store)
        self._first = len(store.calls) + 1

    def _before(self, number: int, call: Call) -> StoreFault | None:
        if not self.is_over and self._first is not None and number - self._first == self._request:
            self._world.coordinators.remove(self._coordinator)
            self._world.until(self._is_done, 60)
            self._world.run(LONGER_THAN_A_BEAT_S)
            self.taken = epochs(self._world)
            self._world.coordinators.append(self._coordinator)
        return None

    def _is_done(self) -> bool:
        (engine,) = self._world.engines.values()
        engine.run_all()
        return set(self._world.texts().values()) == {1}


@in_parts(PARTS)
def test_one_that_was_suspended_before_any_request_takes_nothing_that_is_done(part: int) -> None:
    frozen = 0
    for request in range(part, REQUESTS, PARTS):
        with play() as world:
            for name in NAMES:
                world.dataset(name, 5)
            world.worker(slots=10, stepped=True)
            world.run(1)
            world.coordinator()
            world.run(ALONE_S[request % len(ALONE_S)])
            party = Frozen(world, request)
            world.run(20)
            party.is_over = True
            if party.taken is not None:
                frozen += 1
                assert epochs(world) == party.taken, f"suspended before request {request}"
    assert frozen > REQUESTS / PARTS / 2
