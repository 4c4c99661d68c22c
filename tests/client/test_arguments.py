"""What programs give that is of no use is refused, like everything else: by one tree of errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

import lithify
from lithify.api import arguments
from lithify.testing.engine import InlineEngine
from tests.datasets.iceberg.tables import append, make_rows, new_catalog, new_table
from tests.judge.official import Put, open_db

_VERY_LONG: Any = 10**5000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database."""
    with open_db(tmp_path / "db") as database:
        database.write_batch([Put(b"k", b"v")])
        database.flush()
    return tmp_path / "db"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda db: db.history(since=datetime(1, 1, 1)), "since: 0001-01-01 00:00:00 is out of range"),
        (lambda db: db.history(since=date(2025, 1, 1)), "since: .* is not a datetime"),
        (lambda db: db.history(since="2025-01-01"), "since: '2025-01-01' is not a datetime"),
        (lambda db: db.history(last="x"), "last: 'x' is not a whole number"),
        (lambda db: db.history(last=-1), "last: -1 is not 0 or more"),
        (lambda db: db.cancel(5), "ids: 5 is not text"),
        (lambda db: db.cancel(["a", "b"]), "ids: a list is not text"),
        (lambda db: db.retry(None), "ids: None is not text"),
        (lambda db: db.wait(5), "ids: 5 is not text"),
        (lambda db: db.wait("nonsense"), "nonsense: not the id of a compaction"),
        (lambda db: db.wait([], timeout_s="x"), "timeout_s: 'x' is not a number"),
        (lambda db: db.plan(segment=5), "segment: 5 is not text"),
        (lambda db: db.submit(run=5), "run: 5 is not a list"),
        (lambda db: db.submit(l0="all"), "l0: 'all' is not a list"),
        (lambda db: db.submit(run=["x"]), "run: 'x' is not a whole number"),
        (lambda db: db.collect_garbage(min_age_s="x"), "min_age_s: 'x' is not a number of seconds"),
        (lambda db: db.collect_garbage(min_age_s=-1), "min_age_s: -1 is not a valid number of seconds"),
        (lambda db: db.hold(snapshot="x"), "snapshot: 'x' is not a whole number"),
        (lambda db: db.hold(at=datetime(1, 1, 1)), "at: .* is out of range"),
        (lambda db: db.hold(lease_s="x"), "lease_s: 'x' is not a number of seconds"),
        (lambda db: db.hold(name=5), "name: 5 is not text"),
        (lambda db: db.expire(older_than=5), "older_than: 5 is not a datetime"),
        (lambda db: db.expire(retain_last="x"), "retain_last: 'x' is not a whole number"),
        (lambda db: db.remove_orphans(max_percent="x"), "max_percent: 'x' is not a whole number"),
        (lambda db: db.maintain(skip=5), "skip: 5 is not text"),
        (lambda db: db.maintain(skip="nothing"), "nothing: not a part of maintenance"),
    ],
)
def test_of_a_dataset(path: Path, call: Callable[[lithify.Dataset], Any], says: str) -> None:
    with lithify.open(path, engine=InlineEngine()) as db, pytest.raises(lithify.Refused, match=says):
        call(db)


def test_of_a_table(tmp_path: Path) -> None:
    append(new_table(new_catalog(tmp_path, name="lake")), make_rows(3))
    given = {"store_options.uri": f"sqlite:///{tmp_path}/catalog.db"}
    with lithify.open("iceberg://lake/db.events", settings=given) as table:
        calls: tuple[Callable[..., Any], ...] = (
            table.release_hold,
            table.renew_hold,
            table.drop_reader,
            table.add_reader,
        )
        for call in calls:
            with pytest.raises(lithify.Refused, match="5 is not text"):
                call(5)
        with pytest.raises(lithify.Refused, match="chunk: '2025-01-01' is not a list"):
            table.submit(chunk="2025-01-01")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda fleet: fleet.set_queue("default", weight="x"),
            "its weight is 'x'; it must be a whole number from 1 to",
        ),
        (lambda fleet: fleet.set_queue("default", largest_share="x"), "largest share of one dataset is 'x'"),
        (
            lambda fleet: fleet.set_queue("default", wait=1),
            "wait: not an attribute that can be set; those are l",
        ),
        (lambda fleet: fleet.set_queue("default", state="paused"), "state: not an attribute that can be set"),
        (lambda fleet: fleet.set_queue(5, weight=2), "there is no queue 5"),
        (lambda fleet: fleet.create_queue(5, largest_bytes=1), "name: 5 is not text"),
        (lambda fleet: fleet.create_queue("a", largest_bytes="1GB"), "its largest size is '1GB'"),
        (
            lambda fleet: fleet.create_queue("a", largest_bytes=1, id="x"),
            "id: not an attribute that can be set",
        ),
        (lambda fleet: fleet.set_tenant(5, weight=2), "name: 5 is not text"),
        (lambda fleet: fleet.set_tenant("a", weight="x"), "its weight is 'x'"),
        (lambda fleet: fleet.set_tenant("a", colour="red"), "those are weight, most_running"),
        (lambda fleet: fleet.remove_tenant(5), "tenant 5 has no weight"),
        (lambda fleet: fleet.add(5), "url: 5 is not text"),
        (lambda fleet: fleet.add("/x", queue=5), "queue: 5 is not text"),
        (lambda fleet: fleet.add("/x", tenant=5), "tenant: 5 is not text"),
        (lambda fleet: fleet.add("/x", settings=["a"]), "settings: .* is not a mapping"),
        (lambda fleet: fleet.add("/x", settings={5: "a"}), "settings: 5 is not text"),
        (lambda fleet: fleet.remove(5), "url: 5 is not text"),
        (lambda fleet: fleet.open(5), "url: 5 is not text"),
        (lambda fleet: fleet.wake(5), "url: 5 is not text"),
        (lambda fleet: fleet.run(Event(), exit_when_idle_s="x"), "exit_when_idle_s: 'x' is not a number"),
        (lambda fleet: fleet.run(Event(), queues=5), "queues: 5 is not text"),
        (lambda fleet: fleet.at(version="x"), "version: 'x' is not a whole number"),
        (lambda fleet: fleet.at(at_ms="x"), "at_ms: 'x' is not a number"),
        (lambda fleet: fleet.at(at_ms=math.nan), "at_ms: nan is not a number"),
        (lambda fleet: fleet.at(at_ms=-math.inf), "there was no fleet at that time"),
        (lambda fleet: fleet.at(at_ms=_VERY_LONG), "at_ms: a very long number is not a number"),
        (lambda fleet: fleet.at(version=_VERY_LONG), "version: the number has more than 64 bits"),
        (lambda fleet: fleet.add(_VERY_LONG), "url: a very long number is not text"),
        (lambda fleet: fleet.add(), "name at least one dataset or pattern"),
        (lambda fleet: fleet.remove(), "name at least one dataset or pattern"),
        (lambda fleet: fleet.wake(), "name at least one dataset or pattern"),
    ],
)
def test_of_a_fleet(tmp_path: Path, call: Callable[[lithify.Fleet], Any], says: str) -> None:
    fleet = lithify.Fleet(tmp_path / "fleet")
    before = fleet.init()
    with pytest.raises(lithify.Refused, match=says):
        call(fleet)
    assert fleet.catalog().catalog == before


