"""Numbered files whose folder is deleted, made anew, or restored from a backup while others remember it."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from lithify.base.errors import Refused, Replaced, StoreError
from lithify.store.objects import ObjectStore
from lithify.store.versions import (
    FRESH_S,
    LISTING_EVERY_S,
    MAX_TRUSTED_LOOKS,
    Bond,
    Version,
    VersionConflict,
    VersionedFiles,
)
from lithify.testing import Call, ManualClock, MemoryStore, WrappedStore

BOUNDARY = "db/gc/manifest.boundary"
OLD = 9
"""Versions of the old history."""


class Place:
    """A folder and what happens to it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(self.clock)
        self.publish(OLD, b"old")

    def files(self, store: ObjectStore | None = None, bond: Bond | None = None) -> VersionedFiles:
        """As a process of its own sees it."""
        store = self.memory if store is None else store
        return VersionedFiles(store, "db/manifest", ".manifest", BOUNDARY, clock=self.clock, bond=bond)

    def publish(self, count: int, name: bytes) -> None:
        files = self.files()
        for _ in range(count):
            latest = files.latest()
            files.publish(latest, b"%s %d" % (name, 1 if latest is None else latest.id + 1))

    def drop(self) -> None:
        for meta in list(self.memory.list("db")):
            self.memory.delete(meta.key)

    def anew(self, count: int = 3) -> None:
        self.drop()
        self.clock.advance_s(0.1)
        self.publish(count, b"new")

    def restore(self, count: int) -> None:
        """The first versions again, as they were: a backup."""
        backup = {key: self.memory.get(key) for key in map(self.files().key, range(1, count + 1))}
        self.drop()
        self.clock.advance_s(0.1)
        for key, data in backup.items():
            self.memory.put(key, data)

    @property
    def state(self) -> dict[str, bytes]:
        return {meta.key: self.memory.get(meta.key) for meta in self.memory.list("db")}


Change = Callable[[Place], None]
REPLACEMENTS: dict[str, Change] = {
    "made anew, and shorter": lambda place: place.anew(3),
    "made anew, and as long": lambda place: place.anew(OLD),
    "made anew, and longer": lambda place: place.anew(OLD + 2),
    "made anew, and much longer": lambda place: place.anew(OLD + 20),
    "restored from a backup": lambda place: place.restore(4),
    "deleted": Place.drop,
}
replaced = pytest.mark.parametrize("change", REPLACEMENTS.values(), ids=REPLACEMENTS.keys())


@replaced
def test_who_looks_finds_out_and_then_finds_what_is_there(change: Change) -> None:
    place = Place()
    files = place.files()
    files.latest()
    change(place)
    with pytest.raises(Replaced, match="deleted, created again or restored from a backup"):
        look_often(files)
    assert files.latest() == place.files().latest()


@replaced
def test_who_makes_sure_finds_out_at_once(change: Change) -> None:
    place = Place()
    files = place.files()
    files.latest()
    change(place)
    with pytest.raises(Replaced):
        files.confirmed()
    assert files.confirmed() == place.files().confirmed()


@replaced
@pytest.mark.parametrize("looks", [False, True])
def test_nothing_is_built_on_what_is_not_there_any_more(change: Change, looks: bool) -> None:
    place = Place()
    files = place.files()
    base = files.latest()
    change(place)
    place.clock.advance_s(FRESH_S)
    before = place.state
    with pytest.raises((Replaced, VersionConflict)):
        files.publish(files.latest() if looks else base, b"on top of the old one")
    assert place.state == before


def look_often(files: VersionedFiles) -> Version | None:
    for _ in range(MAX_TRUSTED_LOOKS):
        files.latest()
    return files.latest()


def publish_and_look(files: VersionedFiles, base: Version | None) -> None:
    """The last call of a publication may be over when it happens."""
    files.publish(base, b"on top of the old one")
    files.confirmed()
    files.confirmed()


