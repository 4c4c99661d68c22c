"""What the metrics say after events, and after a coordinator and a worker have been at work."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from lithify.base import events
from lithify.base.clock import Clock, SystemClock
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Term
from lithify.datasets.registry import registered_for
from lithify.datasets.slatedb.command_options import OPTIONS
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.format.ledger import SlateCompaction, SlateLedger
from lithify.datasets.slatedb.model import TieredSpec
from lithify.mirror.metered_reads import metered
from lithify.observe.metrics import Metrics
from lithify.protocol.model import AssignedWorker, Compaction, CompactionState, Ledger
from lithify.protocol.proposal import Plan, Total
from lithify.service.coordinator import Coordinator
from lithify.service.worker import Worker as WorkerLoop
from lithify.store.local import LocalStore
from lithify.store.metered import MeteredStore
from lithify.testing import ManualClock
from lithify.testing.engine import InlineEngine
from tests.datasets.slatedb.trees import EMPTY, MB, Mint
from tests.judge.official import Put, open_db

DATASET = SlateDataset(LocalStore(), "db", SystemClock(), RandomIds())
URL = DATASET.url
DASHBOARD = Path(__file__).parents[2] / "dashboards" / "lithify.json"
SEED = (
    "jobs_claimed_total",
    "jobs_reclaimed_total",
    "worker_last_heartbeat_ms",
    "bytes_compacted_total",
    "running_compactions",
    "ssts_written_total",
)
"""What SlateDB's design of distributed compaction asks for, by Prometheus' rules for names."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def metrics(clock: ManualClock) -> Metrics:
    return metrics_of(clock)


def metrics_of(clock: Clock, *, coordinates: bool = True) -> Metrics:
    def other_names(url: str) -> Mapping[str, str]:
        return registered_for(url).load_options().metric_names

    return Metrics(clock, coordinates=coordinates, other_names=other_names)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def of_db(metrics: Metrics, name: str, **labels: str) -> float | None:
    return value(metrics, name, dataset=URL, **labels)


def range_finished(bytes_written: int) -> events.RangeFinished:
    return events.RangeFinished(URL, "c", 0, 100, 90, bytes_written, 2, 1 << 20, 0.5, {"rows_in": 7})


def test_the_life_of_a_compaction_on_a_worker(metrics: Metrics, clock: ManualClock) -> None:
    metrics(events.Claimed(URL, "c", "w"))
    metrics(events.Claimed(URL, "d", "w"))
    assert of_db(metrics, "slatedb_compactor_running_compactions", worker_id="w") == 2
    clock.advance_s(10)
    metrics(events.Heartbeat(URL, "c", "w", 5000))
    assert of_db(metrics, "slatedb_compactor_total_throughput_bytes_per_sec") == 500
    clock.advance_s(5)
    metrics(events.Heartbeat(URL, "c", "w", 5500))
    assert of_db(metrics, "slatedb_compactor_total_throughput_bytes_per_sec") == 100
    metrics(range_finished(40))
    metrics(range_finished(2))
    metrics(events.Compacted(URL, "c", 4))
    assert of_db(metrics, "slatedb_compactor_bytes_compacted_total", worker_id="w") == 42
    assert of_db(metrics, "slatedb_compactor_ssts_written_total", worker_id="w") == 4
    assert of_db(metrics, "slatedb_compactor_running_compactions", worker_id="w") == 1
    assert of_db(metrics, "slatedb_compactor_total_throughput_bytes_per_sec") == 0
    assert of_db(metrics, "lithify_compaction_seconds_sum") == 15
    assert of_db(metrics, "lithify_rows_total", kind="rows_in") == 14
    assert of_db(metrics, "lithify_task_cpu_seconds_total") == 1
    metrics(events.AttemptFailed(URL, "d", "disk on fire"))
    assert of_db(metrics, "slatedb_compactor_running_compactions", worker_id="w") == 0
    assert of_db(metrics, "lithify_failures_total", kind="attempt_failed") == 1


