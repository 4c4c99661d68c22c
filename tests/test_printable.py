"""Foreign text as it is shown: nothing in it does more than be seen."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from lithify.base.printable import indented, printable, printable_lines

DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI", "B"}
JOINERS = {"\u200c", "\u200d"}
"""Inside words of some scripts, and of signs that are made of several."""


def does_more(character: str) -> bool:
    category = unicodedata.category(character)
    return (
        category in ("Cc", "Cs", "Cf", "Zl", "Zp") or unicodedata.bidirectional(character) in DIRECTIONS
    ) and character not in JOINERS


def test_every_character_that_does_more_than_be_seen_is_escaped() -> None:
    shown = {c: printable(c) for c in map(chr, range(sys.maxunicode + 1))}
    passed = [hex(ord(c)) for c, text in shown.items() if text == c and does_more(c)]
    assert not passed
    for c, text in shown.items():
        if text != c:
            assert text.isascii()
            assert text.encode().decode("unicode_escape") == c


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s3://bucket/päth",
        "日本語",
        "נתונים",
        "e\u0301",
        "👩\u200d💻",
        "a\u200cb",
        "a\u00a0b",
        "[red]x[/]",
        "\\x1b",
    ],
)
def test_what_can_be_read_stays(text: str) -> None:
    assert printable(text) == text


def test_one_line_stays_one_line() -> None:
    assert printable("a\r\nb\tc\x0bd\x85e\u2028f") == r"a\r\nb\tc\x0bd\x85e\u2028f"
    assert printable_lines("a\nb\rc") == ["a", r"b\rc"]
    assert indented("a\nERROR b") == "a\n  ERROR b"


def test_of_very_long_text_the_beginning_is_shown() -> None:
    assert printable("x" * 1_000_000, 5) == "xxxxx… (999,995 more characters)"
    assert printable("x" * 5, 5) == "xxxxx"
    assert printable_lines("\n" * 1_000_000)[-1] == "… (9,501 more lines)"


def test_half_a_character_can_be_written() -> None:
    printable("a\ud800b\udfff").encode()
