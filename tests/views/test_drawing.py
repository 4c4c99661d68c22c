"""Blocks as text, on wide and narrow terminals."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from lithify.views import text
from lithify.views.blocks import Alarm, Block, Line, Shown, Table, columns
from lithify.views.drawing import draw

ID = "01M7Y73N1RT45V6YVXGPSA14XX"
WIDE = Table(
    "Compactions",
    columns("=id", "state", "why it waits", ">bytes"),
    [
        ("SA14XX", "running", "–", "1.4 GB"),
        ("[b]x", Alarm("stale"), "a long reason: " + "word " * 14 + "x" * 90, "17 B"),
    ],
    of="compactions",
)
SMALL = Table("Totals", columns("", ">files"), [("awaiting", "2")])


def drawn(width: int, *blocks: Block) -> list[str]:
    console = Console(file=io.StringIO(), width=width, emoji=False)
    draw(console, blocks)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_table_that_fits_stays_a_table_however_narrow_the_terminal() -> None:
    assert any("awaiting" in line and "2" in line for line in drawn(40, SMALL))


def test_a_table_that_does_not_becomes_a_list_that_says_all() -> None:
    lines = drawn(80, WIDE)
    assert lines[:6] == [
        "Compactions",
        "  SA14XX",
        "    state         running",
        "    bytes         1.4 GB",
        "  [b]x",
        "    state         stale",
    ]
    assert lines[6].startswith("    why it waits  a long reason: word")
    assert max(map(len, lines)) <= 80
    assert "".join(" ".join(lines).split()).count("x" * 90) == 1


def test_from_a_hundred_columns_on_cells_go_on_in_their_next_lines() -> None:
    assert any("SA14XX" in line and "running" in line for line in drawn(100, WIDE))
    assert not any("SA14XX" in line and "running" in line for line in drawn(99, WIDE))


def test_what_is_piped_has_a_line_for_each_row() -> None:
    (line,) = (line for line in drawn(100_000, WIDE) if "long reason" in line)
    assert "x" * 90 in line
    assert "17 B" in line


@pytest.mark.parametrize(
    ("long", "short"),
    [
        (f"compaction {ID} is running", "compaction SA14XX is running"),
        (f"lithify-{ID}, heard 3s ago", "lithify-SA14XX, heard 3s ago"),
        (
            f"remove the cause, then: lithify retry URL {ID}",
            f"remove the cause, then: lithify retry URL {ID}",
        ),
        (f"compacted/{ID}.sst is gone", f"compacted/{ID}.sst is gone"),
    ],
)
def test_ids_of_compactions_are_short_and_those_of_files_whole(long: str, short: str) -> None:
    assert text.short_ids(long) == short


def test_a_key_is_drawn_as_it_is() -> None:
    """Also one that looks like markup of the terminal."""
    table = Table("Keys", columns("first key"), [(text.key(b"[red]x[/]"),), (text.key(rb"\["),)])
    for width in (60, 120):
        assert "[red]x[/]" in " ".join(drawn(width, table))
        assert "\\[" not in text.key(b"[red]x[/]")
    assert text.key(rb"\[") == rb"\[".decode()


def test_a_notebook_shows_the_same_as_html_and_foreign_text_as_text() -> None:
    evil = "<script>alert(1)</script>\x1b[2J[red]"
    shown = Shown({}, (SMALL, Line(evil, "Note:"), Table("", columns("x"), [(evil,)] * 99, of="notes")))
    html = shown._repr_html_()
    assert html.startswith("<pre ")
    assert "awaiting" in html
    assert "<script>" not in html
    assert "\x1b" not in html
    assert "&lt;script&gt;" in html
    assert "And 79 more notes" in html
