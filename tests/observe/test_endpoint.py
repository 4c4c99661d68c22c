"""What a supervisor learns over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from lithify.observe.endpoint import with_health
from lithify.observe.metrics import FAILURES, Metrics
from lithify.testing import ManualClock

ONE, OTHER = "s3://b/one", "s3://b/other"


def ask(metrics: Metrics, path: str, limit_s: float = 60.0) -> tuple[str, str]:
    """The status, and the text."""
    statuses = list[str]()

    def start_response(status: str, _headers: Any) -> None:
        statuses.append(status)

    def app(_environ: Any, start: Any) -> list[bytes]:
        start("200 OK", [])
        return [b"metrics"]

    body = b"".join(with_health(app, metrics, limit_s)({"PATH_INFO": path}, start_response))
    return statuses[0], body.decode()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def metrics(clock: ManualClock) -> Metrics:
    made = Metrics(clock, coordinates=True)
    for url in (ONE, OTHER):
        made.serves(url)
    return made


def test_ready_is_who_looks_at_every_dataset(metrics: Metrics, clock: ManualClock) -> None:
    assert ask(metrics, "/readyz")[0].startswith("503")
    metrics.looked_at(ONE)
    assert ask(metrics, "/readyz") == ("503 Service Unavailable", f"not looked at: {OTHER}\n")
    metrics.looked_at(OTHER)
    assert ask(metrics, "/readyz") == ("200 OK", "ok\n")
    clock.advance_s(50)
    metrics.looked_at(OTHER)
    clock.advance_s(20)
    assert ask(metrics, "/readyz") == ("503 Service Unavailable", f"not looked at: {ONE}\n")
    assert ask(metrics, "/readyz", 100)[0] == "200 OK"


def test_healthy_is_who_answers(metrics: Metrics) -> None:
    assert ask(metrics, "/healthz") == ("200 OK", "ok\n")
    for path in ("/metrics", "/", "/anything"):
        assert ask(metrics, path) == ("200 OK", "metrics")


def test_counters_begin_at_zero(metrics: Metrics) -> None:
    found = metrics.registry.get_sample_value
    for name in ("submitted", "committed", "bytes_moved", "bytes_read", "jobs_claimed", "jobs_reclaimed"):
        assert found(f"lithify_{name}_total", {"dataset": ONE}) == 0, name
    for kind in FAILURES:
        assert found("lithify_failures_total", {"dataset": ONE, "kind": kind}) == 0
    assert found("lithify_last_look_timestamp_seconds", {"dataset": ONE}) is None


def test_what_runs_is_told(metrics: Metrics, clock: ManualClock) -> None:
    (info,) = [family for family in metrics.registry.collect() if family.name == "lithify_build_info"]
    (sample,) = info.samples
    assert (sample.value, set(sample.labels)) == (1, {"version", "python"})
    metrics.looked_at(ONE)
    looked = metrics.registry.get_sample_value("lithify_last_look_timestamp_seconds", {"dataset": ONE})
    assert looked == clock.now_ms() / 1000
