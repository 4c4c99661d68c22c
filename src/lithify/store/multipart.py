"""Uploads to a store behind a network, which go on while their writer does.

1. A small object is kept until `commit` and is one PUT.
2. From `PART_BYTES` on, a thread hands what is written to obstore, which sends it in parts of that size, up
   to `MAX_PARTS_IN_FLIGHT` at once. So neither the round trip that begins such an upload nor a slow part
   holds the writer up.
3. Who writes faster than the network takes waits while `WAITING_BYTES` wait to be handed over.
4. `commit` returns when all parts are there and the object has been put together.

Invariants: an object appears only by `commit`; what failed in the thread is raised by every later call, so
that nothing with a gap is ever committed; an upload holds no more than the parts in flight and what waits.

An upload that is aborted or killed never shows an object, but leaves its parts: buckets need a lifecycle rule
that aborts incomplete multipart uploads, as S3's manual advises for every writer.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

import obstore

from lithify.errors import StoreError
from lithify.store.keys import check_key

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Backend

PART_BYTES = 8 * 1024 * 1024
MAX_PARTS_IN_FLIGHT = 8
WAITING_BYTES = 32 * 1024 * 1024

Failures = Callable[[str, str], AbstractContextManager[None]]
"""Turns the library's errors into ours, given what is done and to which key."""


class MultipartWriter:
    """A streaming upload (`lithify.store.objects.ObjectWriter`). For one thread at a time."""

    def __init__(self, key: str, backend: Backend, failures: Failures) -> None:
        self._key = key
        self._failures = failures
        with failures("write", key):
            self._file: obstore.WritableFile | None = obstore.open_writer(
                backend, check_key(key), buffer_size=PART_BYTES, max_concurrency=MAX_PARTS_IN_FLIGHT
            )
        self._written_bytes = 0
        self._sender: _Sender | None = None

    def write(self, data: bytes | memoryview) -> None:
        file = self._open("write")
        # obstore keeps a reference to the buffer and sends it later; only a copy stays as it is.
        piece = bytes(data)
        self._written_bytes += len(piece)
        if self._sender is None and self._written_bytes < PART_BYTES:
            with self._failures("write", self._key):
                file.write(piece)
            return
        if self._sender is None:
            self._sender = _Sender(file, self._key, self._failures)
        self._sender.send(piece)

    def commit(self) -> None:
        file = self._open("commit")
        if self._sender is not None:
            self._sender.finish()
        self._file = self._sender = None  # whatever happens, nobody closes it twice
        with self._failures("commit", self._key):
            file.close()

    def abort(self) -> None:
        # Dropping the file ends the upload; closing it would publish the object.
        if self._sender is not None:
            self._sender.stop()
        self._file = self._sender = None

    def __enter__(self) -> MultipartWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _open(self, verb: str) -> obstore.WritableFile:
        if self._file is None:
            raise StoreError(f"{verb} {self._key}: the upload is closed")
        return self._file


class _Sender:
    """Hands pieces to the library, in order, by a thread of its own."""

    def __init__(self, file: obstore.WritableFile, key: str, failures: Failures) -> None:
        self._file = file
        self._key = key
        self._failures = failures
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._has_ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="lithify-upload", daemon=True)
        self._thread.start()

    def send(self, piece: bytes) -> None:
        """Queue a piece; waits while too much waits already."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._error is not None
                    or not self._waiting
                    or self._waiting_bytes + len(piece) <= WAITING_BYTES
                )
            )
            self._check()
            self._waiting.append(piece)
            self._waiting_bytes += len(piece)
            self._changed.notify_all()

    def finish(self) -> None:
        """Return when all pieces are with the library."""
        self._end()
        self._thread.join()
        self._check()

    def stop(self) -> None:
        """Hand over nothing more. A piece that is being handed over is not waited for: it may take long."""
        with self._changed:
            self._waiting.clear()
        self._end()

    def _end(self) -> None:
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while (piece := self._next()) is not None:
                with self._failures("write", self._key):
                    self._file.write(piece)
        except BaseException as error:  # raised where the pieces come from
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _next(self) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._has_ended)
            if not self._waiting:
                return None
            piece = self._waiting.popleft()
            self._waiting_bytes -= len(piece)
            self._changed.notify_all()
            return piece
