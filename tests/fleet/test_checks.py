"""What `lithify fleet doctor` finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from lithify.base.errors import LithifyError, StoreError
from lithify.fleet.catalog import changes
from lithify.fleet.catalog.model import DatasetRule, Queue
from lithify.fleet.checks import check_fleet
from lithify.fleet.members import Amounts, FleetMember, FleetRole, Load
from lithify.fleet.status import fleet_status
from lithify.planning.fleet.task_offers import ClaimOffer
from lithify.protocol.finding import Finding, Severity
from tests.fleet.worlds import World

COORDINATOR = FleetMember("coordinator-1", FleetRole.COORDINATOR, "host", "0.1.0", 2)
WORKER = FleetMember("worker-1", FleetRole.WORKER, "host", "0.1.0", 2, load={"Q0": Load(4)})


@pytest.fixture
def world() -> World:
    """A sound fleet with one dataset."""
    made = World()
    made.init()
    made.files.catalog.update(lambda catalog: changes.add_rules(catalog, [DatasetRule("s3://b/*")]))
    made.files.members.beat(COORDINATOR)
    made.files.members.beat(WORKER)
    return made


def found(world: World, *urls: str, problems: Mapping[str, LithifyError] | None = None) -> list[Finding]:
    """What is not well."""
    status = fleet_status(world.files, world.clock.now_ms())
    catalog = status.catalog.catalog
    datasets = {url: rule for url in urls or ["s3://b/x"] if (rule := catalog.rule_for(url)) is not None}
    findings = check_fleet(status, datasets, problems or {})
    return [finding for finding in findings if finding.severity is not Severity.OK]


def test_a_sound_fleet_has_no_findings(world: World) -> None:
    assert found(world) == []


def test_where_nobody_watches(world: World) -> None:
    world.files.members.leave(COORDINATOR.name)
    (finding,) = found(world)
    assert finding.severity is Severity.PROBLEM
    assert "no coordinator watches the 1 datasets" in finding.says


def test_who_is_silent_and_of_another_version_and_behind(world: World) -> None:
    world.clock.advance_s(40)
    world.files.members.beat(replace(COORDINATOR, name="coordinator-2", version="0.2.0"))
    world.files.members.beat(replace(WORKER, catalog=1))
    says = [finding.says for finding in found(world)]
    assert "coordinator-1 has been silent for 40 s" in says[0]
    assert "different versions: 0.1.0 (1), 0.2.0 (1)" in says[1]
    assert "worker-1 works with an older catalog than 2" in says[2]


def test_a_queue_nobody_serves(world: World) -> None:
    queue = Queue("small", "Q1", 1_000)
    world.files.catalog.update(lambda catalog: changes.create_queue(catalog, queue))
    world.files.members.beat(replace(COORDINATOR, catalog=3))
    world.files.members.beat(replace(WORKER, catalog=3))
    assert found(world) == []
    world.files.boards.write("Q1", COORDINATOR.name, [ClaimOffer("s3://b/x", "01", 3, 0.5, 1, 1)])
    (finding,) = found(world)
    assert finding.severity is Severity.PROBLEM
    assert "no worker serves queue small, and 1 wait in it" in finding.says


def test_a_paused_queue_with_work(world: World) -> None:
    world.files.catalog.update(lambda catalog: changes.pause_queue(catalog, "Q0"))
    world.files.members.beat(
        replace(COORDINATOR, catalog=3, load={"Q0": Load(tenants={None: Amounts(waiting=7)})})
    )
    world.files.members.beat(replace(WORKER, catalog=3))
    (finding,) = found(world)
    assert "queue default is paused, and 7 wait in it" in finding.says


def test_rules_that_name_nothing_the_same_or_cannot_be_looked_up(world: World) -> None:
    rules = [DatasetRule("s3://b/x*"), DatasetRule("s3://c/*"), DatasetRule("s3://d/*")]
    world.files.catalog.update(lambda catalog: changes.add_rules(catalog, rules))
    world.files.members.beat(replace(COORDINATOR, catalog=3))
    world.files.members.beat(replace(WORKER, catalog=3))
    says = [f.says for f in found(world, "s3://b/xy", problems={"s3://d/*": StoreError("it is forbidden")})]
    assert says == [
        "s3://d/* cannot be resolved: it is forbidden",
        "no dataset uses the rule s3://b/*",
        "no dataset uses the rule s3://c/*",
        "s3://b/x* and s3://b/* both match s3://b/xy; the first is more specific and applies",
    ]


def test_a_clock_that_is_behind_the_stores(world: World) -> None:
    status = replace(fleet_status(world.files, 0), at_ms=world.clock.now_ms() - 3_600_000)
    catalog = status.catalog.catalog
    findings = list(check_fleet(status, {"s3://b/x": catalog.rules[0]}, {}))
    assert [f.check for f in findings if f.severity is Severity.WARNING] == ["clock"]


def test_a_members_clock_that_is_off(world: World) -> None:
    now_ms = world.clock.now_ms()
    world.files.members.beat(replace(WORKER, at_ms=now_ms - 3_600_000))
    world.files.members.beat(replace(COORDINATOR, at_ms=now_ms + 30_000))
    (finding,) = found(world)
    assert finding.severity is Severity.WARNING
    assert finding.says == "the clock of host is 3600 s behind the store's"


def test_datasets_that_are_left_alone(world: World) -> None:
    troubled = {"s3://b/x": "index: is junk"}
    world.files.members.beat(replace(COORDINATOR, quarantined=3, troubled=troubled))
    first, more = [finding.says for finding in found(world)]
    assert first == "s3://b/x is quarantined: index: is junk"
    assert more == "2 more datasets of coordinator-1 are quarantined"


def test_a_tenant_without_datasets(world: World) -> None:
    rule = DatasetRule("s3://b/*", tenant="*")
    world.files.catalog.update(lambda catalog: changes.add_rules(catalog, [rule]))
    world.files.catalog.update(lambda catalog: changes.set_tenant(catalog, "x", weight=2))
    world.files.catalog.update(lambda catalog: changes.set_tenant(catalog, "y", weight=2))
    for member in (COORDINATOR, WORKER):
        world.files.members.beat(replace(member, catalog=5))
    assert [f.says for f in found(world)] == ["tenant y has a weight or a limit, but no dataset"]
