"""Secrets on their way to Spark: in which files, command lines and logs they are, and for how long.

A process of its own runs tasks with a secret among their arguments, under settings with others. It is
watched from its start, and killed with all it has started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.engine.waiting import child_environment, descendants, noted_pids, settled_cache, wait_until

ARGUMENT = "canary-of-an-argument"
SETTING = "canary-of-a-setting"
CONF = {
    "spark.my.password": SETTING,
    "spark.hadoop.fs.azure.account.key.lake": SETTING,
    "spark.my.url": f"http://user:{SETTING}@host",
    "spark.driver.defaultJavaOptions": f"-Dmy.password={SETTING} -Dmy.other='with a space'",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
}
PROGRAM = f"""
import itertools, os, shutil, sys
from pathlib import Path
from lithify.engine.spark import SparkEngine
from tests.engine.tasks import sleep_with_secret

notes, evidence, events, seconds = sys.argv[1:]
numbers = itertools.count()

def keep(event, arguments):
    if event in ("os.remove", "os.rename"):
        folder = Path(f"/proc/self/fd/{{arguments[1]}}" if event == "os.remove" and arguments[1] >= 0 else "")
        path = folder / os.fsdecode(arguments[0])
        if path.is_file():
            mode = path.stat().st_mode & path.parent.stat().st_mode & 0o077
            name = f"{{next(numbers)}}-{{'open' if mode else 'private'}}-{{path.name}}"
            shutil.copyfile(path, Path(evidence) / name)

sys.addaudithook(keep)
conf = {CONF!r} | {{"spark.eventLog.dir": Path(events).as_uri()}}
with SparkEngine("local[1]", conf=conf) as engine:
    engine.submit("job", sleep_with_secret, (notes, float(seconds), {ARGUMENT!r})).result()
    print(engine._start().result().system_property("my.other"))
"""
AGAIN = """
from lithify.engine.session import open_session
open_session("local[1]").close()
"""


@dataclass
class Watched:
    """A process, and what was seen of it."""

    folder: Path
    process: subprocess.Popen[str]
    command_lines: set[str] = field(default_factory=set)

    @property
    def scratch(self) -> Path:
        return self.folder / "scratch"

    def look(self) -> Sequence[int]:
        """Note the command lines of everything below the process, and give the ids."""
        found = descendants(self.process.pid)
        for pid in found:
            with suppress(OSError):
                self.command_lines.add(Path(f"/proc/{pid}/cmdline").read_text(errors="replace"))
        return found

    def runs_tasks(self) -> bool:
        self.look()
        return bool(noted_pids(self.folder / "notes"))

    def launches(self) -> bool:
        self.look()
        return any("SparkSubmit" in line for line in self.command_lines)

    def kill_all(self) -> None:
        """At one stroke, as far as that goes: everything stands still first."""
        pids = [self.process.pid, *self.look()]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        self.process.communicate()

    def files_with(self, secret: str, *folders: str) -> list[Path]:
        """The files that hold the secret."""
        places = [self.folder / name for name in folders]
        files = [path for place in places for path in place.rglob("*") if path.is_file()]
        return [path for path in files if secret.encode() in path.read_bytes()]


def environment(folder: Path) -> dict[str, str]:
    """That of a process whose temporary folder holds nothing but what it puts there itself."""
    return child_environment() | {
        "TMPDIR": str(folder / "scratch"),
        "LITHIFY_CACHE_DIR": str(folder / "cache"),
    }


@contextmanager
def watched(folder: Path, seconds: float) -> Iterator[Watched]:
    for name in ("scratch", "notes", "evidence", "events"):
        (folder / name).mkdir()
    settled_cache(folder / "cache")
    arguments = [str(folder / name) for name in ("notes", "evidence", "events")]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments, str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(folder),
    )
    seen = Watched(folder, process)
    try:
        yield seen
    finally:
        seen.kill_all()


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """A run to its end."""
    with watched(tmp_path_factory.mktemp("ended"), 0.0) as seen:
        wait_until(lambda: seen.look() is not None and seen.process.poll() is not None, limit_s=200)
        assert seen.process.stdout is not None
        assert seen.process.stderr is not None
        assert (seen.process.stdout.read(), seen.process.stderr.read()) == ("with a space\n", "")
    return seen


@pytest.fixture(scope="module", params=[pytest.param("starting", marks=pytest.mark.whole), "running"])
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """A run that was killed, with all that it had started."""
    with watched(tmp_path_factory.mktemp("killed"), 240.0) as seen:
        wait_until(seen.launches if request.param == "starting" else seen.runs_tasks, limit_s=200)
        seen.kill_all()
    return seen


def test_the_argument_of_a_task_is_in_no_file_ever(ended: Watched) -> None:
    assert ended.files_with(ARGUMENT, "evidence", "scratch", "events") == []


def test_what_a_killed_run_leaves_has_no_argument_in_it(killed: Watched) -> None:
    assert killed.files_with(ARGUMENT, "evidence", "scratch", "events") == []


def test_no_secret_is_on_a_command_line(ended: Watched, killed: Watched) -> None:
    for seen in (ended, killed):
        assert any("SparkSubmit" in line for line in seen.command_lines)
        for line in seen.command_lines:
            assert SETTING not in line
            assert ARGUMENT not in line


def test_settings_are_in_private_files_only_and_these_are_removed(ended: Watched, killed: Watched) -> None:
    kept = ended.files_with(SETTING, "evidence")
    assert kept, "the settings have reached Spark some other way; look for them there"
    assert all("-private-" in path.name for path in kept)
    assert list(ended.scratch.glob("lithify-*")) == []
    for path in killed.files_with(SETTING, "scratch"):
        assert path.stat().st_mode & 0o077 == 0
        assert path.parent.stat().st_mode & 0o077 == 0


def test_settings_are_in_no_file_once_tasks_run(killed: Watched) -> None:
    if noted_pids(killed.folder / "notes"):
        assert killed.files_with(SETTING, "scratch") == []


def test_sparks_own_log_of_events_masks_them(ended: Watched) -> None:
    (log,) = (
        path for path in (ended.folder / "events").rglob("*") if path.is_file() and path.stat().st_size > 1000
    )
    text = log.read_text()
    assert "spark.my.password" in text
    assert "spark.hadoop.fs.azure.account.key.lake" in text
    assert SETTING not in text


def test_what_a_killed_run_left_is_gone_after_the_next_start(killed: Watched) -> None:
    assert list(killed.scratch.glob("lithify-*"))
    subprocess.run(
        [sys.executable, "-c", AGAIN],
        check=True,
        timeout=240,
        env=environment(killed.folder),
    )
    assert list(killed.scratch.glob("lithify-*")) == []
