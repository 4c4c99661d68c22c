"""A pass in one go does what decoding, deciding and filtering do one after another."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.base.errors import LithifyError
from lithify.datasets.kafka.cleaning.retention import (
    NO_OFFSETS,
    Rules,
    empty_to_retain,
    last_records,
    reasons,
    retention,
)
from lithify.datasets.kafka.cleaning.segments import Cleaner
from lithify.datasets.kafka.format.codecs import BatchCodec
from lithify.datasets.kafka.format.kernel.retaining import Offsets, RemovalReason
from lithify.datasets.kafka.format.record_batches import RecordBatches, decode, filtered
from lithify.datasets.kafka.format.transactions import fates, follow
from tests.datasets.kafka import logs
from tests.datasets.kafka.logs import Batch, encode, encode_all

KEEP = Rules(0, 0, keep_unkeyed=True, bound=1 << 62)


def some(rng: random.Random, offsets: Sequence[int], share: float) -> Offsets:
    """Some of the offsets, and some that no record has."""
    found = {offset + rng.choice((0, 0, 0, 1)) for offset in offsets if rng.random() < share}
    return np.array(sorted(found), np.int64)


def expected_reason(
    source: RecordBatches, number: int, rules: Rules, dead: set[int], pinned: set[int]
) -> int:
    """The table of `retention.py`, for a record of no transaction."""
    record = source.records[number]
    batch, offset = source.batches[record["batch"]], int(record["offset"])
    horizon_came = batch["attributes"] & logs.HORIZON and batch["base_timestamp"] <= rules.now_ms
    if batch["attributes"] & logs.CONTROL or offset >= rules.bound:
        return RemovalReason.STAYS
    if offset in dead:
        return RemovalReason.SUPERSEDED
    if record["key_len"] < 0 and not rules.keep_unkeyed:
        return RemovalReason.WITHOUT_KEY
    is_old = horizon_came and offset < rules.tombstones_below and offset not in pinned
    if record["value_len"] < 0 and is_old:
        return RemovalReason.WITHOUT_KEY if record["key_len"] < 0 else RemovalReason.TOMBSTONE
    return RemovalReason.STAYS


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1 << 32), is_history=st.booleans())
def test_a_pass_is_decoding_deciding_and_filtering(seed: int, is_history: bool) -> None:
    rng = random.Random(seed)
    batches = logs.random_history(rng) if is_history else logs.random_log(rng)
    data = encode_all(batches)
    source = decode(data, "log")
    offsets = logs.column(source.records, "offset")
    dead, pinned = some(rng, offsets, rng.choice((0.0, 0.1, 0.5, 1.0))), some(rng, offsets, 0.3)
    bounds = [rng.choice((1 << 62, rng.choice([0, *offsets]))) for _ in range(3)]
    now_ms = rng.choice((0, 1_700_000_500_000, 1 << 50))
    rules = Rules(now_ms, 1000, rng.random() < 0.5, bounds[0], bounds[1], bounds[2])
    aborted = follow(source.batches).aborted
    producers = last_records(source.batches) if rng.random() < 0.5 else {}
    what, _ = fates(source.batches, aborted)
    empty = empty_to_retain(source.batches, producers, rules.bound)
    cleaner = Cleaner(rules, dead, pinned, aborted=aborted, producers=producers)
    cuts = sorted({0, *rng.sample(range(len(batches) + 1), 3), len(batches)})
    pieces = [("log", encode_all(batches[a:b])) for a, b in itertools.pairwise(cuts)]
    kept, tally, size = b"", np.zeros(len(RemovalReason), np.int64), 0
    for found in cleaner.cleaned(pieces, bite_bytes=rng.choice((1, 500, 1 << 20))):
        kept += bytes(found.kept)
        tally += found.tally
        size += found.size
    why = reasons(source, what, rules, dead, pinned)
    assert kept == bytes(filtered(source, retention(source, what, rules, empty, dead, pinned)))
    assert tally.tolist() == np.bincount(why, minlength=len(RemovalReason)).tolist()
    assert size == len(data)
    in_transaction = source.batches["attributes"] & (logs.TRANSACTIONAL | logs.CONTROL) != 0
    for number in np.flatnonzero(~in_transaction[source.records["batch"]]):
        expected = expected_reason(source, int(number), rules, set(dead.tolist()), set(pinned.tolist()))
        assert why[number] == expected


def test_what_was_handed_out_stays_while_the_next_is_written_though_nothing_stays_between() -> None:
    """A writer reads it until its next call, and for pieces of which nothing stays there is none."""
    pieces = [("log", encode(logs.data(n, (f"{n}", "x" * 1000)))) for n in range(6)]
    cleaner = Cleaner(KEEP, np.array([1, 3, 4], np.int64), NO_OFFSETS)
    last, copy = memoryview(b""), b""
    handed_out = 0
    for found in cleaner.cleaned(pieces, bite_bytes=1):
        assert bytes(last) == copy
        if found.kept:
            last, copy = memoryview(found.kept), bytes(found.kept)
            handed_out += 1
    assert handed_out == 3


def refusal(data: bytes) -> LithifyError | None:
    try:
        decode(data, "log")
    except LithifyError as error:
        return error
    return None


@pytest.mark.parametrize("codec", list(BatchCodec))
def test_damage_is_refused_with_the_words_of_decoding(codec: BatchCodec) -> None:
    """Of several things the first, and what stays of whole bites before it has been handed on."""
    rng = random.Random(int(codec))
    before, after = encode(logs.data(0, ("x", "1"))), encode(logs.marker(1 << 41, id=1, commit=True))
    refused = 0
    for _ in range(300):
        (made,) = logs.random_log(rng, [codec], batches=1)
        damaged = bytearray(encode(made))
        for _ in range(rng.choice((1, 1, 2, 5))):
            damaged[rng.randrange(16, len(damaged))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        end = bytearray(after)
        if rng.random() < 0.3:
            end[rng.randrange(61, len(end))] ^= 1 << rng.randrange(8)
        sealed = logs.sealed(bytes(damaged)) if rng.random() < 0.7 else bytes(damaged)
        data = before + sealed + logs.sealed(bytes(end))
        cleaned = Cleaner(KEEP, NO_OFFSETS, NO_OFFSETS).cleaned([("log", data)])
        error = refusal(data)
        if error is None:
            next(cleaned)
            continue
        refused += 1
        with pytest.raises(type(error)) as caught:
            next(cleaned)
        assert str(caught.value) == str(error)
    assert refused > 100


def test_offsets_ascend_from_piece_to_piece() -> None:
    first, second = (encode(logs.data(n, ("a", "1"))) for n in (0, 1))
    cleaner = Cleaner(KEEP, NO_OFFSETS, NO_OFFSETS)
    assert [bytes(one.kept) for one in cleaner.cleaned([("log", second)])] == [second]
    with pytest.raises(LithifyError, match="at or before the last offset"):
        list(cleaner.cleaned([("log", first)]))


def test_what_stays_is_there_until_the_next_but_one() -> None:
    batches: list[Batch] = [logs.data(n, ("a", str(n))) for n in range(4)]
    kept = Cleaner(KEEP, NO_OFFSETS, NO_OFFSETS).cleaned([("log", encode_all(batches))], bite_bytes=1)
    before = next(kept)
    for number, found in enumerate(kept):
        assert bytes(before.kept) == encode(batches[number])
        before = found
