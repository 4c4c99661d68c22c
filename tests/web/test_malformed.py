"""Malformed requests, over real connections: each is answered by what it deserves, and none is a defect.

A status of 500, a traceback in the log, or a connection that ends without an answer where one was possible
would be defects. What a request asks for is asked without a login, with one, and of a server that needs none.
"""

from __future__ import annotations

import contextlib
import logging
import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

import lithify
from lithify.api.client import settled
from lithify.web import serving
from lithify.web.guard import MAX_BODY_BYTES, sealed
from tests.web.dashboards import TOKEN, page_of, write_database

LIMIT_S = 30.0
FORM = b"content-type: application/x-www-form-urlencoded\r\n"
JSON = b"content-type: application/json\r\n"


@dataclass
class Served:
    """A dashboard, and what it logged."""

    where: str
    database: str
    records: list[logging.LogRecord]
    token: str

    @property
    def netloc(self) -> bytes:
        return urlsplit(self.where).netloc.encode()

    def connect(self) -> socket.socket:
        parts = urlsplit(self.where)
        return socket.create_connection((parts.hostname, parts.port), LIMIT_S)

    def send(self, request: bytes) -> bytes:
        """All that is answered until the connection ends."""
        answer = b""
        with self.connect() as connection, contextlib.suppress(ConnectionError):
            connection.sendall(request)
            while b"text/event-stream" not in answer and (more := connection.recv(65536)):
                answer += more  # events go on for ever
        return answer

    def ask(
        self,
        target: bytes,
        headers: bytes = b"",
        body: bytes = b"",
        method: bytes = b"GET",
        host: bytes = b"",
    ) -> int:
        """The status of one request, which ends its connection; 0 without any."""
        request = method + b" " + target + b" HTTP/1.1\r\nhost: " + (host or self.netloc) + b"\r\n"
        needs_none = b"-length" in headers or b"-encoding" in headers or (method == b"GET" and not body)
        length = b"" if needs_none else b"content-length: %d\r\n" % len(body)
        answer = self.send(request + headers + length + b"connection: close\r\n\r\n" + body)
        return int(answer.split(b" ", 2)[1]) if answer else 0

    def defects(self) -> list[str]:
        """Tracebacks that were logged since the last call."""
        found = [
            logging.Formatter().formatException(record.exc_info) for record in self.records if record.exc_info
        ]
        self.records.clear()
        return found

    @property
    def origin(self) -> bytes:
        return b"origin: http://" + self.netloc + b"\r\n"

    @property
    def login(self) -> bytes:
        return f"authorization: Bearer {self.token}\r\n".encode() if self.token else b""


