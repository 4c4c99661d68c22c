"""Copies of a log that belong to a group: what they say, and what they remove when."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations

import pytest

from lithify.base.errors import Refused, StoreError
from lithify.base.ids import RandomIds
from lithify.coordination.groups import GroupFiles
from lithify.coordination.leadership import Leadership
from lithify.datasets.kafka.checks import FROZEN_MS, check_log
from lithify.datasets.kafka.dataset import LogDataset
from lithify.datasets.kafka.format.kernel.layout import CONTROL
from lithify.datasets.kafka.format.record_batches import decode
from lithify.datasets.kafka.layouts.segments import read_folder
from lithify.datasets.kafka.members import LogMember
from lithify.datasets.kafka.model import LogCompaction
from lithify.datasets.kafka.settings import KafkaSettings
from lithify.protocol.finding import Finding, Severity
from lithify.protocol.model import Compaction, Ledger
from lithify.service import one_shot
from lithify.service.status import status
from lithify.store.wrapped import Call
from lithify.testing import ManualClock, MemoryStore
from lithify.testing.engine import InlineEngine
from lithify.testing.faulty import Crash, FaultyStore, StoreFault
from lithify.watermarks.groups import GroupRole, GroupState, Marks, PartitionStanding, differ
from lithify.watermarks.model import GroupMember
from tests.datasets.kafka import logs
from tests.datasets.kafka.folders import put_segments, read_rows
from tests.datasets.kafka.logs import Batch
from tests.datasets.kafka.test_rounds import DAY_MS, NAME, NOW_MS, Topic, a_topic, published
from tests.parts import in_parts

SEGMENTS: list[list[Batch]] = [
    [logs.data(0, ("a", "1"), ("b", "1"), ("c", "1"))],
    [logs.data(3, ("a", "2"), ("b", None), time=NOW_MS)],
    [logs.data(5, ("d", "1"))],
]
TOMBSTONE = 4


@dataclass
class Copies:
    """Copies of one log by name, and their group."""

    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW_MS))
    topics: dict[str, Topic] = field(default_factory=dict)

    is_away: bool = False
    """Whether marks cannot be written."""
    calls: int = 0
    """To the group's store."""
    dies_at: int = 0
    """In which of them the process dies."""

    def __post_init__(self) -> None:
        self.memory = MemoryStore(self.clock)
        self.files.begin(["a"])

    @property
    def files(self) -> GroupFiles:
        return GroupFiles(FaultyStore(self.memory, self._fault), "group", self.clock, RandomIds())

    def _fault(self, number: int, call: Call) -> StoreFault | None:
        self.calls += 1
        if self.calls == self.dies_at:
            return StoreFault.CRASH_AFTER if self.calls % 4 == 0 else StoreFault.CRASH_BEFORE
        return StoreFault.FAIL_BEFORE if self.is_away and call.method in ("create", "replace") else None

    @property
    def group(self) -> GroupState:
        return self.files.read()

    def add(self, name: str, segments: list[list[Batch]] | None = None) -> None:
        self.files.expect([name])
        made = a_topic(SEGMENTS if segments is None else segments)
        self.topics[name] = Topic(made.store, made.root, self.clock)

    def opened(self, name: str, called: str | None = None) -> LogDataset:
        topic = self.topics[name]
        places = (topic.store, f"{topic.root}/{NAME}"), (topic.store, f"{topic.root}/out")
        member = LogMember(self.files, called or name)
        ids, settings = RandomIds(), KafkaSettings()
        return LogDataset("kafka+memory://x", *places, self.clock, ids, settings, member=member)

    def compact(self, name: str) -> list[int]:
        """The offsets that are left in the compacted folder."""
        assert self.run(name)
        return self.left(name)

    def run(self, name: str, *, full: bool = True) -> bool:
        """Whether there was anything to do."""
        dataset = self.opened(name)
        leadership = Leadership(dataset, self.clock, RandomIds())
        planner = partial(dataset.propose, full=full)
        return one_shot.run(
            dataset, InlineEngine(), self.clock, RandomIds(), leadership, planner=planner
        ).started

    def left(self, name: str) -> list[int]:
        """The offsets in the compacted folder."""
        return [row[0] for row in read_rows(self.topics[name].store, published(self.opened(name)))]

    def markers(self, name: str) -> int:
        """How many transaction markers are in the compacted folder."""
        topic, folder = self.topics[name], published(self.opened(name))
        data = b"".join(topic.store.get(one.key) for one in read_folder(topic.store, folder).segments)
        batches = decode(data, "log").batches
        return int((batches[batches["attributes"] & CONTROL != 0]["count"]).sum())

    def adopt(self, name: str) -> None:
        """A broker takes the compacted folder over."""
        topic, folder = self.topics[name], published(self.opened(name))
        found = {meta.key: topic.store.get(meta.key) for meta in topic.store.list(folder)}
        self.clear(name)
        for key, data in found.items():
            topic.store.put(f"{topic.root}/{NAME}/{key.rpartition('/')[2]}", data)

    def clear(self, name: str) -> None:
        topic = self.topics[name]
        for meta in list(topic.store.list(f"{topic.root}/{NAME}")):
            topic.store.delete(meta.key)

    def restore(self, name: str, segments: list[list[Batch]]) -> None:
        """From a backup."""
        self.clear(name)
        put_segments(self.topics[name].store, f"{self.topics[name].root}/{NAME}", segments)

    def a_day_later(self) -> None:
        self.clock.advance_s(DAY_MS / 1000 + 60)

    def rewrite_of(self, name: str) -> LogCompaction:
        """The last step of its last round."""
        dataset = self.opened(name)
        ledger = dataset.ledger()
        assert ledger is not None
        found = ledger.get(dataset.state().rounds[NAME].done[-1])
        assert found is not None
        return found

    def commit_offset(self, reader: GroupMember, offset: int) -> None:
        """A registered reader is so far."""
        self.files.say(reader, {0: PartitionStanding(Marks(offset, 0), offset)})
        self.files.publish(self.files.lead("somebody"))

    def marks(self, name: str) -> Marks:
        return self.group.members[name].marks[0]

    def findings(self, name: str) -> list[Finding]:
        now_ms = self.clock.now_ms()
        found = check_log(
            lambda: self.opened(name),
            lambda dataset: status(dataset, self.clock, 60_000),
            now_ms,
            KafkaSettings(),
        )
        return [finding for finding in found if finding.check == "group"]


