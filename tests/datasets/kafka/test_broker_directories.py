"""The directory of a broker as it is found: several topics, their settings, checkpoints, and torn ends."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from lithify.base.errors import CorruptObject, Refused
from lithify.base.ids import RandomIds
from lithify.config.model import Config
from lithify.coordination.groups import GroupFiles
from lithify.datasets.kafka.dataset import LogDataset
from lithify.datasets.kafka.discovery import logs as logs_of
from lithify.datasets.kafka.format.record_batches import decode, filtered
from lithify.datasets.kafka.garbage import collect
from lithify.datasets.kafka.layouts.segments import SegmentFolders, find_partitions
from lithify.datasets.kafka.layouts.tails import is_torn, sound_bytes
from lithify.datasets.kafka.members import LogMember
from lithify.datasets.kafka.places import open_places
from lithify.datasets.kafka.settings import KafkaSettings
from lithify.protocol.model import Ledger
from lithify.store.local import LocalStore
from lithify.store.resilience.waiting import WaitPolicy
from lithify.testing import ManualClock
from tests.datasets.kafka import logs
from tests.datasets.kafka.folders import latest, put_segments, read_rows
from tests.datasets.kafka.logs import Batch, encode, encode_all, keep_all
from tests.datasets.kafka.test_high_watermarks import checkpoint, stopped
from tests.datasets.kafka.test_rounds import NAME, NOW_MS, SEGMENTS, Topic, a_topic, published, written
from tests.judge.kafka_java import kafka_java

EAGER = KafkaSettings(min_cleanable_dirty_ratio=0.0)
COMPACT = {"cleanup.policy": "compact"}


def with_settings(**changes: object) -> KafkaSettings:
    return EAGER.model_copy(update=changes)


def put_topic(topic: Topic, name: str, segments: Iterable[Sequence[Batch]] = SEGMENTS) -> None:
    put_segments(topic.store, f"{topic.root}/{name}", segments)


def directory(topic: Topic, settings: KafkaSettings = EAGER) -> LogDataset:
    """The whole directory as one dataset."""
    return Topic(topic.store, f"elsewhere/{topic.root}", topic.clock).opened(settings, topic.root)


def notes(dataset: LogDataset) -> dict[str, str]:
    """What a plan says of each partition."""
    plan = dataset.propose(dataset.snapshot(), Ledger())
    proposed = {one.spec.partition: "proposed" for one in plan.proposals}
    return dict(note.split(": ", 1) for note in plan.notes) | proposed


def offsets(dataset: LogDataset, name: str = NAME) -> list[int]:
    """Those of the compacted partition."""
    found = dataset.state().rounds[name]
    return [row[0] for row in read_rows(dataset.store, dataset.output_folder(found.done[-1], name))]


# The metadata log, as its format is documented


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def text(content: str | None) -> bytes:
    return b"\0" if content is None else varint(len(content.encode()) + 1) + content.encode()


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b"-")[:16]


def named(name: str) -> bytes:
    return b"\1\2\0" + text(name) + topic_id(name) + b"\0"


def removed(name: str) -> bytes:
    return b"\1\x09\0" + topic_id(name) + b"\0"


def setting(of: str, name: str, value: str | None, kind: int = 2) -> bytes:
    return b"\1\4\0" + bytes([kind]) + text(of) + text(name) + text(value) + b"\0"


def records(values: Sequence[bytes], first: int = 0) -> bytes:
    """Records without keys, and a control batch, as snapshots have it."""
    rows = tuple(logs.Rec(first + n, NOW_MS, None, value) for n, value in enumerate(values))
    return encode_all([Batch(rows), logs.marker(first + len(rows), id=0, commit=True)])


def put_metadata(topic: Topic, *values: bytes) -> None:
    topic.store.put(f"{topic.root}/__cluster_metadata-0/{0:020d}.log", records(values))


def topics(**own: Mapping[str, str]) -> Topic:
    """The directory of a stopped broker with these topics and their settings."""
    topic = a_topic([])
    values = [named(name) for name in own]
    values += [setting(name, *one) for name, settings in own.items() for one in settings.items()]
    for name in own:
        put_topic(topic, f"{name}-0")
    put_metadata(topic, *values)
    return stopped(topic, checkpoint(*(f"{name} 0 9" for name in own)))


def test_the_compacted_topics_of_a_directory_are_compacted_into_one_folder() -> None:
    """One command, one output; what is refused does not stop the rest."""
    state = {"cleanup.policy": "delete, compact", "min.compaction.lag.ms": "1", "segment.bytes": "77"}
    topic = topics(orders=COMPACT, clicks={"cleanup.policy": "delete"}, events={}, state=state)
    put_topic(topic, "stray-3")
    topic.store.put(f"{topic.root}/broken-0/{0:020d}.log.swap", b"")
    put_topic(topic, "orders-1.0f3a-delete")
    dataset = directory(topic)
    found = notes(dataset)
    assert found.keys() == {"orders-0", "clicks-0", "events-0", "state-0", "stray-3", "broken-0"}
    assert (found["orders-0"], found["state-0"]) == ("proposed", "proposed")
    for name, why in (
        ("clicks-0", "cleanup.policy delete"),
        ("events-0", "default of brokers is delete"),
        ("stray-3", "not known"),
        ("broken-0", "start it and stop it"),
    ):
        assert why in found[name]
    terms = dataset.terms(dataset.partitions()["state-0"])
    assert (terms.min_compaction_lag_ms, terms.segment_bytes) == (1, 77)
    assert not topic.compact(dataset).failures
    rounds = dataset.state().rounds
    assert {name for name, one in rounds.items() if one.is_whole} == {"orders-0", "state-0"}
    for name in ("orders-0", "state-0"):
        folder = dataset.output_folder(rounds[name].done[-1], name)
        before = read_rows(topic.store, f"{topic.root}/{name}")
        assert latest(read_rows(topic.store, folder)) == latest(before)
    assert not collect(dataset, min_age_ms=0, dry_run=True).deleted["indexes"]


def test_the_operator_decides_where_settings_are_missing() -> None:
    topic = topics(events={}, clicks={"cleanup.policy": "delete"})
    decided = directory(topic, with_settings(cleanup_policy="compact"))
    assert notes(decided) == {"events-0": "proposed", "clicks-0": "proposed"}
    alone = Topic(topic.store, f"elsewhere/{topic.root}", topic.clock)
    dataset = alone.opened(EAGER, f"{topic.root}/clicks-0")
    assert not topic.compact(dataset).started
    assert "older records must be kept" in notes(dataset)["clicks-0"]
    with pytest.raises(Refused, match="older records must be kept"):
        alone.opened(EAGER, f"{topic.root}/clicks-0").epoch()


def test_a_directory_without_metadata_shows_what_its_cleaner_has_cleaned() -> None:
    """As of a cluster with ZooKeeper. A single topic is taken for compacted: it was named."""
    topic = a_topic(SEGMENTS)
    assert notes(directory(topic))["orders-0"] == "proposed"
    put_topic(topic, "clicks-0")
    assert all("not known" in why for why in notes(directory(topic)).values())
    topic.store.put(f"{topic.root}/cleaner-offset-checkpoint", checkpoint("orders 0 0"))
    stopped(topic, checkpoint("orders 0 9", "clicks 0 9"))
    found = notes(directory(topic))
    assert (found["orders-0"], "not known" in found["clicks-0"]) == ("proposed", True)


def test_settings_are_those_after_the_last_record() -> None:
    """Snapshot first, then the records after it; defaults of the cluster; removed topics; half a batch."""
    topic = topics(a=COMPACT, b=COMPACT, c={})
    folder = f"{topic.root}/__cluster_metadata-0"
    state = [named("a"), named("b"), named("c"), setting("", "log.cleanup.policy", "compact", kind=4)]
    state += [setting("b", "min.compaction.lag.ms", "5"), setting("1", "log.segment.bytes", "3", kind=4)]
    topic.store.put(f"{folder}/{9:020d}-{1:010d}.checkpoint", records(state))
    topic.store.put(f"{folder}/{8:020d}-{1:010d}.checkpoint", b"older, and never read")
    since = [setting("a", "cleanup.policy", "delete"), removed("c"), b"\1\x03\1 another message"]
    tail = records([setting("b", "min.compaction.lag.ms", None)], first=100)
    topic.store.put(f"{folder}/{0:020d}.log", records([b"before the snapshot"] * 3))
    topic.store.put(f"{folder}/{9:020d}.log", records(since, first=9) + tail[:-90])
    layout = SegmentFolders(topic.store, topic.root)
    assert {name: found.configs for name, found in layout.partitions().items()} == {
        "a-0": {"cleanup.policy": "delete"},
        "b-0": {"cleanup.policy": "compact", "min.compaction.lag.ms": "5"},
        "c-0": None,
    }
    topic.store.put(f"{folder}/{9:020d}.log", records(since, first=9) + tail)
    assert layout.partitions()["b-0"].configs == {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\2\2\0",
        b"\1\4\0\2" + varint(9) + b"ab",
        b"\1\4\0\2" + b"\xff" * 12,
        b"\1\2\0\3\xff\xff",
        b"\1\x09\0abc",
    ],
)
def test_a_damaged_metadata_log_is_named(value: bytes) -> None:
    topic = topics(orders=COMPACT)
    put_metadata(topic, value)
    with pytest.raises(CorruptObject, match="__cluster_metadata-0"):
        directory(topic).snapshot()


def test_one_output_serves_many_logs() -> None:
    """A `*` is the path of the log; Lithify's output of another log is never taken over."""
    waiting = WaitPolicy()
    for url, output, root in (
        ("kafka+memory://b/backup/a%20b-0", "memory://o/small/*", "small/backup/a b-0"),
        ("kafka+memory://b/backup/%2A-0", "memory://o/*/of", "backup/*-0/of"),
    ):
        _, place = open_places(url, output, Config(), waiting)
        assert (place.store.url, place.root) == ("memory://o", root)
    with pytest.raises(Refused, match="lies in the log"):
        open_places("kafka+memory://b/backup", "memory://b/*/x", Config(), waiting)


