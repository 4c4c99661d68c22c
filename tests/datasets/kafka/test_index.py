"""Which records are superseded, found through hashes of keys in runs and slices."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from lithify.datasets.kafka.cleaning.index import (
    Matched,
    Run,
    Slice,
    index,
    match,
    merge,
    ordered,
    part,
    slices,
)
from lithify.datasets.kafka.cleaning.retention import NO_BOUND
from lithify.datasets.kafka.format.kernel.keys import ENTRY
from lithify.datasets.kafka.format.transactions import fates, follow
from tests.datasets.kafka import logs
from tests.datasets.kafka.logs import Batch, in_transaction, marker

MASK = (1 << 64) - 1


def run_of(*batches: Batch) -> Run:
    source = logs.log(*batches)
    what, _ = fates(source.batches, follow(source.batches).aborted)
    return index(source, what, NO_BOUND)


def plain_siphash_128(key: bytes) -> tuple[int, int]:
    """SipHash-1-3 of 128 bits with a zero key, as its paper and its reference code say."""

    def rotate(word: int, bits: int) -> int:
        return (word << bits | word >> (64 - bits)) & MASK

    def mix() -> None:
        v[0] = (v[0] + v[1]) & MASK
        v[1] = rotate(v[1], 13) ^ v[0]
        v[0] = rotate(v[0], 32)
        v[2] = (v[2] + v[3]) & MASK
        v[3] = rotate(v[3], 16) ^ v[2]
        v[0] = (v[0] + v[3]) & MASK
        v[3] = rotate(v[3], 21) ^ v[0]
        v[2] = (v[2] + v[1]) & MASK
        v[1] = rotate(v[1], 17) ^ v[2]
        v[2] = rotate(v[2], 32)

    v = [0x736F6D6570736575, 0x646F72616E646F6D ^ 0xEE, 0x6C7967656E657261, 0x7465646279746573]
    padded = key + bytes(-(len(key) + 1) % 8) + bytes([len(key) & 0xFF])
    for start in range(0, len(padded), 8):
        word = int.from_bytes(padded[start : start + 8], "little")
        v[3] ^= word
        mix()
        v[0] ^= word
    halves = []
    for at, constant in ((2, 0xEE), (1, 0xDD)):
        v[at] ^= constant
        for _ in range(3):
            mix()
        halves.append(v[0] ^ v[1] ^ v[2] ^ v[3])
    return halves[0], halves[1]


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 15, 16, 300])
def test_keys_are_told_apart_by_128_bits(length: int) -> None:
    key = random.Random(length).randbytes(length)
    (entry,) = run_of(Batch((logs.Rec(3, 0, key, b"v"),)))
    assert (int(entry["high"]), int(entry["low"])) == plain_siphash_128(key)
    assert (entry["offset"], entry["flags"]) == (3, 0)


def test_what_does_not_count_is_not_indexed() -> None:
    """Markers, records without a key, aborted records."""
    run = run_of(
        logs.data(0, ("a", "1"), (None, "2"), ("", "3"), ("b", None)),
        in_transaction(4, ("a", "bad"), id=1),
        marker(5, id=1, commit=False),
        in_transaction(6, ("c", "1"), id=1),
        marker(7, id=1, commit=True),
    )
    assert sorted(logs.column(run, "offset")) == [0, 2, 3, 6]
    assert [int(e["offset"]) for e in run if e["flags"]] == [3]


def test_runs_are_ordered_by_hash_and_offset() -> None:
    rng = random.Random(1)
    run = run_of(*(logs.data(n, (f"k{rng.randrange(40)}", "v")) for n in range(300)))
    order = [(int(e["high"]), int(e["low"]), int(e["offset"])) for e in run]
    assert order == sorted(order)
    assert len(order) == 300


def test_what_is_not_decided_supersedes_nothing() -> None:
    source = logs.log(logs.data(0, ("a", "1")), in_transaction(1, ("a", "2"), ("b", "1"), id=1))
    what, _ = fates(source.batches, ())
    for bound, expected in ((3, [0, 1, 2]), (2, [0, 1]), (1, [0]), (0, [])):
        assert sorted(logs.column(index(source, what, bound), "offset")) == expected


def test_a_tombstone_that_still_deletes_something_is_pinned() -> None:
    found = match([run_of(logs.data(0, ("a", "1"), ("a", None), ("b", None), ("c", None), ("c", "1")))])
    assert (list(found.dead), list(found.pinned), found.keys) == ([0, 3], [1], 3)


def test_a_record_indexed_twice_does_not_supersede_itself() -> None:
    run = run_of(logs.data(0, ("a", "1"), ("a", "2"), ("b", None)))
    found = match([run, run])
    assert (list(found.dead), list(found.pinned)) == ([0], [])


def test_no_runs_say_nothing() -> None:
    for runs in ([], [np.empty(0, ENTRY)]):
        found = match(runs)
        assert (found.keys, list(found.dead), list(found.pinned)) == (0, [], [])
        assert len(merge(runs)) == 0


def test_keys_that_share_half_a_hash_are_told_apart() -> None:
    entries = np.zeros(4, ENTRY)
    entries["high"] = 7
    entries["low"] = [1, 2, 1, 2]
    entries["offset"] = [10, 11, 12, 13]
    assert list(match([entries[[0, 2]], entries[[1, 3]]]).dead) == [10, 11]
    assert list(match([entries]).dead) == [10, 11]


def test_slices_are_the_whole_hash_space() -> None:
    assert slices(1) == [Slice(0, 1 << 64)]
    for count in (2, 3, 7, 1000):
        cut = slices(count)
        assert [cut[0].start, cut[-1].end] == [0, 1 << 64]
        assert all(left.end == right.start for left, right in pairwise(cut))


def test_the_ends_of_the_hash_space_are_in_a_slice() -> None:
    entries = np.zeros(2, ENTRY)
    entries["high"] = [0, MASK]
    assert [len(part(entries, piece)) for piece in slices(3)] == [1, 0, 1]


def total(found: Sequence[Matched]) -> tuple[int, list[int], list[int]]:
    return (
        sum(each.keys for each in found),
        sorted(int(offset) for each in found for offset in each.dead),
        sorted(int(offset) for each in found for offset in each.pinned),
    )


@pytest.mark.parametrize("seed", range(20))
def test_any_runs_and_slices_come_to_what_a_plain_map_says(seed: int) -> None:
    """And a second round over the merged run and what is new comes to the same as one over everything."""
    rng = random.Random(seed)
    batches = [
        logs.data(n * 3, *((f"k{rng.randrange(60)}", rng.choice((None, "v" * n))) for _ in range(3)))
        for n in range(40)
    ]
    newest: dict[bytes | None, int] = {}
    dead, older = [], set()
    tombstones = set()
    for batch in batches:
        for record in batch.records:
            if record.key in newest:
                dead.append(newest[record.key])
                older.add(record.key)
            newest[record.key] = record.offset
            if record.value is None:
                tombstones.add(record.offset)
    pinned = sorted(at for key, at in newest.items() if key in older and at in tombstones)
    cut = rng.randrange(1, 39)
    runs = [run_of(*batches[:cut]), run_of(*batches[cut:])]
    found = total([match([part(run, piece) for run in runs]) for piece in slices(rng.choice((1, 2, 5)))])
    assert found == (len(newest), sorted(dead), pinned)
    assert found == total([match(runs)])
    first = match(runs[:1])
    second = match([merge(runs[:1]), runs[1]])
    assert sorted([*first.dead, *second.dead]) == sorted(dead)
    assert second.keys == len(newest)


@pytest.mark.parametrize("hashes", [1, 2, 5, 100, 5000])
@pytest.mark.parametrize("shared_bits", [0, 20, 56, 63])
@pytest.mark.parametrize("are_new_first", [False, True])
def test_entries_are_ordered_by_hash_and_offset_however_hashes_are_spread(
    hashes: int, shared_bits: int, are_new_first: bool
) -> None:
    rng = np.random.default_rng(hashes)
    entries = np.zeros(3000, ENTRY)
    high = rng.integers(0, 1 << 64, hashes, dtype=np.uint64) >> np.uint64(shared_bits)
    entries["high"], entries["low"] = rng.choice(high, 3000), rng.integers(0, 3, 3000)
    entries["offset"] = np.arange(3000) // 2
    entries["size"] = np.arange(3000)
    if are_new_first:
        entries = entries[::-1].copy()
    expected = sorted(entries.tolist(), key=lambda entry: entry[:3])
    assert ordered(entries).tolist() == expected


def test_no_entries_are_in_order() -> None:
    assert ordered(np.empty(0, ENTRY)).tolist() == []
