"""The dashboard over HTTP: events, many of them, clients that are slow or silent, and beside a service."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import lithify
from lithify.api.client import settled
from lithify.api.fleets import WatchedFleet
from lithify.base.clock import SystemClock
from lithify.cli.serving import served_beside
from lithify.fleet.fleet_mirror import SharedFleet
from lithify.store import urls
from lithify.store.resilience.waiting import WaitPolicy
from lithify.web import app, guard, serving
from lithify.web.guard import Guard
from tests.web.dashboards import TOKEN, page_of, write_database


@pytest.fixture
def database(tmp_path: Path) -> str:
    return write_database(tmp_path / "db")


@contextmanager
def served(*urls: str, fleet: str | None = None) -> Iterator[str]:
    """Served on a free port; where."""
    with serving.served(list(urls), fleet, settled({"web.port": 0})) as where:
        yield where


def get(where: str, path: str) -> Any:
    """What is answered there."""
    with urllib.request.urlopen(where.rstrip("/") + path, timeout=20) as answer:
        return answer.read().decode()


def begin(where: str, path: str) -> socket.socket:
    """A connection that has asked for a path."""
    parts = urlsplit(where)
    connection = socket.create_connection((parts.hostname, parts.port), timeout=20)
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
    return connection


def status_of(connection: socket.socket) -> int:
    """The status that is answered."""
    return int(connection.recv(4096).split(b" ", 2)[1])


def test_pages_and_files_are_served(database: str) -> None:
    with served(database) as where:
        assert database in get(where, "/")
        assert "EventSource" in get(where, "/static/vendor/sse.min.js")
        assert json.loads(get(where, f"/api{page_of(database, 'status')}"))["url"].endswith(database)


def test_a_page_is_told_when_what_it_shows_has_changed(database: str) -> None:
    with served(database) as where:
        get(where, page_of(database, "running"))
        with begin(where, f"/events?of={page_of(database, 'running')}") as connection:
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            assert answer.headers["content-type"].startswith("text/event-stream")

            def next_version() -> str:
                while not (line := answer.readline()).startswith(b"data:"):
                    assert line, "it goes on"
                return line.decode()

            first = next_version()
            with lithify.open(database) as opened:
                opened.submit(full=True)
            assert next_version() != first


def test_so_many_streams_and_no_more(database: str) -> None:
    """200 pages want to be kept up to date: some are, the others are told no; pages are still served. When
    they go, others have their places."""
    with served(database) as where, ExitStack() as stack:
        many = [stack.enter_context(begin(where, "/events?of=/")) for _ in range(200)]
        found = [status_of(connection) for connection in many]
        assert (found.count(200), found.count(503)) == (app.MAX_STREAMS, 200 - app.MAX_STREAMS)
        assert database in get(where, "/")
        for connection in many:
            connection.close()
        left = 50
        while (status := _asked(where)) == 503 and left:
            left -= 1
            threading.Event().wait(0.1)
        assert status == 200


def _asked(where: str) -> int:
    with begin(where, "/events?of=/") as connection:
        return status_of(connection)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: local"], ids=["nothing", "half of it"])
def test_those_who_say_nothing_keep_nobody_from_being_answered(database: str, said: bytes) -> None:
    with served(database) as where, ExitStack() as stack:
        parts = urlsplit(where)
        for _ in range(serving.MAX_CONNECTIONS + 100):
            silent = socket.create_connection((parts.hostname, parts.port), timeout=20)
            stack.enter_context(silent).sendall(said)
        for _ in range(3):
            assert get(where, "/healthz") == "ok\n"
            assert database in get(where, "/")


def test_more_requests_than_are_answered_at_once_are_told_so_and_health_is_still_told() -> None:
    begun, held = threading.Semaphore(0), threading.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        begun.release()
        await asyncio.to_thread(held.wait, 20)
        await serving._answer(send, 200, b"done")

    with pytest.MonkeyPatch.context() as few, ExitStack() as stack:
        few.setattr(serving, "MAX_REQUESTS", 3)
        where = stack.enter_context(serving.serving(lambda: slow))  # type: ignore[arg-type,return-value]
        many = [stack.enter_context(begin(where, "/")) for _ in range(3)]
        for _ in many:
            assert begun.acquire(timeout=20)
        assert status_of(stack.enter_context(begin(where, "/"))) == 503
        assert get(where, "/healthz") == "ok\n"
        held.set()
        assert [status_of(connection) for connection in many] == [200, 200, 200]


def test_who_says_nothing_or_half_of_it_is_dropped(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEADERS_S", 0.2)
    with served(database) as where:
        parts = urlsplit(where)
        for said in (b"", b"GET / HTTP/1.1\r\nHost: local"):
            with socket.create_connection((parts.hostname, parts.port), timeout=20) as connection:
                connection.sendall(said)
                assert connection.recv(100) == b"", "closed"


def test_who_takes_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "SEND_S", 0.05)

    async def page(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def stuck(message: Any) -> None:
        await asyncio.Event().wait()

    async def nothing() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
    }
    with pytest.raises(TimeoutError):
        asyncio.run(Guard(page, "", [])(scope, nothing, stuck))


def test_a_port_that_is_taken_is_refused(database: str) -> None:
    with served(database) as where:
        again = serving.served([database], None, settled({"web.port": urlsplit(where).port or 0}))
        with pytest.raises(lithify.Refused, match=r"cannot listen on [\d.:]+: Address already in use; give"):
            again.__enter__()


def test_it_ends_while_pages_are_open(database: str) -> None:
    with served(database) as where:
        connection = begin(where, "/events?of=/")
        assert status_of(connection) == 200
    while connection.recv(4096):
        pass
    connection.close()


def test_a_service_serves_it_beside_its_work(database: str) -> None:
    """`lithify run --web-port` and `lithify fleet run --web-port`."""
    with served_beside([database], None, settled({"web.port": 0})) as where:
        assert database in get(where, "/")
    with served_beside([database], None, settled(None)) as where:
        assert where is None


def test_a_dataset_may_be_called_fleet(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = lithify.Fleet(str(tmp_path / "of-all"))
    fleet.init()
    monkeypatch.chdir(tmp_path)
    Path(database).rename("fleet")
    with served("fleet", fleet=fleet.url) as where:
        assert "No process serves this fleet" in get(where, "/fleet")
        assert json.loads(get(where, f"/api{page_of('fleet', 'status')}"))["url"].endswith("fleet")


def test_no_rule_of_a_fleet_makes_the_dashboard_wait_longer(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = lithify.Fleet(str(tmp_path / "fleet"))
    fleet.init()
    fleet.add(str(Path(database).parent / "*"), settings={"service.store_wait": "5m"})
    waits: list[float] = []

    def open_store(url: str, options: Any, waiting: WaitPolicy) -> Any:
        waits.append(waiting.max_s)
        return open_any(url, options, waiting)

    open_any = urls.open_store
    for module in ("slatedb.kind", "discovery"):
        monkeypatch.setattr(f"lithify.datasets.{module}.open_store", open_store)
    with served(fleet=fleet.url) as where:
        assert database in get(where, "/")
        assert json.loads(get(where, f"/api{page_of(database, 'status')}"))["url"].endswith("db")
    watched = WatchedFleet(fleet.url, SharedFleet(SystemClock()))
    watched.shared.saw_datasets({database: fleet.catalog().catalog.rules[0]}, {})
    watched.watched(database)
    assert len(waits) >= 3
    assert set(waits) == {2.0}


def test_where_it_is_served_and_to_whom(database: str) -> None:
    """By its settings: `web.host`, `web.port`, `web.names`, `web.token`."""
    config = settled(
        {"web.host": "::1", "web.port": 0, "web.names": "a.example, b.example", "web.token": TOKEN}
    )
    with served_beside([database], None, config) as where:
        assert where.startswith("http://[::1]:")
        for host, token, status in (
            ("b.example", TOKEN, 200),
            ("b.example", "x", 401),
            ("c.example", TOKEN, 421),
        ):
            parts = urlsplit(where)
            connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=20)
            headers = {"host": host, "authorization": f"Bearer {token}"}
            connection.request("GET", "/api/datasets", headers=headers)
            assert connection.getresponse().status == status
            connection.close()
