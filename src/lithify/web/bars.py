"""The ranges of a running compaction as bars, each filled as far as its range is done."""

from __future__ import annotations

from collections.abc import Sequence

from lithify.protocol.status import CompactionStatus
from lithify.views.picture import Box, Label, Picture, Shape, with_legend

WIDTH = 1100
MAX_BARS = 400
"""If there are more ranges, neighbours share a bar."""
_PER_ROW = 50
_ROW = 26


def draw_bars(compaction: CompactionStatus) -> Picture:
    shares, together = _joined(compaction.range_shares)
    shapes: list[Shape] = []
    step = WIDTH / min(max(len(shares), 8), _PER_ROW)
    for number, share in enumerate(shares):
        row, column = divmod(number, _PER_ROW)
        left, top = column * step, row * _ROW
        width = min(step - 3, 120)
        name = f"range {number + 1}" if together == 1 else f"{together} ranges from {number * together + 1}"
        shapes.append(Box(left, top, width, _ROW - 6, "open", title=f"{name}: {share:.0%}"))
        if share:
            shapes.append(Box(left, top, width * share, _ROW - 6, "done", title=f"{name}: {share:.0%}"))
        if width > 40:
            shapes.append(Label(left + width / 2, top + 14, f"{share:.0%}", "middle"))
    each = "each bar is one range" if together == 1 else f"each bar is {together} ranges"
    title = f"{compaction.finished_ranges:,} of {compaction.ranges:,} ranges finished; {each}"
    height = -(-len(shares) // _PER_ROW) * _ROW
    return with_legend(Picture(WIDTH, height, title, tuple(shapes)), {"done": "done", "open": "still open"})


def _joined(shares: Sequence[float]) -> tuple[list[float], int]:
    """Return averages of neighbours, at most `MAX_BARS`, and how many ranges share a bar."""
    together = -(-len(shares) // MAX_BARS) or 1
    parts = [shares[at : at + together] for at in range(0, len(shares), together)]
    return [sum(part) / len(part) for part in parts], together
