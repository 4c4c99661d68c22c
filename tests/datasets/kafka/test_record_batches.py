"""Record batches: decoded, checked, filtered, written again."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import replace

import cramjam
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.base.errors import CorruptObject, LithifyError, Unsupported
from lithify.datasets.kafka.format.codecs import BadCompression, BatchCodec, BatchCodecs
from lithify.datasets.kafka.format.record_batches import decode, filtered, merged, rebased
from lithify.kernel.buffers import bytes_of
from lithify.kernel.crc32c import checksum
from tests.datasets.kafka import logs
from tests.datasets.kafka.logs import Batch, Rec, column, encode, encode_all, expected_rows, flags, keep_all

THREE = logs.data(5, ("a", "1"), ("b", None), ("a", "3"))
"""Offsets 5 to 7 at 1,005 to 1,007 ms."""
GOLDEN = bytes.fromhex(
    "0000000000000005 0000004b 00000000 02 8aada26f 0000 00000002 00000000000003ed 00000000000003ef"
    "ffffffffffffffff ffff ffffffff 00000003"
    "10 00 00 00 02 61 02 31 00"
    "0e 00 02 02 02 62 01 00"
    "10 00 04 04 02 61 02 33 00"
)
"""The same, by hand."""
LAST = bytes.fromhex("10 00 00 04 02 61 02 33 00")
"""Its last record alone: the time is relative to its own, the offset as it was."""


@pytest.mark.parametrize("method", range(4))
def test_checksums_are_those_of_castagnoli(method: int) -> None:
    rng = random.Random(5)
    data = rng.randbytes(1500)
    memory = bytes_of(data)
    assert logs.crc32c(b"123456789") == 0xE3069283
    for length in (*range(90), *range(240, 350), 1025, 1499):
        for start in (0, 1):
            found = checksum(memory.ctypes.data + start, length, method)
            assert found == logs.crc32c(data[start : start + length])


def test_a_batch_is_read() -> None:
    assert encode(THREE) == GOLDEN
    source = decode(GOLDEN, "log")
    assert logs.rows(source) == [(5, 1005, b"a", b"1"), (6, 1006, b"b", None), (7, 1007, b"a", b"3")]
    (batch,) = source.batches
    assert (batch["base_offset"], batch["last_offset"], batch["count"], batch["size"]) == (5, 7, 3, 87)
    assert source.raw(0) == GOLDEN


def test_what_is_kept_keeps_its_offsets_and_times() -> None:
    source = decode(GOLDEN, "log")
    last = bytes(filtered(source, keep_all(source, keep=flags([False, False, True]))))
    assert last[61:] == LAST
    found = decode(last, "log")
    assert logs.rows(found) == [(7, 1007, b"a", b"3")]
    (batch,) = found.batches
    assert (batch["base_offset"], batch["last_offset"], batch["base_timestamp"]) == (5, 7, 1007)


def test_a_kept_tombstone_sets_a_delete_horizon_once() -> None:
    source = decode(GOLDEN, "log")
    first = decode(filtered(source, keep_all(source, new_horizon_ms=9_000)), "log")
    assert logs.rows(first) == logs.rows(source)
    assert column(first.batches, "base_timestamp") == [9_000]
    assert column(first.batches, "attributes") == [logs.HORIZON]
    second = filtered(first, keep_all(first, keep=flags([False, True, True]), new_horizon_ms=50_000))
    again = decode(second, "log")
    assert logs.rows(again) == logs.rows(source)[1:]
    assert column(again.batches, "base_timestamp") == [9_000]


def test_batches_of_which_all_stays_stay_byte_for_byte() -> None:
    data = encode_all(batch for batch in logs.random_log(random.Random(1)))
    source = decode(data, "log")
    horizon = source.batches["attributes"] & logs.HORIZON != 0
    tombstones = {int(r["batch"]) for r in source.records if r["value_len"] < 0}
    kept = decode(filtered(source, keep_all(source, retain_empty=flags([True] * len(horizon)))), "log")
    for at in range(len(source.batches)):
        if horizon[at] or at not in tombstones:
            assert kept.raw(at) == source.raw(at)


def test_a_batch_without_records_keeps_what_its_producer_needs() -> None:
    before = logs.in_transaction(
        40, ("a", "1"), ("b", "2"), id=9, epoch=3, codec=BatchCodec.ZSTD, leader_epoch=4, horizon=5_000
    )
    source = logs.log(before)
    none = flags([False, False])
    assert not filtered(source, keep_all(source, keep=none))
    left = filtered(source, keep_all(source, keep=none, retain_empty=flags([True])))
    after = Batch((), 40, 41, producer=(9, 3, 40), transactional=True, leader_epoch=4, max_timestamp=1041)
    assert bytes(left) == encode(after)
    empty = decode(left, "log")
    assert len(empty.records) == 0
    assert bytes(filtered(empty, keep_all(empty, retain_empty=flags([True])))) == bytes(left)


def test_times_of_the_broker_stay() -> None:
    source = logs.log(replace(THREE, append_time=77_000))
    kept = decode(filtered(source, keep_all(source, keep=flags([True, False, True]))), "log")
    assert [row[:2] for row in logs.rows(kept)] == [(5, 77_000), (7, 77_000)]
    assert column(kept.batches, "max_timestamp") == [77_000]


@pytest.mark.parametrize("codec", list(BatchCodec))
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_round_trips(codec: BatchCodec, seed: int) -> None:
    rng = random.Random(seed)
    batches = logs.random_log(rng, [codec], batches=5)
    source = decode(encode_all(batches), "log")
    assert logs.rows(source) == expected_rows(batches)
    keep = flags([rng.random() < 0.6 for _ in source.records])
    retain_empty = flags([rng.random() < 0.5 for _ in batches])
    kept = decode(filtered(source, keep_all(source, keep=keep, retain_empty=retain_empty)), "log")
    assert logs.rows(kept) == [row for row, stays in zip(logs.rows(source), keep, strict=True) if stays]
    stayed = {int(at) for at in source.records["batch"][keep]}
    numbers = [at for at in range(len(batches)) if at in stayed or retain_empty[at]]
    for name in ("base_offset", "last_offset", "leader_epoch", "producer_id", "base_sequence"):
        assert column(kept.batches, name) == column(source.batches[numbers], name)
    kinds = (kept.batches["attributes"] ^ source.batches[numbers]["attributes"]) & 0b0111000
    assert not kinds.any()


SKIPPED = b"\x51\x2a\x4d\x18\x03\0\0\0abc"
"""A frame of zstd that readers skip."""


def xerial(raw: bytes) -> bytes:
    return BatchCodecs().pack(BatchCodec.SNAPPY, memoryview(raw))


def raw_snappy(raw: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(raw))


def two_members(raw: bytes) -> bytes:
    return logs.gzip(raw[:20]) + logs.gzip(raw[20:])


def two_frames(raw: bytes) -> bytes:
    return logs.streamed_zstd(raw[:20]) + logs.streamed_zstd(raw[20:])


@pytest.mark.parametrize(
    ("codec", "pack"),
    [
        (BatchCodec.SNAPPY, xerial),
        (BatchCodec.SNAPPY, raw_snappy),
        (BatchCodec.LZ4, logs.linked_lz4),
        (BatchCodec.ZSTD, logs.streamed_zstd),
        (BatchCodec.ZSTD, two_frames),
        (BatchCodec.GZIP, two_members),
    ],
)
def test_every_way_clients_compress_is_read(codec: BatchCodec, pack: Callable[[bytes], bytes]) -> None:
    records = tuple(Rec(n, 1000, b"key%d" % (n % 7), b"value" * 40) for n in range(2000))
    plain = encode(Batch(records))
    packed = encode(Batch(records, codec=codec), pack(plain[61:]))
    assert logs.rows(decode(packed, "log")) == logs.rows(decode(plain, "log"))


@pytest.mark.parametrize(
    ("codec", "pack"),
    [
        (BatchCodec.GZIP, logs.gzip),
        (BatchCodec.LZ4, logs.linked_lz4),
        (BatchCodec.SNAPPY, raw_snappy),
        (BatchCodec.ZSTD, zstandard.compress),
        (BatchCodec.ZSTD, zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compress),
        (BatchCodec.ZSTD, logs.streamed_zstd),
        (BatchCodec.ZSTD, lambda raw: SKIPPED + logs.streamed_zstd(raw)),
    ],
)
@pytest.mark.parametrize("raw", [random.Random(5).randbytes(200_000), b"a" * 300_000, b"ab" * 100])
def test_what_is_cut_off_is_refused(codec: BatchCodec, pack: Callable[[bytes], bytes], raw: bytes) -> None:
    packed = memoryview(pack(raw))
    assert BatchCodecs().unpack(codec, packed) == raw
    lengths = {*range(1, 40), *range(len(packed) - 40, len(packed)), *range(1, len(packed), 9_999)}
    for length in lengths & set(range(1, len(packed))) - {len(SKIPPED)}:
        with pytest.raises(BadCompression):
            BatchCodecs().unpack(codec, packed[:length])


def test_lz4_is_written_in_independent_blocks() -> None:
    packed = BatchCodecs().pack(BatchCodec.LZ4, memoryview(bytes(200_000)))
    assert packed[4] & 0x20, "Java refuses dependent blocks"
    assert packed[5] >> 4 == 4, "blocks of 64 KiB"


@pytest.mark.parametrize("codec", [BatchCodec.GZIP, BatchCodec.LZ4, BatchCodec.ZSTD])
def test_what_unpacks_to_more_than_the_limit_is_refused(codec: BatchCodec) -> None:
    codecs = BatchCodecs(max_unpacked_bytes=1 << 20)
    fits, larger = (memoryview(bytes(size)) for size in (1 << 20, (1 << 20) + 1))
    assert codecs.unpack(codec, memoryview(codecs.pack(codec, fits))) == fits
    with pytest.raises(BadCompression, match="more than 1 MiB"):
        codecs.unpack(codec, memoryview(codecs.pack(codec, larger)))
    if codec is BatchCodec.ZSTD:
        with pytest.raises(BadCompression, match="more than 1 MiB"):
            codecs.unpack(codec, memoryview(logs.streamed_zstd(bytes(larger))))


def test_a_snappy_block_that_claims_more_than_it_holds_is_refused() -> None:
    for claim in (b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x01"):
        with pytest.raises(BadCompression, match=r"more than"):
            BatchCodecs().unpack(BatchCodec.SNAPPY, memoryview(claim + b"\0a"))


@pytest.mark.parametrize("codec", list(BatchCodec))
def test_damage_at_every_byte_is_refused(codec: BatchCodec) -> None:
    """Of every byte of a batch between two others, one bit at a time."""
    before, after = logs.data(0, ("x", "1")), logs.data(20, ("y", "2"))
    records = tuple(Rec(n, 1000 + n, b"k%d" % n, b"v" * n, ((b"h", b"1"),)) for n in range(10, 16))
    middle = encode(Batch(records, codec=codec))
    rng = random.Random(7)
    for position in range(len(middle)):
        damaged = bytearray(middle)
        damaged[position] ^= 1 << rng.randrange(8)
        data = encode(before) + bytes(damaged) + encode(after)
        if position < 8 or 12 <= position < 16:
            continue  # base offset and leader epoch, which the checksum does not cover
        with pytest.raises((CorruptObject, Unsupported), match=r"^records/7: "):
            decode(data, "records/7")


@pytest.mark.parametrize("codec", list(BatchCodec))
def test_damage_under_a_right_checksum_is_refused_or_harmless(codec: BatchCodec) -> None:
    """Bytes are changed, cut out and put in before the checksum is made. What is read is written again."""
    rng = random.Random(int(codec))
    for _ in range(400):
        (made,) = logs.random_log(rng, [codec], batches=1)
        damaged = bytearray(encode(made))
        for _ in range(rng.choice((1, 1, 2, 5))):
            position = rng.randrange(16, len(damaged))
            match rng.randrange(3):
                case 0:
                    damaged[position] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
                case 1:
                    del damaged[position : position + rng.choice((1, 2, 9))]
                case 2:
                    damaged[position:position] = rng.randbytes(rng.choice((1, 2, 9)))
            if len(damaged) < 62:
                break
        data = logs.sealed(bytes(damaged).ljust(61, b"\0"))
        try:
            source = decode(data, "log")
        except LithifyError:
            continue
        keep = flags([rng.random() < 0.5 for _ in source.records])
        kept = decode(filtered(source, keep_all(source, keep=keep)), "log")
        assert logs.rows(kept) == [r for r, stays in zip(logs.rows(source), keep, strict=True) if stays]


def test_an_object_cut_off_anywhere_is_refused() -> None:
    data = encode(THREE) + encode(logs.data(8, ("c", "4"), codec=BatchCodec.ZSTD))
    for length in range(1, len(data)):
        if length == len(GOLDEN):
            continue
        with pytest.raises(CorruptObject, match="longer than the rest of the object"):
            decode(data[:length], "log")


def test_nothing_is_no_batches() -> None:
    source = decode(b"", "log")
    assert (len(source.batches), len(source.records)) == (0, 0)
    assert not filtered(source, keep_all(source))


def patched(data: bytes, position: int, content: bytes) -> bytes:
    return logs.sealed(data[:position] + content + data[position + len(content) :])


@pytest.mark.parametrize(
    ("position", "content", "error", "words"),
    [
        (16, b"\0", Unsupported, "message of format 0, from before Kafka 0.11"),
        (16, b"\1", Unsupported, "message of format 1, from before Kafka 0.11"),
        (16, b"\3", Unsupported, "unknown message format 3"),
        (21, b"\0\x80", Unsupported, "attributes that this version does not know"),
        (21, b"\0\5", Unsupported, "a codec that this version does not know"),
        (23, b"\0\0\0\1", CorruptObject, "more records than it has offsets"),
        (57, b"\0\0\0\4", CorruptObject, "more records than it has offsets or bytes for"),
        (23, b"\xff\xff\xff\xff", CorruptObject, "negative or too large"),
        (57, b"\xff\xff\xff\xff", CorruptObject, "or a negative number"),
        (57, b"\0\0\0\2", CorruptObject, "bytes follow the last record"),
        (43, b"\xff" * 7 + b"\xfe", CorruptObject, "producer"),
        (21, b"\0\x10", CorruptObject, "transactional and has no producer"),
        (27, b"\xff" * 8, CorruptObject, "delete horizon before 1970"),
        (61, b"\x12", CorruptObject, "a length exceeds"),
        (65, b"\x20", CorruptObject, "a length exceeds"),
        (73, b"\0", CorruptObject, "not above the one before"),
        (73, b"\6", CorruptObject, "outside the batch"),
        (69, b"\2", CorruptObject, "headers of a record do not fit"),
    ],
)
def test_what_is_wrong_is_said_in_words(
    position: int, content: bytes, error: type[LithifyError], words: str
) -> None:
    data = encode(replace(THREE, horizon=500)) if position == 27 else GOLDEN
    with pytest.raises(error, match=words) as caught:
        decode(patched(data, position, content), "t/0/records/5.batch")
    assert str(caught.value).startswith("t/0/records/5.batch: ")


def test_offsets_have_to_ascend_from_batch_to_batch() -> None:
    data = encode(THREE) + encode(logs.data(7, ("c", "4")))
    with pytest.raises(
        CorruptObject, match=r"the batch at offset 7 \(byte 87\): the batch begins at or before"
    ):
        decode(data, "log")
    with pytest.raises(CorruptObject, match="begins at or before the last offset of the one before"):
        decode(GOLDEN, "log", after=5)
    assert len(decode(GOLDEN, "log", after=4).records) == 3


def test_offsets_that_overflow_are_refused() -> None:
    data = struct.pack(">q", (1 << 63) - 2) + GOLDEN[8:]
    with pytest.raises(CorruptObject, match="too large"):
        decode(data, "log")


def test_a_batch_moves_with_its_base_offset() -> None:
    moved = decode(rebased(GOLDEN, 70), "log")
    assert logs.column(moved.records, "offset") == [70, 71, 72]
    assert rebased(memoryview(moved.raw(0)), 5) == GOLDEN


def test_no_memory_is_taken_for_records_that_are_claimed() -> None:
    """A batch of a few bytes may claim two billion records."""
    claim = b"\x7f\xff\xff\xff"
    data = patched(patched(GOLDEN, 23, claim), 57, claim)
    with pytest.raises(CorruptObject, match="more records than it has offsets or bytes for"):
        decode(data, "log")


def test_a_marker_without_a_type_is_refused() -> None:
    batch = replace(logs.marker(3, id=1, commit=True), records=(Rec(3, 0, b"\0\0\0", b""),))
    with pytest.raises(CorruptObject, match="a control record has no type"):
        decode(encode(batch), "log")


def test_markers_are_told_apart() -> None:
    source = logs.log(
        logs.marker(0, id=1, commit=False), logs.marker(1, id=1, commit=True), logs.data(2, ("a", "1"))
    )
    assert column(source.batches, "marker") == [0, 1, -1]
    assert np.all(source.batches["attributes"][:2] & logs.CONTROL)


def test_long_numbers_survive() -> None:
    """Deltas of timestamps that take ten bytes, offsets that take five."""
    records = (Rec(0, -(1 << 61), b"a", b"1"), Rec((1 << 31) - 1, 1 << 62, b"b", b"2"))
    source = logs.log(Batch(records))
    assert logs.rows(source) == expected_rows([Batch(records)])
    kept = decode(filtered(source, keep_all(source, keep=flags([False, True]))), "log")
    assert logs.rows(kept) == expected_rows([Batch(records)])[1:]


@pytest.mark.parametrize("codec", list(BatchCodec))
def test_neighbours_become_one_batch(codec: BatchCodec) -> None:
    """Rows, offsets and times as they were; no producer, no transaction; from first to last offset."""
    batches = [
        logs.in_transaction(10, ("a", "1"), ("b", "2"), id=4, codec=codec, leader_epoch=2),
        replace(logs.data(20, ("a", "3"), codec=codec), append_time=90_000),
        replace(logs.data(30, ("c", "4"), ("d", "5"), codec=codec, leader_epoch=3), last_offset=44),
    ]
    source = logs.log(*batches)
    keep = flags([False, True, True, True, False])
    found = decode(merged(source, keep, codec, 0), "log")
    assert logs.rows(found) == [r for r, stays in zip(logs.rows(source), keep, strict=True) if stays]
    (batch,) = found.batches
    assert (batch["base_offset"], batch["last_offset"], batch["leader_epoch"]) == (10, 44, 3)
    assert (batch["producer_id"], batch["producer_epoch"], batch["base_sequence"]) == (-1, -1, -1)
    assert (batch["attributes"], batch["max_timestamp"]) == (codec, 90_000)


def test_a_merged_batch_has_the_latest_delete_horizon() -> None:
    early, late, none = (
        logs.data(0, ("a", None), horizon=5_000),
        logs.data(1, ("b", None), horizon=6_000),
        logs.data(2, ("c", None), ("d", "1")),
    )
    source = logs.log(early, late, none)

    def horizon(*keep: bool) -> list[tuple[int, int]]:
        found = decode(merged(source, flags(keep), BatchCodec.NONE, 9_000), "log")
        assert [row[1] for row in logs.rows(found)] == [1000 + n for n in range(4) if keep[n]]
        return [(int(b["attributes"]) & logs.HORIZON, int(b["base_timestamp"])) for b in found.batches]

    assert horizon(True, True, False, True) == [(logs.HORIZON, 6_000)]
    assert horizon(True, True, True, True) == [(logs.HORIZON, 9_000)]
    assert horizon(False, False, False, True) == [(0, 1003)]


def test_nothing_kept_is_merged_to_nothing() -> None:
    source = logs.log(THREE)
    assert not merged(source, flags([False] * 3), BatchCodec.ZSTD, 0)


def test_what_cannot_be_one_batch_is_not_merged() -> None:
    far = logs.log(logs.data(0, ("a", "1")), logs.data(1 << 31, ("b", "1")))
    with pytest.raises(ValueError, match="more than a batch can count"):
        merged(far, flags([True, True]), BatchCodec.NONE, 0)
    with_marker = logs.log(logs.data(0, ("a", "1")), logs.marker(1, id=1, commit=True))
    with pytest.raises(ValueError, match="markers"):
        merged(with_marker, flags([True, True]), BatchCodec.NONE, 0)


@pytest.mark.parametrize("codec", list(BatchCodec))
@pytest.mark.parametrize("size", [0, 1, 1_000_000])
def test_what_does_not_compress_finds_room(codec: BatchCodec, size: int) -> None:
    value = random.Random(size).randbytes(size)
    source = logs.log(Batch((Rec(0, 0, b"k", value), Rec(1, 1 << 60, b"l", value)), codec=codec))
    for keep in ([True, False], [False, True]):
        kept = decode(filtered(source, keep_all(source, keep=flags(keep))), "log")
        whole = decode(merged(source, flags(keep), codec, 0), "log")
        assert (
            logs.rows(kept)
            == logs.rows(whole)
            == [r for r, k in zip(logs.rows(source), keep, strict=True) if k]
        )