def doctor(dataset: LogDataset) -> list[Finding]:
    find = partial(status, clock=ManualClock(NOW_MS), heartbeat_timeout_ms=60_000)
    return list(check_log(lambda: dataset, find, NOW_MS, KafkaSettings()))


@pytest.fixture
def copies() -> Copies:
    """Copy `a` was compacted and taken over, copy `b` was compacted only."""
    made = Copies()
    for name in ("a", "b"):
        made.add(name)
        made.compact(name)
    made.adopt("a")
    made.a_day_later()
    return made


def test_a_log_alone_removes_what_it_is_clean_past() -> None:
    copies = Copies()
    copies.add("a")
    assert TOMBSTONE in copies.compact("a")
    assert copies.marks("a") == Marks(clean=0, resolved=6)
    copies.adopt("a")
    copies.a_day_later()
    assert copies.compact("a") == [2, 3, 5]
    assert copies.marks("a") == Marks(clean=5, resolved=6)


def test_a_tombstone_waits_for_a_copy_until_it_was_compacted_and_taken_over(copies: Copies) -> None:
    assert TOMBSTONE in copies.compact("a")
    assert copies.marks("a").clean == 5
    assert copies.group.thresholds_of(0).clean == 0
    copies.adopt("a")
    notes = copies.opened("a")._waits(copies.opened("a").snapshot(), NAME)
    assert notes == ["tombstones from offset 0 on wait for b"]
    copies.adopt("b")
    assert TOMBSTONE not in copies.compact("b")
    assert copies.group.thresholds_of(0).clean == 5
    assert TOMBSTONE not in copies.compact("a")


@pytest.mark.parametrize("full", [False, True])
def test_a_copy_that_had_its_round_before_the_threshold_rose_has_another_one(
    copies: Copies, full: bool
) -> None:
    """Its folder is still the same. What it kept for the others may be removed now."""
    assert TOMBSTONE in copies.compact("a")
    assert not copies.run("a", full=full)
    copies.adopt("b")
    assert TOMBSTONE not in copies.compact("b")
    plan = copies.opened("a").propose(copies.opened("a").snapshot(), Ledger(), full=full)
    assert [one.reason for one in plan.proposals] == [
        f"{NAME}: the group lets tombstones or markers be removed that it kept, from offset {TOMBSTONE} on"
    ] or full
    assert copies.run("a", full=full)
    assert TOMBSTONE not in copies.left("a")
    assert not copies.run("a", full=full)