def test_a_fleet_finds_partitions_and_directories_and_no_metadata() -> None:
    topic = topics(orders=COMPACT)
    bucket = topic.store.url.removeprefix("memory://").strip("/")
    start = f"kafka+memory://{bucket}/{topic.root}"
    assert logs_of(f"{start}/*", Config(), WaitPolicy()) == [f"{start}/orders-0"]
    assert logs_of(f"{start[:-2]}*", Config(), WaitPolicy()) == [start]


def test_a_group_has_one_topic() -> None:
    dataset = directory(topics(orders=COMPACT, users=COMPACT))
    dataset.member = LogMember(GroupFiles(dataset.store, "group", ManualClock(NOW_MS), RandomIds()), "eu")
    with pytest.raises(Refused, match="a group has copies of one"):
        dataset.snapshot()


@pytest.mark.parametrize("name", ["a..-0", "..-0", "%2e%2e-0", "a b-0", "ä☃-0", "-0-0", "x-0000000001"])
def test_names_of_topics_are_kept_whatever_they_are(name: str) -> None:
    topic = a_topic([])
    put_topic(topic, name)
    dataset = directory(topic)
    topic.compact(dataset)
    assert offsets(dataset, name) == [2, 3, 4, 5]


def test_a_topic_with_a_setting_that_is_no_number_stops_only_itself() -> None:
    topic = topics(orders=COMPACT, other={**COMPACT, "min.compaction.lag.ms": "soon"})
    found = notes(directory(topic))
    assert (found["orders-0"], "'soon'" in found["other-0"]) == ("proposed", True)


