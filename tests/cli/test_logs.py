"""Log lines: for people and for machines."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator

import pytest

from lithify.base import events
from lithify.observe.logs import EventLog, set_up_logs
from lithify.testing import ManualClock
from tests.cli.invoking import logging_as_before

URL = "file:///db"


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    with logging_as_before():
        yield


def play(log_format: str, level: str, *events: events.Event) -> None:
    set_up_logs(log_format, level)
    clock = ManualClock()
    log = EventLog(clock)
    for event in events:
        log(event)
        clock.advance_s(2)


LIFE = (
    events.Claimed(URL, "c", "w"),
    events.RangeFinished(URL, "c", 0, 100, 90, 40, 2, 1, 0.5),
    events.RangeFinished(URL, "c", 1, 100, 10, 2, 1, 1, 0.5),
    events.Compacted(URL, "c", 3),
    events.AttemptFailed(URL, "d", 'disk "on" fire'),
)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    play("json", "info", *LIFE)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["Claimed", "Compacted", "AttemptFailed"]
    assert [line["level"] for line in lines] == ["info", "info", "warning"]
    assert lines[0]["message"] == "claimed"
    assert (lines[0]["dataset"], lines[0]["compaction"], lines[0]["worker"]) == (URL, "c", "w")
    done = lines[1]
    assert (done["duration_s"], done["finished_ranges"], done["bytes_read"], done["bytes_written"]) == (
        6.0,
        2,
        100,
        42,
    )
    assert lines[2]["reason"] == 'disk "on" fire'
    assert "duration_s" not in lines[2]


def test_the_life_of_workers_is_told_at_info(capsys: pytest.CaptureFixture[str]) -> None:
    """Who claimed what, whose heartbeats timed out, who lost what."""
    lives = [kind(URL, "c", "w") for kind in (events.Claimed, events.Reclaimed, events.Lost)]
    play("json", "info", *lives)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["event"], line["level"]) for line in lines] == [
        ("Claimed", "info"),
        ("Reclaimed", "info"),
        ("Lost", "info"),
    ]


def test_what_is_given_back_is_told_with_what_was_done(capsys: pytest.CaptureFixture[str]) -> None:
    play("json", "info", *LIFE[:2], events.GivenBack(URL, "c", "w", 3))
    _, line = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert (line["message"], line["level"]) == ("given back", "info")
    assert (line["finished_ranges"], line["open_ranges"], line["bytes_read"]) == (1, 3, 90)


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    play("text", "debug", *LIFE)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 5
    assert lines[0].endswith(f" INFO claimed dataset={URL} compaction=c worker=w")
    assert " DEBUG range finished " in lines[1]
    assert lines[4].endswith(r'reason="disk \"on\" fire"')


def test_only_what_is_asked_for_and_nothing_of_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    play("text", "warning", *LIFE)
    logging.getLogger("py4j").info("chatter")
    (line,) = capsys.readouterr().err.splitlines()
    assert " WARNING attempt failed " in line


def test_an_exception_is_part_of_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs("json", "info")
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("lithify").exception("it failed", exc_info=sys.exc_info())
    (line,) = capsys.readouterr().err.splitlines()
    assert "ValueError: boom" in json.loads(line)["exception"]
