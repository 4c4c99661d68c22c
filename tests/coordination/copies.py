"""A group of copies that a test moves step by step, with the reference cleaner of the simulator."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulator.groups.log import (
    Kind,
    Log,
    Record,
    Round,
    cleaned,
    extended,
    fetched,
    latest,
    shown,
    without_tombstones,
)

from lithify.base.errors import Fenced, Refused, StoreError
from lithify.base.ids import RandomIds
from lithify.coordination.groups import GroupFiles
from lithify.testing import ManualClock, MemoryStore
from lithify.testing.faulty import FaultyStore, StoreFault
from lithify.watermarks.groups import GroupRole, Marks, PartitionStanding, bound, is_source, lost, waiting
from lithify.watermarks.model import GroupMember
from tests.watermarks.marks import marks_of

P = 0


class Copies:
    """Copy `a`, to which producers write, and others. Steps first, then what a test expects."""

    def __init__(self, *names: str, retention_ms: int = 0) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(self.clock)
        self.retention_ms = retention_ms
        self.logs: dict[str, Log] = {}
        self.epochs: dict[str, int] = {}
        self.leader = "a"
        self.backups: dict[str, Log] = {}
        self.markers_end = 0
        self.files.begin(names)
        for name in names:
            self.logs[name] = Log(incarnation=f"{name}1")
            self.files.join(self.member(name), GroupRole.COPY, {P: 0})
        self.lead("a")

    @property
    def files(self) -> GroupFiles:
        return GroupFiles(self.memory, "group", self.clock, RandomIds())

    def member(self, name: str) -> GroupMember:
        return GroupMember(name, self.logs[name].incarnation)

    # Steps

    def write(self, text: str) -> None:
        """Words: `k=v`, `k-` for a tombstone, with `1:` before it if producer 1 writes it in a transaction;
        `1:commit` and `1:abort`."""
        for word in text.split():
            head, _, what = word.rpartition(":")
            producer, offset = (int(head) if head else None), self.logs["a"].end
            if what in ("commit", "abort"):
                record = Record(offset, producer=producer, kind=Kind(what))
                self.markers_end = offset + 1
            else:
                key, _, value = what.partition("=")
                record = Record(offset, key.rstrip("-"), value or None, producer)
            self.logs["a"] = extended(self.logs["a"], (record,), offset + 1)

    def copy(self, name: str, source: str = "a", to: int | None = None) -> None:
        """Copy all there is, or up to an offset."""
        log, found = self.logs[name], self.logs[source]
        assert is_source(log.marks, log.end, found.marks), f"{name} may not copy from {source}"
        assert self.files.read().find(self.member(name)) is not None
        records, end = fetched(found, log.end, len(found.records) + 1)
        end = end if to is None else to
        self.logs[name] = extended(log, tuple(r for r in records if r.offset < end), end)

    def compact(self, names: str, kind: str = "both") -> None:
        """A round of each of these copies, which then say how far they are."""
        for name in names:
            round_ = Round(
                self.logs[name].end,
                bound(self.files.read(), self.member(name), P),
                self.clock.now_ms(),
                self.retention_ms,
                cleans=kind != "resolves",
                resolves=kind != "cleans",
            )
            self.logs[name] = cleaned(self.logs[name], round_)
            self.say(name)

    def compact_unheard(self, name: str) -> None:
        """A round of a copy that nobody can hear."""
        before = self.files.said(self.member(name))
        self.compact(name)
        key = f"group/marks/{name}~{self.logs[name].incarnation}.json"
        self.memory.delete(key)
        self.files.say(self.member(name), before)

    def say(self, name: str) -> None:
        self.files.say(self.member(name), {P: self.logs[name].standing})

    def lead(self, name: str) -> None:
        self.leader, self.epochs[name] = name, self.files.lead(name)

    def publish(self, name: str = "") -> None:
        self.files.publish(self.epochs[name or self.leader])

    def publish_fails(self) -> None:
        """It dies when it has collected."""
        fails = StoreFault.FAIL_BEFORE
        store = FaultyStore(self.memory, lambda _, call: fails if call.method == "create" else None)
        files = GroupFiles(store, "group", self.clock, RandomIds())
        with pytest.raises(StoreError, match="injected failure"):
            files.publish(self.epochs[self.leader])

    def publish_is_fenced(self, name: str) -> None:
        with pytest.raises(Fenced):
            self.publish(name)

    def publish_is_led_by(self, name: str) -> None:
        self.lead(name)
        self.publish()

    def join(self, name: str) -> None:
        """As one that has nothing."""
        number = int(self.logs[name].incarnation[1:]) + 1 if name in self.logs else 1
        self.logs[name] = Log(incarnation=f"{name}{number}")
        self.files.expect([name])
        group = self.files.join(self.member(name), GroupRole.COPY)
        self.logs[name] = replace(self.logs[name], marks=marks_of(group, self.member(name), P))

    def join_reader(self, name: str, position: int) -> None:
        self.files.join(GroupMember(name, "1"), GroupRole.READER, {P: position})

    def commit_reader(self, name: str, position: int) -> None:
        self.files.say(GroupMember(name, "1"), {P: PartitionStanding(Marks(clean=position), position)})

    def leave(self, name: str) -> None:
        self.files.leave(name)

    def back_up(self, name: str) -> None:
        self.backups[name] = self.logs[name]

    def restore(self, name: str) -> None:
        """It finds that it has lost something, and joins too late with what it has."""
        self.logs[name] = self.backups[name]
        assert lost(self.files.said(self.member(name)), {P: self.logs[name].standing}) == P
        with pytest.raises(Refused, match="joins too late"):
            self.files.join(GroupMember(name, f"{name}2"), GroupRole.COPY, {P: self.logs[name].end})

    def pass_ms(self, duration_ms: int) -> None:
        self.clock.sleep_s(duration_ms / 1000)

    # What is expected

    def thresholds(self, clean: int, resolved: int) -> None:
        """That of markers at most to the end of the last one that was written."""
        expected = Marks(clean, min(resolved, self.markers_end))
        assert self.files.read().thresholds_of(P) == expected

    def marks(self, name: str, clean: int, resolved: int) -> None:
        assert marks_of(self.files.read(), self.member(name), P) == Marks(clean, resolved)

    def shows(self, names: str, text: str) -> None:
        expected = dict(word.split("=") for word in text.split())
        for name in names:
            assert without_tombstones(latest(shown(self.logs[name])[0])) == expected, name

    def tombstones(self, names: str, count: int) -> None:
        for name in names:
            assert sum(record.is_tombstone for record in self.logs[name].records) == count, name

    def markers(self, names: str, count: int) -> None:
        for name in names:
            assert sum(not record.is_row for record in self.logs[name].records) == count, name

    def in_transactions(self, names: str, count: int) -> None:
        """Rows that are still part of one."""
        for name in names:
            found = sum(record.is_row and record.producer is not None for record in self.logs[name].records)
            assert found == count, name

    def waits_for(self, name: str) -> None:
        assert {one.by for one in waiting(self.files.read())} == ({name} if name else set())
