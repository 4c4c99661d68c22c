"""The timeline in the terminal, as JSON and as a picture."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lithify.base.errors import Refused
from lithify.planning.timeline.calendar import MAX_US, MIN_US, Calendar, Granularity
from lithify.planning.timeline.model import ActiveTask, ChunkBucket, Interval, TimelineFile, TimelinePlan
from lithify.planning.timeline.plan import plan, remember
from lithify.planning.timeline.state import deferred
from lithify.views.picture import Box, svg
from lithify.views.text import MAX_SHOWN
from lithify.views.timeline import print_timeline, timeline_json
from lithify.views.timeline_picture import MAX_FILES, MAX_GROUPS, draw_heat, draw_timeline, save_picture
from tests.planning.timeline.timelines import DAY_US, NOW_US, POLICY, day, file, small_files

EACH = replace(POLICY, max_task_bytes=1)
CALENDAR = POLICY.calendar
CHAIN = [f for i in range(3) for f in (file(i + 0.5, i + 1.5, id=f"c{i}"), *small_files(i, 2))]
PNG = b"\x89PNG\r\n\x1a\n"


def printed(result: TimelinePlan, width: int = 160, most: int = MAX_SHOWN) -> list[str]:
    """The lines, with single spaces and without frames."""
    out = io.StringIO()
    print_timeline(Console(file=out, width=width), result, CALENDAR, most=most)
    lines = (line.strip().removeprefix("│").removesuffix("│") for line in out.getvalue().splitlines())
    return [" ".join(line.split()) for line in lines]


def line_of(result: TimelinePlan, start: str) -> str:
    return next(line for line in printed(result) if line.startswith(start))


def test_chunks_that_share_files_are_joined_by_marks() -> None:
    result = plan(CHAIN, EACH, NOW_US)
    marks = [
        line.split()[0] + line.split()[1]
        for line in printed(result)
        if "1970-01-0" in line and line[0] in "┌│└"
    ]
    assert marks == ["┌1970-01-01", "│1970-01-02", "│1970-01-03", "└1970-01-04"]


def test_a_narrow_terminal_shows_each_chunk_on_one_line_and_no_reasons() -> None:
    result = plan(CHAIN, EACH, NOW_US)
    lines = printed(result, 80)
    chunks = lines[: next(i for i, line in enumerate(lines) if line.startswith("Tasks"))]
    assert sum(line[:1] in "┌│└" and "1970-01-0" in line for line in chunks) == 4
    assert sum("compact" in line for line in chunks) == 3
    assert not any("would do" in line for line in chunks)
    assert any("would do" in line for line in printed(result))


def test_tasks_say_what_they_wait_for() -> None:
    lines = printed(plan(CHAIN, EACH, NOW_US))
    tasks = lines[next(i for i, line in enumerate(lines) if line.startswith("Tasks")) :]
    assert sum("at once" in line for line in tasks) == 2
    assert sum("after 1, 2" in line for line in tasks) == 1
    assert any("one chunk above max_task_bytes" in line for line in tasks)


def test_verdict_reason_and_task_of_a_chunk() -> None:
    line = line_of(plan(small_files(0, 3), POLICY, NOW_US), "1970-01-01")
    assert "│ compact │ 0.11 │ 1 │ 3 files (3.0 MB) where 1 would do" in line


def test_chunks_with_nothing_to_do_are_counted() -> None:
    files = [file(i + 0.1, i + 0.9, 2, f"f{i}") for i in range(50)] + small_files(20, 2)
    lines = printed(plan(files, POLICY, NOW_US))
    assert any(
        "1970-01-01 … 1970-01-20 │ 20 │ 40.0 MB" in line and "20 × compacted" in line for line in lines
    )
    assert any("1970-01-22 … 1970-02-19" in line and "29 × compacted" in line for line in lines)


def test_held_and_deferred_chunks_are_marked() -> None:
    files = [*small_files(0, 3), *small_files(5, 3)]
    policy = replace(EACH, skip_newest_us=DAY_US)
    states = deferred(remember(plan(files, policy, NOW_US), policy), [day(0)])
    result = plan(files, policy, NOW_US, states=states)
    assert "deferred" in line_of(result, "1970-01-01")
    assert "skipped" in line_of(result, "1970-01-06")
    assert "too close to the newest data" in line_of(result, "1970-01-06")


def test_active_tasks_and_buckets_are_named() -> None:
    files = [*small_files(0, 2), TimelineFile("n", ChunkBucket.NULL, 5, 5)]
    active = ActiveTask("x", frozenset({day(0)}), frozenset({"d0-0", "d0-1"}))
    result = plan(files, POLICY, NOW_US, active=[active])
    assert "│ active │" in line_of(result, "1970-01-01")
    assert line_of(result, "(null times)")


def test_totals() -> None:
    lines = printed(plan([*small_files(0, 3), *small_files(4, 1)], POLICY, NOW_US))
    assert "awaiting │ 1 │ 3 │ 3.0 MB │ 300" in lines
    assert "compacted │ 1 │ 1 │ 1.0 MB │ 100" in lines


def test_names_are_not_taken_for_markup() -> None:
    files = [replace(f, group="a=[red]x[/nothing]") for f in small_files(0, 2)] + small_files(1, 2)
    assert any("a=[red]x[/nothing]" in line for line in printed(plan(files, POLICY, NOW_US)))


def test_long_timelines_begin_with_the_most_urgent_chunks() -> None:
    files = [f for i in range(60) for f in small_files(i, 2 + (i == 40))]
    lines = printed(plan(files, EACH, NOW_US), most=20)
    assert next(line for line in lines if "would do" in line).startswith("1970-02-10"), lines[:6]
    assert "And 40 more chunks; --all shows all." in lines
    assert "And 40 more tasks; --all shows all." in lines
    assert len(lines) < 60
    assert any("And 100 more chunks; --json" in line for line in printed(plan(_days(600), EACH, NOW_US)))


def _days(count: int) -> list[TimelineFile]:
    return [f for i in range(count) for f in small_files(i, 2)]


def test_a_partition_is_one_line_if_there_are_many_chunks() -> None:
    files = [replace(f, id=f"{g}{f.id}", group=f"hour={g}") for g in range(30) for f in _days(3)]
    lines = printed(plan(files, EACH, NOW_US), most=20)
    assert any("hour=0 │ 1970-01-01 … 1970-01-03 │ 6 │ 6.0 MB" in line for line in lines), lines[:6]
    assert any("3 × compact │" in line for line in lines)
    assert "And 10 more partitions; --all shows all." in lines


def test_a_narrow_terminal_shows_the_most_urgent_partitions_on_a_screen() -> None:
    files = [
        replace(f, id=f"{g}{f.id}", group=f"0:hour=2026-01-01-{g:02}/tenant=t1")
        for g in range(90)
        for f in _days(1)
    ]
    lines = printed(plan(files, EACH, NOW_US), 80, most=20)
    assert next(i for i, line in enumerate(lines) if line.startswith("Tasks")) < 50
    assert not any("…" in line for line in lines)


def test_statuses_without_chunks_have_no_totals() -> None:
    lines = printed(plan(small_files(0, 3), POLICY, NOW_US))
    assert not any("0 B" in line for line in lines)


def test_an_empty_timeline_says_so() -> None:
    assert printed(plan([], POLICY, NOW_US)) == ["The timeline has no files."]


def test_json_has_everything() -> None:
    result = plan([*CHAIN, TimelineFile("n", ChunkBucket.NULL, 5, 5)], EACH, NOW_US)
    document = json.loads(json.dumps(timeline_json(result, CALENDAR)))
    assert [c["name"] for c in document["chunks"]] == [
        "1970-01-01",
        "1970-01-02",
        "1970-01-03",
        "1970-01-04",
        "(null times)",
    ]
    assert document["chunks"][1] | {"reason": "", "task": ""} == {
        "group": "",
        "name": "1970-01-02",
        "start_us": DAY_US,
        "end_us": 2 * DAY_US,
        "files": 4,
        "bytes": 4_000_000,
        "rows": 400,
        "deleted_rows": 0,
        "overlaps_prior": True,
        "overlaps_later": True,
        "action": "compact",
        "priority": pytest.approx(3 / 19),
        "reason": "",
        "status": "awaiting",
        "held": None,
        "task": "",
        "analysed": True,
    }
    assert {task["key"]: task["after"] for task in document["tasks"]}["@1970-01-02"] == [
        "@1970-01-01",
        "@1970-01-03",
    ]
    assert document["totals"]["awaiting"]["files"] == 9


@pytest.mark.parametrize(
    "files",
    [
        pytest.param([], id="nothing"),
        pytest.param(CHAIN, id="a chain"),
        pytest.param([TimelineFile("n", ChunkBucket.NULL, 5, 5)], id="no times"),
        pytest.param([file(0, 1, 0, f"f{i}") for i in range(MAX_FILES + 1)], id="many files"),
        pytest.param(
            [replace(f, id=f"{g}{f.id}", group=f"g{g}") for g in range(MAX_GROUPS + 1) for f in CHAIN],
            id="many groups",
        ),
        pytest.param(
            [
                TimelineFile("old", Interval(MIN_US, MIN_US + 1), 1, 1),
                TimelineFile("new", Interval(MAX_US - 1, MAX_US), 1, 1),
            ],
            id="far times",
        ),
    ],
)
def test_a_picture_can_be_drawn(files: list[TimelineFile], tmp_path: Path) -> None:
    path = tmp_path / "plan.png"
    save_picture(plan(files, EACH, NOW_US), CALENDAR, path)
    assert path.read_bytes().startswith(PNG)


def test_the_picture_shows_files_tasks_and_arrows(tmp_path: Path) -> None:
    path = tmp_path / "plan.svg"
    save_picture(plan(CHAIN, EACH, NOW_US), CALENDAR, path)
    svg = path.read_text()
    assert svg.count("#c0392b") >= 2, "red tasks"
    assert svg.count('class="files stroke"') == len(CHAIN), "files"
    assert svg.count('class="black"') >= 3, "black tasks and heads of arrows"


def test_the_picture_says_what_its_colours_mean_and_when_it_is() -> None:
    shown = svg(draw_timeline(plan(CHAIN, EACH, NOW_US), replace(CALENDAR, zone="Asia/Tokyo")))
    for said in ("awaiting compaction", "compacted", "files (thicker", "starts at once", "task that waits"):
        assert said in shown, said
    assert "(Asia/Tokyo)" in shown
    assert ">1970-01-01<" in shown, "with the year"


def test_a_heat_map_has_a_row_for_each_partition_and_a_cell_for_each_day() -> None:
    """Deeper where more bytes are; a table of one group has none."""
    assert draw_heat(plan(CHAIN, EACH, NOW_US), CALENDAR) is None
    files = [replace(f, id=f"{g}-{f.id}", group=g) for g in ("eu <1>", "us") for f in small_files(1, 2)]
    files += [replace(f, id=f"late-{f.id}", group="us") for f in small_files(2, 4)]
    found = draw_heat(plan(files, EACH, NOW_US), CALENDAR)
    assert found is not None
    cells = [shape for shape in found.shapes if isinstance(shape, Box) and shape.title]
    assert sorted(cell.title.partition(":")[0] for cell in cells) == [
        "eu <1>, 1970-01-02", "us, 1970-01-02", "us, 1970-01-03",
    ]  # fmt: skip
    assert len({cell.top for cell in cells}) == 2
    assert max(cells, key=lambda cell: cell.opacity).title.startswith("us, 1970-01-03")
    assert "eu &lt;1&gt;" in svg(found)


def test_the_axis_keeps_to_midnight_when_the_clock_is_changed() -> None:
    """Berlin, where it was put forward on 31 March 2024."""
    begin = Calendar(Granularity.DAY, "Europe/Berlin").edges(1_711_666_800_000_000, 1_711_666_800_000_001)[0]
    files = [
        replace(f, times=Interval(f.times.start_us + begin, f.times.end_us + begin))
        for day in range(5)
        for f in small_files(day, 2)
        if isinstance(f.times, Interval)
    ]
    policy = replace(EACH, calendar=Calendar(Granularity.DAY, "Europe/Berlin"))
    shown = svg(draw_timeline(plan(files, policy, NOW_US), policy.calendar))
    labels = re.findall(r">(2024-0[34]-\d\d)<", shown)
    assert labels == ["2024-03-29", "2024-03-30", "2024-03-31", "2024-04-01", "2024-04-02", "2024-04-03"]


def test_without_the_library_drawing_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(Refused, match=r"lithify\[draw\], or write --picture .*x\.svg"):
        save_picture(plan(CHAIN, EACH, NOW_US), CALENDAR, tmp_path / "x.png")


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"\.png"):
        save_picture(plan(CHAIN, EACH, NOW_US), CALENDAR, tmp_path / "x.doc")
