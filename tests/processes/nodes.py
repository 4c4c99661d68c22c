"""Starting Lithify's processes, and doing to them what operators and accidents do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.engine.waiting import child_environment, descendants, is_alive, replaces_a_file, wait_until
from tests.processes.node import NodeOptions

STOP_LIMIT_S = 120.0
FROZEN_S = 0.01
"""After that long, all threads of a process have stopped or gone on."""
Facts = dict[str, Any]


QUICK: Mapping[str, str] = {
    "LITHIFY_SERVICE__POLL_INTERVAL": "100ms",
    "LITHIFY_SERVICE__COMMIT_COMPACTED_INTERVAL": "100ms",
    "LITHIFY_SERVICE__WORKER__COMPACTIONS_POLL_INTERVAL": "100ms",
}
"""Environment in which commands look ten times a second."""


class Process:
    """A running process, its log, and the events it printed."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str], *, logs_events: bool = False
    ) -> None:
        """`logs_events`: its events are in its log in JSON, on standard error."""
        self.log = log
        self._errors = log.with_suffix(".err")
        self._events = self._errors if logs_events else log
        with log.open("wb") as output, self._errors.open("wb") as errors:
            self._popen = subprocess.Popen(
                list(command),
                env={**child_environment(), "PYTHONFAULTHANDLER": "1", **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
            )
        self._frozen: list[int] = []

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """`None` while it runs."""
        return self._popen.poll()

    @property
    def errors(self) -> str:
        """What it wrote to standard error."""
        return self._errors.read_text(errors="replace")

    def events(self, name: str | None = None) -> list[Facts]:
        """The events so far, of one kind or all. A last line that was cut short by a kill is left out."""
        lines = self._events.read_text(errors="replace").split("\n")[:-1]
        events: list[Facts] = [json.loads(line) for line in lines if line.startswith("{")]
        return [e for e in events if "event" in e and (name is None or e["event"] == name)]

    def lines(self) -> list[str]:
        """What it printed so far, whole lines only."""
        return self.log.read_text().split("\n")[:-1]

    def kill(self) -> None:
        """SIGKILL, to this process only; what it started has to notice by itself."""
        below = descendants(self.pid)
        self._popen.kill()
        self._popen.wait()
        wait_until(lambda: not any(map(is_alive, below)))

    def freeze(self) -> None:
        """SIGSTOP, to it and to all it started, as if the machine stood still. Not while it replaces a file:
        whoever is next to replace it could not until this one goes on (tests/store/test_local.py). Object
        stores know nothing of that."""
        while True:
            self._frozen = [self.pid, *descendants(self.pid)]
            for pid in self._frozen:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            time.sleep(FROZEN_S)
            if not any(map(replaces_a_file, self._frozen)):
                return
            self.thaw()
            time.sleep(FROZEN_S)

    def thaw(self) -> None:
        """SIGCONT to all that was frozen."""
        for pid in self._frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._frozen = []

    def terminate(self) -> int:
        """SIGTERM; its exit code. Of one that does not end, what each of its threads stands at is told."""
        self._popen.terminate()
        try:
            return self._popen.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._popen.send_signal(signal.SIGABRT)
            self._popen.wait(STOP_LIMIT_S)
            raise AssertionError(f"it does not end when it is told to:\n{self.errors}") from None

    def wait(self, limit_s: float = STOP_LIMIT_S) -> int:
        """Its exit code when it ends by itself."""
        return self._popen.wait(limit_s)

    def end(self) -> None:
        """However it is: nothing of it stays behind."""
        self.thaw()
        if self.exit_code is None:
            with suppress(AssertionError):
                self.terminate()
        if self.exit_code is None:
            self.kill()


class Nodes:
    """The processes of one test, all ended with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.all: list[Process] = []

    def node(self, options: NodeOptions) -> Process:
        """A process of `tests.processes.node`."""
        return self.module("tests.processes.node", options.to_json())

    def module(self, module: str, *arguments: str) -> Process:
        """A process of a Python module."""
        return self._start([sys.executable, "-m", module, *arguments], module.rpartition(".")[2])

    def command(self, *arguments: str, environment: Mapping[str, str] = MappingProxyType({})) -> Process:
        """A process of the `lithify` command, which looks for work often."""
        command = [str(Path(sys.executable).with_name("lithify")), *arguments]
        return self._start(command, "lithify", {**QUICK, **environment}, logs_events=True)

    def _start(
        self,
        command: Sequence[str],
        name: str,
        environment: Mapping[str, str] = MappingProxyType({}),
        *,
        logs_events: bool = False,
    ) -> Process:
        log = self._folder / f"{len(self.all)}-{name}.log"
        process = Process(command, log, environment, logs_events=logs_events)
        self.all.append(process)
        return process


@contextmanager
def nodes_in(folder: Path) -> Iterator[Nodes]:
    """Processes with their logs in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    nodes = Nodes(folder)
    try:
        yield nodes
    finally:
        for process in reversed(nodes.all):
            process.end()