class _Keep(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture(scope="module", params=["with a token", "without"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("malformed")
    database, token = write_database(folder / "db"), TOKEN if request.param == "with a token" else ""
    fleet = lithify.Fleet(str(folder / "fleet"))
    fleet.init()
    keep = _Keep()
    logging.getLogger().addHandler(keep)
    short = pytest.MonkeyPatch()
    times = ("serving.HEADERS_S", "serving.KEEP_ALIVE_S", "guard.BODY_S")
    for name in times:
        short.setattr(f"lithify.web.{name}", 0.2)  # how long a request without an end is waited for
    short.setattr("lithify.web.app.WRONG_TOKEN_S", 0.0)
    try:
        given = {"web.port": 0} | ({"web.token": token} if token else {})
        with serving.served([database], fleet.url, settled(given)) as where:
            yield Served(where, database, keep.records, token)
    finally:
        short.undo()
        logging.getLogger().removeHandler(keep)


def check(served: Served, status: int, wanted: set[int]) -> None:
    assert (status in wanted, served.defects()) == (True, []), status


# What is asked for

GOOD = {200, 303, 307}
PATHS = [
    b"/%00",
    b"/static/%00",
    b"/static/..%2f..%2f..%2fetc/passwd",
    b"/static/../app.py",
    b"/static/" + b"x" * 5000,
    b"/static/" + b"x/" * 2000,
    b"/static/%ff%fe.js",
    b"/static//etc/passwd",
    b"/static/lithify.js%00.css",
    b"/static/%ed%a0%80",
    b"/" + b"a/" * 3000,
    b"/%",
    b"/%zz",
    b"/%2",
    b"/%ff%fe",
    b"/datasets/%ed%a0%80",
    b"/datasets/%00/plan",
    b"/datasets/../../etc",
    b"/datasets//plan",
    b"/datasets/x/plan/plan",
    b"//evil.example/",
    b"//[",
    b"/[::",
    b"/queues/%00",
    b"/queues/%ff",
    b"/queues/a%2fb",
    b"/api/%00",
    b"/api/datasets/%ff/status",
    b"/api/queues/%00",
    b"/api/queues/%ed%a0%80",
    b"/api/" + b"x/" * 3000,
    b"/events",
    b"/events?of=",
    b"/events?of=//[",
    b"/events?of=http://[::1",
    b"/events?of=http://%e2%84%80.x/",
    b"/events?of=%00",
    b"/events?of=/datasets/%2500",
    b"/events?of=/datasets/x?" + b"a=%26" * 200,
    b"/events?of=/datasets%3f" + b"a%3db%26" * 2000,
    b"/events?seen=" + b"x" * 9000 + b"&of=/nowhere",
    b"/login?to=%00%0d%0aset-cookie:x=y",
    b"/login?to=%ed%a0%80",
    b"/login?to=//evil.example",
    b"/?done=%00&done=x",
    b"/datasets?q=%ff%fe&page=1",
    b"/datasets?page=" + b"9" * 5000,
    b"/datasets?page=%c2%b2",
    b"/datasets?page=-1",
    b"/datasets?" + b"&" * 5000,
    b"/datasets?" + b"q=1&" * 3000,
    b"/datasets?;=;&&==%",
    b"/datasets?q=" + b"%41" * 5000,
    b"/api/datasets?page=0x10",
    b"*",
    b"http://localhost/",
    b"http://[::1/",
    b"/#fragment",
    b"/?#",
    b"/\\..\\..",
    b"/~{}|^`",
    b"/?q='\"<>",
]


LONG_PATH = b"/" + b"x" * 70_000


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path[:40].decode("latin-1"))
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
def test_paths(served: Served, path: bytes, is_known: bool) -> None:
    headers = served.login if is_known else b""
    check(served, served.ask(path, headers), GOOD | {400, 401, 403, 404, 414, 421})


@pytest.mark.parametrize(
    "path",
    [b"/", b"/datasets?q=\xff", b"/\xff", b"/\x00", b"/a b", b"", b"/\x7f", b"/\r", LONG_PATH],
)
def test_targets_that_are_none(served: Served, path: bytes) -> None:
    wanted = {200, 303, 404} if path in (b"/", LONG_PATH) else {400}
    check(served, served.ask(path, served.login), wanted)


@pytest.mark.parametrize(
    "method",
    [
        b"OPTIONS",
        b"TRACE",
        b"CONNECT",
        b"PUT",
        b"DELETE",
        b"PATCH",
        b"PROPFIND",
        b"X",
        b"get",
        b"HEAD",
        b"POST",
    ],
)
@pytest.mark.parametrize("target", ["/", "/login", "/healthz", "/static/lithify.js", "/api/datasets", "page"])
def test_methods(served: Served, method: bytes, target: str) -> None:
    path = page_of(served.database) if target == "page" else target
    for more in (b"", served.login, served.login + served.origin, served.login + JSON):
        status = served.ask(path.encode(), more, method=method)
        check(served, status, GOOD | {400, 401, 403, 404, 405, 501})


# What comes with it


HEADERS = [
    b"cookie: lithify-web\r\n",
    b"cookie: lithify-web=\xff\xfe\r\n",
    b"cookie: " + b"a=b; " * 2000 + b"\r\n",
    b'cookie: lithify-web="\\377\\000"; =; ;;; a=b=c; [x]={y}\r\n',
    b"cookie: lithify-web=" + b"\\" * 500 + b"\r\n",
    b"cookie: $Version=1; expires=x; path; Domain\r\n",
    b"authorization:\r\n",
    b"authorization: Bearer \xff\xfe\xed\xa0\x80\r\n",
    b"authorization: Bearer " + b"x" * 9000 + b"\r\n",
    b"authorization: Basic %%%\r\n",
    b"authorization: Bearer\tx\r\n",
    b"origin: http://[\r\n",
    b"origin: \xff\r\n",
    b"origin: null\r\n",
    b"origin: //\r\n",
    b"sec-fetch-site: \xff\r\n",
    b"content-type: \xff\r\n",
    b"content-type: multipart/form-data\r\n",
    b"range: bytes=\r\n",
    b"range: bytes=0-0,1-1,2-2" + b",3-3" * 1500 + b"\r\n",
    b"range: bytes=9-1\r\n",
    b"range: bytes=-\r\n",
    b"range: bytes=a-b\r\n",
    b"range: bytes=99999999999999999999999999-\r\n",
    b"range: bytes=" + b"9" * 5000 + b"-\r\n",
    b"range: bytes=\xb2-\xb3\r\n",
    b"range: lines=1-2\r\n",
    b"range: bytes 1-2\r\n",
    b"if-range: \xff\r\nrange: bytes=0-1\r\n",
    b"if-modified-since: yesterday\r\n",
    b"if-modified-since: Mon, 99 Foo 99999 99:99:99 GMT\r\n",
    b"if-none-match: \xff\r\n",
    b"accept-encoding: \xff;q=zz\r\n",
    b"x-forwarded-for: [::1, \xff, 999.1.1.1\r\nx-forwarded-proto: javascript\r\n",
    b"x-forwarded-proto: https, http\r\n",
    b"expect: 100-continue\r\n",
    b"upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: x\r\n",
    b"upgrade: h2c\r\nhttp2-settings: x\r\n",
    b"last-event-id: \xff\r\n",
]


@pytest.mark.parametrize("headers", HEADERS, ids=lambda header: header[:30].decode("latin-1").strip())
def test_headers(served: Served, headers: bytes) -> None:
    for path in ("/", "/static/lithify.js", "/api/datasets", page_of(served.database), "/login"):
        for more in (b"", served.login):
            status = served.ask(path.encode(), headers + more)
            check(served, status, GOOD | {100, 206, 304, 400, 401, 403, 404, 416, 417, 426, 431})


@pytest.mark.parametrize(
    "headers",
    [
        b": x\r\n",
        b"no colon\r\n",
        b"a b: c\r\n",
        b"a\x00b: c\r\n",
        b"a: \x00\r\n",
        b" folded: x\r\n",
        b"content-length: x\r\n",
        b"content-length: -1\r\n",
        b"content-length: 1, 2\r\n",
        b"content-length: 1\r\ncontent-length: 2\r\n",
        b"content-length: 99999999999999999999999999\r\n",
        b"content-length: +1\r\n",
        b"content-length: \xb2\r\n",
        b"transfer-encoding: chunked, chunked\r\n",
        b"transfer-encoding: \xff\r\n",
        b"transfer-encoding: gzip\r\n",
        b"host: localhost\r\n",
        b"x: " + b"y" * 70_000 + b"\r\n",
        b"x: y\r\n" * 10_000,
    ],
    ids=lambda header: header[:30].decode("latin-1").strip(),
)
def test_headers_that_are_none(served: Served, headers: bytes) -> None:
    for method in (b"GET", b"POST"):
        status = served.ask(b"/login", headers + served.origin, method=method)
        check(served, status, GOOD | {400, 401, 403, 408, 413, 421, 431, 501})


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /\r\n\r\n",
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\n\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost:\r\n\r\n",
        b"GET  /  HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"\x00" * 100 + b"\r\n\r\n",
        b"X" * 100_000,
    ],
    ids=lambda line: line[:20].decode("latin-1"),
)
def test_lines_that_are_no_request(served: Served, request_line: bytes) -> None:
    answer = served.send(request_line)
    status = int(answer.split(b" ", 2)[1]) if answer else 0
    check(served, status, {0, 400, 421, 431, 505})


