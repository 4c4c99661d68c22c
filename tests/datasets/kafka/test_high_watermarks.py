"""Records beyond the high watermark may be truncated after a leader election, so they decide nothing."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest

from lithify.base.errors import CorruptObject
from lithify.datasets.kafka.checks import check_log
from lithify.datasets.kafka.dataset import LogDataset
from lithify.datasets.kafka.format.record_batches import decode
from lithify.datasets.kafka.settings import KafkaSettings
from lithify.protocol.finding import Severity
from lithify.protocol.model import Ledger
from lithify.service.status import status
from lithify.testing import ManualClock
from tests.datasets.kafka import logs
from tests.datasets.kafka.folders import Row, latest, read_rows
from tests.datasets.kafka.logs import Batch
from tests.datasets.kafka.test_members import Copies
from tests.datasets.kafka.test_rounds import NAME, NOW_MS, Topic, a_topic, cut, published, written

SEGMENTS: list[list[Batch]] = [
    [logs.data(0, ("a", "1"), ("b", "1"))],
    [logs.data(2, ("b", "2"), ("c", "1"))],
    [logs.data(4, ("a", "2"), ("c", None))],
    [logs.data(6, ("d", "1"))],
]


def checkpoint(*entries: str, version: int = 0) -> bytes:
    return "".join(f"{line}\n" for line in (version, len(entries), *entries)).encode()


def stopped(topic: Topic, content: bytes | None) -> Topic:
    """The directory of a broker that was stopped cleanly, with this checkpoint."""
    for name in (".lock", ".kafka_cleanshutdown", "meta.properties"):
        topic.store.put(f"{topic.root}/{name}", b"")
    if content is not None:
        topic.store.put(f"{topic.root}/replication-offset-checkpoint", content)
    return topic


def opened(topic: Topic) -> LogDataset:
    """Its output lies elsewhere than in the broker's directory."""
    dataset = Topic(topic.store, "elsewhere", topic.clock).opened(
        KafkaSettings(min_cleanable_dirty_ratio=0.0), f"{topic.root}/{NAME}"
    )
    assert isinstance(dataset, LogDataset)
    return dataset


def compacted(topic: Topic) -> str:
    dataset = opened(topic)
    summary = topic.compact(dataset)
    assert not summary.failures
    return published(dataset)


def why_left(topic: Topic) -> str:
    dataset = opened(topic)
    plan = dataset.propose(dataset.snapshot(), Ledger())
    assert not plan.proposals
    (note,) = plan.notes
    return note


def test_what_is_not_committed_supersedes_nothing() -> None:
    """The newer versions of a and c may be truncated; then the older ones are all there is."""
    topic = stopped(a_topic(SEGMENTS), checkpoint("orders 0 4"))
    rows = read_rows(topic.store, compacted(topic))
    assert [row[0] for row in rows] == [0, 2, 3, 4, 5, 6]
    assert latest(rows[:3]) == latest(read_rows(topic.store, f"{topic.root}/{NAME}")[:4])


@pytest.mark.parametrize(
    ("entries", "left"),
    [
        (("orders 0 7",), [2, 4, 5, 6]),  # as of a log that was never replicated
        (("orders 0 900",), [2, 4, 5, 6]),  # more than there is: all
        (("orders 1 4", "other 0 3", "orders 0 4"), [0, 2, 3, 4, 5, 6]),
        (("orders 0 7", "orders 0 4"), [0, 2, 3, 4, 5, 6]),  # the lowest counts
        (("orders\t0  4",), [0, 2, 3, 4, 5, 6]),  # any white space, as a broker reads it
    ],
)
def test_what_the_checkpoint_says(entries: Sequence[str], left: list[int]) -> None:
    topic = stopped(a_topic(SEGMENTS), checkpoint(*entries))
    assert [row[0] for row in read_rows(topic.store, compacted(topic))] == left


def test_a_segment_with_committed_and_other_records_stays_as_it_is() -> None:
    """Its committed records count: b has a newer one there."""
    topic = stopped(a_topic(SEGMENTS), checkpoint("orders 0 3"))
    before = topic.everything()
    folder = compacted(topic)
    assert [row[0] for row in read_rows(topic.store, folder)] == [0, 2, 3, 4, 5, 6]
    for name in (2, 4, 6):
        key = f"{name:020d}.log"
        assert topic.store.get(f"{folder}/{key}") == before[f"{topic.root}/{NAME}/{key}"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "there is no"),  # a broker that starts takes 0
        (b"", "does not name it"),  # just made
        (b"0\n", "does not name it"),
        (checkpoint(), "does not name it"),
        (checkpoint("orders 1 7", "order 0 7", "orders-0 0 7"), "does not name it"),
    ],
)
def test_without_evidence_nothing_is_committed(content: bytes | None, why: str) -> None:
    topic = stopped(a_topic(SEGMENTS), content)
    note = why_left(topic)
    assert "replication-offset-checkpoint" in note
    assert why in note
    dataset = opened(topic)
    assert not topic.compact(dataset).started
    findings = list(
        check_log(
            lambda: dataset, lambda one: status(one, ManualClock(NOW_MS), 30_000), NOW_MS, KafkaSettings()
        )
    )
    warnings = [one for one in findings if one.severity is Severity.WARNING]
    assert [one.check for one in warnings] == ["high watermark"]
    assert why in warnings[0].says


