"""A kind of dataset that nobody but its own folder knows of works through every command and service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lithify.base.clock import SystemClock
from lithify.base.ids import RandomIds
from lithify.config.model import Config
from lithify.coordination.leadership import Term
from lithify.datasets import registry
from lithify.mirror.metered_reads import metered
from lithify.observe.metrics import Metrics
from lithify.service.coordinator import Coordinator
from lithify.service.worker import Worker
from lithify.store.resilience.waiting import WaitPolicy
from lithify.testing.engine import InlineEngine
from tests.cli.invoking import invoke, invoke_json
from tests.fuzz.running import run, without_waiting
from tests.kinds.texts import KIND, TextDataset

HERE = "tests.kinds.texts"
TEXTS = registry.Registered(
    "folder of texts", "folders of texts", f"{HERE}:KIND", f"{HERE}:OPTIONS", f"{HERE}:TextSettings"
)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_BY_SCHEME", dict(registry._BY_SCHEME))
    registry.register("texts", TEXTS)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"texts://{tmp_path}/texts"


@pytest.fixture
def dataset(url: str) -> TextDataset:
    """Five texts."""
    found = KIND.open(url, Config(), SystemClock(), RandomIds(), lambda store: store, WaitPolicy())
    for n in range(5):
        found.add(b"text %d\n" % n)
    return found


def read(dataset: TextDataset) -> bytes:
    """What the program does that reads texts."""
    return b"".join(dataset.store.get(name) for name, _ in dataset.snapshot())


@pytest.fixture
def quick() -> Iterator[None]:
    """Commands start no Spark."""
    with without_waiting():
        yield


def test_plan_and_compact(dataset: TextDataset, url: str, quick: None) -> None:
    before = read(dataset)
    assert invoke_json("plan", url) == {"proposals": 1}
    assert invoke_json("plan", "--set", "texts.min_files=6", url) == {"proposals": 0}
    assert "5 texts" in invoke("plan", url).stdout
    assert invoke_json("compact", url) == {"before": 5, "after": 1}
    assert len(dataset.snapshot()) == 1
    assert read(dataset) == before
    assert "Nothing to compact" in invoke("compact", url).stdout
    assert invoke_json("gc", "--delete", url) == {"deleted": 5}
    assert read(dataset) == before


def test_submit_status_and_doctor(dataset: TextDataset, url: str, quick: None) -> None:
    dataset.take_epoch(lambda taking: None)
    (compaction_id,) = invoke_json("submit", "--full", url)["submitted"]
    found = invoke_json("status", url)
    assert (found["texts"], found["coordinator"]["presence"]) == (5, "stopped")
    assert [c["id"] for c in found["compactions"]] == [compaction_id]
    assert compaction_id[-6:] in invoke("status", url).stdout
    findings = {finding["check"]: finding for finding in json.loads(invoke("doctor", "--json", url).stdout)}
    assert findings["texts"]["says"] == "there are 5"
    assert findings["coordinator"]["severity"] == "problem"
    assert findings["delete"]["severity"] == "ok"
    assert invoke_json("cancel", url, compaction_id)["cancelled"] == [compaction_id]
    assert len(invoke_json("retry", url, compaction_id)["submitted"]) == 1


def test_services(dataset: TextDataset, url: str) -> None:
    before = read(dataset)
    assert run(["run", url]).exit_code == 0
    assert len(dataset.snapshot()) == 1
    assert read(dataset) == before


def test_metrics(dataset: TextDataset) -> None:
    clock = SystemClock()
    metrics = Metrics(clock, coordinates=True)
    seen = metered(dataset, metrics, clock)
    coordinator = Coordinator(seen, clock, RandomIds(), observer=metrics)
    coordinator.start(Term(dataset.take_epoch(lambda taking: None)))
    worker = Worker(seen, InlineEngine(), clock, "w", observer=metrics)
    for _ in range(4):
        coordinator.tick()
        worker.tick()
    assert len(dataset.snapshot()) == 1
    labels = {"dataset": dataset.url}
    assert metrics.registry.get_sample_value("lithify_texts", labels) == 1
    assert metrics.registry.get_sample_value("lithify_committed_total", labels) == 1


def test_options_of_other_kinds_are_refused(url: str) -> None:
    for options in (["--segment", "61"], ["--merge-operator", "a:b"]):
        refused = invoke("compact", *options, url)
        assert refused.exit_code == 2
        assert f"is a folder of texts, and {options[0]} is for SlateDB databases only" in refused.stderr
    assert "SlateDB databases only" in invoke("inspect", "manifest", url).stderr


def test_where_there_is_none(url: str) -> None:
    assert "there are no texts" in invoke("plan", url).stderr
    assert "there are no texts" in invoke("doctor", url).stdout