def test_a_horizon_that_came_with_a_copied_batch_counts_and_the_threshold_too(copies: Copies) -> None:
    """A copied batch looks like the copy's own from an earlier round, so its horizon is believed, as Kafka
    believes it. What protects the members is the threshold."""
    copies.files.leave("b")
    copies.add("c")
    copies.clear("c")
    topic = copies.topics["a"]
    for meta in list(topic.store.list(f"{topic.root}/{NAME}")):  # it has the horizon of a, which has passed
        copies.topics["c"].store.put(meta.key, topic.store.get(meta.key))
    copies.files.join(reader := GroupMember("warehouse", "1"), GroupRole.READER, {0: 3})
    copies.compact("a")
    assert TOMBSTONE in copies.compact("c"), "the reader has not read it"
    copies.commit_offset(reader, 5)
    assert copies.run("c")
    assert TOMBSTONE not in copies.left("c"), "in its first round that the threshold allows"


def test_a_round_is_not_repeated_for_a_tombstone_that_stays_anyway() -> None:
    """The source still has an older record of its key: another round over it would keep it too."""
    copies = Copies()
    copies.files.expect(["b"])
    copies.add("a")
    copies.a_day_later()
    assert TOMBSTONE in copies.compact("a")
    copies.files.leave("b")
    copies.commit_offset(copies.group.members["a"].member, 5)
    assert copies.group.thresholds_of(0).clean == 5
    assert not copies.run("a")


def test_a_marker_that_was_kept_for_the_others_is_removed_when_they_are_past_it() -> None:
    segments = [
        [logs.in_transaction(0, ("a", "1"), id=1), logs.marker(1, id=1, commit=False)],
        [logs.data(2, ("a", "2"), time=NOW_MS)],
        [logs.data(3, ("d", "1"))],
    ]
    copies = Copies()
    copies.files.expect(["b"])
    copies.add("a", segments)
    copies.compact("a")
    for _ in range(2):  # the first round removes the row, the second gives its marker a horizon
        copies.adopt("a")
        copies.compact("a")
    copies.a_day_later()
    copies.adopt("a")
    copies.compact("a")
    assert copies.markers("a") == 1
    copies.files.leave("b")
    assert copies.run("a")
    assert copies.markers("a") == 0
    assert not copies.run("a")


def test_a_marker_without_rows_is_removed_though_a_committed_row_before_it_stays() -> None:
    """In segments, a committed row stays part of its transaction; it keeps no other marker."""
    segments = [
        [logs.in_transaction(0, ("live", "1"), id=1), logs.marker(1, id=1, commit=True)],
        [logs.in_transaction(2, ("a", "1"), id=1), logs.marker(3, id=1, commit=True)],
        [logs.in_transaction(4, ("b", "1"), id=1), logs.marker(5, id=1, commit=False)],
        [logs.data(6, ("a", "2"), time=NOW_MS)],
        [logs.data(7, ("d", "1"))],
    ]
    copies = Copies()
    for name in ("a", "b"):
        copies.add(name, segments)
        copies.compact(name)
        assert copies.marks(name).resolved == 4, "the first aborted row"
    for _ in range(2):
        for name in ("a", "b"):
            copies.adopt(name)
            copies.a_day_later()
            copies.compact(name)
    assert copies.marks("a").resolved == 8
    assert copies.group.thresholds_of(0).resolved == 6
    copies.run("b")
    for name in ("a", "b"):
        copies.adopt(name)
        copies.compact(name)
        assert copies.left(name)[0] == 0
        assert copies.markers(name) == 1, "that of the row that is live"


def test_a_transaction_whose_marker_a_copy_lacks_keeps_it_in_all() -> None:
    whole = [
        [logs.data(0, ("x", "1"))],
        [logs.in_transaction(1, ("a", "1"), id=1)],
        [logs.marker(2, id=1, commit=True)],
        [logs.data(3, ("a", "2"), time=NOW_MS)],
        [logs.data(4, ("d", "1"))],
    ]
    copies = Copies()
    copies.add("a", whole)
    copies.add("lagging", whole[:2])
    for name in ("a", "lagging"):
        copies.compact(name)
    assert (copies.marks("a").resolved, copies.marks("lagging").resolved) == (5, 1)
    for _ in range(3):
        copies.adopt("a")
        copies.a_day_later()
        copies.compact("a")
    assert copies.group.thresholds_of(0).resolved == 1
    assert copies.markers("a") == 1


