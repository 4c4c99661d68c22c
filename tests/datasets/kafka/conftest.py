"""Stores of these tests go by the clock of the test."""

from __future__ import annotations

import pytest

from lithify.base.clock import Clock
from lithify.datasets import own_ledger
from lithify.store.objects import ObjectStore


class TimeOfTheTest:
    """Stands in for `StoreTime`: the stores are real ones, whose clock no test can set."""

    def __init__(self, store: ObjectStore, key: str, clock: Clock) -> None:
        self._clock = clock

    def now_ms(self) -> int | None:
        return self._clock.now_ms()


@pytest.fixture(autouse=True)
def time_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_ledger, "StoreTime", TimeOfTheTest)
