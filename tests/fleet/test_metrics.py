"""What a fleet tells Prometheus: the numbers of `fleet status`, and no more series for more datasets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from lithify.base import events
from lithify.fleet.catalog import changes
from lithify.fleet.catalog.model import DatasetRule
from lithify.fleet.members import FleetRole
from lithify.fleet.metrics import COLD_AFTER_S, MAX_HOT, FleetMetrics
from lithify.fleet.status import QueueStatus, fleet_status
from lithify.fleet.view import queue_status_document
from lithify.observe.metrics import Metrics
from lithify.planning.fleet.labels import MOST_NAMED
from tests.fleet.playing import Play, play, url_of

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"\blithify_(?:queue|fleet)_\w+")


@pytest.fixture
def world() -> Iterator[Play]:
    with play() as made:
        yield made


def metrics_of(world: Play) -> FleetMetrics:
    """Of one process that keeps and works."""
    metrics = FleetMetrics(world.clock, Metrics(world.clock, coordinates=False), FleetRole)
    world.says = metrics.says
    return metrics


def value(metrics: FleetMetrics, name: str, tenant: str | None = "") -> float | None:
    labels = {"queue": "default"} if tenant is None else {"queue": "default", "tenant": tenant}
    return metrics.registry.get_sample_value(f"lithify_queue_{name}", labels)


def series(registry: CollectorRegistry) -> int:
    return sum(len(family.samples) for family in registry.collect())


def status_of(world: Play) -> QueueStatus:
    return fleet_status(world.files, world.clock.now_ms()).queue("default")


def tenants(world: Play, **of: str) -> None:
    """Datasets by name, with their tenants."""
    rules = [DatasetRule(url_of(name), tenant=tenant) for name, tenant in of.items()]
    world.change(lambda catalog: changes.add_rules(catalog, rules))
    for name in of:
        world.dataset(name, 5)


def test_queues_and_tenants_as_status_shows_them(world: Play) -> None:
    tenants(world, a="red", b="red", c="blue", d="blue")
    metrics = metrics_of(world)
    world.coordinator()
    worker = world.worker(slots=1, stepped=True)
    world.run(25)
    status = status_of(world)
    assert (status.running, status.slots, status.workers) == (1, 1, 1)
    assert len(status.hints) == 1
    assert status.waiting == 2
    assert set(status.tenants) == {"red", "blue"}
    for tenant, amounts in status.tenants.items():
        assert value(metrics, "running", tenant) in (amounts.running, None)
        assert value(metrics, "waiting", tenant) == amounts.waiting
        assert value(metrics, "waiting_bytes", tenant) == amounts.waiting_bytes
        assert value(metrics, "queued", tenant) == amounts.queued
        assert value(metrics, "backlog_seconds", tenant) == amounts.backlog_ms / 1000
        assert value(metrics, "wait_seconds_count", tenant) == amounts.waits.count
    assert value(metrics, "slots", None) == value(metrics, "workers", None) == 1
    assert metrics.registry.get_sample_value("lithify_fleet_members", {"role": "coordinator"}) == 1
    assert value(metrics, "waiting") == 0, "what an autoscaler asks for is there from the start"
    oldest_ms = status.total.oldest_ms
    assert oldest_ms is not None
    assert oldest_ms >= 10_000
    assert status.total.waits.count == 1
    world.engines[worker.name].run_all()
    world.run(60)
    world.engines[worker.name].run_all()


def test_what_waited_long_is_counted_where_it_belongs(world: Play) -> None:
    tenants(world, a="red")
    world.coordinator()
    world.run(100)
    world.worker()
    world.until(lambda: world.texts() == {"a": 1}, 60)
    world.run(20)
    document = queue_status_document(status_of(world), world.clock.now_ms())
    waited = document["waited"]
    assert waited["claimed"] == 1
    assert 100_000 <= waited["total_ms"] <= 130_000
    assert waited["p50_ms_at_most"] == 300_000
    assert document["tenants"][0]["waited"] == waited


def test_what_is_given_back_and_claimed_again_has_waited_once(world: Play) -> None:
    tenants(world, a="red")
    world.coordinator()
    worker = world.worker(stepped=True)
    world.until(lambda: world.seen(events.Claimed)[url_of("a")] == 1, 30)
    world.workers.remove(worker)
    world.worker()
    world.until(lambda: world.texts() == {"a": 1}, 300)
    world.run(20)
    assert world.seen(events.Claimed)[url_of("a")] == 2
    assert status_of(world).total.waits.count == 1


def test_a_worker_learns_its_pace(world: Play) -> None:
    tenants(world, a="red")
    world.dataset("b", 2)
    metrics = metrics_of(world)
    world.coordinator()
    worker = world.worker(stepped=True)
    world.until(lambda: world.seen(events.Claimed)[url_of("a")] == 1, 30)
    assert not value(metrics, "slot_bytes_per_second", None)
    world.run(20)
    world.engines[worker.name].run_all()
    world.run(30)
    pace = value(metrics, "slot_bytes_per_second", None)
    assert pace, "of what ran"
    assert pace < 1 << 20, "16 MiB in 20 s and more"
    world.workers.remove(worker)
    world.dataset("b", 3)
    world.files.wakes.wake(url_of("b"))
    world.run(15)
    assert status_of(world).total.backlog_ms == pytest.approx(((16 << 20) + 50) * 1000 / pace, rel=0.1)


def test_series_do_not_grow_with_datasets_or_tenants(world: Play) -> None:
    metrics = metrics_of(world)
    rules = [DatasetRule(url_of(f"d{n}"), tenant=f"t{n}") for n in range(3 * MOST_NAMED)]
    world.change(lambda catalog: changes.add_rules(catalog, rules))
    for n in range(3 * MOST_NAMED):
        world.dataset(f"d{n}", 5)
    world.coordinator()
    world.run(15)
    assert len(status_of(world).tenants) == MOST_NAMED + 1
    assert status_of(world).waiting == 3 * MOST_NAMED
    assert status_of(world).tenants[None].waiting == 2 * MOST_NAMED
    assert series(metrics.registry) <= MOST_NAMED * 30 + 100


def test_a_dataset_has_series_while_it_is_hot(world: Play) -> None:
    metrics = metrics_of(world)
    empty = series(metrics.registry)
    for n in range(10 * MAX_HOT):
        metrics(events.Committed(f"texts:///data/d{n}", "c"))
    assert series(metrics.registry) <= empty + 1 + 5 * MAX_HOT
    counted = metrics.registry.get_sample_value("lithify_fleet_events_total", {"event": "Committed"})
    assert counted == 10 * MAX_HOT, "all of them, whether they have series or not"
    world.clock.advance_s(COLD_AFTER_S + 1)
    metrics(events.Committed("texts:///data/new", "c"))
    assert series(metrics.registry) <= empty + 1 + 5
    committed = {"dataset": "texts:///data/new"}
    assert metrics.registry.get_sample_value("lithify_committed_total", committed) == 1


def names_of(registry: CollectorRegistry) -> set[str]:
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    return {
        family.name + suffix
        for family in registry.collect()
        for suffix in suffixes.get(family.type, ("",))
        if family.name.startswith(("lithify_queue_", "lithify_fleet_"))
    }


def test_dashboard_and_documents_have_every_metric_and_no_other(world: Play) -> None:
    names = names_of(metrics_of(world).registry)
    panels = json.loads((ROOT / "dashboards" / "lithify-fleet.json").read_text())
    asked = [target["expr"] for panel in panels["panels"] for target in panel.get("targets", ())]
    asked += [v["query"]["query"] for v in panels["templating"]["list"] if v["type"] == "query"]
    shown = {name for text in asked for name in NAME.findall(text)}
    assert shown <= names
    assert names - shown == {"lithify_queue_wait_seconds_sum"}
    told = (ROOT / "docs" / "fleet.md").read_text().replace("`…_", "`lithify_queue_")
    series = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in names}
    assert set(NAME.findall(told)) == series


def test_who_finishes_no_round_is_not_ready(world: Play) -> None:
    metrics = FleetMetrics(world.clock, Metrics(world.clock, coordinates=False), [FleetRole.COORDINATOR])
    assert metrics.not_looked_at(60) == ["the datasets of this coordinator"]
    metrics.finished_round(FleetRole.COORDINATOR)
    assert metrics.not_looked_at(60) == []
    world.clock.advance_s(61)
    assert metrics.not_looked_at(60) == ["the datasets of this coordinator"]