def test_what_may_be_removed_stands_in_the_spec(copies: Copies) -> None:
    copies.compact("a")
    assert copies.rewrite_of("a").spec.terms.tombstones_below == 0


def test_removing_the_slowest_unblocks(copies: Copies) -> None:
    copies.compact("a")
    copies.files.leave("b")
    copies.adopt("a")
    assert TOMBSTONE not in copies.compact("a")


@pytest.mark.parametrize(
    ("offsets", "stays"), [([3], True), ([3, 5], False), ([6, 1], False)], ids=["behind", "past", "reset"]
)
def test_a_tombstone_stays_for_a_reader_that_is_behind_and_goes_after_its_commit(
    copies: Copies, offsets: list[int], stays: bool
) -> None:
    """Offsets that are reset backwards lower nothing."""
    copies.files.leave("b")
    copies.files.join(reader := GroupMember("warehouse", "1"), GroupRole.READER, {0: offsets[0]})
    copies.compact("a")
    for offset in offsets[1:]:
        copies.commit_offset(reader, offset)
    assert copies.group.thresholds_of(0).clean == (3 if stays else 5)
    copies.adopt("a")
    assert (TOMBSTONE in copies.compact("a")) is stays


def test_clean_waits_while_resolved_rises(copies: Copies) -> None:
    """A copy that was not taken over has superseded rows, and none in a transaction."""
    copies.compact("a")
    assert (copies.marks("a"), copies.marks("b")) == (Marks(5, 6), Marks(0, 6))
    assert copies.group.thresholds_of(0) == Marks(0, 0), "there is no marker"


def test_whoever_is_compacted_first_decides_nothing() -> None:
    """A lagging copy joins last, and loses nothing."""
    copies = Copies()
    copies.files.expect(["lagging"])
    copies.add("a")
    copies.compact("a")
    for _ in range(2):
        copies.adopt("a")
        copies.a_day_later()
        assert TOMBSTONE in copies.compact("a")
    assert copies.group.thresholds_of(0) == Marks(0, 0)
    assert copies.opened("a")._waits(copies.opened("a").snapshot(), NAME) == [
        "tombstones and markers wait for lagging to join the group"
    ]
    awaited = [one for one in copies.findings("a") if one.severity is Severity.WARNING]
    assert [one.says for one in awaited] == [
        "lagging has not joined the group yet, so no copy removes tombstones or markers"
    ]
    copies.add("lagging", [[logs.data(0, ("a", "1"), ("b", "1"))], [logs.data(2, ("c", "1"))]])
    copies.compact("lagging")
    assert copies.group.members.keys() == {"a", "lagging"}
    copies.restore("lagging", SEGMENTS)
    copies.compact("lagging")
    copies.adopt("lagging")
    copies.a_day_later()
    assert TOMBSTONE not in copies.compact("lagging")
    copies.adopt("a")
    assert TOMBSTONE not in copies.compact("a")


MIRRORED: list[list[Batch]] = [
    [logs.data(0, ("b", "1"), ("c", "1"))],
    [logs.data(2, ("a", "2"), ("b", None), time=NOW_MS)],
    [logs.data(4, ("d", "1"))],
]
"""The same records as another cluster has them that did not get the first."""


def test_a_copy_with_other_offsets_does_not_join(caplog: pytest.LogCaptureFixture) -> None:
    copies = Copies()
    copies.add("a")
    copies.compact("a")
    copies.add("mirror", MIRRORED)
    before = copies.group
    with caplog.at_level(logging.WARNING):
        copies.compact("mirror")
    assert "partition 0 of mirror and a have different keys at the same offset" in caplog.text
    assert (copies.group, copies.opened("mirror").state().incarnation) == (before, "")
    finding = copies.findings("mirror")[-1]
    assert (finding.severity, "MirrorMaker" in finding.says) == (Severity.PROBLEM, True)


def test_copies_with_other_offsets_that_join_at_once_remove_nothing(copies: Copies) -> None:
    """Neither could see the other. Whoever publishes next finds it."""
    mirror = GroupMember("mirror", "1")
    copies.files.expect(["mirror"])
    copies.files.join(mirror, GroupRole.COPY, {0: 5})
    sample = {offset + 1: key for offset, key in sample_in(copies, "a").items()}
    copies.files.say(mirror, {0: PartitionStanding(Marks(5, 5), 5, sample=sample)})
    copies.files.leave("b")
    assert TOMBSTONE in copies.compact("a")
    assert copies.group.differing == {0: ("a", "mirror")}
    assert copies.group.thresholds_of(0) == Marks(0, 0)
    problem, *_ = copies.findings("a")
    assert problem.severity is Severity.PROBLEM
    assert "a and mirror have different keys at the same offset" in problem.says
    copies.files.leave("mirror")
    assert copies.group.differing == {}
    assert copies.group.thresholds_of(0).clean == 5


