"""A hold that renews itself, for programs.

    with table.hold(lease_s=600) as held:
        rows = read(held.snapshot)      # for as long as it takes
        held.check()                    # before relying on the rows

1. As a context manager it is renewed in a thread, three times per lease, and released at the end.
2. If it was not renewed in time, it may have expired: `check` and the end of the context raise an error, so
   that missing rows are noticed. `check` counts from before the last renewal was sent, so the hold ends for
   its holder first. But it does not notice that the machine slept; the end of the context asks the store, as
   `renew` does.
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
        """`began_s`: monotonic time from before the hold was placed."""
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
        """The name for renewing and releasing the hold, from anywhere."""
        return self._placed.name

    @property
    def snapshot(self) -> Any:
        """The oldest snapshot held; all later ones are held too."""
        return next(iter(self._placed.about.values()), None)

    @property
    def placed(self) -> Placed:
        """The hold as stored."""
        return self._placed

    def renew(self) -> None:
        """Renew the lease. Raise `HoldLapsed` if it is too late."""
        with self._lock:
            began_s = self._clock.monotonic_s()
            try:
                self._placed = self._maintenance.renew(self._placed)
            except HoldLapsed as error:
                self._lapsed = error
                raise
            self._renewed_s = began_s

    def check(self) -> None:
        """Raise `HoldLapsed` if the held data may be gone."""
        if self._lapsed is not None:
            raise self._lapsed
        if self._clock.monotonic_s() - self._renewed_s >= self._placed.lease_ms / 1000:
            raise HoldLapsed(
                f"hold {self.name} was not renewed in time; the history that it kept may be deleted"
            )

    def release(self) -> None:
        """Stop renewing, and release the hold."""
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
                self.renew()  # asks the store, whose clock also ran while this machine slept
        finally:
            self.release()

    def _keep(self) -> None:
        while not self._stop.wait(self._placed.lease_ms / 1000 / _RENEWALS_PER_LEASE):
            try:
                self.renew()
            except HoldLapsed:
                return  # `check` raises it
            except LithifyError as error:
                _log.warning("hold %s was not renewed; this is retried: %s", self.name, error)