@pytest.mark.parametrize(
    "host",
    [
        b"evil.example",
        b"localhost/x?y",
        b"localhost?x",
        b"localhost#x",
        b"localhost/",
        b"user@localhost",
        b"user:p@localhost",
        b"localhost:x",
        b"localhost:99999999999",
        b"localhost:",
        b"[::1",
        b"[::1]x",
        b"[zz]",
        b"127.0.0.1%[x",
        b"127.0.0.1%25/x",
        b"\xff\xfe",
        b"local\xadhost",
        b"a" * 9000,
        b"localhost localhost",
        b"localhost\\x",
        b".",
        b"[",
    ],
    ids=lambda host: host[:20].decode("latin-1"),
)
def test_hosts(served: Served, host: bytes) -> None:
    for path in ("/", page_of(served.database), page_of(served.database, "plan"), "/api/datasets"):
        for more in (b"", served.login):
            status = served.ask(path.encode(), more, host=host)
            check(served, status, {400, 421, 431})


# Bodies


def forms() -> Iterator[tuple[str, bytes, bytes, set[int]]]:
    wrong = {200, 303, 400, 401, 403, 409}
    yield "twenty fields", FORM, b"&".join(b"f%d=x" % n for n in range(20)), wrong
    yield "21 fields", FORM, b"&".join(b"f%d=x" % n for n in range(21)), {400, 401, 403}
    yield "thousands of fields", FORM, b"a=b&" * 10_000, {400, 401, 403}
    yield "no text", FORM, b"token=%ff%fe&to=%ed%a0%80&csrf=%00", wrong
    yield "raw bytes", FORM, bytes(range(256)), wrong
    yield "no form", FORM, b"\x00" * 1000, wrong
    yield "to many lines", FORM, b"token=x&to=%0d%0aset-cookie:%20a=b", wrong
    yield "multipart", b"content-type: multipart/form-data; boundary=x\r\n", b"--x\r\n\r\n", wrong
    yield "multipart without end", b"content-type: multipart/form-data; boundary=\xff\r\n", b"--", wrong
    yield "too long", FORM, b"a" * (MAX_BODY_BYTES + 1), {401, 403, 413}
    yield "much too long", FORM, b"a" * (40 * MAX_BODY_BYTES), {0, 401, 403, 413}
    yield (
        "too long and chunked",
        FORM + b"transfer-encoding: chunked\r\n",
        chunked(b"a" * 70_000),
        {401, 403, 413},
    )
    yield "chunked", FORM + b"transfer-encoding: chunked\r\n", chunked(b"token=x"), wrong
    yield (
        "chunks that are none",
        FORM + b"transfer-encoding: chunked\r\n",
        b"zz\r\nx\r\n0\r\n\r\n",
        {400, 401, 403},
    )
    yield (
        "a negative chunk",
        FORM + b"transfer-encoding: chunked\r\n",
        b"-5\r\nx\r\n0\r\n\r\n",
        {400, 401, 403},
    )
    yield "less than said", FORM + b"content-length: 50\r\n", b"token=x", {0, 400, 401, 403, 408}
    yield "deep JSON", JSON, b"[" * 60_000, wrong | {404}
    yield "deeper JSON", JSON, b'{"compactions":' * 4000, wrong | {404}
    yield "a large number", JSON, b'{"compactions": ' + b"9" * 60_000 + b"}", wrong | {404}
    yield "half a character", JSON, b'{"compactions": ["\\ud800"]}', wrong | {404}
    yield "no JSON", JSON, b"\xff\xfe\x00", wrong | {404}
    yield "UTF-16", JSON, '{"compactions": []}'.encode("utf-16"), wrong | {404}
    yield "null", JSON, b'{"compactions": ["\\u0000"]}', wrong | {404}
    yield "infinite", JSON, b'{"compactions": [Infinity, NaN]}', wrong | {404}


