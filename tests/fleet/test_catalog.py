"""What must hold of every catalog, and what changes make of one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.base.errors import CorruptObject, LithifyError, Refused, Unsupported
from lithify.fleet.catalog import changes
from lithify.fleet.catalog.documents import as_document, decode, encode
from lithify.fleet.catalog.model import (
    Catalog,
    CatalogTenant,
    Coordinates,
    DatasetRule,
    Queue,
    QueueState,
    checked,
)

FIRST = changes.first_catalog("Q0")
SMALL = Queue("small", "Q1", 1_000)
LARGE = Queue("large", "Q2", 1_000_000)
THREE = changes.create_queue(changes.create_queue(FIRST, LARGE), SMALL)


def test_a_new_fleet_has_one_queue_that_takes_everything() -> None:
    (queue,) = FIRST.queues
    assert queue == Queue("default", "Q0")
    assert FIRST.default_queue == "default"


def test_queues_stand_by_size_and_the_one_without_a_limit_last() -> None:
    assert [queue.name for queue in THREE.queues] == ["small", "large", "default"]


@pytest.mark.parametrize(
    ("queues", "says"),
    [
        ([Queue("a", "1", 5)], "exactly one queue must have no largest size"),
        ([Queue("default", "0"), Queue("b", "1")], "exactly one queue must have no largest size"),
        (
            [Queue("default", "0"), Queue("a", "1", 5), Queue("b", "2", 5)],
            "both have the largest size 5",
        ),
        ([Queue("default", "0"), Queue("default", "1", 5)], "two queues have the name default"),
        ([Queue("default", "0"), Queue("a", "0", 5)], "two queues have the id 0"),
        ([Queue("other", "0")], "the default queue is 'default'"),
        ([Queue("default", "0", state=QueueState.DRAINING)], "must not drain"),
        ([Queue("default", "0", weight=0)], "weight is 0"),
        ([Queue("default", "0", largest_share=0)], "largest share"),
        ([Queue("default", "0", longest_backlog=0)], "longest backlog is 0"),
        ([Queue("default", "0"), Queue("a", "1", 0)], "largest size is 0"),
        ([Queue("default", "0"), Queue("a b", "1", 5)], "is not a name"),
        ([Queue("default", "0"), Queue("a", "../x", 5)], "is not an id"),
    ],
)
def test_what_does_not_hold_is_refused(queues: list[Queue], says: str) -> None:
    with pytest.raises(Refused, match=says):
        checked(queues, "default")


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (DatasetRule("s3://b/x", queue="none"), "there is no queue 'none'"),
        (DatasetRule("s3://b/x", settings={"slatedb.secret_key": "x"}), "is or contains a secret"),
        (DatasetRule("x/y"), "is relative"),
        (DatasetRule("s3://*/x"), "is allowed only in the path"),
        (DatasetRule("s3://b/**/x"), "'\\*\\*' is not supported"),
        (DatasetRule(""), "is not a URL"),
    ],
)
def test_a_rule_that_does_not_hold_is_refused(rule: DatasetRule, says: str) -> None:
    with pytest.raises(Refused, match=says):
        changes.add_rules(FIRST, [rule])


@pytest.mark.parametrize(
    ("attributes", "says"),
    [({"weight": 0}, "weight is 0"), ({"most_running": 0}, "limit of running compactions is 0")],
)
def test_a_tenant_that_does_not_hold_is_refused(attributes: dict[str, int], says: str) -> None:
    with pytest.raises(Refused, match=says):
        changes.set_tenant(FIRST, "red", **attributes)
    with pytest.raises(Refused, match="is not a tenant's name"):
        changes.set_tenant(FIRST, "*")


def test_a_tenant_is_set_bit_by_bit_and_removed() -> None:
    catalog = changes.set_tenant(changes.set_tenant(FIRST, "red", weight=2), "red", most_running=3)
    assert catalog.tenants == (CatalogTenant("red", 2, 3),)
    assert decode(encode(catalog), "key") == catalog
    assert changes.remove_tenant(changes.remove_tenant(catalog, "red"), "red") == FIRST


# Changes


def test_a_name_is_taken_by_one_id_and_its_own_result_changes_nothing() -> None:
    assert changes.create_queue(THREE, SMALL) is THREE
    with pytest.raises(Refused, match="there is a queue small already"):
        changes.create_queue(THREE, Queue("small", "Q9", 77))


def test_a_name_that_is_made_again_is_another_queue() -> None:
    without = changes.delete_queue(THREE, SMALL.id)
    assert changes.delete_queue(without, SMALL.id) is without
    again = changes.create_queue(without, Queue("small", "Q9", 1_000))
    # Who deletes what it knew deletes nothing of the new one, who changes that is refused.
    assert changes.delete_queue(again, SMALL.id) is again
    with pytest.raises(Refused, match="deleted meanwhile"):
        changes.set_queue(again, SMALL.id, weight=5)


def test_pause_resume_drain() -> None:
    paused = changes.pause_queue(THREE, SMALL.id)
    assert paused.queue("small").state is QueueState.PAUSED
    draining = changes.drain_queue(paused, SMALL.id)
    assert draining.queue("small").state is QueueState.DRAINING
    with pytest.raises(Refused, match="is draining"):
        changes.pause_queue(draining, SMALL.id)
    assert changes.resume_queue(draining, SMALL.id) == THREE


@pytest.mark.parametrize("change", [changes.drain_queue, changes.delete_queue])
def test_the_queue_that_takes_everything_stays(change: Callable[[Catalog, str], Catalog]) -> None:
    with pytest.raises(Refused, match="takes the work that no other queue takes"):
        change(THREE, "Q0")


def test_a_queue_that_a_rule_names_is_not_deleted() -> None:
    named = changes.add_rules(THREE, [DatasetRule("s3://b/x", queue="small")])
    with pytest.raises(Refused, match="rule s3://b/x names it"):
        changes.delete_queue(named, SMALL.id)
    freed = changes.add_rules(named, [DatasetRule("s3://b/x")])
    assert changes.delete_queue(freed, SMALL.id).find("small") is None


def test_a_size_may_not_clash_with_another() -> None:
    with pytest.raises(Refused, match="both have the largest size 1000000"):
        changes.set_queue(THREE, SMALL.id, largest_bytes=1_000_000)
    assert changes.set_queue(THREE, SMALL.id, largest_bytes=5).queue("small").largest_bytes == 5


def test_rules_are_added_once_replaced_and_removed() -> None:
    once = changes.add_rules(FIRST, [DatasetRule("s3://b/x/"), DatasetRule("file:///d/*")])
    assert [rule.pattern for rule in once.rules] == ["s3://b/x", "/d/*"]
    assert changes.add_rules(once, [DatasetRule("s3://b/x")]) == once
    other = changes.add_rules(once, [DatasetRule("s3://b/x", tenant="t")])
    assert [(rule.pattern, rule.tenant) for rule in other.rules] == [("s3://b/x", "t"), ("/d/*", None)]
    assert changes.remove_rules(other, ["s3://b/x/", "s3://b/none"]).rules == once.rules[1:]


def test_the_most_specific_rule_counts_and_of_equal_ones_the_first() -> None:
    catalog = changes.add_rules(
        FIRST, [DatasetRule("s3://b/*/db"), DatasetRule("s3://b/a*/db"), DatasetRule("s3://b/ab/db")]
    )
    assert [rule.pattern for rule in catalog.rules_for("s3://b/ab/db")] == [
        "s3://b/ab/db",
        "s3://b/a*/db",
        "s3://b/*/db",
    ]
    found = catalog.rule_for("s3://b/ac/db")
    assert found is not None
    assert found.pattern == "s3://b/a*/db"
    alike = changes.add_rules(FIRST, [DatasetRule("s3://b/a*/x"), DatasetRule("s3://b/ab/*")])
    assert [rule.pattern for rule in alike.rules_for("s3://b/ab/x")] == ["s3://b/a*/x", "s3://b/ab/*"]
    assert catalog.rule_for("s3://b/x/y/db") is None


def test_a_tenant_is_what_the_star_stands_for() -> None:
    assert DatasetRule("s3://b/*/db-*", tenant="team-*").tenant_of("s3://b/red/db-1") == "team-red"
    assert DatasetRule("s3://b/*/db", tenant="one").tenant_of("s3://b/red/db") == "one"
    assert DatasetRule("s3://b/*/db").tenant_of("s3://b/red/db") is None


# Documents

FULL = changes.add_rules(
    changes.pause_queue(THREE, LARGE.id),
    [DatasetRule("s3://b/*", Coordinates.OWNER, "small", "*", {"service.max_attempts": "3"})],
)


def test_a_catalog_is_read_as_it_was_written() -> None:
    for catalog in (FIRST, THREE, FULL):
        assert decode(encode(catalog), "k") == catalog


def changed(**fields: Any) -> bytes:
    return json.dumps({**as_document(FULL), **fields}).encode()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is not a catalog"),
        (b"[]", "has no fields"),
        (b"{}", "is not a catalog"),
        (b"\xff\xfe", "is not a catalog"),
        (changed(queues=None), "is not a list"),
        (changed(queues=[]), "exactly one queue"),
        (changed(rules=[1]), "has no fields"),
        (changed(default_queue=7), "is not text"),
    ],
)
def test_what_is_no_catalog_is_told(data: bytes, says: str) -> None:
    with pytest.raises(CorruptObject, match=says):
        decode(data, "k")


@pytest.mark.parametrize("name", ["largest_bytes", "weight", "largest_share", "state", "longest_backlog"])
@pytest.mark.parametrize("value", [True, "x", -1, [], 1e300])
def test_a_field_of_another_kind_is_told(name: str, value: object) -> None:
    document = as_document(FULL)
    document["queues"][0][name] = value
    with pytest.raises(CorruptObject):
        decode(json.dumps(document).encode(), "k")


def test_a_later_version_is_refused_as_such() -> None:
    with pytest.raises(Unsupported, match="format 2"):
        decode(changed(format=2), "k")
    with pytest.raises(Unsupported, match="the field 'policies'"):
        decode(changed(policies=[]), "k")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_whatever_is_written_there_is_told_as_an_error_of_ours(value: Any) -> None:
    for document in (value, {**as_document(FULL), "queues": value}, {**as_document(FULL), "rules": [value]}):
        with pytest.raises(LithifyError):
            decode(json.dumps(document).encode(), "k")
