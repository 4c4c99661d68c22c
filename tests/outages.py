"""What is told of an outage."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from lithify.events import Event, StoreBack, WaitingForStore


def is_told_with_its_end(told: Sequence[Event]) -> bool:
    """Whether an outage was told of, once or as it went on, and that it is over. A machine that stands still
    for seconds makes more than one of it."""
    kinds = [type(event) for event in told]
    turns = [kind for kind, _ in groupby(kinds)]
    ends = kinds.count(StoreBack)
    return ends > 0 and turns == [WaitingForStore, StoreBack] * ends
