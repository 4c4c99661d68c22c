"""Stored JSON documents are read strictly and written as they are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Annotated, Any

import pytest
from annotated_types import Interval

from lithify.base.documents import (
    MAX_COUNT,
    Count,
    CountKey,
    DocumentCodec,
    Name,
    OrOmitted,
    Ratio,
    UlidText,
    WholeText,
)
from lithify.base.errors import CorruptObject
from lithify.base.ids import RandomIds


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Part:
    epoch: Annotated[int, Interval(ge=0, le=(1 << 64) - 1)]
    label: str = "none"


@dataclass(frozen=True, slots=True)
class Paper:
    count: Count
    name: Name
    text: str = ""
    colour: Colour = Colour.RED
    rank: Ratio = 0.0
    is_last: bool = False
    part: Part | None = None
    parts: tuple[Part, ...] = ()
    by_number: Mapping[CountKey, tuple[Count, Count]] = field(default_factory=dict)
    added: Count = 7


PAPERS = DocumentCodec(Paper, "a paper", optional={"added"})
PAPER = Paper(1, "é", 'two\n"lines"', part=Part(1 << 63), parts=(Part(2, "b"),), by_number={3: (4, 5)})
GOOD = json.loads(PAPERS.encode(PAPER))


def test_a_document_is_read_as_it_was_written() -> None:
    assert PAPERS.decode(PAPERS.encode(PAPER), "p") == PAPER
    assert GOOD["by_number"] == {"3": [4, 5]}
    assert GOOD["part"] == {"epoch": 1 << 63, "label": "none"}
    assert PAPERS.decode(json.dumps(GOOD | {"unknown": {"a": [1]}}).encode(), "p") == PAPER


def test_a_value_is_written_as_it_is_and_not_as_what_its_place_should_have() -> None:
    for wrong in (True, 1.0, "1", None):
        with pytest.raises(CorruptObject):
            PAPERS.decode(PAPERS.encode(replace(PAPER, count=wrong)), "p")  # type: ignore[arg-type]
    assert PAPERS.encode(replace(PAPER, by_number=MappingProxyType({3: (4, 5)}))) == PAPERS.encode(PAPER)
    with pytest.raises(ValueError, match="object cannot be encoded as JSON"):
        PAPERS.encode(replace(PAPER, count=object()))  # type: ignore[arg-type]


def test_only_optional_fields_may_be_missing_whatever_the_class_has_for_defaults() -> None:
    for name in GOOD:
        data = json.dumps({key: value for key, value in GOOD.items() if key != name}).encode()
        if name == "added":
            assert PAPERS.decode(data, "p") == PAPER
        else:
            with pytest.raises(CorruptObject, match=f"does not decode as a paper: {name}: Field required"):
                PAPERS.decode(data, "p")
    with pytest.raises(CorruptObject, match=r"part\.label: Field required"):
        PAPERS.decode(json.dumps(GOOD | {"part": {"epoch": 1}}).encode(), "p")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("count", 1.0),
        ("count", True),
        ("count", "1"),
        ("count", None),
        ("count", -1),
        ("count", MAX_COUNT + 1),
        ("count", 1 << 80),
        ("count", float("inf")),
        ("name", ""),
        ("name", "a/b"),
        ("name", "a\0b"),
        ("text", 1),
        ("text", "\ud800"),
        ("colour", "blue"),
        ("rank", 1.5),
        ("rank", -1),
        ("rank", True),
        ("rank", float("nan")),
        ("is_last", 1),
        ("part", [1, "a"]),
        ("part", {"epoch": 1 << 64, "label": ""}),
        ("parts", {}),
        ("parts", [[1, "a"]]),
        ("by_number", []),
        ("by_number", {"03": [4, 5]}),
        ("by_number", {"+3": [4, 5]}),
        ("by_number", {"٣": [4, 5]}),
        ("by_number", {"9" * 5000: [4, 5]}),
        ("by_number", {"3.0": [4, 5]}),
        ("by_number", {"1_0": [4, 5]}),
        ("by_number", {" 3": [4, 5]}),
        ("by_number", {"3\n": [4, 5]}),
        ("by_number", {str(MAX_COUNT + 1): [4, 5]}),
        ("by_number", {"3": [4]}),
        ("by_number", {"3": [4, 5, 6]}),
    ],
)
def test_an_invalid_value_is_an_error_that_names_its_place(name: str, value: Any) -> None:
    with pytest.raises(CorruptObject) as found:
        PAPERS.decode(json.dumps(GOOD | {name: value}).encode(), "folder/p")
    assert found.value.name == "folder/p"
    assert name in found.value.reason or "Invalid JSON" in found.value.reason


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"count": 1e400}', b'{"count": 1' + b"0" * 9999],
)
def test_what_is_no_document_is_an_error(data: bytes) -> None:
    with pytest.raises(CorruptObject, match="does not decode as a paper"):
        PAPERS.decode(data, "p")


def test_an_error_is_one_short_line_whatever_was_written() -> None:
    key = "\x1b[2J\n" + "k" * 100_000
    with pytest.raises(CorruptObject) as found:
        PAPERS.decode(json.dumps(GOOD | {"by_number": {key: [1, 2]}}).encode(), "p")
    assert found.value.reason.isprintable()
    assert len(found.value.reason) < 400
    assert found.value.__cause__ is None


def test_half_a_character_is_never_written_and_can_be_read_as_a_replacement() -> None:
    with pytest.raises(ValueError, match="surrogates not allowed"):
        PAPERS.encode(replace(PAPER, text="\ud800"))
    papers = DocumentCodec(Paper, mends_text=True)
    assert papers.decode(papers.encode(replace(PAPER, text="\ud800")), "p") == replace(PAPER, text="\ufffd")
    mending = DocumentCodec(Part, mends_text=True)
    written = json.dumps({"epoch": 1, "label": "\ud800 and \U0001f600 and \\ud800"}).encode()
    assert mending.decode(written, "p") == Part(1, "\ufffd and \U0001f600 and \\ud800")
    assert mending.encode(Part(1, "\ud800é")) == '{"epoch": 1, "label": "\ufffdé"}'.encode()
    with pytest.raises(CorruptObject):
        mending.decode(b'{"label": "\\ud800"', "p")


def test_a_ulid_is_read_in_its_canonical_form() -> None:
    ulid = RandomIds().ulid(1)
    codec = DocumentCodec(list[UlidText])
    assert codec.decode(codec.encode([ulid]), "p") == [ulid]
    for other in (ulid.lower(), ulid[1:], "", "é" * 26):
        with pytest.raises(CorruptObject):
            codec.decode(json.dumps([other]).encode(), "p")


def test_a_bad_entry_hides_none_of_the_others() -> None:
    lists = DocumentCodec(list[OrOmitted[Part]], mends_text=True)
    written = [
        {"epoch": 1, "label": "a"},
        {"epoch": -1, "label": ""},
        None,
        {},
        {"epoch": 2, "label": "\ud800"},
    ]
    assert lists.decode(json.dumps(written).encode(), "p") == [Part(1, "a"), Part(2, "\ufffd")]
    texts = DocumentCodec(dict[OrOmitted[WholeText], OrOmitted[Count]], mends_text=True)
    assert texts.decode(b'{"a": 1, "\\ud800": 2, "b": -1}', "p") == {"a": 1}
    with pytest.raises(CorruptObject):
        texts.decode(b"[]", "p")
