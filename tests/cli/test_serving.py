"""A process that runs until stopped, as a script, a person and a monitoring system meet it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from tests.cli.invoking import invoke, invoke_json
from tests.judge.official import Put, open_db

TIMEOUT_S = 120.0


class Running:
    """`lithify …` in the background, with its log."""

    def __init__(self, log: Path, *arguments: str | Path) -> None:
        self._log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lithify.cli.main", *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def wait_for(self, message: str) -> dict[str, Any]:
        """The first line with that message."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline_s:
            found = [line for line in self.lines() if line["message"] == message]
            if found:
                return found[0]
            assert self.process.poll() is None, self._log.read_text()
            time.sleep(0.05)
        raise AssertionError(f"no line {message!r} in {self._log.read_text()}")


@contextmanager
def running(log: Path, *arguments: str | Path) -> Iterator[Running]:
    started = Running(log, *arguments)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
            started.process.wait()


def scrape(url: str) -> dict[str, float]:
    """Sums of all samples, by name."""
    with urlopen(url, timeout=TIMEOUT_S) as answer:
        text = answer.read().decode()
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0) + sample.value
    return sums


def test_a_service_from_start_to_stop(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with open_db(path) as database:
        for n in range(3):
            database.write_batch([Put(b"k%02d" % k, b"%d" % n) for k in range(20)])
            database.flush()
    options = ["--master", "local[1]", "--metrics-port", "0", "--log-format", "json"]
    quick = ["--set", "service.poll_interval=200ms"]
    with running(tmp_path / "log", "run", *options, *quick, path) as service:
        started = service.wait_for("started")
        assert (started["coordinates"], started["works"], started["first"]) == (True, True, str(path))
        url = service.wait_for("metrics are served")["url"]
        assert url.startswith("http://127.0.0.1:")
        service.wait_for("epoch taken")
        coordinator = invoke_json("status", path)["coordinator"]
        assert coordinator["presence"] == "alive"

        (compaction_id,) = invoke_json("submit", "--full", path)["submitted"]
        waited = invoke("wait", "--timeout", "200s", path, compaction_id)
        assert (waited.exit_code, waited.stdout) == (0, f"{compaction_id} completed\n")
        assert invoke("doctor", "--read-only", path).exit_code == 0

        taken = scrape(url)
        assert taken["slatedb_compactor_jobs_claimed_total"] == 1
        assert taken["lithify_committed_total"] == 1
        assert taken["lithify_sorted_runs"] == 1
        assert taken["lithify_store_requests_total"] > 0

        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(TIMEOUT_S) == 0
    assert invoke_json("status", path)["coordinator"]["presence"] == "stopped"

    # Every line is JSON of ours: Spark says nothing. Lifecycle events are at INFO, with their values.
    lines = service.lines()
    assert {line["logger"] for line in lines} == {"lithify"}
    assert lines[-1]["message"] == "stopped"
    assert lines[-1]["seconds"] > 0
    events = {line["event"]: line for line in lines if "event" in line}
    for event in ("Claimed", "Prepared", "Compacted", "Committed"):
        assert events[event]["level"] == "info"
        assert events[event]["compaction"] == compaction_id
    assert events["Claimed"]["worker"] == coordinator["holder"], (
        "the next run knows by it whose work that was"
    )
    assert coordinator["holder"].startswith("lithify-")
    assert events["Compacted"]["duration_s"] > 0
    assert events["Compacted"]["bytes_read"] > 0
    with open_db(path) as database:
        assert database.scan() == [(b"k%02d" % k, b"2") for k in range(20)]


def test_a_port_that_is_taken_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    import socket

    path = tmp_path / "db"
    with open_db(path) as database:
        database.put(b"k", b"v")
        database.flush()
    before = sorted(path.rglob("*"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = invoke("coordinator", "--metrics-port", str(port), path)
    assert result.exit_code == 2
    assert "--metrics-port" in result.stderr
    assert sorted(path.rglob("*")) == before
