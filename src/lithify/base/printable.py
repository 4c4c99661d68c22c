r"""Escaping of untrusted text for terminals, logs and pages (pure).

Keys, names, paths, failure reasons and lease holders may come from any writer. Raw, they could move the
cursor, colour or clear a terminal, forge a log line, or reverse how a line reads. So invisible characters and
characters with an effect are written as Python escapes (`\x1b`, `\u202e`), new lines too, and very long text
is truncated. This is applied where text is displayed (`views.consoles`, `observe.logs`, `web.rendering`), not
where it is created: undisplayed text and JSON remain unchanged.

Escaped: control characters (of both sets, including `DEL`, tab and new line), lone surrogates, line and
paragraph separators, marks and overrides of direction, zero-width spaces, tags, and noncharacters. Not
escaped: joiners inside words and combining marks, which scripts need.
"""

from __future__ import annotations

import re

MAX_CHARS = 10_000
"""Limit of one text."""
MAX_LINES = 500
"""Limit of a text that may have several lines."""
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff\U000110bd\U000110cd\U00013430-\U0001343f"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def printable(text: str, limit: int = MAX_CHARS) -> str:
    """Return the text escaped, as one line; of a longer text the first `limit` characters and the number of
    omitted ones."""
    return _escaped(_cut(text, limit))


def printable_lines(text: str, limit: int = MAX_CHARS) -> list[str]:
    """Return the escaped lines of a text that may have several. Any line may be untrusted, so the caller must
    indent all but the first where they could be mistaken for other output."""
    lines = [_escaped(line) for line in _cut(text, limit).split("\n")]
    left_out = len(lines) - MAX_LINES
    return lines if left_out <= 0 else [*lines[:MAX_LINES], f"… ({left_out:,} more lines)"]


def indented(text: str, limit: int = MAX_CHARS) -> str:
    """Return the escaped text with all lines but the first indented."""
    return "\n  ".join(printable_lines(text, limit))


def _cut(text: str, limit: int) -> str:
    left_out = len(text) - limit
    return text if left_out <= 0 else f"{text[:limit]}… ({left_out:,} more characters)"


def _escaped(text: str) -> str:
    # Most text needs no escaping; this check is the cheapest.
    return text if text.isprintable() else _UNPRINTABLE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape", "surrogatepass").decode("ascii")