def test_copies_that_lag_and_were_compacted_have_the_same_offsets(copies: Copies) -> None:
    copies.add("lagging", [[logs.data(0, ("a", "1"), ("b", "1"))], [logs.data(2, ("c", "1"))]])
    copies.compact("lagging")
    copies.compact("a")
    samples = [sample_in(copies, name) for name in ("a", "b", "lagging")]
    assert [sorted(sample) for sample in samples] == [[2, 3, 4], [0, 1, 2, 3, 4], [0, 1]]
    assert not any(differ(one, other) for one, other in combinations(samples, 2))
    assert copies.group.members.keys() == {"a", "b", "lagging"}


def sample_in(copies: Copies, name: str) -> Mapping[int, int]:
    return copies.opened(name).state().standings[0].sample


def test_a_log_that_the_group_does_not_expect_is_refused_before_it_writes_anything() -> None:
    """A misspelled name: the group goes on waiting for the right one."""
    copies = Copies()
    copies.add("a")
    copies.topics["eu"] = copies.topics["a"]
    misnamed = copies.opened("eu")
    with pytest.raises(Refused, match="the group does not expect eu, and waits for a"):
        copies.topics["a"].compact(misnamed)
    assert not list(copies.topics["a"].store.list(f"{copies.topics['a'].root}/out"))
    (finding,) = [one for one in doctor(misnamed) if one.check == "group"]
    assert (finding.severity, "does not expect eu" in finding.says) == (Severity.PROBLEM, True)


def test_a_marker_does_not_wait_for_a_copy_that_has_it_with_its_rows() -> None:
    segments = [
        [logs.in_transaction(0, ("a", "1"), id=1), logs.marker(1, id=1, commit=True)],
        [logs.data(2, ("a", "2"), time=NOW_MS)],
        [logs.data(3, ("d", "1"))],
    ]
    copies = Copies()
    for name in ("a", "b"):
        copies.add(name, segments)
        copies.compact(name)
        assert copies.marks(name).resolved == 4
    for left in (1, 0):
        copies.adopt("a")
        copies.a_day_later()
        copies.compact("a")
        assert copies.markers("a") == left, "the first round that finds no row of it sets its horizon"
    assert copies.markers("b") == 1


def test_a_log_that_was_restored_is_another_incarnation(copies: Copies) -> None:
    copies.compact("a")
    before = copies.group.members["a"].member.incarnation
    copies.restore("a", SEGMENTS)
    assert TOMBSTONE in copies.compact("a")
    assert copies.group.members["a"].member.incarnation != before
    assert copies.marks("a").clean == 0


def test_a_log_that_comes_too_late_removes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """What it lacks may be gone everywhere."""
    copies = Copies()
    copies.add("a")
    copies.compact("a")
    copies.adopt("a")
    copies.a_day_later()
    copies.compact("a")
    copies.add("late", [SEGMENTS[0], [logs.data(3, ("a", "2"))]])
    with caplog.at_level(logging.WARNING):
        copies.compact("late")
    assert "joins too late" in caplog.text
    assert "late" not in copies.group.members
    terms = copies.rewrite_of("late").spec.terms
    assert (terms.tombstones_below, terms.markers_below) == (0, 0)
    awaited, finding = copies.findings("late")
    assert "late has not joined the group yet" in awaited.says
    assert "not a member of the group as late" in finding.says


def test_what_the_doctor_says_of_a_group(copies: Copies) -> None:
    copies.compact("a")
    assert [finding.severity.value for finding in copies.findings("a")] == ["ok"]
    copies.clock.advance_s(FROZEN_MS / 1000 + 60)
    said = [finding.says for finding in copies.findings("a")]
    assert said[0] == "a is one of 2 members"
    assert said[1].startswith("partition 0: tombstones from offset 0 on have waited for b for 7d")


