"""Pictures: shapes in pixels, laid out once, drawn as SVG or, by matplotlib, in other formats.

1. A shape has a *role* instead of a colour. `COLORS` has its colour, and the legend explains it. In SVG the
   role is also the class, so that a dark page can choose other colours.
2. Foreign text is escaped, and characters that XML forbids are replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from lithify.base.errors import Refused

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS: Mapping[str, str] = MappingProxyType(
    {
        "text": "#222222",
        "line": "#999999",
        "awaiting": "#f2a33a",
        "deferred": "#b07cc6",
        "skipped": "#6fb7c9",
        "compacted": "#8cc084",
        "files": "#1f4e79",
        "red": "#c0392b",
        "black": "#222222",
        "resting": "#8da2b5",
        "planned": "#f2a33a",
        "active": "#c0392b",
        "done": "#7cb97f",
        "open": "#d5dbe1",
    }
)
FONT_PX = 12
_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LEGEND_PX = 22


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle."""

    left: float
    top: float
    width: float
    height: float
    role: str
    opacity: float = 1.0
    title: str = ""
    """The tooltip."""


@dataclass(frozen=True, slots=True)
class Stroke:
    """A straight line, with a head at its end if it is an arrow."""

    x1: float
    y1: float
    x2: float
    y2: float
    role: str
    width: float = 1.0
    is_arrow: bool = False


