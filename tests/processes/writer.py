"""A real client that writes, overwrites and deletes while things happen, in a thread, with a model."""

from __future__ import annotations

import random
import threading
import time
from types import TracebackType
from typing import Self

from tests.judge.official import Database
from tests.processes.databases import Model, write_some

JOIN_LIMIT_S = 60.0


class Writer:
    """Writes batches to an open database and flushes each into a new L0, until the block ends. `model` is
    what a scan must show then, `longest_s` the time the slowest batch and its flush took."""

    def __init__(
        self,
        database: Database,
        model: Model,
        *,
        keys: int,
        batch: int,
        value_bytes: int,
        pause_s: float,
        seed: int = 1,
    ) -> None:
        self.model = model
        self.batches = 0
        self.longest_s = 0.0
        self._database = database
        self._keys = keys
        self._batch = batch
        self._value_bytes = value_bytes
        self._pause_s = pause_s
        self._rng = random.Random(seed)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def check(self) -> None:
        """The error of the writing thread, if it has one, is raised here."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.write()
                self._stop.wait(self._pause_s)
        except BaseException as error:
            self._error = error

    def write(self) -> None:
        """One batch and its flush; not while the block runs."""
        numbers = self._rng.sample(range(self._keys), self._batch)
        started_s = time.monotonic()
        write_some(self._database, self.model, self._rng, numbers, self._value_bytes)
        self._database.flush()
        self.longest_s = max(self.longest_s, time.monotonic() - started_s)
        self.batches += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(JOIN_LIMIT_S)
        if error is None:
            assert not self._thread.is_alive(), "the writer hangs"
            self.check()