class Meanwhile(WrappedStore):
    """Runs `event` once, just before the call of this number."""

    def __init__(self, inner: ObjectStore, number: int, event: Callable[[], object]) -> None:
        super().__init__(inner)
        self.calls, self._number, self._event = 0, number, event

    def around(self, call: Call, action: Callable[[], Any]) -> Any:
        self.calls += 1
        if self.calls == self._number:
            self._event()
        return action()


@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("waits_s", [0.0, FRESH_S])
@replaced
def test_what_is_made_anew_at_any_call_of_a_publication_is_whole_in_the_end(
    change: Change, number: int, waits_s: float
) -> None:
    """Whatever was written between two looks at it is taken back."""
    place = Place()
    after: dict[str, bytes] = {}

    def event() -> None:
        change(place)
        after.update(place.state)

    store = Meanwhile(place.memory, number, event)
    files = place.files(store)
    base = files.latest()
    if store.calls >= number:
        return  # it is what was found
    place.clock.advance_s(waits_s)
    with pytest.raises((Replaced, VersionConflict)):
        publish_and_look(files, base)
    left = {key: data for key, data in place.state.items() if data != b"on top of the old one"}
    assert left == after
    if change is not Place.drop:  # where nothing else is there, nothing shows whose it is
        assert place.state == after


def test_a_collector_without_a_boundary_costs_nobody_a_version() -> None:
    """It may take the version that was built on, just then. What was published stays."""
    place = Place()
    files = place.files()
    base = files.latest()
    assert base is not None
    place.memory.delete(files.key(2))  # others, which are pinned, stay
    place.clock.advance_s(600)
    # It is found to be there, the next one is created, and then:
    store = Meanwhile(place.memory, 3, lambda: place.memory.delete(files.key(base.id)))
    with pytest.raises(Replaced):
        place.files(store).publish(base, b"whole")
    assert place.memory.get(files.key(base.id + 1)) == b"whole"


def test_what_somebody_builds_on_already_is_left() -> None:
    place = Place()
    files = place.files()
    base = files.latest()
    assert base is not None

    def follow() -> None:
        place.anew(2)
        place.memory.put(files.key(base.id + 1), b"on top of the old one")
        place.memory.put(files.key(base.id + 2), b"and on top of that")

    late = place.files(Meanwhile(place.memory, 2, follow))
    with pytest.raises(Replaced):
        late.publish(base, b"on top of the old one")
    assert files.key(base.id + 1) in place.state


def test_folders_that_stand_or_fall_together() -> None:
    place = Place()
    bond = Bond()
    files = place.files(bond=bond)
    beside = VersionedFiles(place.memory, "beside", ".v", "beside.boundary", clock=place.clock, bond=bond)
    beside.publish(None, b"1")
    files.latest()
    place.anew()
    with pytest.raises(Replaced):
        files.confirmed()
    for use in (
        files.latest,
        files.confirmed,
        beside.latest,
        lambda: beside.publish(Version(1, b"1"), b"2"),
        lambda: beside.update(lambda _: b"2", place.clock, random.Random(1)),
        lambda: beside.write(lambda _: b"2", place.clock, random.Random(1)),
    ):
        with pytest.raises(Replaced):
            use()
    assert place.memory.get(beside.key(1)) == b"1"
    assert len(list(place.memory.list("beside"))) == 1


@pytest.mark.parametrize("passed", [1, 3, 20])
def test_a_collection_is_no_replacement(passed: int) -> None:
    place = Place()
    sleeper = place.files()
    sleeper.latest()
    place.publish(passed, b"old")
    files = place.files()
    files.advance_boundary(OLD + passed - 1)
    for version_id in range(1, OLD + passed):
        place.memory.delete(files.key(version_id))
    place.clock.advance_s(3600)
    found = look_often(sleeper)
    assert found == files.latest()
    assert sleeper.publish(found, b"next").id == OLD + passed + 1


def test_what_a_collector_without_a_boundary_hides_is_found_within_an_hour() -> None:
    """It keeps the version that a checkpoint pins, the one that was seen, and takes its successors."""
    place = Place()
    sleeper = place.files()
    sleeper.latest()
    place.publish(3, b"old")
    place.memory.delete(sleeper.key(OLD + 1))
    found = look_often(sleeper)
    assert found is not None
    assert found.id == OLD
    place.clock.advance_s(LISTING_EVERY_S)
    assert look_often(sleeper) == place.files().latest()


