"""Asynchronous uploads to a store behind a network.

1. A small object is buffered until `commit` and is one PUT, retried and reported like any other request.
2. For an object of at least one part, a thread hands the data to obstore, which sends `IN_FLIGHT_BYTES` at
   once, in parts of equal size but the last (some stores require this). So neither the initial round trip nor
   a slow part blocks the writer.
3. A writer that is faster than the network waits while `WAITING_BYTES` are queued.
4. `commit` returns when the object is complete.
5. obstore retries failed parts. A writer that waits in 3 or 4 polls the store, so that an outage is reported
   as fast as for other requests (`lithify.store.resilience.requests.Watch`). obstore does not retry a request
   whose answer breaks off: if it was the start of an upload, the upload is started again; if it may have
   completed the object, the object is read. A hanging part is aborted (`lithify.store.resilience.pace`).

Invariants: a streamed object's name has no other writer, and the object appears only on `commit`; every later
call raises an error of the thread, so that no object with a gap is committed; an upload keeps only the parts
in flight and the queue in memory.

An aborted or killed upload never shows an object, but leaves its parts: buckets need a lifecycle rule that
aborts incomplete multipart uploads, as S3's manual advises.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

import obstore

from lithify.base.errors import ObjectNotFound, StoreError, StoreUnavailable
from lithify.store.keys import check_key
from lithify.store.objects import ObjectStore
from lithify.store.resilience.hedging import LOOK_S
from lithify.store.resilience.pace import UploadPace
from lithify.store.resilience.requests import Watch

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Backend

PART_BYTES = 8 * 1024 * 1024
"""Default size of a part. The last part is sent alone: larger parts mean fewer requests, and a longer wait at
the end."""
IN_FLIGHT_BYTES = 64 * 1024 * 1024
WAITING_BYTES = 32 * 1024 * 1024
_MAX_BEGINNINGS = 10
_BROKEN_OFF_S = 5.0
"""A failure after this time was already retried."""

Failures = Callable[[str, str], AbstractContextManager[None]]
"""Converts the library's errors into ours, given the operation and the key."""


