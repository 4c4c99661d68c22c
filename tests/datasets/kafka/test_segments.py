"""Folders of segments: read as a broker left them, written so that Kafka finds everything in them."""

from __future__ import annotations

import random
import struct
from bisect import bisect_right
from collections.abc import Iterator

import pytest

from lithify.base.errors import CorruptObject, DatasetNotFound, LithifyError, Refused, StoreError, Unsupported
from lithify.datasets.kafka.format.codecs import BatchCodec
from lithify.datasets.kafka.format.record_batches import decode
from lithify.datasets.kafka.format.transactions import follow
from lithify.datasets.kafka.layouts.contract import Segment
from lithify.datasets.kafka.layouts.segments import (
    SegmentWriter,
    SplitWriter,
    find_partitions,
    pieces,
    read_folder,
)
from lithify.testing import ManualClock
from lithify.testing.memory import MemoryStore
from tests.datasets.kafka import logs
from tests.datasets.kafka.logs import Batch, encode, encode_all
from tests.judge.kafka_java import KafkaJava, kafka_java

OFFSET_ENTRY, TIME_ENTRY = struct.Struct(">ii"), struct.Struct(">qi")
ABORTED_ENTRY = struct.Struct(">hqqqq")


@pytest.fixture(scope="session")
def java() -> Iterator[KafkaJava]:
    judge = kafka_java()
    yield judge
    judge.close()


def name(base_offset: int, suffix: str = ".log", folder: str = "logs/orders-0") -> str:
    return f"{folder}/{base_offset:020d}{suffix}"


def a_store(**objects: bytes) -> MemoryStore:
    store = MemoryStore(ManualClock(1000))
    for key, data in objects.items():
        store.put(key, data)
    return store


def put(store: MemoryStore, *segments: tuple[int, bytes]) -> None:
    for base_offset, data in segments:
        store.put(name(base_offset), data)


def written(data: list[bytes], base_offset: int) -> tuple[MemoryStore, Segment]:
    store = MemoryStore(ManualClock(1000))
    writer = SegmentWriter(store, "logs/orders-0", base_offset)
    aborted = follow(decode(b"".join(data), "log").batches).aborted
    for piece in data:
        writer.write(piece, aborted)
    return store, writer.close()


def entries(store: MemoryStore, base_offset: int, suffix: str, entry: struct.Struct) -> list[tuple[int, ...]]:
    return list(entry.iter_unpack(store.get(name(base_offset, suffix))))


def a_long_log(rng: random.Random) -> list[Batch]:
    """Batches of some hundred bytes, so that every few get an index entry; times that are not in order."""
    made: list[Batch] = []
    offset = rng.choice((0, 7, 1 << 40))
    for _ in range(150):
        offset += rng.choice((0, 0, 1, 40))
        rows = [
            (f"k{rng.randrange(30)}", rng.randbytes(rng.randrange(150)).hex())
            for _ in range(rng.randrange(1, 9))
        ]
        made.append(logs.data(offset, *rows, time=rng.randrange(100_000), codec=rng.choice(list(BatchCodec))))
        offset = made[-1].last + 1
    return made


def test_index_entries_are_those_of_a_brokers_recovery() -> None:
    """By hand: an entry for each batch that is more than 4096 bytes behind the last one with an entry."""
    batches = [encode(logs.data(10 + n, ("k", "v" * 1400), time=n % 4 * 1000)) for n in range(10)]
    size = len(batches[0])
    store, segment = written(batches, 10)
    assert 1400 < size < 1500
    assert entries(store, 10, ".index", OFFSET_ENTRY) == [(n, n * size) for n in (3, 6, 9)]
    # The greatest time so far is that of batch 3, then of batch 7: each time is 1000 * (n % 4) + offset.
    assert entries(store, 10, ".timeindex", TIME_ENTRY) == [(3013, 3), (3017, 7)]
    assert segment == Segment(name(10), 10, 10 * size)
    assert not list(store.list(name(10, ".txnindex")))


