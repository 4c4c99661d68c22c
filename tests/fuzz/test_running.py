"""Running commands without waiting leaves nothing behind."""

from __future__ import annotations

import time
from typing import Any

from lithify.base.clock import SystemClock
from tests.fuzz.running import without_waiting


def test_who_is_imported_while_time_is_virtual_waits_again_afterwards() -> None:
    module: dict[str, Any] = {}
    with without_waiting():
        exec("from lithify.base.clock import SystemClock", module)
        began_s = time.monotonic()
        clock = module["SystemClock"]()
        before_s = clock.monotonic_s()
        clock.sleep_s(3600.0)
        assert clock.monotonic_s() - before_s >= 3600
        assert time.monotonic() - began_s < 60
    assert module["SystemClock"]().monotonic_s() - SystemClock().monotonic_s() < 1
    began_s = time.monotonic()
    module["SystemClock"]().sleep_s(0.01)
    assert time.monotonic() - began_s >= 0.01
