"""One HTTP/1.1 connection: each request is read completely, then answered in its own time, one after the
other.

1. The head is read into a small buffer, a body of known length straight into its final memory. Other bodies
   (`Transfer-Encoding: chunked`) are collected. `Expect: 100-continue` is answered at once.
2. When a request has arrived completely, its fate is drawn. It takes effect when its bytes would have passed
   through the pipes (bandwidth), and is answered after its latency.
3. An answer is sent in pieces, each when its last byte would have passed through the pipes, and none while
   the client does not read.
"""

from __future__ import annotations

import asyncio
import itertools
import mmap
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

from lithify.testing.s3.admin import ADMIN, administer
from lithify.testing.s3.answers import S3Answer, S3Error
from lithify.testing.s3.log import LoggedRequest
from lithify.testing.s3.objects import Buffer
from lithify.testing.s3.requests import Operation, Request
from lithify.testing.s3.site import Pipe, Site
from lithify.testing.s3.weather import Fate, Weather

MAX_HEAD_BYTES = 64 * 1024
SMALL_BYTES = 64 * 1024
"""Up to this size, head and body of an answer are joined and sent by one system call."""
PIECE_S = 0.006
MIN_PIECE_BYTES, MAX_PIECE_BYTES = 4 * 1024, 512 * 1024
"""With limited bandwidth, a piece of an answer is the amount that passes in `PIECE_S`, within these
bounds."""
UNSENT_BYTES = 1024 * 1024
"""Bytes of an answer that may wait in memory for the client to read."""
SHORTEST_WAIT_S = 0.0005
"""Timers are not exact enough for shorter waits."""
BURST_S = 0.01
"""How much lost time all connections together may catch up on."""
CUT_AFTER_S = 0.005
"""Delay of a reset, which would otherwise overtake the bytes sent just before."""
_RESET = struct.pack("ii", 1, 0)
_numbers = itertools.count(1)


