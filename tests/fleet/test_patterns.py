"""What a pattern matches."""

from __future__ import annotations

import pytest

from lithify.base.errors import Refused
from lithify.fleet.catalog.patterns import canonical, match, normal


@pytest.mark.parametrize(
    ("pattern", "url", "stars"),
    [
        ("s3://b/db", "s3://b/db/", ()),
        ("s3://b/*/db", "s3://b/red/db", ("red",)),
        ("s3://b/*/db", "s3://b/a/b/db", None),
        ("s3://b/*/db", "s3://b//db", None),
        ("s3://b/*/*", "s3://b/x/y", ("x", "y")),
        ("s3://b/log-*", "s3://b/log-7", ("7",)),
        ("s3://b/log-*", "s3://b/log-", None),
        ("s3://b/a.b", "s3://b/axb", None),
        ("any://lake/ns.*", "any://lake/ns.events", ("events",)),
        ("/data/*", "file:///data/x", ("x",)),
        ("file:///data/*", "/data/x", ("x",)),
        ("s3://b/*", "s3://c/x", None),
        ("s3://b/a b/*/db", "s3://b/a%20b/x/db", ("x",)),
        ("s3://b/a%20b/*", "s3://b/a b/x", ("x",)),
        ("s3://b/50%/*", "s3://b/50%25/x", ("x",)),
        ("s3://b/*", "s3://b/caf%C3%A9", ("caf%C3%A9",)),
        ("s3://b/caf\u00e9-*", "s3://b/caf%c3%a9-1", ("1",)),
        ("s3://b/*", "s3://b/a%2Fb", ("a%2Fb",)),
        ("/data/*", "/data//x", ("x",)),
        ("/data/50%/*", "/data/50%/a%20b", ("a%20b",)),
        ("/data/*", "file:///data/a%20b%23", ("a b#",)),
        ("/data/*", "/data/a\nb", ("a\nb",)),
        ("/data/*", "/data/a**b", ("a**b",)),
    ],
)
def test_match(pattern: str, url: str, stars: tuple[str, ...] | None) -> None:
    assert match(pattern, url) == stars


def test_slashes_at_the_end_and_file_do_not_matter() -> None:
    assert normal("file:///a/b/") == normal("file:/a/b") == normal("/a/b")
    assert normal("file:///a%20b") == "/a b"
    assert normal("s3://b/a%20b/") == "s3://b/a%20b"
    assert normal("/a/./b//c/../d/") == normal("//a/b/d") == "/a/b/d"
    assert normal("/a b/50%") == "/a b/50%"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://b/a b", "s3://b/a%20b"),
        ("s3://b/50%", "s3://b/50%25"),
        ("s3://b/caf\u00e9", "s3://b/caf%c3%a9"),
        ("s3://b/a[1]", "s3://b/a%5b1%5D"),
        ("s3://b/a=1", "s3://b/a%3D1"),
        ("any://lake/ns.a:b", "any://lake/ns.a%3Ab"),
        ("any+file:///a b/x", "any+file:///a%20b/x/"),
    ],
)
def test_one_place_has_one_name(one: str, other: str) -> None:
    assert normal(one) == normal(other) == canonical(normal(one))


def test_a_quoted_dot_slash_or_star_is_another_than_a_plain_one() -> None:
    assert normal("any://lake/ns.a%2eb") == "any://lake/ns.a%2Eb"
    assert normal("s3://b/a%2fb") == "s3://b/a%2Fb"
    assert normal("s3://b/a%2ab") == "s3://b/a%2Ab"


@pytest.mark.parametrize(
    "pattern", ["s3://b//db", "s3://b/a//*/db", "s3://b/a?b/*", "s3://b/a#b/db", "/a\udcff"]
)
def test_what_no_dataset_can_be_called_is_refused(pattern: str) -> None:
    with pytest.raises(Refused):
        normal(pattern)
