"""Turn Spark's message about a failed job into one sentence for operators.

Spark's messages wrap the cause in a Java trace of hundreds of lines. The cause is, in this order: the last
line of the innermost Python traceback; else the reason of the last lost task; else the first line.
"""

from __future__ import annotations

import re

MAX_CAUSE_CHARS = 500
_EXCEPTION_LINE = re.compile(r"^[A-Za-z_][\w.]*(?:: .*)?$")
_LOST_TASK = re.compile(r"Lost task [^:]*:\s*(.*)")
_NOISE = re.compile(r"^(?:\s*at .*|\s*\.\.\. \d+ more|An error occurred while calling .*|)$")
_MISSING_MODULE = re.compile(r"No module named '?([\w.]+)'?")


def essential_cause(message: str) -> str:
    """Return the line of a Spark error message that names the cause."""
    lines = message.split("Driver stacktrace:")[0].split("JVM stacktrace:")[0].splitlines()
    cause = _python_cause(lines) or _lost_task_cause(lines) or _first_line(lines) or "Spark gave no reason"
    if module := _MISSING_MODULE.search(cause):
        cause += f" (install the package that holds {module.group(1)} where Spark runs its tasks)"
    return cause[:MAX_CAUSE_CHARS]


def _python_cause(lines: list[str]) -> str | None:
    traces = [i for i, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    if not traces:
        return None
    after = (line for line in lines[traces[-1] + 1 :] if _EXCEPTION_LINE.match(line))
    return next(after, None)


def _lost_task_cause(lines: list[str]) -> str | None:
    found = [match.group(1).strip() for line in lines if (match := _LOST_TASK.search(line))]
    return found[-1] if found and found[-1] else None


def _first_line(lines: list[str]) -> str | None:
    return next((line.strip() for line in lines if not _NOISE.match(line)), None)
