"""SIGTERM that comes at a bad moment."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from lithify.cli.termination import Terminated, interrupted_by_sigterm

LIMIT_S = 60.0


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def work_on() -> None:
    """Until it is interrupted."""
    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s:
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        pytest.fail("tests have to run in the main thread")
    before = signal.getsignal(signal.SIGTERM)
    yield
    assert signal.getsignal(signal.SIGTERM) is before


def test_it_is_told_once() -> None:
    cleaned_up = []

    def work() -> None:
        try:
            terminate()
            work_on()
        finally:
            for _ in range(5):
                terminate()
                time.sleep(0.1)
            cleaned_up.append(True)

    with pytest.raises(Terminated), interrupted_by_sigterm():
        work()
    assert cleaned_up


def test_what_python_ignores_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ignored: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: ignored.append(found.exc_type.__name__))

    class Finalized:
        def __del__(self) -> None:
            terminate()
            work_on()

    def work() -> None:
        Finalized()
        work_on()

    with pytest.raises(Terminated), interrupted_by_sigterm():
        work()
    assert ignored == ["Terminated"]


def test_imports_are_not_interrupted() -> None:
    done: list[str] = []
    code = "os.kill(os.getpid(), signal.SIGTERM); time.sleep(0.3); done.append('imported')"
    names = {"os": os, "signal": signal, "time": time, "done": done}

    def work() -> None:
        exec(compile(code, "<frozen importlib._bootstrap>", "exec"), names)
        work_on()

    with pytest.raises(Terminated), interrupted_by_sigterm():
        work()
    assert done == ["imported"]


def test_a_command_that_ends_meanwhile_is_left_alone() -> None:
    for _ in range(3):
        with suppress(Terminated), interrupted_by_sigterm():
            terminate()
        time.sleep(0.15)
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN


def test_what_another_thread_was_given_is_told_to_a_main_thread_that_waits() -> None:
    ready, never = threading.Event(), threading.Event()

    def be_given() -> None:
        ready.wait()
        time.sleep(0.1)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    thread = threading.Thread(target=be_given)
    thread.start()
    begun_s = time.monotonic()
    ready.set()
    with pytest.raises(Terminated), interrupted_by_sigterm():
        never.wait(LIMIT_S)
    assert time.monotonic() - begun_s < LIMIT_S
    thread.join()


def test_nothing_is_left_of_it() -> None:
    threads = threading.active_count()
    with interrupted_by_sigterm():
        pass
    assert signal.set_wakeup_fd(-1) == -1
    assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL
    assert threading.active_count() == threads