def test_two_logs_with_one_name_are_told_apart(copies: Copies, caplog: pytest.LogCaptureFixture) -> None:
    """The second is refused before it writes or says anything; the first goes on."""
    copies.compact("a")
    copies.add("c")
    before = copies.group
    second = copies.opened("c", called="a")
    with pytest.raises(Refused, match=f"a is the name of {copies.opened('a').source_url} in the group"):
        one_shot.run(
            second,
            InlineEngine(),
            copies.clock,
            RandomIds(),
            Leadership(second, copies.clock, RandomIds()),
        )
    assert not list(copies.topics["c"].store.list(f"{copies.topics['c'].root}/out"))
    LogMember(copies.files, "a").tell(second.source_url, second.state, lambda change: False)
    assert "needs another one" in caplog.text
    assert copies.group == before
    found = doctor(second)
    (finding,) = [one for one in found if one.check == "group"]
    assert finding.severity is Severity.PROBLEM
    assert "needs another one (kafka.member)" in finding.says


def test_a_name_is_free_when_its_log_has_left(copies: Copies) -> None:
    copies.files.leave("a")
    copies.add("c")
    copies.files.expect(["a"])
    topic = copies.topics["c"]
    topic.compact(copies.opened("c", called="a"))
    assert copies.group.members["a"].owner == copies.opened("c").source_url


def test_the_doctor_names_the_partition_that_fails() -> None:
    copies = Copies()
    copies.add("a")
    topic = copies.topics["a"]
    key = f"{topic.root}/{NAME}/{3:020d}.log"
    topic.store.put(key, topic.store.get(key)[:-1])
    dataset = copies.opened("a")
    topic.compact(dataset)
    found = doctor(dataset)
    (finding,) = [one for one in found if one.severity is Severity.WARNING and one.check == "partition"]
    assert finding.says.startswith(f"{NAME}: its last compaction failed: ")
    assert "longer than the rest of the object" in finding.says
    copies.restore("a", SEGMENTS)
    copies.clock.advance_s(1)
    topic.compact(dataset)
    found = doctor(dataset)
    assert not [one for one in found if one.check == "partition"]


def test_a_place_in_the_group_that_was_lost_since_is_refused(copies: Copies) -> None:
    copies.files.leave("b")
    copies.compact("a")
    dataset, last, ledger = copies.opened("a"), copies.rewrite_of("a"), Ledger()
    state = dataset.state()
    found = state.rounds[NAME]
    before = replace(state, rounds={NAME: replace(found, done=found.done[:2])})
    snapshot = replace(dataset.snapshot(), state=before)
    assert dataset.validate(last, snapshot, ledger) is None
    copies.files.leave("a")
    reason = dataset.validate(last, replace(snapshot, group=copies.group), ledger)
    assert reason is not None
    assert "its thresholds in the group" in reason


def test_who_dies_before_it_has_said_anything_says_it_when_it_commits_again(copies: Copies) -> None:
    dataset = copies.opened("a")
    for step in range(2):
        (proposal,) = dataset.propose(dataset.snapshot(), Ledger(), full=True).proposals
        compaction = Compaction(RandomIds().ulid(copies.clock.now_ms() + step), proposal.spec)
        for work in dataset.prepare(compaction, dataset.snapshot()).works:
            work.function(work.argument)
        epoch = dataset.take_epoch()
        if step:
            copies.is_away = True
            with pytest.raises(StoreError):
                dataset.commit([compaction], epoch)
            copies.is_away = False
            assert copies.marks("a").clean == 0
        assert dataset.commit([compaction], epoch) == {compaction.id: None}
    assert copies.marks("a").clean == 5


@in_parts(3)
def test_a_run_killed_at_any_call_to_the_groups_store_is_finished_by_the_next(part: int) -> None:
    """No mark is said too early, none is left out, and what is removed is the same."""

    def taken_over() -> Copies:
        copies = Copies()
        copies.add("a")
        copies.compact("a")
        copies.adopt("a")
        copies.a_day_later()
        copies.calls = 0
        return copies

    rehearsal = taken_over()
    rehearsal.compact("a")
    for number in range(2 + 2 * part, rehearsal.calls + 1, 6):
        copies = taken_over()
        copies.dies_at = number
        with suppress(Crash):
            copies.run("a")
        copies.dies_at = 0
        has_matched = copies.opened("a").state().standings[0].marks.clean == 5
        assert copies.group.thresholds_of(0).clean in ((0, 5) if has_matched else (0,))
        copies.run("a")
        assert copies.left("a") == [2, 3, 5], f"killed at call {number}"
        assert copies.marks("a").clean == 5
