"""What a command must not do, whatever it is given.

1. It ends: with an exit code of the tree of errors, and without an exception. What nobody foresaw counts as
   one, though Lithify makes a sentence of it.
2. It takes at most `MAX_CPU_S` of the processor and `MAX_MEMORY_BYTES` more memory than before.
3. An error is a short text on standard error; with `--json`, standard output is one document.
4. A command that only reads, and one that refuses, leave every object as it was.
5. Where a foreign reader could read the dataset before, it sees the same rows afterwards.
6. A sound dataset beside the damaged one gets what it would have got alone.
"""

from __future__ import annotations

import json
import logging
import re
import signal
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from lithify.base.peak_memory import peak_memory_bytes
from tests.fuzz.family import WROTE_NOTHING, Command, Damaged, Family, Verdict
from tests.fuzz.running import run

MAX_CPU_S = 10.0
MAX_MEMORY_BYTES = 1 << 30
MAX_WALL_S = 120
MAX_ERROR_CHARS = 20_000
EXIT_CODES = frozenset({*range(11), 130})
_SAID_CHARS = 600


class Hangs(BaseException):
    """Nothing came for a long time."""


_TIME_OBJECT = re.compile(r"(.*/)?_?lithify/([^/]+/)?now")
"""An empty object by which the store says what time it is: commands that report who is alive put it too."""


def judge(
    family: Family, damaged: Damaged, command: Command, arguments: Sequence[str], folder: Path, case: int
) -> Verdict:
    """Run the command, and say what it did that it must not."""
    verdict = Verdict(case, command.name, damaged.what)
    is_compared = command.keeps_rows and not command.reads_only and not damaged.is_forged
    before_seen = family.seen(damaged) if is_compared else None
    before = objects(damaged.folder)
    _reset_peak()
    memory_before, cpu_before = peak_memory_bytes(), time.process_time()
    try:
        with _time_limit(), _defects() as found:
            result = run(arguments)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        verdict.problems.append("".join(traceback.format_exception(error)[-6:]))
        return verdict
    finally:
        verdict.cpu_s = time.process_time() - cpu_before
        verdict.memory_bytes = max(0, peak_memory_bytes() - memory_before)
    verdict.exit_code = result.exit_code
    verdict.said = (result.stdout[-_SAID_CHARS:] + result.stderr[-_SAID_CHARS:]).strip()
    verdict.problems += [f"a defect: {text}" for text in found]
    verdict.problems += _said_badly(result.exit_code, result.stdout, result.stderr, arguments)
    verdict.problems += _took_too_much(verdict)
    if command.reads_only or result.exit_code in WROTE_NOTHING:
        changes = [
            name
            for name in _changes(before, damaged)
            if not name.startswith(tuple(command.may_write)) and not _TIME_OBJECT.fullmatch(name)
        ]
        if changes:
            verdict.problems.append(f"wrote although it ended with {result.exit_code}: {changes}")
    if before_seen is not None and family.seen(damaged) != before_seen:
        verdict.problems.append("a foreign reader sees other rows than before")
    if command.helps and not family.was_helped(folder):
        verdict.problems.append("the sound dataset was not helped")
    return verdict


def _said_badly(exit_code: int, out: str, err: str, arguments: Sequence[str]) -> Iterator[str]:
    if exit_code not in EXIT_CODES:
        yield f"the exit code {exit_code} is none of ours"
    if "Traceback (most recent call last)" in out + err:
        yield "a traceback"
    if exit_code not in (0, 1) and len(err) > MAX_ERROR_CHARS:
        yield f"{len(err)} characters of errors"
    if exit_code not in (0, 1, 10) and not err.strip():
        yield "an error without a word"
    if "--json" in arguments and out.strip():
        try:
            json.loads(out)
        except ValueError as error:
            yield f"no JSON: {error}"


def _took_too_much(verdict: Verdict) -> Iterator[str]:
    if verdict.cpu_s > MAX_CPU_S:
        yield f"{verdict.cpu_s:.1f} s of processor time"
    if verdict.memory_bytes > MAX_MEMORY_BYTES:
        yield f"{verdict.memory_bytes / 1e6:.0f} MB of memory"


def objects(folder: Path) -> Mapping[str, str]:
    """All files below a folder by a digest of what they hold."""
    return {
        str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _changes(before: Mapping[str, str], damaged: Damaged) -> list[str]:
    after = objects(damaged.folder)
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


@contextmanager
def _defects() -> Iterator[list[str]]:
    """What `lithify.base.defects` made a sentence of."""
    found: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(self.format(record))

    logger, handler = logging.getLogger("lithify.base.defects"), Collect()
    before = logger.level, logger.propagate
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


@contextmanager
def _time_limit() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Hangs(f"nothing for {MAX_WALL_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    left_s, interval_s = signal.setitimer(signal.ITIMER_REAL, MAX_WALL_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, left_s, interval_s)


def _reset_peak() -> None:
    """Let the peak of this process's memory begin anew, where the system can."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return
