"""Background reports of a task's progress.

1. The loop that moves the bytes reports their number when `is_due`, so a loop that hangs reports nothing.
2. A thread writes the report (`sidecar.MovementReporter`). During a write, a newer number replaces one that
   waits.
3. After `FIRST_REPORT_S` the thread by itself reports that the range has begun. A task that ends sooner
   reports nothing, and costs no request.
4. `finish` deletes the report, if there is one, while the task completes its last output.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lithify.base.clock import Clock
from lithify.base.ids import Ids
from lithify.coordination.sidecar import REPORT_INTERVAL_S, MovementReporter, Reporting
from lithify.store.objects import ObjectStore

FIRST_REPORT_S = 4.0
"""Well before the first heartbeat is due, which needs the report. A report costs two requests."""
_CLOSE_LIMIT_S = 1.0
"""How long the end of a task waits for a report. Leftovers are deleted with the compaction."""


@contextmanager
def reported(
    reporting: Reporting | None, store: ObjectStore, clock: Clock, ids: Ids
) -> Iterator[BackgroundReporter | None]:
    """Provide the reporter for the task that runs in the block; `None` if no reports are needed."""
    if reporting is None:
        yield None
        return
    reporter = BackgroundReporter(MovementReporter(reporting, store, clock, ids), clock)
    try:
        yield reporter
    finally:
        reporter.close()


class BackgroundReporter:
    """A reporter that passes reports on to `reporter`, in a thread of its own."""

    def __init__(self, reporter: MovementReporter, clock: Clock) -> None:
        self._reporter = reporter
        self._clock = clock
        self._due_s = clock.monotonic_s() + FIRST_REPORT_S
        self._changed = threading.Condition()
        self._waiting: tuple[int, int] | None = None
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, name="lithify-report", daemon=True)
        self._thread.start()

    def is_due(self) -> bool:
        """Return whether to report now; cheap."""
        return self._clock.monotonic_s() >= self._due_s

    def report(self, bytes_read: int, bytes_written: int) -> None:
        """Report how many bytes have moved since the task began."""
        self._due_s = self._clock.monotonic_s() + REPORT_INTERVAL_S
        with self._changed:
            self._waiting = bytes_read, bytes_written
            self._changed.notify()

    def finish(self) -> None:
        """Report no more; returns at once."""
        with self._changed:
            self._has_ended = True
            self._changed.notify()

    def close(self) -> None:
        """Report no more, and wait a moment for a report in progress."""
        self.finish()
        self._thread.join(_CLOSE_LIMIT_S)

    def _run(self) -> None:
        with self._changed:
            self._changed.wait_for(self._is_called, FIRST_REPORT_S)
            self._waiting = self._waiting or (0, 0)
        has_reported = False
        while (moved := self._next()) is not None:
            self._reporter.report(*moved)
            has_reported = True
        if has_reported:
            self._reporter.close()

    def _next(self) -> tuple[int, int] | None:
        """Return the next report; `None` at the end."""
        with self._changed:
            self._changed.wait_for(self._is_called)
            moved, self._waiting = self._waiting, None
            return None if self._has_ended else moved

    def _is_called(self) -> bool:
        return self._has_ended or self._waiting is not None
