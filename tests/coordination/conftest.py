"""What all tests of leadership share."""

from __future__ import annotations

import pytest
from simulator.core.waiting import AtOnce

from lithify.base import concurrency


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes out together is done one by one, so that the requests of a test have an order."""
    monkeypatch.setattr(concurrency, "background", AtOnce())