def test_a_high_watermark_at_the_start_of_the_log() -> None:
    assert "from offset 0 on" in why_left(stopped(a_topic(SEGMENTS), checkpoint("orders 0 0")))


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "meta.properties", ".lock"])
def test_a_copy_of_a_brokers_directory_without_its_checkpoint(name: str) -> None:
    """Any file of a broker beside the partitions says that there should be one."""
    topic = a_topic(SEGMENTS)
    topic.store.put(f"{topic.root}/{name}", b"")
    if name == ".lock":
        topic.store.put(f"{topic.root}/.kafka_cleanshutdown", b"")
    assert "there is no" in why_left(topic)


@pytest.mark.parametrize(
    "content",
    [
        checkpoint("orders 0 4", version=1),
        b"0\n2\norders 0 4\n",
        b"0\n0\norders 0 4\n",
        b"0\n1\norders 0\n",
        b"0\n1\norders 0 4 4\n",
        b"0\n1\norders 0 four\n",
        b"0\n1\norders 0 -1\n",
        b"0\n2\norders 0 4\nother x 3\n",  # a broker that reads this takes the whole directory offline
        b"0\n1\norders 0 9223372036854775808\n",
        "0\n1\norders 0 \u0664\n".encode(),
        b"0\n1_0\n",
        b"\xff\xfe\x00",
        b"\x00" * 64,
    ],
)
def test_a_damaged_checkpoint_is_named(content: bytes) -> None:
    topic = stopped(a_topic(SEGMENTS), content)
    with pytest.raises(CorruptObject, match="replication-offset-checkpoint"):
        opened(topic).snapshot()
    assert not list(topic.store.list("elsewhere"))


def test_a_backup_without_anything_of_a_broker_is_committed_to_its_end() -> None:
    topic = a_topic(SEGMENTS)
    assert [row[0] for row in read_rows(topic.store, compacted(topic))] == [2, 4, 5, 6]


def test_another_high_watermark_is_another_log() -> None:
    """The broker has run meanwhile."""
    topic = stopped(a_topic(SEGMENTS), checkpoint("orders 0 4"))
    compacted(topic)
    assert not topic.compact(opened(topic)).started
    stopped(topic, checkpoint("orders 0 7"))
    assert [row[0] for row in read_rows(topic.store, compacted(topic))] == [2, 4, 5, 6]


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_that_is_not_committed_decides_nothing(commit: bool) -> None:
    """Without it the transaction is open again."""
    topic = a_topic(
        [
            [logs.data(0, ("a", "1"))],
            [logs.in_transaction(1, ("a", "2"), id=1)],
            [logs.data(2, ("z", "1"))],
            [logs.marker(3, id=1, commit=commit)],
            [logs.data(4, ("y", "1"))],
        ]
    )
    before = topic.everything()
    dataset = opened(stopped(topic, checkpoint("orders 0 3")))
    topic.compact(dataset)
    assert [row[0] for row in read_rows(topic.store, published(dataset))] == [0, 1, 2, 4]
    found = dataset.snapshot().round(NAME)
    assert found is not None
    assert found.bound == 1
    copied = {key.rpartition("/")[2]: data for key, data in before.items()}
    for name in (1, 2, 3, 4):
        key = f"{name:020d}.log"
        assert topic.store.get(f"{published(dataset)}/{key}") == copied[key]


def test_the_index_of_aborted_transactions_of_what_stays_is_whole() -> None:
    """A broker that takes the folder over and keeps all of it hides what was aborted."""
    topic = a_topic(
        [
            [logs.data(0, ("a", "1"))],
            [logs.in_transaction(1, ("a", "2"), id=1), logs.marker(2, id=1, commit=False)],
            [logs.data(3, ("y", "1"))],
        ]
    )
    stopped(topic, checkpoint("orders 0 1"))
    folder = compacted(topic)
    index = topic.store.get(f"{folder}/{1:020d}.txnindex")
    assert index[2:].hex() == "".join(f"{value:016x}" for value in (1, 1, 2, 3))