def chunked(data: bytes) -> bytes:
    return b"%x\r\n" % len(data) + data + b"\r\n0\r\n\r\n"


@pytest.mark.parametrize(("headers", "body", "wanted"), [pytest.param(*f[1:], id=f[0]) for f in forms()])
def test_bodies(served: Served, headers: bytes, body: bytes, wanted: set[int]) -> None:
    base = page_of(served.database)
    for path in ("/login", f"{base}/retry", f"{base}/submit", f"/api{base}/retry", "/datasets/x/cancel"):
        for more in (b"", served.login):
            status = served.ask(path.encode(), headers + served.origin + more, body, b"POST")
            check(served, status, wanted | {404})


def test_a_form_with_its_secret_and_too_much_besides(served: Served) -> None:
    if not served.token:
        return
    body = f"csrf={sealed(served.token, 'form')}&compaction=%00%ff".encode() + b"&a=b" * 100
    path = page_of(served.database, "retry").encode()
    check(served, served.ask(path, FORM + served.origin + served.login, body, b"POST"), {400})


# At random


SEED = 20_261_128


def test_at_random(served: Served) -> None:
    """Bytes of all the above, mixed, cut and repeated."""
    made = random.Random(SEED)
    parts = [
        *PATHS,
        *HEADERS,
        FORM,
        JSON,
        b"\r\n",
        b"\r\n\r\n",
        b" HTTP/1.1\r\n",
        served.origin,
        served.login,
    ]
    for _ in range(150):
        request = bytearray(b"GET " if made.random() < 0.5 else b"POST ")
        request += made.choice(PATHS) + b" HTTP/1.1\r\nhost: " + served.netloc + b"\r\n"
        for _ in range(made.randrange(4)):
            request += made.choice(parts)
        for _ in range(made.randrange(3)):
            request[made.randrange(len(request))] = made.randrange(256)
        request += b"\r\n\r\n" if made.random() < 0.8 else b""
        answer = served.send(bytes(request))
        for line in answer.split(b"\r\n"):
            if line.startswith(b"HTTP/1.1 "):
                assert line.split(b" ")[1] != b"500", request
        assert served.defects() == [], bytes(request)
