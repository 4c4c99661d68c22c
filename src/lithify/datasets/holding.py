"""A hold as a value that renews itself, for programs.

    with table.hold(lease_s=600) as held:
        rows = read(held.snapshot)      # for as long as it takes
        held.check()                    # before the rows are relied on

1. As a context it is renewed in a thread, three times a lease, and released at the end.
2. A hold that could not be renewed in time may be gone. `check` says so, and so does the end of the context:
   an error rather than rows of which some were missing. `check` counts from before the last renewal was sent,
   so it ends for its holder before it ends for anybody else; but it does not see that the machine slept. So
   the end of the context asks the store, and so can anybody else, with `renew`.
"""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Any

from lithify.base.clock import Clock
from lithify.base.errors import HoldLapsed, LithifyError
from lithify.coordination.holds import Placed
from lithify.datasets.maintenance import Maintenance

_RENEWALS_PER_LEASE = 3
_log = logging.getLogger("lithify")


class Held:
    """A hold of this program."""

    def __init__(self, maintenance: Maintenance, placed: Placed, clock: Clock, began_s: float) -> None:
        """`began_s`: monotonic time from before it was put."""
        self._maintenance = maintenance
        self._placed = placed
        self._clock = clock
        self._renewed_s = began_s
        self._lapsed: HoldLapsed | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def name(self) -> str:
        """By which it is renewed and released, from anywhere."""
        return self._placed.name

    @property
    def snapshot(self) -> Any:
        """What is held, and all that came after."""
        return next(iter(self._placed.about.values()), None)

    @property
    def placed(self) -> Placed:
        """As it lies in the store."""
        return self._placed

    def renew(self) -> None:
        """Begin its lease anew. `HoldLapsed` when that came too late."""
        with self._lock:
            began_s = self._clock.monotonic_s()
            try:
                self._placed = self._maintenance.renew(self._placed)
            except HoldLapsed as error:
                self._lapsed = error
                raise
            self._renewed_s = began_s

    def check(self) -> None:
        """`HoldLapsed` when what it kept may be gone."""
        if self._lapsed is not None:
            raise self._lapsed
        if self._clock.monotonic_s() - self._renewed_s >= self._placed.lease_ms / 1000:
            raise HoldLapsed(f"hold {self.name} was not renewed in time; what it kept may be gone")

    def release(self) -> None:
        """Give it up."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._maintenance.release(self._placed)

    def __enter__(self) -> Held:
        self._thread = threading.Thread(target=self._keep, name=f"lithify hold {self.name}", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and not self._stop.is_set():
                self.check()
                self.renew()  # asks the store, whose clock went on while this machine slept
        finally:
            self.release()

    def _keep(self) -> None:
        while not self._stop.wait(self._placed.lease_ms / 1000 / _RENEWALS_PER_LEASE):
            try:
                self.renew()
            except HoldLapsed:
                return  # `check` tells
            except LithifyError as error:
                _log.warning("hold %s was not renewed, which is tried again: %s", self.name, error)