def test_the_last_committed_batch_of_a_producer_keeps_its_header() -> None:
    """One that is not committed may be truncated, and then the broker has to know the last sequence."""
    topic = a_topic(
        [
            [logs.data(0, ("a", "1"), time=NOW_MS - 1000, producer=(7, 0, 0))],
            [logs.data(1, ("a", "2"), time=NOW_MS - 1000)],
            [logs.data(2, ("b", "2"), time=NOW_MS - 1000, producer=(7, 0, 1))],
            [logs.data(3, ("c", "1"))],
        ]
    )
    folder = compacted(stopped(topic, checkpoint("orders 0 2")))
    batches = decode(b"".join(written(topic, folder)), "log").batches
    assert [(int(one["producer_id"]), int(one["count"])) for one in batches] == [
        (7, 0),
        (-1, 1),
        (7, 1),
        (-1, 1),
    ]


def test_a_tombstone_that_is_not_committed_has_no_delete_horizon() -> None:
    topic = stopped(a_topic(SEGMENTS), checkpoint("orders 0 4"))
    dataset = opened(topic)
    topic.compact(dataset)
    found = dataset.snapshot().round(NAME)
    assert found is not None
    assert found.tombstones == 0
    batches = decode(b"".join(written(topic, published(dataset))), "log").batches
    assert not (batches["attributes"] & 64).any()


def test_a_group_is_told_of_what_is_committed() -> None:
    """What is truncated later was never said to be there, so the log does not join anew."""
    copies = Copies()
    transaction = [logs.in_transaction(6, ("e", "1"), id=1), logs.marker(7, id=1, commit=True)]
    copies.add("one", [*SEGMENTS[:3], transaction, [logs.data(8, ("d", "1"))]])
    stopped(copies.topics["one"], checkpoint("orders 0 4"))
    topic = copies.topics["one"]
    for name in (".lock", ".kafka_cleanshutdown"):  # an output beside the partition is refused there
        topic.store.delete(f"{topic.root}/{name}")
    copies.run("one")
    (standing,) = copies.opened("one").state().standings.values()
    assert (standing.marks.clean, standing.marks.resolved, standing.end) == (1, 4, 4)


def decided(batches: Iterable[Batch]) -> list[Row]:
    """What a reader of committed rows gets of these, up to the first open transaction."""
    found, aborted, started = list(batches), set[int](), dict[int, list[int]]()
    for batch in found:
        if batch.control:
            for first in started.pop(batch.producer[0], []):
                if batch.records[0].key == b"\0\0\0\0":
                    aborted.add(first)
        elif batch.transactional:
            started.setdefault(batch.producer[0], []).append(batch.first)
    stable = min((firsts[0] for firsts in started.values()), default=found[-1].last + 1 if found else 0)
    rows = []
    for batch in found:
        if not batch.control and batch.first not in aborted:
            rows += [(one.offset, one.timestamp, one.key, one.value) for one in batch.records]
    return [row for row in rows if row[0] < stable]


def batches_of(topic: Topic, folder: str) -> list[Batch]:
    """Those of a folder, as the tests have them."""
    found = []
    for data in written(topic, folder):
        log = decode(data, "log")
        for number, batch in enumerate(log.batches):
            at = [n for n, one in enumerate(log.records) if int(one["batch"]) == number]
            records = tuple(
                logs.Rec(
                    int(log.records[n]["offset"]), int(log.records[n]["timestamp"]), log.key(n), log.value(n)
                )
                for n in at
            )
            found.append(
                Batch(
                    records,
                    int(batch["base_offset"]),
                    int(batch["last_offset"]),
                    producer=(int(batch["producer_id"]), 0, 0),
                    transactional=bool(int(batch["attributes"]) & logs.TRANSACTIONAL),
                    control=bool(int(batch["attributes"]) & logs.CONTROL),
                )
            )
    return found


@pytest.mark.parametrize("seed", range(40))
def test_wherever_the_log_is_truncated_no_committed_version_is_lost(seed: int) -> None:
    """Any history, any high watermark; after the folder was taken over, its end is cut anywhere above it."""
    rng = random.Random(seed)
    batches = logs.random_history(rng)
    segments = cut(rng, batches, rng.randrange(3, 12))
    high_watermark = rng.choice([batch.first for batch in batches[1:]])
    topic = stopped(a_topic(segments), checkpoint(f"orders 0 {high_watermark}"))
    dataset = opened(topic)
    topic.compact(dataset)
    found = dataset.snapshot().round(NAME)
    if found is None or not found.is_whole:
        return  # nothing is settled
    after = batches_of(topic, published(dataset))
    for end in sorted(
        {high_watermark, *(batch.last + 1 for batch in batches if batch.last >= high_watermark)}
    ):
        expected = latest(decided(one for one in batches if one.last < end))
        kept = latest(decided(one for one in after if one.last < end))
        assert kept == expected, f"cut at {end}, high watermark {high_watermark}"
