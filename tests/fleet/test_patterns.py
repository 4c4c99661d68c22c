"""What a pattern matches."""

from __future__ import annotations

import pytest

from lithify.fleet.patterns import match, normal


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
    ],
)
def test_match(pattern: str, url: str, stars: tuple[str, ...] | None) -> None:
    assert match(pattern, url) == stars


def test_slashes_at_the_end_and_file_do_not_matter() -> None:
    assert normal("file:///a/b/") == normal("file:/a/b") == normal("/a/b")
    assert normal("file:///a%20b") == "/a b"
    assert normal("s3://b/a%20b/") == "s3://b/a%20b"