class MultipartWriter:
    """A streaming upload (`lithify.store.objects.ObjectWriter`). For one thread at a time."""

    def __init__(
        self,
        key: str,
        backend: Callable[[], Backend],
        failures: Failures,
        watch: Watch,
        store: ObjectStore,
        pace: UploadPace,
        part_bytes: int | None = None,
    ) -> None:
        """`backend` sends large objects; `store` is used for all other requests."""
        self._part_bytes = PART_BYTES if part_bytes is None else part_bytes
        self._key = check_key(key)
        self._backend = backend
        self._failures = failures
        self._watch = watch
        self._store = store
        self._pace = pace
        self._small: list[bytes | memoryview] = []
        """The data, until they are too large for one request."""
        self._written_bytes = 0
        self._sender: _Sender | None = None
        self._is_open = True

    def write(self, data: bytes | memoryview) -> None:
        # obstore keeps a reference to the buffer and sends it later; only a copy stays as it is.
        self._append(bytes(data))

    def give(self, data: memoryview) -> None:
        self._append(data.cast("B"))

    def _append(self, piece: bytes | memoryview) -> None:
        self._check_open("write")
        self._written_bytes += len(piece)
        if self._sender is not None:
            self._sender.send(piece)
            return
        self._small.append(piece)
        if self._written_bytes >= self._part_bytes:
            beginning, self._small = self._small, []
            self._sender = _Sender(self._open(beginning), self._key, self._failures, self._watch, self._pace)
            # A writer that is dropped counts as aborted.
            weakref.finalize(self, self._sender.stop)

    def commit(self) -> None:
        self._check_open("commit")
        try:
            if self._sender is not None:
                self._sender.commit()
        except StoreError:
            if not self._has_landed():
                raise
        self._is_open = False  # so that it is never closed twice
        if self._sender is None:
            self._store.put(self._key, b"".join(self._small))
        self.abort()

    def abort(self) -> None:
        # Dropping the file ends the upload; closing it would publish the object.
        if self._sender is not None:
            self._sender.stop()
        self._sender, self._small, self._is_open = None, [], False

    def __enter__(self) -> MultipartWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _open(self, beginning: Sequence[bytes | memoryview]) -> Callable[[], obstore.WritableFile]:
        """Return a function that starts the upload, which takes round trips."""
        # It must not keep a reference to this writer.
        key, failures, backend, part_bytes = self._key, self._failures, self._backend, self._part_bytes

        def begin() -> obstore.WritableFile:
            with failures("write", key):
                file = obstore.open_writer(
                    backend(),
                    key,
                    buffer_size=part_bytes,
                    max_concurrency=max(1, IN_FLIGHT_BYTES // part_bytes),
                )
                for piece in beginning:  # as much as a part, so the last returns when the upload has begun
                    file.write(piece)
                return file

        return begin

    def _has_landed(self) -> bool:
        """Return whether the object exists although its upload has failed."""
        try:
            return self._store.head(self._key).size == self._written_bytes
        except ObjectNotFound:
            return False

    def _check_open(self, verb: str) -> None:
        if not self._is_open:
            raise StoreError(f"{verb} {self._key}: the upload is closed")


class _Sender:
    """A thread that hands pieces to the library, in order."""

    def __init__(
        self,
        begin: Callable[[], obstore.WritableFile],
        key: str,
        failures: Failures,
        watch: Watch,
        pace: UploadPace,
    ) -> None:
        self._begin = begin
        self._key = key
        self._failures = failures
        self._watch = watch
        self._pace = pace
        self._changed = threading.Condition()
        self._waiting: deque[bytes | memoryview] = deque()
        self._waiting_bytes = 0
        self._has_ended = False
        self._is_whole = False
        """All data are written; the object may be completed."""
        self._is_over = False
        """The thread has ended."""
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="lithify-upload", daemon=True)
        self._thread.start()

    def send(self, piece: bytes | memoryview) -> None:
        """Queue a piece; wait while the queue is full."""

        def has_room() -> bool:
            fits = not self._waiting or self._waiting_bytes + len(piece) <= WAITING_BYTES
            return self._error is not None or fits

        self._wait_for(has_room)
        with self._changed:
            self._check()
            self._waiting.append(piece)
            self._waiting_bytes += len(piece)
            self._changed.notify_all()

    def commit(self) -> None:
        """Complete the object and wait until it exists."""
        self._end(is_whole=True)
        self._wait_for(lambda: self._is_over)
        self._check()

    def stop(self) -> None:
        """Hand over nothing more, without waiting for the current piece, which may take long."""
        self._end(is_whole=False)

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        while True:
            with self._changed:
                if self._changed.wait_for(condition, LOOK_S):
                    return
            self._watch.look()

    def _end(self, *, is_whole: bool) -> None:
        with self._changed:
            self._has_ended, self._is_whole = True, is_whole
            if not is_whole:
                self._waiting.clear()
            self._changed.notify_all()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            file = self._begun()
            while (piece := self._next()) is not None:
                with self._failures("write", self._key):
                    file.write(piece)
                self._watch.got_on()
            if self._is_whole:
                started_s = time.monotonic()
                with self._failures("commit", self._key):
                    file.close()
                self._pace.note(time.monotonic() - started_s)
                self._watch.got_on()
        except BaseException as error:  # raised in the writer's thread
            self._pace.forget()
            self._error = error
        finally:
            self._watch.end()
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def _begun(self) -> obstore.WritableFile:
        for _ in range(_MAX_BEGINNINGS - 1):
            started_s = time.monotonic()
            try:
                return self._begin()
            except StoreUnavailable:
                if time.monotonic() - started_s > _BROKEN_OFF_S:
                    raise
        return self._begin()

    def _next(self) -> bytes | memoryview | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._has_ended)
            if not self._waiting:
                return None
            piece = self._waiting.popleft()
            self._waiting_bytes -= len(piece)
            self._changed.notify_all()
            return piece
