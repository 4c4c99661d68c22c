"""What cannot be deleted holds up nothing of the rest."""

from __future__ import annotations

from functools import partial

import pytest

from lithify.base.errors import StoreError, StoreUnavailable
from lithify.store.deleting import MAX_IN_FLIGHT, Deleting

COUNT = 10 * MAX_IN_FLIGHT


class Store:
    """Objects by number, some of which are held."""

    def __init__(self, held: dict[int, Exception]) -> None:
        self.left = set(range(COUNT))
        self.held = held

    def delete(self, number: int) -> None:
        if number in self.held:
            raise self.held[number]
        self.left.remove(number)


def test_all_others_go_and_the_first_failure_is_raised_at_the_end() -> None:
    store = Store({n: StoreError(f"{n} is held") for n in range(MAX_IN_FLIGHT + 1)})
    starts = range(0, COUNT, 20)
    with pytest.raises(StoreError, match="0 is held"), Deleting() as deleting:
        counts = [sum(deleting.all(partial(store.delete, n) for n in range(s, s + 20))) for s in starts]
    assert store.left == store.held.keys()
    assert counts == [20 - len(store.held), 20, 20, 20]


@pytest.mark.parametrize("error", [StoreUnavailable("refused"), ZeroDivisionError("a defect")])
def test_a_store_that_is_away_and_a_defect_end_it_at_once(error: Exception) -> None:
    store = Store({MAX_IN_FLIGHT: error, 2: StoreError("held")})
    with pytest.raises(type(error)), Deleting() as deleting:
        deleting.all(map(partial(partial, store.delete), range(COUNT)))
    assert len(store.left) >= COUNT - 3 * MAX_IN_FLIGHT


def test_nothing_is_raised_where_nothing_failed() -> None:
    store = Store({})
    with Deleting() as deleting:
        assert all(deleting.all(partial(store.delete, n) for n in range(COUNT)))
    assert not store.left
