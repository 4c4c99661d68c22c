"""What is told of an outage."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import pytest

from lithify.base.events import Event, StoreBack, WaitingForStore
from lithify.store.resilience import hedging, requests, waiting


def is_told_with_its_end(told: Sequence[Event]) -> bool:
    """Whether an outage was told of, once or as it went on, and that it is over. A machine that stands still
    for seconds makes more than one of it."""
    kinds = [type(event) for event in told]
    turns = [kind for kind, _ in groupby(kinds)]
    ends = kinds.count(StoreBack)
    return ends > 0 and turns == [WaitingForStore, StoreBack] * ends


def notice_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What hangs or is away is noticed and told within a second by this process, not within five."""
    for module in (requests, waiting):
        monkeypatch.setattr(module, "FIRST_AFTER_S", 0.7)
    for module in (requests, hedging):
        monkeypatch.setattr(module, "LOOK_S", 0.1)
    monkeypatch.setattr(hedging, "_LEAST_S", 0.5)