def test_records_without_a_key_are_not_removed_without_a_decision() -> None:
    topic = a_topic(
        [
            [logs.data(0, ("a", "1"), (None, "x"))],
            [logs.data(2, ("a", "2"), (None, "y"))],
            [logs.data(4, ("b", "1"))],
        ]
    )
    dataset = topic.opened(EAGER)
    topic.compact(dataset)
    assert "2 of its 5 records have no key" in notes(dataset)[NAME]
    assert not [meta for meta in topic.store.list(f"{topic.root}/out") if meta.key.endswith(".log")]
    for decision, left in ((True, [1, 2, 3, 4]), (False, [2, 4])):
        elsewhere = Topic(topic.store, f"{topic.root}/{decision}", topic.clock)
        dataset = elsewhere.opened(with_settings(keep_unkeyed=decision), f"{topic.root}/{NAME}")
        topic.compact(dataset)
        assert offsets(dataset) == left


# Torn ends

WHOLE, NEXT = encode(logs.data(5, ("d", "1"))), encode(logs.data(6, ("e", "1" * 300)))
DAMAGED = NEXT[:200] + b"?" + NEXT[201:]
LYING = NEXT[:8] + b"\0\0\7\0" + NEXT[12:] + encode(logs.data(8, ("z", "1")))
"""A whole batch follows one whose length has been changed."""