class Connection(asyncio.BufferedProtocol):
    """Serves one client of `site`. `open_connections` has all open connections."""

    def __init__(self, site: Site, open_connections: set[Connection]) -> None:
        self._site = site
        self._open = open_connections
        self._loop = asyncio.get_running_loop()
        self._number = next(_numbers)
        self._head = bytearray(MAX_HEAD_BYTES)
        self._head_size = 0
        self._request: Request | None = None
        """The request being read or answered."""
        self._body: memoryview | mmap.mmap | None = None
        """The body being read, if its length is known."""
        self._body_size = 0
        self._chunks: ChunkReader | None = None
        """The body being read, if its length is unknown."""
        self._is_admin = False
        self._fate = Fate.ANSWERED
        self._answer = S3Answer(0)
        self._is_begun = False
        self._unsent: deque[Buffer] = deque()
        self._unsent_bytes = 0
        self._start_s = self._due_s = 0.0
        self._is_paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._up, self._down = Pipe(), Pipe()

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport.set_write_buffer_limits(UNSENT_BYTES)
        self._open.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._open.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._request is not None and not self._is_reading:
            self._log(Fate.HUNG if self._fate is Fate.HUNG else Fate.ABANDONED)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._body is not None:
            return memoryview(self._body)[self._body_size :]
        return memoryview(self._head)[self._head_size :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._body is not None:
            self._body_size += nbytes
            if self._body_size == len(self._body):
                self._take_body([memoryview(self._body)], len(self._body))
            return
        self._head_size += nbytes
        if self._chunks is not None:
            self._take_chunks()
        elif self._request is None:
            self._take_head()
        elif self._head_size == MAX_HEAD_BYTES:  # the client sends without reading answers
            self._transport.abort()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._unsent and self._timer is None:
            self._send_on()

    # Reading

    @property
    def _is_reading(self) -> bool:
        return self._body is not None or self._chunks is not None

    def _take_head(self) -> None:
        end = self._head.find(b"\r\n\r\n", 0, self._head_size)
        if end < 0:
            if self._head_size == MAX_HEAD_BYTES:
                self._refuse()
            return
        first, *lines = self._head[:end].decode("latin-1").split("\r\n")
        try:
            method, target, _ = first.split(" ")
            headers = {}
            for line in lines:
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            size = int(headers.get("content-length", 0))
        except ValueError:
            self._refuse()
            return
        self._request = Request(method, target, headers)
        if headers.get("expect", "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._consume(end + 4)
        if headers.get("transfer-encoding", "").lower() == "chunked":
            self._chunks = ChunkReader(bytearray())
            self._take_chunks()
        elif size <= self._head_size:
            body = self._head[:size]
            self._consume(size)
            self._take_body([body] if size else [], size)
        else:
            self._body, self._body_size = self._site.bodies.room(size), self._head_size
            self._body[: self._head_size] = self._head[: self._head_size]
            self._head_size = 0

    def _consume(self, size: int) -> None:
        left = self._head_size - size
        if left:
            self._head[:left] = self._head[size : self._head_size]
        self._head_size = left

    def _take_chunks(self) -> None:
        reader = self._chunks
        assert reader is not None
        reader.raw += memoryview(self._head)[: self._head_size]
        self._head_size = 0
        try:
            is_whole = reader.advance()
        except S3Error:
            self._refuse()
            return
        if is_whole:
            rest = reader.raw[reader.end :]
            self._head[: len(rest)] = rest
            self._head_size = len(rest)
            self._take_body([bytearray().join(reader.pieces())], reader.size)

    def _refuse(self) -> None:
        """Refuse bytes that are not HTTP."""
        self._transport.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        self._transport.close()

    # Answering

    def _take_body(self, pieces: Sequence[Buffer], size: int) -> None:
        """Take a complete request: draw its fate, and let it take effect in time."""
        request, site = self._request, self._site
        assert request is not None
        self._body = self._chunks = None
        request.size = size
        request.body = list(pieces)
        self._is_admin = request.path.startswith(ADMIN)
        if self._is_admin:
            self._fate = Fate.ANSWERED
            self._begin_answer(administer(site, request))
            return
        weather = site.weather
        self._fate = weather.fate(site.rng)
        if self._fate is Fate.HUNG:
            return
        if self._fate is Fate.LOST_REQUEST:
            self._end_by_reset()
            return
        if not weather.is_limited:
            self._take_effect()
            return
        now = self._loop.time()
        arrived_s = max(
            self._up.take(size, weather.bandwidth, now),
            site.up.take(size, weather.total_bandwidth, now - BURST_S),
        )
        self._after(arrived_s - now, self._take_effect)

    def _take_effect(self) -> None:
        request, site = self._request, self._site
        assert request is not None
        if self._fate is Fate.SLOWED_DOWN:
            answer = S3Error(503, "SlowDown", "Please reduce your request rate.").answer(
                request.path, body=request.method != "HEAD"
            )
        else:
            try:
                _unchunk(request)
                answer = site.operations.answer(request)
            except S3Error as error:
                answer = error.answer(request.path)
        self._answer = answer
        self._after(site.weather.latency_s(request.verb, site.rng), self._begin)

    def _begin(self) -> None:
        if self._fate is Fate.LOST_ANSWER:
            self._end_by_reset()
        else:
            self._begin_answer(self._answer)

    def _begin_answer(self, answer: S3Answer) -> None:
        self._answer, self._is_begun = answer, True
        weather = self._site.weather
        head = answer.head()
        size = len(head) + answer.size
        pieces: Iterable[Buffer] = (head, *answer.body)
        if size <= SMALL_BYTES:
            pieces = (b"".join(pieces),)
            if self._fate is Fate.ANSWERED and not weather.is_limited and not self._transport.is_closing():
                self._transport.write(*pieces)
                self._end()
                return
        if self._fate is Fate.CUT_ANSWER:
            size //= 2
            pieces = _first(pieces, size)
        self._unsent.extend(_cut(pieces, _piece_bytes(weather)))
        self._unsent_bytes = size
        self._start_s = self._loop.time()
        self._due_s = self._due(self._start_s)
        self._send_on()

    def _due(self, now: float) -> float:
        if self._is_admin:
            return now
        weather, size = self._site.weather, len(self._unsent[0])
        return max(
            self._down.take(size, weather.bandwidth, self._start_s),
            self._site.down.take(size, weather.total_bandwidth, now - BURST_S),
        )

    def _send_on(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._unsent:
            if self._is_paused or self._transport.is_closing():
                return
            if self._due_s > now + SHORTEST_WAIT_S:
                self._timer = self._loop.call_at(self._due_s, self._send_on)
                return
            piece = self._unsent.popleft()
            self._unsent_bytes -= len(piece)
            self._transport.write(piece)
            if self._unsent:
                self._due_s = self._due(now)
        if self._transport.is_closing():  # the client has closed; `connection_lost` logs that
            return
        if self._fate is Fate.CUT_ANSWER:
            self._end_by_reset(CUT_AFTER_S)
        else:
            self._end()

    def _end(self) -> None:
        """Log the request, whose answer is sent, and take the next one."""
        request = self._request
        assert request is not None
        self._log(self._fate)
        self._request, self._is_begun = None, False
        if request.headers.get("connection", "").lower() == "close":
            self._transport.close()
        elif self._head_size:
            self._take_head()

    def _end_by_reset(self, after_s: float = 0.0) -> None:
        self._log(self._fate)
        self._request = None
        self._after(after_s, self.reset)

    def reset(self) -> None:
        """Close the connection by RST."""
        self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    def _log(self, fate: Fate) -> None:
        request = self._request
        assert request is not None
        if self._is_admin:
            return
        answer = self._answer if self._is_begun else S3Answer(0)
        body = answer.size // 2 if fate is Fate.CUT_ANSWER else max(0, answer.size - self._unsent_bytes)
        self._site.log.append(
            LoggedRequest(
                request.operation,
                request.bucket,
                request.query.get("prefix", "") if request.operation is Operation.LIST else request.key,
                request.headers.get("range", ""),
                request.size,
                body if self._is_begun else 0,
                request.start_s,
                time.time(),
                answer.status,
                fate,
                self._number,
                request.requester,
            )
        )

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        """Run `action` after a delay, or at once if there is none."""
        if seconds > 0:
            self._timer = self._loop.call_later(seconds, action)
        else:
            action()


def _piece_bytes(weather: Weather) -> int:
    rates = [rate for rate in (weather.bandwidth, weather.total_bandwidth) if rate is not None]
    if not rates:
        return UNSENT_BYTES
    return max(MIN_PIECE_BYTES, min(MAX_PIECE_BYTES, int(min(rates) * PIECE_S)))


def _unchunk(request: Request) -> None:
    headers = request.headers
    is_chunked = "aws-chunked" in headers.get("content-encoding", "")
    if is_chunked or headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
        size = headers.get("x-amz-decoded-content-length")
        body = bytearray().join(request.body)
        request.body = list(unchunked(body, int(size) if size else None))
        request.size = sum(map(len, request.body))


def _first(pieces: Iterable[Buffer], size: int) -> Iterator[Buffer]:
    for piece in pieces:
        yield piece[:size]
        size -= len(piece)
        if size <= 0:
            return


def _cut(pieces: Iterable[Buffer], size: int) -> Iterator[Buffer]:
    """Yield the same bytes in pieces of at most `size`."""
    for piece in pieces:
        if len(piece) <= size:
            yield piece
        else:
            whole = memoryview(piece)
            yield from (whole[at : at + size] for at in range(0, len(whole), size))


_LINE_END = b"\r\n"


class ChunkReader:
    """Finds the chunks in a buffer that may still grow: of HTTP's `Transfer-Encoding: chunked`, and of
    `aws-chunked` of S3's clients. Both have the same form, except for the extension after a size, which is
    ignored (S3's is a signature):

        SIZE[;EXTENSION]\\r\\n BYTES \\r\\n … 0[;EXTENSION]\\r\\n [TRAILER\\r\\n …] \\r\\n
    """

    def __init__(self, raw: bytearray) -> None:
        self.raw = raw
        self.end = 0
        """End of the bytes parsed so far."""
        self.size = 0
        self._spans: list[tuple[int, int]] = []
        self._in_trailer = False

    def advance(self) -> bool:
        """Parse further. Return whether the body is complete. Raise `S3Error` if it is malformed."""
        while not self._in_trailer:
            line = self.raw.find(_LINE_END, self.end)
            if line < 0:
                return False
            size = _size(bytes(self.raw[self.end : line]))
            start = line + 2
            if size == 0:
                self.end, self._in_trailer = start, True
                break
            if start + size + 2 > len(self.raw):
                return False
            self._spans.append((start, start + size))
            self.size += size
            self.end = start + size + 2
        while (line := self.raw.find(_LINE_END, self.end)) >= 0:
            is_last = line == self.end
            self.end = line + 2
            if is_last:
                return True
        return False

    def pieces(self) -> list[memoryview]:
        """Return the body's bytes so far. They reference `raw`, which cannot grow any more."""
        raw = memoryview(self.raw)
        return [raw[start:end] for start, end in self._spans]


def unchunked(body: bytearray, size: int | None) -> list[memoryview]:
    """Return the pieces of a complete `aws-chunked` body, whose header gives its `size` in bytes."""
    reader = ChunkReader(body)
    reader.advance()
    if not reader._in_trailer or (size is not None and reader.size != size):
        raise S3Error(400, "IncompleteBody", f"{reader.size} bytes came of {size}.")
    return reader.pieces()


def _size(line: bytes) -> int:
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError as error:
        raise S3Error(400, "InvalidRequest", f"No size of a chunk: {line[:40]!r}") from error
