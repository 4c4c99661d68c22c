r"""Foreign text as a terminal, a log or a page may show it. Pure.

Keys, names, paths, reasons of failures and holders of leases were written by anybody. As they are they could
move the cursor, colour or clear a terminal, forge a line of a log, or turn around how a line reads. So what
cannot be seen, or does more than be seen, is written as Python would write it (`\x1b`, `\u202e`), a new line
too, and of very long text the beginning is shown. It is asked of all text where it leaves the process for
people (`views.consoles`, `observe.logs`, `web.rendering`), not where text is made: what nobody shows stays
data, as does JSON.

Seen from here, and so escaped: control characters (of both sets, `DEL`, tab and new line among them), half
characters (lone surrogates), what separates lines and paragraphs, marks and overrides of direction, spaces
without a width, tags, and what is no character. Joiners inside words and combining marks stay: scripts need
them.
"""

from __future__ import annotations

import re

MAX_CHARS = 10_000
"""Of one text."""
MAX_LINES = 500
"""Of one that may have several."""
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff\U000110bd\U000110cd\U00013430-\U0001343f"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def printable(text: str, limit: int = MAX_CHARS) -> str:
    """The text in one line, and nothing in it that does more than be seen; of a longer one the first `limit`
    characters, and how many there are more."""
    return _escaped(_cut(text, limit))


def printable_lines(text: str, limit: int = MAX_CHARS) -> list[str]:
    """The same of a text that may have several lines. Which of them are ours nobody can tell, so all but the
    first are to be indented where they could be taken for something else."""
    lines = [_escaped(line) for line in _cut(text, limit).split("\n")]
    left_out = len(lines) - MAX_LINES
    return lines if left_out <= 0 else [*lines[:MAX_LINES], f"… ({left_out:,} lines more)"]


def indented(text: str, limit: int = MAX_CHARS) -> str:
    """Lines that can be taken for one text only: all but the first are set in."""
    return "\n  ".join(printable_lines(text, limit))


def _cut(text: str, limit: int) -> str:
    left_out = len(text) - limit
    return text if left_out <= 0 else f"{text[:limit]}… ({left_out:,} characters more)"


def _escaped(text: str) -> str:
    # Most text can be shown as it is, which costs least to find out.
    return text if text.isprintable() else _UNPRINTABLE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape", "surrogatepass").decode("ascii")
