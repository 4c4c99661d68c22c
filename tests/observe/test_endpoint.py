"""What a supervisor learns over HTTP."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from lithify.observe import endpoint
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
    assert ask(metrics, "/readyz") == ("503 Service Unavailable", f"not polled: {OTHER}\n")
    metrics.looked_at(OTHER)
    assert ask(metrics, "/readyz") == ("200 OK", "ok\n")
    clock.advance_s(50)
    metrics.looked_at(OTHER)
    clock.advance_s(20)
    assert ask(metrics, "/readyz") == ("503 Service Unavailable", f"not polled: {ONE}\n")
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


# As a server


@contextmanager
def serving(metrics: Metrics) -> Iterator[int]:
    """The port of an endpoint; logging says where it is."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    with endpoint.served(metrics, "127.0.0.1", port):
        yield port


def send(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request)
        answer = b""
        with suppress(ConnectionError):
            while more := connection.recv(65536):
                answer += more
    return answer


def test_those_who_say_nothing_keep_nobody_from_being_answered(metrics: Metrics) -> None:
    before = threading.active_count()
    with serving(metrics) as port, ExitStack() as stack:
        for _ in range(endpoint.MAX_CONNECTIONS * 4):
            silent = socket.create_connection(("127.0.0.1", port), timeout=20)
            stack.enter_context(silent).sendall(b"GET /met")
        for path in (b"/healthz", b"/metrics"):
            assert send(port, b"GET " + path + b" HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.0 200 OK")
        while threading.active_count() > before + endpoint.MAX_CONNECTIONS + 1:
            threading.Event().wait(0.02)  # those that were told to go are about to


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\xff\xfe\r\n\r\n", b"400"),
        (b"GET / HTTP/9.9\r\n\r\n", b"505"),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 200 + b"\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", b"431"),
        (b"GET /%00%ff%zz HTTP/1.1\r\n\r\n", b"200"),
        (b"GET /metrics?name[]=%ff&name[]=\xff HTTP/1.1\r\n\r\n", b"200"),
        (b"GET /metrics?" + b"a=b&" * 5_000 + b" HTTP/1.1\r\n\r\n", b"200"),
        (b"GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text;version=x;q=\xff\r\n\r\n", b"200"),
        (b"GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text; version=1.0.0;;=\r\n\r\n", b"200"),
        (b"GET /metrics HTTP/1.1\r\naccept-encoding: \xff;q=z\r\n\r\n", b"200"),
        (b"GET /metrics HTTP/1.1\r\ncontent-length: x\r\n\r\n", b"200"),
        (b"POST /metrics HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello", b"405"),
        (b"BREW / HTTP/1.1\r\n\r\n", b"405"),
    ],
    ids=lambda value: value[:40].decode("latin-1"),
)
def test_what_is_malformed_is_answered(
    metrics: Metrics, request_bytes: bytes, status: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(metrics) as port:
        assert send(port, request_bytes).split(b" ")[1] == status
        with socket.create_connection(("127.0.0.1", port), timeout=20):
            pass  # it goes before it has said anything
        assert send(port, b"GET /healthz HTTP/1.1\r\n\r\n").endswith(b"ok\n")
    assert capfd.readouterr().err == ""
