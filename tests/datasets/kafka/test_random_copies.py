"""A topic that grows in every way while commands, services and processes that die copy it, from a seed: what
is said to be complete is."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from lithify.datasets.kafka.buckets.topic_copy import PAUSE_MS, TopicCopy
from lithify.datasets.kafka.layouts import objects
from lithify.testing.faulty import StoreFault
from tests.datasets.kafka import copies, logs
from tests.datasets.kafka.buckets import Bucket, a_bucket
from tests.datasets.kafka.folders import latest
from tests.datasets.kafka.test_topic_copies import decided
from tests.datasets.kafka.test_windows import replayed

STEPS = 25
DEATHS = (StoreFault.CRASH_BEFORE, StoreFault.CRASH_AFTER)


@dataclass
class World:
    """A topic, what will be produced into each of its partitions, and who copies it."""

    rng: random.Random
    monkeypatch: pytest.MonkeyPatch
    bucket: Bucket = field(default_factory=lambda: a_bucket([]))
    histories: list[list[logs.Batch]] = field(default_factory=list)
    produced: list[int] = field(default_factory=list)
    committed: dict[int, int] = field(default_factory=dict)
    service: TopicCopy | None = None
    completed: int = 0
    """How often it was found complete."""

    def of(self, number: int) -> Bucket:
        return copies.numbered(self.bucket, number)

    def gain(self) -> None:
        self.histories.append(logs.random_history(self.rng))
        self.produced.append(0)
        copies.of_broker(self.bucket, len(self.histories))

    def produce(self, number: int, count: int) -> None:
        """So many at least; mostly until all is decided."""
        history, begin = self.histories[number], self.produced[number]
        end = min(begin + count, len(history))
        while self.rng.random() < 0.9 and is_open(history[:end]):
            end += 1
        self.of(number).produce(*history[begin:end])
        self.produced[number] = end

    def commit(self) -> None:
        number = self.rng.randrange(len(self.histories))
        self.committed[number] = self.committed.get(number, -1) + 1
        copies.commit(self.of(number), "readers", self.committed[number])

    def copy(self) -> None:
        """By a service, a command, or one that dies."""
        before = self.bucket.contents()
        self.bucket.clock.advance_s(self.rng.choice((1, PAUSE_MS / 1000 + 1)))
        match self.rng.choice(("service", "service", "command", "death")):
            case "service":
                self.service = self.service or copies.opened(self.bucket)
                assert not self.bucket.compact(self.service).failures
            case "command":
                self.command()
            case "death":
                at = self.rng.randrange(1, 250)
                copies.dying(self.monkeypatch, self.bucket, at, self.rng.choice(DEATHS))
                self.service = None
        assert self.bucket.contents() == before

    def command(self) -> None:
        """Once for what others have begun, and once more: then nothing is left but what is not decided."""
        for _ in range(2):
            assert not copies.copied(self.bucket).failures
        said = copies.said(self.bucket)
        assert (said["partitions_left"], said["offsets_moved"]) == (0, [])

    def check(self) -> None:
        """A copy that is said to be complete has all, with the ends and offsets of the source."""
        if not copies.is_complete(self.bucket):
            return
        self.completed += 1
        assert copies.told(self.bucket)["topic"]["num_partitions"] == len(self.histories)
        for number, history in enumerate(self.histories):
            there, source = history[: self.produced[number]], self.of(number)
            rows = copies.copy_of(source).rows()
            assert set(rows) <= set(source.rows())
            known = decided(there)
            assert latest(row for row in rows if row[0] in known) == replayed(there)
            if there:
                assert copies.high(copies.copy_of(source)) == there[-1].last + 1
            if number in self.committed:
                assert copies.committed(copies.copy_of(source), "readers") == self.committed[number]

    def step(self) -> None:
        match self.rng.choice(("produce", "produce", "gain", "commit", "copy", "copy", "copy")):
            case "produce":
                self.produce(self.rng.randrange(len(self.histories)), self.rng.randrange(1, 9))
            case "gain" if len(self.histories) < 4:
                self.gain()
            case "commit":
                self.commit()
            case "copy":
                self.copy()
        self.check()

    def end(self) -> None:
        """All is produced, and copied once more."""
        for number, history in enumerate(self.histories):
            self.produce(number, len(history))
        self.command()
        assert copies.is_complete(self.bucket)
        self.check()


def is_open(history: list[logs.Batch]) -> bool:
    """Whether there is a transaction that nothing has decided."""
    found: set[int] = set()
    for batch in history:
        if batch.transactional:
            (found.discard if batch.control else found.add)(batch.producer[0])
    return bool(found)


def play(seed: int, monkeypatch: pytest.MonkeyPatch) -> World:
    rng = random.Random(seed)
    monkeypatch.setattr(objects, "CHUNK_OBJECTS", rng.choice((3, 11, 1000)))
    monkeypatch.setattr(objects.ObjectTopic, "target_bytes", rng.choice((1, 800, 900_000)))
    world = World(rng, monkeypatch)
    world.gain()
    world.produce(0, rng.randrange(1, 40))
    for _ in range(STEPS):
        world.step()
    world.end()
    return world


@pytest.mark.parametrize("seed", range(8))
def test_what_is_said_to_be_complete_is(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert play(seed, monkeypatch).completed


@pytest.mark.whole
@pytest.mark.parametrize("seed", range(100, 200))
def test_what_is_said_to_be_complete_is_of_many_seeds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    play(seed, monkeypatch)