def test_a_store_whose_etags_differ_between_writing_and_reading_replaces_nothing() -> None:
    class Odd(WrappedStore):
        def create(self, key: str, data: bytes, put_id: str | None = None) -> str | None:
            super().create(key, data, put_id)
            return "another etag"

    place = Place()
    files = place.files(Odd(place.memory))
    version = files.publish(files.latest(), b"mine")
    place.clock.advance_s(FRESH_S)
    assert files.publish(files.confirmed(), b"mine too").id == version.id + 1


def test_a_store_that_is_away_replaces_nothing() -> None:
    class Away(WrappedStore):
        is_away = False

        def around(self, call: Call, action: Callable[[], Any]) -> Any:
            if self.is_away:
                raise StoreError("away")
            return action()

    place = Place()
    store = Away(place.memory)
    bond = Bond()
    files = place.files(store, bond)
    files.latest()
    store.is_away = True
    with pytest.raises(StoreError):
        files.confirmed()
    store.is_away = False
    assert files.confirmed() == place.files().latest()


@pytest.mark.parametrize("number", range(1, 12))
@replaced
def test_no_boundary_is_raised_over_what_was_made_anew(change: Change, number: int) -> None:
    """At or below it no version counts, for anybody; what is below the latest one harms nobody."""
    place = Place()
    files = place.files()
    files.latest()
    after: dict[str, bytes] = {}

    def event() -> None:
        change(place)
        after.update(place.state)

    store = Meanwhile(place.memory, number, event)
    collector = place.files(store)
    collector.latest()
    if store.calls >= number:
        return
    with suppress(Replaced, Refused):
        collector.advance_boundary(OLD - 1)
    if store.calls < number:
        return  # it was over before
    left = place.state
    boundary = left.pop(BOUNDARY, b"0")
    assert left == after
    assert int(boundary) < len(after) or boundary == b"0"


@dataclass
class Dataset:
    """A folder of states, and one of records that are of use only with these."""

    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.memory = MemoryStore(self.clock)

    def opened(self, store: ObjectStore | None = None) -> tuple[VersionedFiles, VersionedFiles]:
        store, bond = self.memory if store is None else store, Bond()
        return (
            VersionedFiles(store, "db/states", ".v", "db/states.boundary", clock=self.clock, bond=bond),
            VersionedFiles(store, "db/records", ".v", "db/records.boundary", clock=self.clock, bond=bond),
        )

    def publish(self, states: int, records: int) -> None:
        for files, count in zip(self.opened(), (states, records), strict=True):
            for n in range(count):
                files.publish(files.latest(), b"%d at %d" % (n, self.clock.now_ms()))

    def anew(self, states: int, records: int) -> None:
        for meta in list(self.memory.list("db")):
            self.memory.delete(meta.key)
        self.clock.advance_s(0.1)
        self.publish(states, records)

    @property
    def state(self) -> dict[str, bytes]:
        return {meta.key: self.memory.get(meta.key) for meta in self.memory.list("db")}


@pytest.mark.parametrize("number", range(1, 14))
@pytest.mark.parametrize("records", [0, 3])
@pytest.mark.parametrize("new", [(2, 0), (9, 0), (9, 9), (0, 0)])
def test_records_of_what_is_gone_are_not_left_beside_what_is_new(
    number: int, records: int, new: tuple[int, int]
) -> None:
    """Also where the new dataset has none yet."""
    dataset = Dataset()
    dataset.publish(5, records)
    dataset.clock.advance_s(600)
    after: dict[str, bytes] = {}

    def event() -> None:
        dataset.anew(*new)
        after.update(dataset.state)

    store = Meanwhile(dataset.memory, number, event)
    states, kept = dataset.opened(store)
    states.latest()
    base = kept.latest()
    if store.calls >= number:
        return  # it is what was found
    with suppress(Replaced, VersionConflict):
        kept.publish(base, b"a record of the old one")
    if store.calls >= number:
        assert dataset.state == after
