"""The JVM of a classic session: its launch, its end, and its log.

1. The JVM is started through Spark's launcher, with its output in a file of the session's folder, in a
   separate process group, so that Ctrl-C in a terminal reaches only this process. It ends with this process,
   because it reads its standard input to the end.
2. Settings and JVM options are passed in files that only this user can read, because every user can read a
   command line. The files are removed after the start or its failure (`forget_what_was_told`).
3. A JVM that cannot report its port would wait for ever. So the wait is limited, and the JVM is killed if
   this process ends normally during the wait. The JVM inherits the folder's lock, so the folder exists while
   it runs.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from lithify.base.errors import EngineDown, EngineError
from lithify.base.scratch import Scratch
from lithify.engine import settings, versions

START_LIMIT_S = 120
STOP_LIMIT_S = 15
LOG_TAIL_LINES = 15
_POLL_S = 0.02
_REAP_LIMIT_S = 2
_OUTPUT_FILE = "jvm.log"
_TOLD_FOLDER = "told"
"""Folder of the start-up files."""


class JvmEndedError(EngineDown):
    """The JVM ended before it could be used."""


class DriverJvm:
    """The JVM of one session, which works in `scratch`."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self._folder = scratch.path
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process_id(self) -> int | None:
        """`None` before the launch, and if another program launched the JVM."""
        return self._process.pid if self._process else None

    @property
    def has_ended(self) -> bool:
        """Return whether the JVM was launched and has ended."""
        return self._process is not None and self._process.poll() is not None

    def launch(self, conf: Mapping[str, str], environment: Mapping[str, str]) -> tuple[int, str]:
        """Start the JVM and wait until it reports its port and its secret."""
        from pyspark.find_spark_home import _find_spark_home

        told = self._folder / _TOLD_FOLDER
        answer = told / "gateway"
        command = [str(Path(_find_spark_home()) / "bin" / "spark-submit")]
        command += ["--properties-file", str(_tell(told, conf))]
        if versions.has_load_defaults(versions.installed_version()):
            command.append("--load-spark-defaults")
        command += shlex.split(environment.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        with (self._folder / _OUTPUT_FILE).open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**environment, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer)},
                process_group=0,
                pass_fds=(self._scratch.lock,),
            )
        atexit.register(self._process.kill)
        try:
            self._wait_for(answer)
        finally:
            atexit.unregister(self._process.kill)
        return _parse_gateway(answer.read_bytes())

    def _wait_for(self, answer: Path) -> None:
        assert self._process is not None
        deadline_s = time.monotonic() + START_LIMIT_S
        while not answer.exists():
            if self._process.poll() is not None:
                raise JvmEndedError(f"Spark's JVM ended before it was ready:\n{self.log_tail()}".rstrip())
            if time.monotonic() > deadline_s:
                limit = f"{START_LIMIT_S} seconds"
                raise EngineError(f"Spark's JVM was not ready after {limit}:\n{self.log_tail()}".rstrip())
            time.sleep(_POLL_S)

    def forget_what_was_told(self) -> None:
        """Remove the start-up files, which the JVM has read or never will."""
        shutil.rmtree(self._folder / _TOLD_FOLDER, ignore_errors=True)

    def ended(self) -> JvmEndedError:
        """Return an error that the JVM has ended, with its last log lines."""
        ending = "has ended"
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                ending += f" with exit code {self._process.wait(_REAP_LIMIT_S)}"
        error = JvmEndedError(f"Spark's JVM {ending}")
        error.add_note(self.log_tail())
        return error

    def log_tail(self) -> str:
        lines: list[str] = []
        for name in (settings.LOG_FILE, _OUTPUT_FILE):
            with contextlib.suppress(OSError):
                lines += (self._folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
        telling = [line for line in lines if line.strip() and not line.lstrip().startswith("at ")]
        return "\n".join(telling[-LOG_TAIL_LINES:])

    def end(self) -> None:
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            process.wait(STOP_LIMIT_S if process.poll() is None else 0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _tell(folder: Path, conf: Mapping[str, str]) -> Path:
    """Write the settings and the JVM's options to files in a new folder. Return the file of settings."""
    folder.mkdir(0o700)
    launching = dict(conf)
    for name in settings.JVM_OPTIONS & conf.keys():
        options = folder / name
        _write_privately(options, settings.quote_options(shlex.split(conf[name])))
        launching[name] = settings.quote_options([f"@{options}"])
    file = folder / "settings"
    _write_privately(file, settings.properties(launching))
    return file


def _write_privately(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def _parse_gateway(answer: bytes) -> tuple[int, str]:
    """Decode the gateway's port and secret: two big-endian 32-bit numbers, of which the second is the
    secret's length, then the secret."""
    port, length = int.from_bytes(answer[:4], "big"), int.from_bytes(answer[4:8], "big")
    return port, answer[8 : 8 + length].decode()