def test_events_of_what_ran_in_a_forgotten_dataset_do_not_bring_it_back(
    metrics: Metrics, clock: ManualClock
) -> None:
    metrics.serves(URL)
    metrics.looked_at(URL)
    metrics(events.Claimed(URL, "c", "w"))
    metrics(events.Moved(URL, "c", 250, 1000))
    metrics(events.WaitingForStore(URL, "s3://bucket", 5, "no answer"))
    metrics(events.HistoryRun(URL, "nothing", "held", 0, 0, 0, 1, 5, "reader", 5))
    metrics.saw_ledger(URL, Ledger(1, ()))
    metrics.forget(URL)
    metrics(events.StoreBack(URL, "s3://bucket", 7))
    metrics(events.Heartbeat(URL, "c", "w", 400))
    metrics(events.Moved(URL, "c", 500, 1000))
    metrics(events.GivenBack(URL, "c", "w", None))
    assert URL not in generate_latest(metrics.registry).decode()


def test_progress_is_counted_by_bytes_while_it_is_made(metrics: Metrics, clock: ManualClock) -> None:
    metrics(events.Claimed(URL, "c", "w"))
    clock.advance_s(10)
    metrics(events.Moved(URL, "c", 250, 1000))
    metrics(events.Heartbeat(URL, "c", "w", 400))
    assert of_db(metrics, "lithify_bytes_moved_total") == 400
    assert of_db(metrics, "lithify_running_done_bytes") == 250
    assert of_db(metrics, "lithify_running_bytes") == 1000
    assert of_db(metrics, "lithify_running_seconds_left") == 30
    metrics(events.RangeFinished(URL, "c", 0, 1000, 390, 100, 1, 1, 0.1))
    assert of_db(metrics, "lithify_bytes_moved_total") == 490, "what a heartbeat told is not counted again"
    metrics(events.Moved(URL, "c", 1000, 1000))
    assert of_db(metrics, "lithify_running_seconds_left") == 0
    metrics(events.Compacted(URL, "c", 1))
    assert of_db(metrics, "lithify_running_bytes") == 0
    assert of_db(metrics, "lithify_bytes_moved_total") == 490


@pytest.mark.parametrize(
    ("event", "name", "labels"),
    [
        (events.EpochTaken(URL, 1), "slatedb_compactor_epoch", {}),
        (events.Submitted(URL, "c", "why", 1), "lithify_submitted_total", {}),
        (events.Reclaimed(URL, "c", "w"), "slatedb_compactor_jobs_reclaimed_total", {}),
        (events.Reclaimed(URL, "c", "w"), "lithify_failures_total", {"kind": "reclaimed"}),
        (events.CompactionRefused(URL, "c", "why"), "lithify_failures_total", {"kind": "refused"}),
        (events.Failed(URL, "c", 5, "why"), "lithify_failures_total", {"kind": "given_up"}),
        (events.StoreLost(URL, "c", "why"), "lithify_failures_total", {"kind": "store_lost"}),
        (events.Lost(URL, "c", "w"), "lithify_failures_total", {"kind": "lost"}),
        (events.Committed(URL, "c"), "lithify_committed_total", {}),
        (
            events.GarbageCollected(URL, False, {"compacted": 1}, {"manifest": 1}, 5),
            "slatedb_gc_deleted_count_total",
            {"resource": "compacted"},
        ),
        (
            events.GarbageCollected(URL, True, {"compacted": 9}, {"manifest": 1}, 5),
            "slatedb_gc_version_count",
            {"resource": "manifest"},
        ),
    ],
)
def test_events_are_counted(metrics: Metrics, event: events.Event, name: str, labels: dict[str, str]) -> None:
    metrics(event)
    assert of_db(metrics, name, **labels) == 1


def test_waiting_for_a_store_is_counted_once(metrics: Metrics) -> None:
    for since_s in (5.0, 10.0):
        metrics(events.WaitingForStore(URL, "s3://b", since_s, "connection refused"))
    metrics(events.WaitingForStore(URL, "s3://other", 7.0, "503"))
    assert of_db(metrics, "lithify_store_waited_seconds_total") == 17
    for _ in ("the coordinator", "a worker"):
        metrics(events.StoreBack(URL, "s3://b", 12.0))
    assert of_db(metrics, "lithify_store_waiting") == 1
    metrics(events.StoreBack(URL, "s3://other", 7.5))
    assert of_db(metrics, "lithify_store_waited_seconds_total") == 19.5
    assert of_db(metrics, "lithify_store_waiting") == 0


