"""Filters: known hashes and bits, and damaged blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.datasets.slatedb.filter import (
    NamedFilter,
    build_bloom,
    decode_filters,
    encode_filters,
    hash_key,
    might_contain,
)
from lithify.errors import CorruptObject
from tests.judge.sst import siphash13

NAME = "db/compacted/01M7XX0DYH21RD4ETECS3XV00P.sst (filter)"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"", 0xD1FBA762150C532C),
        (b"a", 0x407448D2B89B1813),
        (b"apple", 0xE4305D08716D0E44),
        (b"key000000", 0xADD38E997335CD23),
    ],
)
def test_known_hashes(key: bytes, expected: int) -> None:
    assert hash_key(key) == expected


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_hashes_are_those_of_the_paper(key: bytes) -> None:
    assert hash_key(key) == siphash13(key)


def hashes_of(*keys: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array([hash_key(key) for key in keys], np.uint64)


def test_a_known_filter() -> None:
    assert build_bloom(hashes_of(b"a", b"b", b"c"), 10) == bytes.fromhex("0006b3631d09")


@settings(deadline=None)
@given(st.lists(st.binary(max_size=10), max_size=200), st.integers(1, 40))
def test_an_added_key_is_never_denied(keys: list[bytes], bits_per_key: int) -> None:
    bloom = build_bloom(hashes_of(*keys), bits_per_key)
    assert len(bloom) == 2 + -(-len(keys) * bits_per_key // 8)
    assert all(might_contain(bloom, hash_key(key), NAME) for key in keys)


def test_most_other_keys_are_denied() -> None:
    bloom = build_bloom(hashes_of(*(b"in %d" % n for n in range(1000))), 10)
    mistaken = sum(might_contain(bloom, hash_key(b"out %d" % n), NAME) for n in range(1000))
    assert 0 < mistaken < 30


def test_an_empty_filter_denies_everything() -> None:
    assert not might_contain(build_bloom(hashes_of(), 10), hash_key(b"a"), NAME)


@pytest.mark.parametrize("bits_per_key", [0, -1, 100_000])
def test_impossible_filters_are_not_built(bits_per_key: int) -> None:
    with pytest.raises(ValueError, match="bit"):
        build_bloom(hashes_of(b"a"), bits_per_key)


@settings(deadline=None)
@given(st.lists(st.builds(NamedFilter, st.text(max_size=8), st.binary(max_size=20)), max_size=4))
def test_filters_read_back(filters: list[NamedFilter]) -> None:
    assert decode_filters(encode_filters(filters), NAME) == tuple(filters)


GOOD = encode_filters([NamedFilter("_bf", b"data"), NamedFilter("_bf:p=other", b"more")])


@pytest.mark.parametrize("length", range(len(GOOD)))
def test_truncated_filters_are_refused(length: int) -> None:
    with pytest.raises(CorruptObject, match="the filters need"):
        decode_filters(GOOD[:length], NAME)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (GOOD + b"x", "the filters end at"),
        (bytes.fromhex("0001 0001 ff 0000000000000000"), "not UTF-8"),
        (bytes.fromhex("0001 0000 ffffffffffffffff"), "the filters need"),
        (bytes.fromhex("ffff"), "the filters need"),
    ],
)
def test_damaged_filters_are_refused(raw: bytes, reason: str) -> None:
    with pytest.raises(CorruptObject, match=reason):
        decode_filters(raw, NAME)


@pytest.mark.parametrize("bloom", [b"", b"\0"])
def test_a_filter_without_probes(bloom: bytes) -> None:
    with pytest.raises(CorruptObject, match="number of probes"):
        might_contain(bloom, 1, NAME)
