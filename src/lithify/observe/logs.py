"""Logs on standard error: lines for people, or one JSON object each for machines.

1. Below WARNING, only Lithify's own logger is enabled; libraries, above all py4j, are silent.
2. Lifecycle events are logged with their values as fields, at the level of each event; events of every range
   only at DEBUG.
3. Secrets are masked in all output (`secrets`).
4. A record is one line, whatever its texts contain (`lithify.base.printable`); the lines of a traceback are
   indented below it. JSON escapes by itself.
5. An event that ends an attempt also has the attempt's duration, finished ranges, and bytes read and written.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from lithify.base import events
from lithify.base.clock import Clock
from lithify.base.events import Event
from lithify.base.printable import indented, printable
from lithify.observe.secrets import concealed

LOGGER = "lithify"
FIELDS = "fields"
_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")
_DETAIL = ("RangeFinished", "Moved")
_ENDS = ("Compacted", "AttemptFailed", "EngineLost", "StoreLost", "Lost", "GivenBack")


def set_up_logs(log_format: str, level: str) -> None:
    """Log to standard error from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger(LOGGER).setLevel(level.upper())


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(record, FIELDS, {})
    return found


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        # The message names the event.
        values = {name: value for name, value in _fields(record).items() if name != "event"}
        pairs = "".join(f" {name}={_text(value)}" for name, value in values.items())
        line = printable(concealed(f"{_time(record)} {record.levelname} {record.getMessage()}{pairs}"))
        if not record.exc_info:
            return line
        return f"{line}\n  {indented(concealed(self.formatException(record.exc_info)))}"


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(_concealed(document), default=lambda value: concealed(str(value)))


def _concealed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _concealed(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_concealed(inner) for inner in value]
    return concealed(value) if isinstance(value, str) else value


def _text(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return json.dumps(text, ensure_ascii=False) if not text or re.search(r'[\s"=]', text) else text


@dataclass(slots=True)
class _LoggedAttempt:
    started_s: float
    ranges: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


class EventLog:
    """The observer that writes events to the log."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._log = logging.getLogger(LOGGER)
        self._attempts: dict[str, _LoggedAttempt] = {}

    def __call__(self, event: Event) -> None:
        name = type(event).__name__
        values = {field.name: getattr(event, field.name) for field in fields(event)}
        self._follow(event)
        if name in _ENDS:
            values |= self._end(values["compaction"])
        level = logging.DEBUG if name in _DETAIL else event.level
        message = _WORDS.sub(" ", name).lower()
        self._log.log(level, message, extra={FIELDS: {"event": name, **values}})

    def _follow(self, event: Event) -> None:
        match event:
            case events.Claimed(compaction=compaction):
                self._attempts[compaction] = _LoggedAttempt(self._clock.monotonic_s())
            case events.RangeFinished(compaction=compaction) if compaction in self._attempts:
                attempt = self._attempts[compaction]
                attempt.ranges += 1
                attempt.bytes_read += event.bytes_read
                attempt.bytes_written += event.bytes_written
            case _:
                pass

    def _end(self, compaction: str) -> dict[str, Any]:
        attempt = self._attempts.pop(compaction, None)
        if attempt is None:
            return {}
        return {
            "duration_s": self._clock.monotonic_s() - attempt.started_s,
            "finished_ranges": attempt.ranges,
            "bytes_read": attempt.bytes_read,
            "bytes_written": attempt.bytes_written,
        }