@pytest.mark.parametrize("seed", range(6))
def test_kafka_finds_everything_through_the_indexes(java: KafkaJava, seed: int) -> None:
    """For each offset and time, searched from where the index points, what a search of all finds."""
    rng = random.Random(seed)
    log = a_long_log(rng)
    base = log[0].first
    cut = rng.randrange(len(log))
    store, segment = written([encode_all(log[:cut]), encode_all(log[cut:])], base)
    data = store.get(segment.key)
    assert data == encode_all(log)
    index = entries(store, base, ".index", OFFSET_ENTRY)
    times = entries(store, base, ".timeindex", TIME_ENTRY)
    assert len(index) > 10
    assert len(times) > 1
    assert times[-1][0] == max(record.timestamp for batch in log for record in batch.records)

    def position_of(offset: int) -> int:
        at = bisect_right([relative for relative, _ in index], offset - base) - 1
        return index[at][1] if at >= 0 else 0

    through, without = [], []
    for offset in range(base, log[-1].last + 2):
        through.append(f"offset {offset} {position_of(offset)}")
        without.append(f"offset {offset} 0")
    for _ in range(300):
        wanted = rng.randrange(105_000)
        at = bisect_right([time for time, _ in times], wanted) - 1
        start = base + (times[at][1] if at >= 0 else 0)
        through.append(f"time {wanted} {position_of(start)} {base}")
        without.append(f"time {wanted} 0 {base}")
    found = java.seek(data, through)
    assert found == java.seek(data, without)
    assert len(set(found)) > 100


def test_aborted_transactions_stand_beside_their_marker() -> None:
    log = [
        logs.in_transaction(0, ("a", "1"), id=1),
        logs.in_transaction(1, ("b", "1"), id=2),
        logs.marker(2, id=2, commit=False),
        logs.marker(3, id=1, commit=False),
        logs.in_transaction(4, ("a", "2"), id=1),
        logs.marker(5, id=1, commit=True),
    ]
    store, _ = written([encode_all(log[:3]), encode_all(log[3:])], 0)
    assert entries(store, 0, ".txnindex", ABORTED_ENTRY) == [(0, 2, 1, 2, 0), (0, 1, 0, 3, 4)]


def test_a_segment_without_batches_is_written_too() -> None:
    store, segment = written([], 81)
    assert segment == Segment(name(81), 81, 0)
    assert store.get(name(81)) == store.get(name(81, ".index")) == store.get(name(81, ".timeindex")) == b""


@pytest.mark.parametrize(("far", "limit"), [((1 << 31) + 7, 1 << 20), (11, 230)])
def test_what_an_index_cannot_count_becomes_another_segment(java: KafkaJava, far: int, limit: int) -> None:
    """Offsets or bytes beyond what an index of 32 bits can count; three batches of about 90 bytes."""
    log = [logs.data(first, ("a", "x" * 20)) for first in (7, far, far + 1)]
    store = MemoryStore(ManualClock(1000))
    writer = SplitWriter(store, "logs/orders-0", 7, limit_bytes=limit)
    writer.write(encode_all(log), ())
    found = writer.close()
    assert [one.base_offset for one in found] == ([7, far] if limit > 1000 else [7, far + 1])
    assert b"".join(store.get(one.key) for one in found) == encode_all(log)
    assert [store.get(one.key) for one in found] == [
        encode_all(part) for part in ([log[:1], log[1:]] if limit > 1000 else [log[:2], log[2:]])
    ]
    for one in found:
        relative = [f"offset {batch.first} 0" for batch in log if batch.first >= one.base_offset]
        assert "none" not in java.seek(store.get(one.key), relative[:1])


def test_what_an_index_cannot_count_is_refused() -> None:
    far = logs.data(1 << 31, ("a", "1"))
    writer = SegmentWriter(MemoryStore(), "logs/orders-0", 0)
    with pytest.raises(Refused, match="set a smaller kafka"):
        writer.write(encode(far), ())


@pytest.mark.parametrize("piece_bytes", [1, 61, 700, 5000, 1 << 20])
def test_pieces_are_whole_batches(piece_bytes: int) -> None:
    log = logs.random_log(random.Random(piece_bytes))
    data = encode_all(log)
    store = a_store()
    put(store, (0, data))
    segment = Segment(name(0), 0, len(data))
    taken = pieces(store, segment, piece_bytes=piece_bytes)
    found = [bytes(piece) for _, piece in taken]
    assert b"".join(found) == data
    assert sum(len(decode(piece, "log").batches) for piece in found) == len(log)
    assert piece_bytes > len(data) or len(found) > 1


OLD = struct.pack(">qiIbbqii", 0, 22, 0, 1, 0, 0, -1, -1) + bytes(40)
"""A message of format 1."""
ONE = encode(logs.data(0, ("a", "1")))
TWO = encode(logs.data(1, ("a", "2")))
BAD = TWO[:-1] + bytes([TWO[-1] ^ 1])


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (ONE + TWO[:-1], CorruptObject, "longer than the rest of the object"),
        (ONE + TWO[:9], CorruptObject, "longer than the rest of the object"),
        (ONE + OLD, Unsupported, "format 1"),
        (ONE + BAD, CorruptObject, "checksum"),
        (ONE + bytes(100), CorruptObject, "there are zeros"),
    ],
)
@pytest.mark.parametrize("piece_bytes", [20, 100, 1 << 20])
def test_what_is_no_batch_is_refused_however_it_is_cut(
    data: bytes, error: type[LithifyError], text: str, piece_bytes: int
) -> None:
    store = a_store()
    put(store, (0, data))
    segment = Segment(name(0), 0, len(data))
    found = pieces(store, segment, piece_bytes=piece_bytes)
    with pytest.raises(error, match=text):
        all(decode(piece, named) for named, piece in found)


