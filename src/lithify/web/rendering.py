"""Pages from templates, and neutral blocks as HTML.

Each value given to a template is cleared of secrets and control characters (`lithify.base.printable`), then
escaped, in one place: the environment's `finalize` and autoescape. Only HTML rendered here is `Markup` and
passes unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lithify.base.printable import printable
from lithify.base.redaction import MASK, is_secret
from lithify.observe.secrets import concealed
from lithify.protocol.status import CompactionStatus
from lithify.views import text
from lithify.views.blocks import Alarm, Block, Levels, Line, Lines, Table, Timeline
from lithify.views.levels_picture import draw_levels
from lithify.views.picture import Box, Label, Picture, Shape, svg, with_legend
from lithify.views.timeline_picture import draw_timeline
from lithify.views.timeline_tables import timeline_tables

MAX_TEXT_CHARS = 2000
"""Per foreign text, such as a key or an error."""


def clean(value: Any) -> Any:
    """Return a JSON value without secrets."""
    if isinstance(value, str):
        return concealed(value)
    if isinstance(value, Mapping):
        return {
            concealed(str(name)): MASK
            if inner and isinstance(inner, str) and is_secret(str(name))
            else clean(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [clean(inner) for inner in value]
    return value


def _told(value: Any) -> Any:
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return told(value)


def told(value: str) -> str:
    """Return a foreign text without secrets, printable and shortened."""
    return printable(concealed(value[: 2 * MAX_TEXT_CHARS]), MAX_TEXT_CHARS)


def ago(at_ms: int | None, now_ms: int) -> str:
    return "–" if not at_ms else f"{text.duration(max(now_ms - at_ms, 0))} ago"


def moment(at_ms: int | None) -> str:
    """Return a time with its year and zone."""
    if not at_ms:
        return "–"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def is_alarm(value: object) -> bool:
    return isinstance(value, Alarm)


def draw(picture: Picture) -> Markup:
    return Markup(svg(picture, told))


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("lithify.web"),
        autoescape=True,
        finalize=_told,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "size": text.size,
        "rate": text.rate,
        "duration": text.duration,
        "short_id": text.short_id,
        "short_ids": text.short_ids,
        "moment": moment,
        "share": share,
    }
    made.globals |= {"ago": ago, "draw": draw, "max_shown": text.MAX_SHOWN}
    made.tests |= {"alarm": is_alarm}
    return made


_ENVIRONMENT = _environment()


def render(template: str, **given: Any) -> str:
    return _ENVIRONMENT.get_template(template).render(**given)


def render_blocks(blocks: Iterable[Block], *, with_tables: bool = True) -> Markup:
    """Render blocks; of long ones, the first part. Without tables, a timeline is only a picture."""
    return Markup("\n").join(_render_block(block, with_tables) for block in blocks)


def _render_block(block: Block, with_tables: bool) -> Markup:
    match block:
        case Table():
            return _render("table", block)
        case Line():
            return _render("lines", Lines([block], ""))
        case Lines():
            return _render("lines", block)
        case Levels():
            return Markup('<figure class="wide" tabindex="0">{}</figure>').format(draw(draw_levels(block)))
        case Timeline():
            picture = draw(draw_timeline(block.plan, block.calendar, block.words))
            figure = Markup('<figure class="wide" tabindex="0">{}</figure>').format(picture)
            tables = timeline_tables(block.plan, block.calendar, block.words) if with_tables else ()
            return Markup("\n").join([figure, *(_render("table", table) for table in tables)])


def _render(macro: str, block: Table | Lines) -> Markup:
    module = _ENVIRONMENT.get_template("blocks.html").module
    made: Markup = getattr(module, macro)(block)
    return made


WIDTH = 1100
MAX_BARS = 400
"""If there are more ranges, neighbours share a bar."""
_PER_ROW = 50
_ROW = 26


def draw_bars(compaction: CompactionStatus) -> Picture:
    """Draw the ranges of a running compaction as bars, each filled as far as its range is done."""
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
