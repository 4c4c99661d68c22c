"""Requests go on in a process that was forked from one that had made some."""

from __future__ import annotations

import os
import signal

from lithify.clock import SystemClock
from lithify.store.hedging import hedged


def _ask() -> str:
    return hedged(lambda: "answer", SystemClock(), patience_s=None, silent=lambda for_s: None)


def test_a_forked_process_starts_threads_of_its_own() -> None:
    assert _ask() == "answer"  # whose thread waits for the next request now
    child = os.fork()
    if not child:
        signal.alarm(20)
        os._exit(0 if _ask() == "answer" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
