"""The queues as a fleet coordinator uses them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lithify.base.ids import RandomIds
from lithify.fleet.catalog import changes
from lithify.fleet.catalog.files import Numbered
from lithify.fleet.catalog.model import DatasetRule, Queue
from lithify.fleet.coordinator_queues import OwnQueues, PeerSummary
from lithify.testing import ManualClock
from tests.planning.fleet.wanting import want


def demand_of(*wants: Any) -> Any:
    return SimpleNamespace(url="db", wants=wants, active=(), take_claimed=lambda: ())


def test_the_next_task_of_a_unit_goes_where_the_catalog_says_not_where_the_last_one_was() -> None:
    queues, rule, ids = OwnQueues("me", ManualClock()), DatasetRule("db"), RandomIds()
    first = Numbered(1, changes.first_catalog(ids.ulid(0)))
    slots = PeerSummary(slots={first.catalog.queues[0].id: 1})
    queues.follow(demand_of(want("db", cost=10)), rule, (), first, is_known=True)
    (admitted,) = queues.admit(first, slots)
    small = Queue("small", ids.ulid(0), largest_bytes=100)
    second = Numbered(2, changes.create_queue(first.catalog, small))
    queues.follow(demand_of(want("db", cost=10)), rule, (), second, is_known=True)
    assert admitted.key == want("db").key
    assert queues._admissions[small.id].figures().queued == 1
