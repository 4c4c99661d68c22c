"""A small HTTP proxy before a server, which does to requests what networks and busy stores do."""

from __future__ import annotations

import http.client
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from urllib.parse import urlsplit

from tests import serving
from tests.s3 import S3

_NOT_PASSED = ("content-length", "transfer-encoding", "connection", "date", "server")


class Fault(Enum):
    """What happens to a request."""

    NONE = "none"
    BUSY = "503, without effect"
    BROKEN = "500, without effect"
    RESET_BEFORE = "the connection is reset before it takes effect"
    RESET_AFTER = "the connection is reset after it took effect, instead of an answer"
    RESET_WITHIN = "the connection is reset in the middle of the answer"
    CLOSE_WITHIN = "the connection is closed in the middle of the answer"
    HANG_WITHIN = "nothing more comes after the middle of the answer"
    HANG = "nothing is answered until the end"


RESETS = (Fault.RESET_BEFORE, Fault.RESET_AFTER, Fault.RESET_WITHIN)


@dataclass(frozen=True)
class Asked:
    """A request that came."""

    method: str
    path: str


Choose = Callable[[Asked], Fault]
"""Called by one thread at a time."""


def often(share: float, faults: tuple[Fault, ...], seed: int = 1) -> Choose:
    """One of these faults, evenly, for this share of the requests."""
    rng = random.Random(seed)
    return lambda _: rng.choice(faults) if rng.random() < share else Fault.NONE


def first(count: int, fault: Fault, method: str, within: str = "") -> Choose:
    """This fault for the first requests of that kind."""
    left = [count]

    def choose(asked: Asked) -> Fault:
        if asked.method != method or within not in asked.path or not left[0]:
            return Fault.NONE
        left[0] -= 1
        return fault

    return choose


@contextmanager
def flaky(s3: S3, choose: Choose, asked: list[Asked] | None = None) -> Iterator[dict[str, str]]:
    """The options that reach `s3` through a proxy with faults; `asked` collects the requests."""
    with proxy(s3.endpoint, choose, asked) as endpoint:
        yield {**s3.options, "aws_endpoint": endpoint}


@contextmanager
def proxy(endpoint: str, choose: Choose, asked: list[Asked] | None = None) -> Iterator[str]:
    """The endpoint of a proxy with faults before another; `asked` collects the requests."""
    over, lock = threading.Event(), threading.Lock()

    class Handler(serving.Handler):
        def handle(self) -> None:
            with suppress(OSError):  # clients that hang up are what this is about
                super().handle()

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            request = Asked(self.command, self.path)
            with lock:
                fault = choose(request)
                if asked is not None:
                    asked.append(request)
            if fault is Fault.HANG:
                over.wait()
            elif fault is Fault.RESET_BEFORE:
                return self._reset()
            if fault in (Fault.BUSY, Fault.BROKEN):
                headers = {"Retry-After": "3600"}  # which nobody goes by
                return self._answer(503 if fault is Fault.BUSY else 500, headers, b"<Error/>", Fault.NONE)
            status, headers, data = self._forward(body)
            if fault is Fault.RESET_AFTER:
                return self._reset()
            return self._answer(status, headers, data, fault)

        def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
            connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=60)
            try:
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                return answer.status, dict(answer.headers), answer.read()
            finally:
                connection.close()

        def _answer(self, status: int, headers: dict[str, str], data: bytes, fault: Fault) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in _NOT_PASSED:
                    self.send_header(name, value)
            length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(data))
            self.send_header("Content-Length", length)
            self.end_headers()
            if fault not in (Fault.RESET_WITHIN, Fault.CLOSE_WITHIN, Fault.HANG_WITHIN):
                self.wfile.write(data)
                return
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.close_connection = True
            if fault is Fault.RESET_WITHIN:
                self._reset()
            elif fault is Fault.HANG_WITHIN:
                over.wait()

        def _reset(self) -> None:
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            # The handler's files hold the socket open: this is what sends the reset.
            self.connection.shutdown(socket.SHUT_RD)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _handle  # names given by the base class

    with serving.serving(Handler) as url:
        try:
            yield url
        finally:
            over.set()