@pytest.mark.parametrize(
    ("end", "is_left_out"),
    [
        (NEXT[:-1], True),
        (NEXT[:9], True),
        (NEXT[:1] + b"x", True),
        (bytes(5), True),
        (bytes(5000), True),
        (NEXT[:100] + bytes(5000), True),  # reserved space
        (NEXT[:9] + bytes(5000), True),
        (NEXT[:12] + bytes(5000), True),
        (NEXT[:-9] + bytes(5000), True),
        (b"", False),
        (DAMAGED, None),
        (DAMAGED + bytes(5000), None),
        (NEXT[:100] + bytes(len(NEXT) - 100), None),  # as long as it should be
        (LYING, None),
        (b"?" * 500, None),
        (bytes(70) + b"?", None),
    ],
)
def test_the_end_of_the_newest_segment(end: bytes, is_left_out: bool | None) -> None:
    """As a snapshot of a running broker has it; `None` is damage."""
    topic = a_topic(SEGMENTS[:2])
    key = f"{topic.root}/{NAME}/{5:020d}.log"
    topic.store.put(key, WHOLE + end)
    dataset = topic.opened(EAGER)
    summary = topic.compact(dataset)
    if is_left_out is None:
        assert key in summary.failures[0].reason
        assert not [meta for meta in topic.store.list(f"{topic.root}/out") if meta.key.endswith(".log")]
        return
    assert written(topic, published(dataset))[-1] == WHOLE
    assert ("bytes of its newest segment" in notes(dataset)[NAME]) is is_left_out


def test_a_torn_end_elsewhere_is_refused_also_if_it_was_the_newest_before() -> None:
    topic = a_topic(SEGMENTS[:2])
    key = f"{topic.root}/{NAME}/{5:020d}.log"
    topic.store.put(key, WHOLE + bytes(100))
    assert not topic.compact(topic.opened(EAGER)).failures
    put_topic(topic, NAME, [[logs.data(6, ("f", "1"))]])
    (failure,) = topic.compact(topic.opened(EAGER)).failures
    assert key in failure.reason
    assert "there are zeros" in failure.reason


def test_a_newest_segment_of_zeros_alone() -> None:
    topic = a_topic(SEGMENTS[:2])
    topic.store.put(f"{topic.root}/{NAME}/{5:020d}.log", bytes(3000))
    dataset = topic.opened(with_settings(newest_segment=True))
    topic.compact(dataset)
    assert written(topic, published(dataset))[-1] == b""


def _part(data: bytes, start: int, count: int) -> bytes:
    return data[start : start + count]


def test_sound_bytes_end_where_kafkas_own_reader_ends() -> None:
    """Whatever the length to which a log is cut."""
    rng = random.Random(5)
    data, java = encode_all(logs.random_log(rng, batches=6)), kafka_java()
    for size in sorted(rng.sample(range(len(data)), 12)):
        cut = data[:size]
        described = java.describe(cut)
        left = int(described[-1].split()[1]) if described and described[-1].startswith("trailing") else 0
        sound = sound_bytes(cut)
        assert size - sound == left
        assert left == 0 or is_torn(partial(_part, cut), sound, size)


# Start offsets


def test_records_before_the_start_of_the_log_are_gone_and_delete_nothing() -> None:
    log = [
        [logs.data(0, ("a", "1"), ("b", "1"))],
        [logs.data(2, ("a", "2"), ("c", "1"), ("b", None))],
        [logs.data(5, ("d", "1"))],
    ]
    topic = stopped(a_topic(log), checkpoint("orders 0 9"))
    topic.store.put(f"{topic.root}/log-start-offset-checkpoint", checkpoint("orders 0 4", "orders 1 1"))
    dataset = directory(topic)
    topic.compact(dataset)
    assert offsets(dataset) == [4, 5]
    assert [folder.segments[0].base_offset for folder in dataset.partitions().values()] == [2]
    before = dataset.partitions()[NAME].fingerprint
    topic.store.put(f"{topic.root}/log-start-offset-checkpoint", checkpoint("orders 0 3"))
    assert dataset.partitions()[NAME].fingerprint != before


@pytest.mark.parametrize("start", [0, 2, 5, 6, 900, (1 << 63) - 1])
def test_any_start_of_a_log(start: int) -> None:
    topic = stopped(a_topic(SEGMENTS), checkpoint("orders 0 9"))
    topic.store.put(f"{topic.root}/log-start-offset-checkpoint", checkpoint(f"orders 0 {start}"))
    dataset = directory(topic, with_settings(newest_segment=True))
    assert not topic.compact(dataset).failures
    assert offsets(dataset) == [offset for offset in (2, 3, 4, 5) if offset >= start]


def test_a_damaged_start_offset_is_named() -> None:
    topic = stopped(a_topic(SEGMENTS), checkpoint("orders 0 9"))
    topic.store.put(f"{topic.root}/log-start-offset-checkpoint", b"0\n1\norders 0 -4\n")
    with pytest.raises(CorruptObject, match="log-start-offset-checkpoint"):
        directory(topic).snapshot()


