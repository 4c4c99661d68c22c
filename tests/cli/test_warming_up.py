"""What is compiled ahead of time, and who is told that it is not."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lithify.api import wiring
from lithify.api.client import settled
from lithify.datasets.slatedb.kernel import ready
from lithify.kernel import fingerprint
from tests.cli.invoking import invoke


def test_what_is_kept_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    done = invoke("warm-up")
    assert done.exit_code == 0
    assert "SlateDB databases" in done.stdout
    assert f"is cached in {os.environ['LITHIFY_CACHE_DIR']}" in done.stdout
    monkeypatch.setenv("LITHIFY_CACHE_DIR", "/proc/nowhere")
    assert "compiled in every process" in invoke("warm-up").stdout


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.delenv("MASTER", raising=False)
    return []


def tell(told: list[str], url: str, master: str = "local[2]") -> list[str]:
    """What is said of one that takes long."""
    looked = threading.Event()

    def say(text: str) -> None:
        told.append(text)
        looked.set()

    with wiring.telling_of_compilation(settled({"spark.master": master}), [url], say, after_s=0):
        looked.wait(0.5)
    return told


@pytest.mark.parametrize(
    ("url", "master", "is_told"),
    [
        ("/data/db", "local[2]", True),
        ("/data/db", "spark://host:7077", False),
        ("iceberg://lake/db.events", "local[2]", False),
    ],
)
def test_who_waits_for_the_compiler_is_told(
    told: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, master: str, is_told: bool
) -> None:
    monkeypatch.setenv("LITHIFY_CACHE_DIR", str(tmp_path))
    assert bool(tell(told, url, master)) == is_told
    assert all("lithify warm-up" in text for text in told)


def test_nobody_is_told_when_nothing_is_left_to_compile(
    told: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LITHIFY_CACHE_DIR", str(tmp_path))
    folder = fingerprint.kernel_folder(os.environ)
    folder.mkdir()
    fingerprint.mark_compiled(str(folder), ready.KERNEL)
    assert ready.is_compiled(os.environ)
    assert tell(told, "/data/db") == []


def test_quick_runs_are_not_looked_at(told: list[str]) -> None:
    with wiring.telling_of_compilation(settled({}), ["/data/db"], told.append, after_s=3600):
        pass
    assert told == []


def test_settings_are_completed() -> None:
    from lithify.cli.options.common import complete_setting

    assert "service.poll_interval=" in complete_setting("service.po")
    assert complete_setting("no.such") == []


def test_shells_can_complete() -> None:
    program = shlex.quote(str(Path(sys.executable).with_name("lithify")))
    # The command asks which shell it was started by; a second one keeps that there.
    shell = ["bash", "-c", f"{program} --show-completion; true"]
    script = subprocess.run(shell, capture_output=True, text=True, check=True).stdout
    assert "complete -o default -F _lithify_completion lithify" in script
