"""Levels as a picture: one row each, with its pieces side by side, as wide as their bytes.

The largest level takes the whole width. Pieces are at least a pixel wide, so very many of them are wider than
their bytes. A group, such as a segment, has its name above its first level.
"""

from __future__ import annotations

from collections.abc import Iterator

from lithify.views import text
from lithify.views.blocks import Level, Levels
from lithify.views.picture import Box, Label, Picture, Shape, fitting, with_legend

MAX_LEVELS = 60
WIDTH = 1100
_LEFT, _RIGHT = 110, 90
_ROW = 22
MEANINGS = {
    "resting": "not affected",
    "planned": "would be compacted now",
    "active": "is being compacted",
}


def draw_levels(block: Levels) -> Picture:
    """Draw the first `MAX_LEVELS` levels, and count the others."""
    levels = block.levels[:MAX_LEVELS]
    shapes: list[Shape] = []
    top, group = 0.0, None
    is_grouped = len({level.group for level in block.levels}) > 1
    largest = max((_bytes(level) for level in levels), default=0) or 1
    for level in levels:
        if is_grouped and level.group != group:
            shapes.append(Label(0, top + 16, fitting(level.group, WIDTH), is_bold=True))
            top, group = top + _ROW, level.group
        shapes += _row(level, largest, top)
        top += _ROW
    if len(block.levels) > MAX_LEVELS:
        shapes.append(Label(0, top + 16, f"And {len(block.levels) - MAX_LEVELS:,} more levels."))
        top += _ROW
    roles = {piece.role for level in block.levels for piece in level.pieces}
    meanings = {role: f"{block.of}: {said}" for role, said in MEANINGS.items() if role in roles}
    return with_legend(Picture(WIDTH, top, block.title, tuple(shapes)), meanings)


def _row(level: Level, largest: int, top: float) -> Iterator[Shape]:
    yield Label(_LEFT - 8, top + 15, fitting(level.name, _LEFT - 8), "end")
    left, room = float(_LEFT), WIDTH - _LEFT - _RIGHT
    for piece in level.pieces:
        width = max(room * piece.size_bytes / largest, 1.0)
        gap = 1.0 if width > 4 else 0.0
        yield Box(left, top + 3, width - gap, _ROW - 6, piece.role, title=piece.name)
        left += width
    yield Label(left + 6, top + 15, text.size(_bytes(level)))


def _bytes(level: Level) -> int:
    return sum(piece.size_bytes for piece in level.pieces)
