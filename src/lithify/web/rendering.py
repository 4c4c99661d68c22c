"""Pages from templates, and neutral blocks as HTML.

Each value given to a template is cleared of secrets and control characters (`lithify.base.printable`), then
escaped, in one place: the environment's `finalize` and autoescape. Only HTML rendered here is `Markup` and
passes unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lithify.base.printable import printable
from lithify.base.redaction import MASK, is_secret
from lithify.observe.secrets import concealed
from lithify.views import text
from lithify.views.blocks import Alarm, Block, Levels, Line, Lines, Table, Timeline
from lithify.views.levels_picture import draw_levels
from lithify.views.picture import Picture, svg
from lithify.views.timeline_picture import draw_heat, draw_timeline
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
    return "–" if not at_ms else f"{age_of(at_ms, now_ms)} ago"


def age_of(at_ms: int, now_ms: int) -> str:
    return text.duration(max(now_ms - at_ms, 0))


def moment(at_ms: int | None) -> str:
    """Return a time with its year and zone."""
    if not at_ms:
        return "–"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def is_command(value: str) -> bool:
    """Return whether an advice is one command, to copy as it is."""
    return value.startswith("lithify ") and not any(sign in value for sign in ";,`")


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
    made.globals |= {"ago": ago, "age_of": age_of, "draw": draw, "max_shown": text.MAX_SHOWN}
    made.tests |= {"alarm": is_alarm, "command": is_command}
    return made


_ENVIRONMENT = _environment()


def warm_up() -> None:
    """Compile the templates of the first page, so that it does not wait for that."""
    for name in ("page.html", "blocks.html", "overview.html"):
        _ENVIRONMENT.get_template(name)


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
            return _figure(draw_levels(block))
        case Timeline():
            given = block.plan, block.calendar, block.words
            pictures = [found for found in (draw_heat(*given), draw_timeline(*given)) if found is not None]
            figures = [_figure(picture) for picture in pictures]
            tables = timeline_tables(*given) if with_tables else ()
            return Markup("\n").join([*figures, *(_render("table", table) for table in tables)])


def _figure(picture: Picture) -> Markup:
    return Markup('<figure class="wide" tabindex="0">{}</figure>').format(draw(picture))


def _render(macro: str, block: Table | Lines) -> Markup:
    module = _ENVIRONMENT.get_template("blocks.html").module
    made: Markup = getattr(module, macro)(block)
    return made