def test_a_dry_run_deletes_nothing(metrics: Metrics) -> None:
    metrics(events.GarbageCollected(URL, True, {"compacted": 9}, {}, 5))
    assert of_db(metrics, "slatedb_gc_deleted_count_total", resource="compacted") is None


def test_claims_are_seen_by_whoever_coordinates(metrics: Metrics, clock: ManualClock) -> None:
    ids = RandomIds()
    spec = TieredSpec(b"", (), (1,), 1)

    def ledger(*workers: str | None) -> SlateLedger:
        owned: list[SlateCompaction] = [
            Compaction(
                ids_[n],
                spec,
                CompactionState.RUNNING if w is not None else CompactionState.SCHEDULED,
                worker=AssignedWorker(w, clock.now_ms() - 2000) if w is not None else None,
            )
            for n, w in enumerate(workers)
        ]
        return Ledger(1, tuple(owned))

    ids_ = [ids.ulid(n) for n in range(3)]
    elsewhere = metrics_of(clock, coordinates=False)
    for seen in (
        ledger("old", None, None),
        ledger("old", "w", None),
        ledger("old", "w", None),
        ledger("old", None, "w"),
        ledger("old", "v", "w"),
        ledger(None, "v", None),
    ):
        for each in (metrics, elsewhere):
            each.saw_ledger(URL, seen)
    assert of_db(metrics, "slatedb_compactor_jobs_claimed_total") == 3
    assert not of_db(elsewhere, "slatedb_compactor_jobs_claimed_total")
    assert of_db(metrics, "lithify_compactions", state="running") == 1
    assert of_db(metrics, "lithify_compactions", state="scheduled") == 2
    assert (
        of_db(metrics, "slatedb_compactor_worker_last_heartbeat_ms", worker_id="v") == clock.now_ms() - 2000
    )
    assert of_db(metrics, "lithify_heartbeat_age_seconds", worker_id="v") == 0, "its clock plays no part"
    still = ledger(None, "v", None)
    metrics.saw_ledger(URL, still)
    clock.advance_s(5)
    metrics.saw_ledger(URL, still)
    assert of_db(metrics, "lithify_heartbeat_age_seconds", worker_id="v") == 5
    metrics.saw_ledger(URL, ledger(None, "v", None))
    assert of_db(metrics, "lithify_heartbeat_age_seconds", worker_id="v") == 0
    assert of_db(metrics, "lithify_heartbeat_age_seconds", worker_id="w") is None


def test_how_a_database_stands(metrics: Metrics) -> None:
    manifest = replace(EMPTY, root=Mint().tree(3, {0: 5 * MB, 1: MB}))
    metrics.saw_backlog(URL, DATASET.backlog(manifest, 0))
    assert of_db(metrics, "lithify_l0_ssts", unit="root") == 3
    assert of_db(metrics, "lithify_l0_bytes", unit="root") == 3 * MB
    assert of_db(metrics, "lithify_sorted_runs", unit="root") == 2
    assert of_db(metrics, "lithify_size_bytes", unit="root") == 9 * MB
    assert of_db(metrics, "lithify_l0_max_ssts") == 8
    running: SlateCompaction = Compaction(
        RandomIds().ulid(1),
        TieredSpec(b"", (), (1, 0), 0),
        CompactionState.RUNNING,
        worker=AssignedWorker("w", 1),
    )
    metrics.saw_ledger(URL, Ledger(1, (running,)), DATASET.cost_bytes(running.spec, manifest))
    assert of_db(metrics, "slatedb_compactor_total_bytes_being_compacted") == 6 * MB


def test_what_the_plan_says_of_a_table(metrics: Metrics) -> None:
    for files in (5, 3):
        metrics.saw_plan(URL, Plan(totals={"awaiting": Total(2, files, 7 * MB, 10)}))
    assert of_db(metrics, "lithify_planned_units", status="awaiting") == 2
    assert of_db(metrics, "lithify_planned_files", status="awaiting") == 3
    assert of_db(metrics, "lithify_planned_bytes", status="awaiting") == 7 * MB