def test_the_newest_catalog_is_that_of_the_end_of_time(tmp_path: Path) -> None:
    fleet = lithify.Fleet(tmp_path / "fleet")
    fleet.init()
    assert fleet.at(at_ms=math.inf) == fleet.catalog()


def test_of_a_group(tmp_path: Path) -> None:
    group = lithify.Group(tmp_path / "group")
    group.init("eu")
    with pytest.raises(lithify.Refused, match="name: 5 is not text"):
        group.join(5, {0: 1})  # type: ignore[arg-type]
    with pytest.raises(lithify.Refused, match="is not a mapping of partitions to offsets"):
        group.join("reader", [1])  # type: ignore[arg-type]
    with pytest.raises(lithify.Refused, match="name: 5 is not text"):
        group.leave(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [lithify.open, lithify.Service, lithify.Fleet, lithify.Group])
def test_a_place_is_text_or_a_path_and_settings_are_what_they_are(
    tmp_path: Path, make: Callable[..., Any]
) -> None:
    for place in (5, None, b"x", [5]):
        with pytest.raises(lithify.Refused, match="is not text"):
            make(place)
    for url in ("a\0b", "\ud800"):
        with pytest.raises(lithify.Refused, match="is not a URL or path"):
            make(url)
        with pytest.raises(lithify.Refused, match="is not a URL or path"):
            make(tmp_path, settings=url)
    with pytest.raises(lithify.Refused, match="settings: 5 is not text"):
        make(tmp_path, settings=5)
    with pytest.raises(lithify.Refused, match="settings: 5 is not text"):
        make(tmp_path, settings={5: 1})
    with pytest.raises(lithify.Refused, match="settings: spark: 5 is not text"):
        make(tmp_path, settings={"spark": {5: 1}})


def test_a_path_is_a_place(path: Path) -> None:
    with lithify.open(path, engine=InlineEngine()) as db:
        assert len(db.plan(full=True)) == 1
    fleet = lithify.Fleet(path.parent / "fleet")
    fleet.init()
    (rule,) = fleet.add(path).rules
    assert rule.pattern == str(path)
    fleet.wake(path)
    assert fleet.remove(path).rules == ()


def test_a_service_of_one_place_may_be_given_it_alone(path: Path) -> None:
    for place in (path, str(path), [path]):
        with lithify.Service(place, engine=InlineEngine()) as service:
            assert service._urls == [str(path)]


def test_a_number_is_what_can_be_one() -> None:
    class Index:
        def __index__(self) -> int:
            return 5

    assert arguments.number("n", Index()) == 5
    assert arguments.texts("ids", iter(["a"])) == ["a"]


@pytest.mark.parametrize("seconds", [np.int16(100), np.int32(10_000_000), np.float32(2.5), Decimal("1.5"), 3])
def test_numbers_of_every_kind_are_seconds(seconds: Any) -> None:
    assert arguments.milliseconds("s", seconds) == round(float(seconds) * 1000)


def test_options_may_come_one_by_one(path: Path) -> None:
    with lithify.open(path, engine=InlineEngine()) as db:
        with pytest.raises(lithify.Refused, match="7 is not a source"):
            db.submit(run=(number for number in [7]))
        assert db.wait([], timeout_s=-1) == db.wait([], timeout_s=math.inf) == []


def test_a_refusal_does_not_show_what_may_be_secret(path: Path) -> None:
    settings: Any = [("store_options.aws_secret_access_key", "hunter2")]
    with pytest.raises(lithify.Refused, match="settings: a list is not text") as error:
        lithify.open(path, settings=settings)
    assert "hunter2" not in str(error.value)


def test_a_rule_does_not_answer_for_the_settings_of_who_adds_it(tmp_path: Path) -> None:
    fleet = lithify.Fleet(tmp_path / "fleet", settings={"slatedb.scheduler_options.foo": "1"})
    fleet.init()
    (rule,) = fleet.add("/data/*", settings={"slatedb.block_size": "8192"}).rules
    assert rule.settings == {"slatedb.block_size": "8192"}
    with pytest.raises(lithify.Refused, match="foo"):
        fleet.add("/more/*", settings={"slatedb.scheduler_options.foo": "1"})
