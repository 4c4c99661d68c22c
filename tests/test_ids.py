"""ULIDs, against the library and the example that real bytes gave."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from lithify.base.ids import Ulid, parse_ulid, ulid_from_int, ulid_ms, ulid_to_halves, ulid_to_int

numbers = st.integers(0, (1 << 128) - 1)


@given(numbers)
def test_text_and_number_are_the_librarys(number: int) -> None:
    text = ulid_from_int(number)
    assert text == str(ULID.from_int(number))
    assert ulid_to_int(text) == number
    assert ulid_ms(text) == number >> 80
    assert parse_ulid(text.lower()) == text


@given(numbers, numbers)
def test_text_sorts_as_numbers_do(a: int, b: int) -> None:
    assert (ulid_from_int(a) < ulid_from_int(b)) == (a < b)


def test_a_known_one() -> None:
    value = Ulid("01M7XX0DYH21RD4ETECS3XV00P")
    assert ulid_to_halves(value) == (0x01A1FBD037D11070, 0xD23B4E6647DD8016)
    assert ulid_ms(value) == 1795226089425


@pytest.mark.parametrize("number", [-1, 1 << 128])
def test_other_numbers_are_refused(number: int) -> None:
    with pytest.raises(ValueError, match="128 bits"):
        ulid_from_int(number)


@pytest.mark.parametrize(
    "text", ["", "01M7XX0DYH21RD4ETECS3XV00", "01M7XX0DYH21RD4ETECS3XV0!P", "8" + "Z" * 25]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # the library's messages are its own
        parse_ulid(text)
