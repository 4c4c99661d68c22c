"""Who watches what: everybody agrees, the shares are even, and only the share of who comes or goes moves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.planning.fleet.placement import Placement, draw, fraction, ranking

URLS = [f"s3://bucket/tenants/{number}/db" for number in range(20_000)]
MEMBERS = [f"coordinator-01M{number:023d}" for number in range(20)]

names = st.text(max_size=12)
member_sets = st.sets(names, min_size=1, max_size=20)
url_lists = st.lists(names, max_size=40, unique=True)


def test_shares_are_even_within_a_tenth_from_2_to_20_members() -> None:
    draws = [[draw(member, url) for member in MEMBERS] for url in URLS]
    for count in range(2, 21):
        shares = Counter(max(range(count), key=of.__getitem__) for of in draws)
        even = len(URLS) / count
        assert all(abs(shares[member] - even) < even / 10 for member in range(count)), (count, shares)


@pytest.mark.parametrize("count", [2, 5, 20])
def test_what_moves_to_one_more_is_its_share_within_a_tenth(count: int) -> None:
    urls = URLS[:10_000]
    before, after = Placement(MEMBERS[: count - 1]), Placement(MEMBERS[:count])
    moved = sum(before.owner(url) != after.owner(url) for url in urls)
    assert abs(moved - len(urls) / count) < len(urls) / count / 10


@given(member_sets, names, url_lists)
def test_who_comes_takes_only_its_own_and_who_goes_leaves_only_that(
    members: set[str], other: str, urls: list[str]
) -> None:
    without, with_it = Placement(members - {other}), Placement(members | {other})
    for url in urls:
        before, after = without.owner(url), with_it.owner(url)
        assert after in (before, other)


@given(st.lists(names, min_size=1, max_size=9), url_lists, st.randoms(use_true_random=False))
def test_everybody_agrees_and_every_dataset_is_watched_by_one(
    members: list[str], urls: list[str], rng: object
) -> None:
    shuffled = sorted(members, key=lambda _: rng.random())  # type: ignore[attr-defined]
    one, other = Placement(members), Placement(shuffled + members[:1])
    assert [one.owner(url) for url in urls] == [other.owner(url) for url in urls]
    assert all(one.owner(url) in members for url in urls)


def test_without_members_nobody_watches() -> None:
    assert Placement([]).owner("db") is None


@settings(max_examples=30)
@given(names, names)
def test_draws_depend_on_who_and_what_and_nothing_else(name: str, text: str) -> None:
    assert draw(name, text) == draw(name, text)
    assert 0 <= fraction(name, text) < 1
    assert draw(name + "x", text) != draw(name, "x" + text), "the border between the two counts"


def test_a_draw_is_the_same_in_every_version() -> None:
    """Members of two versions have to agree."""
    assert draw("coordinator-1", "s3://bucket/db") == 18085187077825810583
    assert ranking("s3://bucket/db", ["a", "b", "c", "b"]) == ["b", "c", "a"]