# The newest segment, many segments, transactions, attributes


def test_a_topic_of_one_segment_is_compacted_on_request() -> None:
    """The last batch keeps its header, so that the log ends where it ended."""
    batches = [logs.data(0, ("a", "1"), ("b", "1")), logs.data(2, ("a", "2")), logs.data(3, ("b", "2"))]
    topic = a_topic([batches])
    assert "newest" in notes(topic.opened(EAGER))[NAME]
    dataset = topic.opened(with_settings(newest_segment=True))
    topic.compact(dataset)
    (data,) = written(topic, published(dataset))
    assert offsets(dataset) == [2, 3]
    assert kafka_java().describe(data)[-2].startswith("batch 3 3 1")
    assert "is compacted" in notes(dataset)[NAME]


def test_many_small_segments_are_read_together() -> None:
    """But not over the end of what is committed."""
    segments = [[logs.data(n, (f"k{n % 7}", f"v{n}"))] for n in range(300)]
    topic = stopped(a_topic(segments), checkpoint("orders 0 250"))
    dataset = directory(topic)
    (folder,) = dataset.partitions().values()
    assert [len(part.objects) for part in folder.chunks] == [250, 49, 1]
    topic.compact(dataset)
    assert offsets(dataset) == [*range(243, 300)]
    assert dataset.state().rounds[NAME].segments == 300
    key = folder.chunks[0].objects[3].key
    topic.store.put(key, topic.store.get(key)[:-1])
    assert key in topic.compact(directory(topic)).failures[0].reason


def test_a_hanging_transaction_is_named() -> None:
    later_ms = NOW_MS + 50 * 3_600_000
    hanging = logs.in_transaction(1, ("a", "2"), id=77, epoch=3, time=NOW_MS)
    first = [logs.data(0, ("a", "1"), time=NOW_MS), hanging]
    rest = [[logs.data(n, ("b", "1"), time=later_ms)] for n in (2, 3)]
    topic = a_topic([first, *rest])
    topic.compact(topic.opened(EAGER))
    said = notes(topic.opened(EAGER))[NAME]
    assert "transaction of producer 77 (epoch 3) has been open from offset 1 on for 50.0 h" in said


@pytest.mark.parametrize("last", [-1, 0, (1 << 63) - 1])
def test_a_hanging_transaction_of_any_time(last: int) -> None:
    rows = [logs.Rec(n, time, b"a", b"1") for n, time in enumerate((-(1 << 40), last, last))]
    first = Batch(tuple(rows[:1]), producer=(5, 0, 0), transactional=True)
    batches = [first, *(Batch((row,)) for row in rows[1:])]
    topic = a_topic([[batch] for batch in batches])
    topic.compact(topic.opened(EAGER))
    found = topic.opened(EAGER).state().rounds[NAME].open_transaction
    assert found is not None
    assert found.first_offset == 0


def test_attributes_of_records_mean_nothing() -> None:
    """As to Kafka's reader; its filter writes none."""
    batch = Batch((logs.Rec(0, 5, b"a", b"1"), logs.Rec(1, 5, b"b", b"1")))
    raw = b"".join(logs.encode_record(record, 0, 5) for record in batch.records)
    data = encode(batch, raw[:1] + b"\7" + raw[2:])
    source, java = decode(data, "log"), kafka_java()
    assert len(java.describe(data)) == 1 + len(source.records)
    kept = keep_all(source, keep=logs.flags([True, False]))
    assert bytes(filtered(source, kept)) == java.filtered(data, 10**12, 1000, ["DELETE_EMPTY 0 10"])


def test_a_linked_partition_is_judged_by_its_own_directory(tmp_path: Path) -> None:
    store = LocalStore()
    real, links = tmp_path / "kafka", tmp_path / "links"
    links.mkdir()
    put_segments(store, f"{real}/orders-0".strip("/"), SEGMENTS)
    (links / "orders-0").symlink_to(real / "orders-0")
    places = [str(place).strip("/") for place in (links, links / "orders-0")]
    for root in places:
        assert list(find_partitions(store, root).partitions) == ["orders-0"]
    (real / ".lock").touch()
    for root in places:
        with pytest.raises(Refused, match="a broker runs"):
            find_partitions(store, root)
    (tmp_path / "into").symlink_to(real)
    with pytest.raises(Refused, match="lies in a broker's directory"):
        SegmentFolders(store, places[0]).check_output(store, str(tmp_path / "into" / "out"))