def test_a_piece_stays_as_it_is_while_the_next_is_read() -> None:
    """A writer may read what it was given until its next call returns."""
    log = logs.random_log(random.Random(7))
    store = a_store()
    put(store, (0, encode_all(log)))
    taken = pieces(store, Segment(name(0), 0, len(encode_all(log))), piece_bytes=700)
    _, before = next(taken)
    kept = bytes(before)
    for _, piece in taken:
        assert bytes(before) == kept
        before, kept = piece, bytes(piece)


def test_a_segment_that_became_shorter_is_an_error() -> None:
    store = a_store()
    put(store, (0, ONE))
    with pytest.raises(StoreError):
        list(pieces(store, Segment(name(0), 0, len(ONE) + 1)))


def test_a_folder_is_listed() -> None:
    store = a_store()
    put(store, (0, ONE), (81240, b""))
    for other in ("leader-epoch-checkpoint", "partition.metadata", "notes.txt"):
        store.put(f"logs/orders-0/{other}", b"x")
    for snapshot in (5, 81240):
        store.put(name(snapshot, ".snapshot"), b"x")
    for suffix in (".index", ".timeindex", ".txnindex", ".log.deleted", ".log.cleaned"):
        store.put(name(0, suffix), b"x")
    found = read_folder(store, "logs/orders-0")
    assert found.segments == (Segment(name(0), 0, len(ONE)), Segment(name(81240), 81240, 0))
    assert found.companions == (
        "logs/orders-0/leader-epoch-checkpoint",
        "logs/orders-0/partition.metadata",
        name(81240, ".snapshot"),
    )
    store.put("logs/orders-0/notes.txt", b"yy")
    assert read_folder(store, "logs/orders-0").fingerprint != found.fingerprint


def test_partitions_of_a_topic_are_found() -> None:
    store = a_store()
    for number in (10, 9, 0):
        store.put(name(0, folder=f"logs/my-topic-{number}"), ONE)
    store.put("logs/.lock", b"")
    store.put("logs/.kafka_cleanshutdown", b"{}")
    assert list(find_partitions(store, "logs").partitions) == ["my-topic-0", "my-topic-9", "my-topic-10"]
    assert find_partitions(store, "logs/my-topic-9").partitions == {"my-topic-9": "logs/my-topic-9"}


@pytest.mark.parametrize(
    ("objects", "root", "error", "text"),
    [
        ({}, "logs", DatasetNotFound, "neither segments"),
        ({name(0, folder="logs/__cluster_metadata-0"): ONE}, "logs", DatasetNotFound, "neither segments"),
        (
            {name(0, folder="logs/__cluster_metadata-0"): ONE},
            "logs/__cluster_metadata-0",
            Refused,
            "cluster's own metadata",
        ),
        ({"tiered/orders-6Ts3Q/0/00000000000000000023-x.rsm-manifest": b"{}"}, "tiered", Refused, "rsm-man"),
        ({name(0, folder="logs/a-0"): ONE, "logs/.lock": b""}, "logs", Refused, "a broker runs"),
        ({name(0, folder="logs/a-0"): ONE, "logs/.lock": b""}, "logs/a-0", Refused, "a broker runs"),
        ({name(0, folder="logs/things"): ONE}, "logs/things", Refused, "named after its partition"),
    ],
)
def test_what_is_no_topic_is_refused(
    objects: dict[str, bytes], root: str, error: type[LithifyError], text: str
) -> None:
    with pytest.raises(error, match=text):
        find_partitions(a_store(**objects), root)


@pytest.mark.parametrize(
    ("key", "error", "text"),
    [
        ("logs/orders-0/x.txt", DatasetNotFound, "no segments"),
        (name(0, ".log.swap"), Refused, "while it replaced segments"),
        ("logs/orders-0/5.log", Refused, "20 digits"),
        ("logs/orders-0/00000000000000000023-x.rsm-manifest", Refused, "tiered storage"),
        (name(99999999999999999999), CorruptObject, "no such offset"),
    ],
)
def test_what_is_no_partition_is_refused(key: str, error: type[LithifyError], text: str) -> None:
    with pytest.raises(error, match=text):
        read_folder(a_store(**{key: b"x"}), "logs/orders-0")
