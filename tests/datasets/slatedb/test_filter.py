"""Filters: known bits and blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.datasets.slatedb.format.filter import NamedFilter, build_bloom, encode_filters
from tests.judge.sst import might_contain, siphash13


def hashes_of(*keys: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array([siphash13(key) for key in keys], np.uint64)


def test_a_known_filter() -> None:
    assert build_bloom(hashes_of(b"a", b"b", b"c"), 10) == bytes.fromhex("0006b3631d09")


def test_a_known_block_of_filters() -> None:
    filters = [NamedFilter("_bf", b"data"), NamedFilter("é", b"")]
    assert encode_filters(filters) == (b"\0\2\0\3_bf\0\0\0\0\0\0\0\4data\0\2\xc3\xa9\0\0\0\0\0\0\0\0")


@settings(deadline=None)
@given(st.lists(st.binary(max_size=10), max_size=200), st.integers(1, 40))
def test_an_added_key_is_never_denied(keys: list[bytes], bits_per_key: int) -> None:
    bloom = build_bloom(hashes_of(*keys), bits_per_key)
    assert len(bloom) == 2 + -(-len(keys) * bits_per_key // 8)
    assert all(might_contain(bloom, key) for key in keys)


def test_most_other_keys_are_denied() -> None:
    bloom = build_bloom(hashes_of(*(b"in %d" % n for n in range(1000))), 10)
    mistaken = sum(might_contain(bloom, b"out %d" % n) for n in range(1000))
    assert 0 < mistaken < 30


def test_an_empty_filter_has_no_bits() -> None:
    assert build_bloom(hashes_of(), 10) == b"\0\6"


@pytest.mark.parametrize("bits_per_key", [0, -1, 100_000])
def test_impossible_filters_are_not_built(bits_per_key: int) -> None:
    with pytest.raises(ValueError, match="bit"):
        build_bloom(hashes_of(b"a"), bits_per_key)