@dataclass(frozen=True, slots=True)
class Label:
    """A line of text; `y` is its baseline."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    """The part of the text that is at `x`: `start`, `middle` or `end`."""
    is_bold: bool = False


Shape = Box | Stroke | Label


@dataclass(frozen=True, slots=True)
class Picture:
    """Shapes, from back to front."""

    width: float
    height: float
    title: str
    """The content in one sentence, also for screen readers."""
    shapes: tuple[Shape, ...]


def with_legend(picture: Picture, meanings: Mapping[str, str]) -> Picture:
    """Return the picture with its title above and a legend of its roles below."""
    shapes = [_moved(shape, _LEGEND_PX) for shape in picture.shapes]
    shapes.insert(0, Label(0, FONT_PX + 2, picture.title, is_bold=True))
    left, top = 0.0, picture.height + _LEGEND_PX + 6
    for role, meaning in meanings.items():
        needed = 16 + 0.62 * FONT_PX * len(meaning) + 14
        if left and left + needed > picture.width:
            left, top = 0.0, top + _LEGEND_PX
        shapes.append(Box(left, top, 11, 11, role))
        shapes.append(Label(left + 16, top + 10, meaning))
        left += needed
    height = top + _LEGEND_PX if meanings else picture.height + _LEGEND_PX
    return Picture(picture.width, height, picture.title, tuple(shapes))


def _moved(shape: Shape, down: float) -> Shape:
    match shape:
        case Box(left, top, width, height, role, opacity, title):
            return Box(left, top + down, width, height, role, opacity, title)
        case Stroke(x1, y1, x2, y2, role, width, is_arrow):
            return Stroke(x1, y1 + down, x2, y2 + down, role, width, is_arrow)
        case Label(x, y, text, anchor, is_bold):
            return Label(x, y + down, text, anchor, is_bold)


def svg(picture: Picture, clean: Callable[[str], str] = lambda text: text) -> str:
    """Return the picture as an SVG element without styles or scripts. `clean` is applied to each text."""

    def told(text: str) -> str:
        return escape(_NO_XML.sub("�", clean(text)))

    name = quoteattr(_NO_XML.sub("�", clean(picture.title)))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(picture.width)} {_n(picture.height)}" '
        f'width="{_n(picture.width)}" height="{_n(picture.height)}" role="img" aria-label={name} '
        f'font-family="sans-serif" font-size="{FONT_PX}">',
        *(_svg_shape(shape, told) for shape in picture.shapes),
        "</svg>",
    ]
    return "\n".join(lines)


def _svg_shape(shape: Shape, told: Callable[[str], str]) -> str:
    match shape:
        case Box():
            seen = f' fill-opacity="{_n(shape.opacity)}"' if shape.opacity != 1 else ""
            start = (
                f'<rect class="{shape.role}" x="{_n(shape.left)}" y="{_n(shape.top)}" '
                f'width="{_n(shape.width)}" height="{_n(shape.height)}" fill="{COLORS[shape.role]}"{seen}'
            )
            return f"{start}><title>{told(shape.title)}</title></rect>" if shape.title else f"{start}/>"
        case Stroke():
            color = COLORS[shape.role]
            line = (
                f'<path class="{shape.role} stroke" d="M{_n(shape.x1)} {_n(shape.y1)}'
                f'L{_n(shape.x2)} {_n(shape.y2)}" '
                f'stroke="{color}" stroke-width="{_n(shape.width)}" fill="none"/>'
            )
            if not shape.is_arrow:
                return line
            head = " ".join(f"{_n(x)},{_n(y)}" for x, y in _head(shape))
            return f'{line}<polygon class="{shape.role}" points="{head}" fill="{color}"/>'
        case Label():
            anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
            bold = ' font-weight="bold"' if shape.is_bold else ""
            place = f'x="{_n(shape.x)}" y="{_n(shape.y)}" fill="{COLORS["text"]}"'
            return f'<text class="text" {place}{anchor}{bold}>{told(shape.text)}</text>'


def save(picture: Picture, path: Path) -> None:
    """Write the picture in the format of the name's ending. SVG needs no library. `Refused` for other formats
    without matplotlib, unknown formats, and files that cannot be written."""
    try:
        if path.suffix.lower() == ".svg":
            path.write_text(svg(picture), encoding="utf-8")
        else:
            _save_drawn(picture, path)
    except ValueError as error:
        raise Refused(f"{path}: {error}; use a name that ends in .png or .svg") from error
    except OSError as error:
        raise Refused(f"the picture {path} cannot be written: {error.strerror or error}") from error


def _save_drawn(picture: Picture, path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Refused(
            "drawing a PNG needs matplotlib, which is not installed; install lithify[draw], or write "
            f"--picture {path.with_suffix('.svg')}"
        ) from error
    margin = 10
    width, height = picture.width + 2 * margin, picture.height + 2 * margin
    figure = Figure(figsize=(width / 100, height / 100), dpi=100)
    area = figure.add_axes((0, 0, 1, 1))
    area.set_axis_off()
    area.set_xlim(-margin, width - margin)
    area.set_ylim(height - margin, -margin)
    for shape in picture.shapes:
        _draw_shape(area, shape)
    figure.savefig(path, dpi=150, metadata={"Software": None} if path.suffix == ".png" else None)


def _draw_shape(area: Axes, shape: Shape) -> None:
    from matplotlib.patches import Polygon, Rectangle

    points_per_px = 0.72
    color = COLORS[shape.role if not isinstance(shape, Label) else "text"]
    match shape:
        case Box():
            at = (shape.left, shape.top)
            area.add_patch(
                Rectangle(at, shape.width, shape.height, color=color, alpha=shape.opacity, linewidth=0)
            )
        case Stroke():
            xs, ys = (shape.x1, shape.x2), (shape.y1, shape.y2)
            area.plot(xs, ys, color=color, linewidth=shape.width * points_per_px, solid_capstyle="butt")
            if shape.is_arrow:
                area.add_patch(Polygon(_head(shape), color=color, linewidth=0))
        case Label():
            align = {"start": "left", "middle": "center", "end": "right"}[shape.anchor]
            weight = "bold" if shape.is_bold else "normal"
            area.text(
                shape.x,
                shape.y,
                _NO_XML.sub("\ufffd", shape.text),
                color=color,
                ha=align,
                fontsize=FONT_PX * points_per_px,
                weight=weight,
                parse_math=False,
            )


def _head(arrow: Stroke) -> tuple[tuple[float, float], ...]:
    dx, dy = arrow.x2 - arrow.x1, arrow.y2 - arrow.y1
    length = (dx * dx + dy * dy) ** 0.5 or 1.0
    dx, dy = dx / length, dy / length
    back_x, back_y = arrow.x2 - 7 * dx, arrow.y2 - 7 * dy
    return (arrow.x2, arrow.y2), (back_x - 3 * dy, back_y + 3 * dx), (back_x + 3 * dy, back_y - 3 * dx)


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def fitting(text: str, width: float) -> str:
    """Return as much of `text` as fits in `width` pixels."""
    most = max(int(width / (0.6 * FONT_PX)), 0)
    if len(text) <= most:
        return text
    return text[: most - 1] + "…" if most > 2 else ""


def beside(pictures: Sequence[Picture], title: str, gap: float = 14) -> Picture:
    """Stack pictures, one below the other."""
    width = max((p.width for p in pictures), default=1.0)
    return Picture(width, sum(p.height + gap for p in pictures), title, tuple(_below(pictures, gap)))


def _below(pictures: Sequence[Picture], gap: float) -> Iterator[Shape]:
    top = 0.0
    for picture in pictures:
        yield from (_moved(shape, top) for shape in picture.shapes)
        top += picture.height + gap
