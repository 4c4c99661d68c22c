"""Pictures of levels, and what a picture is as SVG: safe to put into a page, whatever texts are in it."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lithify.base.errors import Refused
from lithify.views.blocks import Level, LevelPart, Levels
from lithify.views.levels_picture import MAX_LEVELS, draw_levels
from lithify.views.picture import Box, Label, Picture, Stroke, save, svg

NAMES = [
    "</svg><script>alert(1)</script>",
    "\x00\x1b[31m",
    "a\ud800b",
    '" onload="x',
    "]]>",
    "&amp;",
    "$x_1$",
]


@pytest.mark.parametrize("name", NAMES)
def test_any_text_is_well_formed_and_no_markup(name: str, tmp_path: Path) -> None:
    shapes = (
        Box(0, 0, 1, 1, "files", title=name),
        Label(0, 0, name),
        Stroke(0, 0, 9, 9, "black", is_arrow=True),
    )
    picture = Picture(100, 50, name, shapes)
    drawn = ElementTree.fromstring(svg(picture).encode())
    assert {element.tag.rpartition("}")[2] for element in drawn.iter()} == {
        "svg",
        "rect",
        "title",
        "text",
        "path",
        "polygon",
    }
    assert {
        a for element in drawn.iter() for a in element.attrib if a.startswith("on") or a == "style"
    } == set()
    save(picture, tmp_path / "x.svg")
    ElementTree.parse(tmp_path / "x.svg")
    save(picture, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_texts_can_be_cleared_of_secrets() -> None:
    picture = Picture(1, 1, "a secret", (Label(0, 0, "a secret"), Box(0, 0, 1, 1, "files", title="a secret")))
    assert "secret" not in svg(picture, lambda text: text.replace("secret", "***"))


def test_svg_needs_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    save(Picture(1, 1, "x", ()), tmp_path / "x.svg")
    with pytest.raises(Refused, match=r"lithify\[draw\]"):
        save(Picture(1, 1, "x", ()), tmp_path / "x.png")


def test_levels_are_as_wide_as_their_bytes() -> None:
    levels = [
        Level("L0: 2", (LevelPart(100, "active", "one"), LevelPart(300, "planned", "two"))),
        Level("run 1", (LevelPart(800, name="all"),)),
    ]
    picture = draw_levels(Levels("what there is", levels, "SSTs"))
    widths = {s.title: s.width for s in picture.shapes if isinstance(s, Box) and s.title}
    assert widths["two"] == pytest.approx(3 * widths["one"], rel=0.05)
    assert widths["all"] == pytest.approx(8 * widths["one"], rel=0.05)
    told = [s.text for s in picture.shapes if isinstance(s, Label)]
    assert told[0] == "what there is"
    for said in (
        "400 B",
        "800 B",
        "SSTs: is being compacted",
        "SSTs: would be compacted now",
        "SSTs: not affected",
    ):
        assert said in told


def test_of_very_many_levels_the_first_are_drawn() -> None:
    levels = [Level(f"run {n}", (LevelPart(1),), f"segment {n}") for n in range(1000)]
    picture = draw_levels(Levels("many", levels, "SSTs"))
    assert sum(isinstance(s, Box) for s in picture.shapes) == MAX_LEVELS + 1
    assert "And 940 more levels." in [s.text for s in picture.shapes if isinstance(s, Label)]
    assert draw_levels(Levels("none", [], "SSTs")).height > 0