def test_a_coordinator_and_a_worker_at_work(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with open_db(path) as database:
        for n in range(4):
            database.write_batch([Put(b"k%02d" % k, b"%d" % n) for k in range(20)])
            database.flush()
    clock, ids = SystemClock(), RandomIds()
    metrics = metrics_of(clock)
    store = MeteredStore(LocalStore(), metrics.count_request)
    root = str(path).lstrip("/")
    dataset = metered(SlateDataset(store, root, clock, ids), metrics, clock)
    coordinator = Coordinator(dataset, clock, ids, observer=metrics)
    coordinator.start(Term(dataset.take_epoch()))
    worker = WorkerLoop(dataset, InlineEngine(), clock, "w", observer=metrics)
    for _ in range(3):
        coordinator.tick()
        worker.tick()
    url = dataset.url
    for name, least in (
        ("slatedb_compactor_jobs_claimed_total", 1),
        ("slatedb_compactor_epoch", 1),
        ("lithify_committed_total", 1),
        ("lithify_bytes_read_total", 1),
        ("lithify_compaction_seconds_count", 1),
    ):
        found = value(metrics, name, dataset=url)
        assert found is not None, name
        assert found >= least
    assert value(metrics, "slatedb_compactor_ssts_written_total", dataset=url, worker_id="w") == 1
    assert value(metrics, "lithify_l0_ssts", dataset=url, unit="root") == 0
    assert value(metrics, "lithify_store_requests_total", verb="PUT", answer="ok")
    assert value(metrics, "lithify_store_requests_total", verb="GET", answer="missing")


def names_of(metrics: Metrics) -> set[str]:
    found = set()
    for family in metrics.registry.collect():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(
            family.type, ("",)
        )
        found |= {family.name + suffix for suffix in suffixes}
    return found


def test_what_the_design_asks_for_is_there(metrics: Metrics) -> None:
    asked = {f"slatedb_compactor_{name}" for name in SEED}
    assert asked <= {f"{name}{suffix}" for name in OPTIONS.metric_names.values() for suffix in ("", "_total")}
    families = {name.removesuffix("_total") for name in names_of(metrics)}
    assert set(OPTIONS.metric_names) <= families, "every one of them has another name"


def test_only_databases_have_slatedbs_names(metrics: Metrics) -> None:
    table = "iceberg://lake/db.events"
    for url, epoch in ((URL, 3), (table, 5)):
        metrics(events.EpochTaken(url, epoch))
        metrics(events.Reclaimed(url, "c", "w"))
        assert value(metrics, "lithify_epoch", dataset=url) == epoch
        assert value(metrics, "lithify_jobs_reclaimed_total", dataset=url) == 1
    assert of_db(metrics, "slatedb_compactor_epoch") == 3
    assert of_db(metrics, "slatedb_compactor_jobs_reclaimed_total") == 1
    assert value(metrics, "slatedb_compactor_epoch", dataset=table) is None
    text = generate_latest(metrics.registry).decode()
    assert text.count("# TYPE slatedb_compactor_jobs_reclaimed_total counter") == 1
    assert f'slatedb_compactor_jobs_reclaimed_total{{dataset="{URL}"}} 1.0' in text
    assert not re.search(r"slatedb_\w+\{dataset=.iceberg", text)


def test_the_dashboard_asks_only_for_what_exists(metrics: Metrics) -> None:
    metrics.saw_backlog(URL, DATASET.backlog(EMPTY, 0))
    document = json.loads(DASHBOARD.read_text())
    targets = [t["expr"] for panel in document["panels"] for t in panel.get("targets", ())]
    targets += [v["query"]["query"] for v in document["templating"]["list"] if v["type"] == "query"]
    used = {name for expr in targets for name in re.findall(r"\b(?:lithify|slatedb)_\w+", expr)}
    assert used
    assert used <= names_of(metrics)
    own = {name for name in names_of(metrics) if name.startswith(("lithify_", "slatedb_"))}
    hidden = own - used - {"lithify_compaction_seconds_sum", "lithify_compaction_seconds_count"}
    assert hidden == set(), "the dashboard shows every metric there is"
