"""The numbered-file protocol: conflicts, doubt, boundary, search, and what each costs."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from lithify.base.clock import Clock
from lithify.base.errors import CorruptObject, ObjectNotFound, Refused, StoreError, StoreUnavailable
from lithify.store.objects import ObjectMeta, ObjectStore
from lithify.store.versions import (
    FRESH_S,
    MAX_LOOKUPS,
    MAX_TRUSTED_LOOKS,
    MAX_UPDATE_TRIES,
    Bond,
    PendingVersion,
    Version,
    VersionConflict,
    VersionedFiles,
)
from lithify.testing import (
    CountingStore,
    FaultyStore,
    ManualClock,
    MemoryStore,
    StoreFault,
    Verb,
    WrappedStore,
    crash_at_every_call,
)

BOUNDARY = "db/gc/manifest.boundary"


def open_files(store: ObjectStore, clock: Clock | None = None, bond: Bond | None = None) -> VersionedFiles:
    return VersionedFiles(store, "db/manifest", ".manifest", BOUNDARY, clock=clock, bond=bond)


def publish_many(files: VersionedFiles, count: int) -> Version:
    version = files.latest()
    for _ in range(count):
        version = files.publish(version, b"value %d" % (version.id + 1 if version else 1))
    assert version is not None
    return version


def collect(store: ObjectStore, upto: int) -> None:
    """What a garbage collector does: the boundary first, then the versions."""
    files = open_files(store)
    files.advance_boundary(upto)
    for version_id in files.ids():
        if version_id <= upto:
            store.delete(files.key(version_id))


class Meanwhile(WrappedStore):
    """Runs `event` once, just before or after the first call of one method."""

    def __init__(self, inner: ObjectStore, method: str, event: Callable[[], object], *, after: bool) -> None:
        super().__init__(inner)
        self._method, self._event, self._after, self._done = method, event, after, False

    def around(self, call, action):  # type: ignore[no-untyped-def]  # as in the base class
        hit = call.method == self._method and not self._done
        self._done = self._done or hit
        if hit and not self._after:
            self._event()
        result = action()
        if hit and self._after:
            self._event()
        return result


def test_versions_follow_each_other_from_one() -> None:
    store = MemoryStore()
    files = open_files(store)
    assert files.latest() is None
    assert files.publish(None, b"a") == Version(1, b"a")
    assert files.publish(Version(1, b"a"), b"b") == Version(2, b"b")
    assert [meta.key for meta in store.list("db")] == [
        "db/manifest/00000000000000000001.manifest",
        "db/manifest/00000000000000000002.manifest",
    ]
    for same in (files, open_files(store)):
        assert same.latest() == Version(2, b"b")
    assert (files.ids(), files.read(1)) == ([1, 2], b"a")
    with pytest.raises(ObjectNotFound):
        files.read(3)


def test_the_slower_of_two_gets_a_conflict_and_sees_the_faster() -> None:
    store = MemoryStore()
    fast, slow = open_files(store), open_files(store)
    fast.publish(None, b"fast")
    with pytest.raises(VersionConflict, match="another process"):
        slow.publish(None, b"slow")
    assert slow.latest() == Version(1, b"fast")


@pytest.mark.parametrize("keeps_put_ids", [True, False])
def test_equal_bytes_of_another_party_are_not_mistaken_for_ours(keeps_put_ids: bool) -> None:
    """Two coordinators that take over at once write the same epoch: only one may believe it."""
    store = MemoryStore(keeps_put_ids=keeps_put_ids)
    first, second = open_files(store), open_files(store)
    first.publish(None, b"epoch 1")
    with pytest.raises(VersionConflict):
        second.publish(None, b"epoch 1")


def test_a_lost_answer_is_settled_by_reading_back() -> None:
    store = FaultyStore.scripted(MemoryStore(), {1: StoreFault.FAIL_AFTER})
    assert open_files(store).publish(None, b"mine") == Version(1, b"mine")


def test_a_lost_answer_counts_as_a_conflict_where_the_store_keeps_no_put_ids() -> None:
    store = FaultyStore.scripted(MemoryStore(keeps_put_ids=False), {1: StoreFault.FAIL_AFTER})
    files = open_files(store)
    with pytest.raises(VersionConflict):
        files.publish(None, b"mine")
    assert files.latest() == Version(1, b"mine")


def test_our_own_write_that_the_store_repeated_is_no_conflict() -> None:
    """A store that repeats a lost request answers 'exists' to its own first try."""
    inner = MemoryStore()

    class Repeating(WrappedStore):
        def create(self, key: str, data: bytes, put_id: str | None = None) -> str | None:
            self.inner.create(key, data, put_id)
            return self.inner.create(key, data, put_id)

    assert open_files(Repeating(inner)).publish(None, b"mine") == Version(1, b"mine")


@pytest.mark.parametrize(
    "faults", [{1: StoreFault.FAIL_BEFORE}, {1: StoreFault.FAIL_AFTER, 2: StoreFault.FAIL_BEFORE}]
)
def test_what_cannot_be_settled_is_reported_as_unknown(faults: dict[int, StoreFault]) -> None:
    store = FaultyStore.scripted(MemoryStore(), faults)
    with pytest.raises(StoreError, match="unknown") as caught:
        open_files(store).publish(None, b"mine")
    assert not isinstance(caught.value, VersionConflict)


def test_who_could_not_publish_because_the_store_is_away_says_so() -> None:
    """A service comes back to a dataset whose store is away, and quarantines one that fails otherwise."""

    class Away(WrappedStore):
        def create(self, key: str, data: bytes, put_id: str | None = None) -> str | None:
            raise StoreUnavailable(f"create {key}: refused", "connection refused")

        def get_with_meta(self, key: str) -> tuple[bytes, ObjectMeta]:
            raise StoreUnavailable(f"get {key}: refused", "connection refused")

    with pytest.raises(StoreUnavailable, match="unknown") as caught:
        open_files(Away(MemoryStore())).publish(None, b"mine")
    assert caught.value.cause == "connection refused"


def test_a_failing_boundary_read_acknowledges_nothing() -> None:
    store = FaultyStore.scripted(MemoryStore(), {2: StoreFault.FAIL_BEFORE})
    with pytest.raises(StoreError):
        open_files(store).publish(None, b"mine")


def test_a_party_that_slept_through_a_collection_does_not_revive_old_versions() -> None:
    store = MemoryStore()
    sleeper, awake = open_files(store), open_files(store)
    base = publish_many(sleeper, 1)
    publish_many(awake, 8)
    collect(store, 8)
    # Its next version has been deleted, so the create itself succeeds.
    with pytest.raises(VersionConflict, match="collected"):
        sleeper.publish(base, b"too late")
    assert sleeper.latest() == Version(9, b"value 9")
    assert sleeper.publish(sleeper.latest(), b"in time") == Version(10, b"in time")


def test_a_collection_between_search_and_create_is_noticed() -> None:
    inner = MemoryStore()
    base = publish_many(open_files(inner), 1)

    def eight_versions_pass() -> None:
        publish_many(open_files(inner), 8)
        collect(inner, 8)

    files = open_files(Meanwhile(inner, "create", eight_versions_pass, after=False))
    with pytest.raises(VersionConflict):
        files.publish(base, b"too late")


def test_a_warm_search_that_slept_through_a_collection_begins_again() -> None:
    store = MemoryStore()
    sleeper = open_files(store)
    publish_many(sleeper, 2)
    publish_many(open_files(store), 5)
    collect(store, 6)
    assert sleeper.confirmed() == Version(7, b"value 7")
    assert sleeper.latest() == Version(7, b"value 7")


def test_who_only_looks_notices_a_collection_that_it_slept_through() -> None:
    store = MemoryStore()
    sleeper = open_files(store)
    seen = publish_many(sleeper, 2)
    publish_many(open_files(store), 5)
    collect(store, 6)
    looks = [sleeper.latest() for _ in range(MAX_TRUSTED_LOOKS)]
    assert looks == [*[seen] * (MAX_TRUSTED_LOOKS - 1), Version(7, b"value 7")]


def test_nobody_follows_to_what_another_sleeper_creates_behind_the_boundary() -> None:
    store = MemoryStore()
    first, second = open_files(store), open_files(store)
    base = publish_many(first, 2)
    assert second.latest() == base
    publish_many(open_files(store), 5)
    collect(store, 6)
    with pytest.raises(VersionConflict, match="collected"):
        first.publish(base, b"never counted")
    assert second.latest() == Version(7, b"value 7")


def test_what_an_update_meets_behind_the_boundary_is_not_built_on() -> None:
    store, clock = MemoryStore(), ManualClock()
    first, second = open_files(store), open_files(store)
    base = publish_many(first, 2)
    assert second.latest() == base
    publish_many(open_files(store), 5)
    collect(store, 6)
    with pytest.raises(VersionConflict, match="collected"):
        first.publish(base, b"never counted")
    assert second.update(append(b"+"), clock, random.Random(0)) == Version(8, b"value 7+")


def test_a_version_deleted_between_list_and_read_makes_it_list_again() -> None:
    inner = MemoryStore()
    publish_many(open_files(inner), 3)

    def collected() -> None:
        publish_many(open_files(inner), 2)
        collect(inner, 4)

    files = open_files(Meanwhile(inner, "list", collected, after=True))
    assert files.latest() == Version(5, b"value 5")


def test_what_cannot_be_decoded_is_read_anew_and_nothing_else() -> None:
    store = MemoryStore()
    files, other = open_files(store), open_files(store)
    good = publish_many(files, 2)
    key = other.key(3)
    other.publish(good, b"junk")

    def number(data: bytes, name: str) -> int:
        assert name == key
        return int(data)

    for _ in range(2):
        junk = files.latest()
        assert junk == Version(3, b"junk")
        with pytest.raises(ValueError, match="junk"):
            files.decode(junk, number)
    store.put(key, b"3")
    restored = files.latest()
    assert restored == Version(3, b"3")
    assert files.decode(restored, number) == 3
    store.put(key, b"nobody reads this")
    assert files.latest() == restored


def test_versions_that_can_never_be_read_end_the_search() -> None:
    class Ghost(WrappedStore):
        def get_with_meta(self, key: str) -> tuple[bytes, ObjectMeta]:
            raise ObjectNotFound(key)

    inner = MemoryStore()
    publish_many(open_files(inner), 1)
    with pytest.raises(StoreError, match=f"{MAX_LOOKUPS} searches"):
        open_files(Ghost(inner)).latest()


@pytest.mark.parametrize("boundary", [1, 5])
def test_a_boundary_over_everything_is_an_error_and_no_empty_folder(boundary: int) -> None:
    store = MemoryStore()
    publish_many(open_files(store), 1)
    store.put(BOUNDARY, b"%d" % boundary)
    with pytest.raises(StoreError, match="no version above the boundary"):
        open_files(store).latest()
    store.delete(open_files(store).key(1))
    with pytest.raises(StoreError, match=f"all its files are gone, .* up to number {boundary}"):
        open_files(store).latest()


def test_gaps_left_by_collection_are_passed_over() -> None:
    store = MemoryStore()
    publish_many(open_files(store), 9)
    for version_id in (1, 2, 4, 5, 7):
        store.delete(open_files(store).key(version_id))
    files = open_files(store)
    assert files.ids() == [3, 6, 8, 9]
    assert files.latest() == Version(9, b"value 9")
    assert files.publish(files.latest(), b"next").id == 10


@pytest.mark.parametrize(
    "name",
    [
        "2.manifest",
        "0000000000000000002.manifest",
        "0000000000000000000002.manifest",
        "00000000000000000000.manifest",
        "99999999999999999999.manifest",
        "+0000000000000000002.manifest",
        "0000000000000000000b.manifest",
        "０0000000000000000002.manifest",
        "backup/00000000000000000002.manifest",
        ".manifest",
    ],
)
def test_misleading_names_are_refused_by_name(name: str) -> None:
    store = MemoryStore()
    publish_many(open_files(store), 1)
    store.put(f"db/manifest/{name}", b"x")
    with pytest.raises(CorruptObject) as caught:
        open_files(store).latest()
    assert caught.value.name == f"db/manifest/{name}"


@pytest.mark.parametrize(
    "name", ["00000000000000000002.manifest.tmp", "note.txt", "00000000000000000007.compactions", "7", "a/b"]
)
def test_other_names_are_passed_over(name: str) -> None:
    store = MemoryStore()
    publish_many(open_files(store), 1)
    store.put(f"db/manifest/{name}", b"x")
    store.put("db/manifests/00000000000000000009.manifest", b"x")
    assert open_files(store).latest() == Version(1, b"value 1")


def test_the_highest_number_of_64_bits_is_a_version() -> None:
    store = MemoryStore()
    store.put(f"db/manifest/{2**64 - 1:020d}.manifest", b"last")
    assert open_files(store).latest() == Version(2**64 - 1, b"last")


# What it costs


def counted(store: CountingStore, action: Callable[[], object]) -> dict[Verb, int]:
    store.reset()
    action()
    return dict(store.requests)


def test_requests_of_a_cold_search() -> None:
    store = CountingStore(MemoryStore())
    publish_many(open_files(store), 7)
    # The version and the boundary are read.
    assert counted(store, open_files(store).latest) == {Verb.LIST: 1, Verb.GET: 2}
    assert store.bytes_read == len(b"value 7")


@pytest.mark.parametrize(
    ("passed", "expected"),
    [
        (0, {Verb.GET: 1}),
        (1, {Verb.GET: 3, Verb.HEAD: 1}),
        (3, {Verb.GET: 5, Verb.HEAD: 1}),
        (4, {Verb.GET: 6, Verb.LIST: 1, Verb.HEAD: 1}),
        (50, {Verb.GET: 6, Verb.LIST: 1, Verb.HEAD: 1}),
    ],
)
def test_requests_of_a_warm_search(passed: int, expected: dict[Verb, int]) -> None:
    store = CountingStore(MemoryStore())
    warm = open_files(store)
    publish_many(warm, 2)
    publish_many(open_files(store), passed)
    assert counted(store, warm.latest) == expected
    assert warm.latest() == Version(2 + passed, b"value %d" % (2 + passed))


def test_requests_of_a_publication() -> None:
    store = CountingStore(MemoryStore())
    files = open_files(store)
    base = publish_many(files, 1)
    # Beside the boundary it is looked for what was built on.
    assert counted(store, lambda: files.publish(base, b"next")) == {Verb.PUT: 1, Verb.GET: 1, Verb.HEAD: 1}
    assert counted(store, files.latest) == {Verb.GET: 1}


def test_requests_of_a_publication_on_what_was_seen_long_ago() -> None:
    store, clock = CountingStore(MemoryStore()), ManualClock()
    files = open_files(store, clock)
    base = publish_many(files, 1)
    clock.advance_s(FRESH_S)
    publish = lambda: files.publish(base, b"next")  # noqa: E731
    assert counted(store, publish) == {Verb.PUT: 1, Verb.GET: 1, Verb.HEAD: 2}


def test_requests_of_searches_without_news() -> None:
    store = CountingStore(MemoryStore())
    files = open_files(store)
    publish_many(files, 1)

    def look_often() -> None:
        for _ in range(2 * MAX_TRUSTED_LOOKS):
            files.latest()

    assert counted(store, look_often) == {Verb.GET: 2 * MAX_TRUSTED_LOOKS + 2, Verb.HEAD: 2}
    assert counted(store, files.confirmed) == {Verb.GET: 2, Verb.HEAD: 1}


def test_requests_of_an_update_by_who_knows_the_latest_version() -> None:
    store = CountingStore(MemoryStore())
    files = open_files(store)
    publish_many(files, 1)
    update = lambda: files.update(append(b"+"), ManualClock(), random.Random(0))  # noqa: E731
    assert counted(store, update) == {Verb.PUT: 1, Verb.GET: 1, Verb.HEAD: 1}


def test_that_there_is_no_version_is_remembered() -> None:
    store = CountingStore(MemoryStore())
    files = open_files(store)
    assert counted(store, files.latest) == {Verb.LIST: 1, Verb.GET: 1}
    assert counted(store, files.latest) == {Verb.GET: 1}
    open_files(store).publish(None, b"first")
    assert files.latest() == Version(1, b"first")


# The boundary


def test_the_boundary_only_rises() -> None:
    store = MemoryStore()
    files = open_files(store)
    publish_many(files, 9)
    assert files.boundary() == 0
    assert [files.advance_boundary(to) for to in (3, 8, 5, 8)] == [3, 8, 8, 8]
    assert store.get(BOUNDARY) == b"8"
    assert files.boundary() == 8


@pytest.mark.parametrize("to", [3, 4, 100])
def test_the_boundary_never_covers_the_latest_version(to: int) -> None:
    store = MemoryStore()
    files = open_files(store)
    publish_many(files, 3)
    with pytest.raises(Refused, match="latest version"):
        files.advance_boundary(to)
    assert files.boundary() == 0


@pytest.mark.parametrize("existing", [b"", b"1"])
def test_a_boundary_raised_by_another_at_the_same_time_is_not_lowered(existing: bytes) -> None:
    inner = MemoryStore()
    publish_many(open_files(inner), 9)
    if existing:
        inner.put(BOUNDARY, existing)
    event = lambda: open_files(inner).advance_boundary(7)  # noqa: E731
    method = "replace" if existing else "create"
    files = open_files(Meanwhile(inner, method, event, after=False))
    assert files.advance_boundary(5) == 7
    assert inner.get(BOUNDARY) == b"7"


@pytest.mark.parametrize(("data", "value"), [(b" 12\n", 12), (b"0", 0), (b"%d" % (2**64 - 1), 2**64 - 1)])
def test_boundaries_that_can_be_read(data: bytes, value: int) -> None:
    store = MemoryStore()
    store.put(BOUNDARY, data)
    assert open_files(store).boundary() == value


@pytest.mark.parametrize(
    "data", [b"", b"-1", b"1.0", b"x", b"%d" % 2**64, b"1 2", "１".encode(), b"9" * 5000]
)
def test_damaged_boundaries_are_refused_by_name(data: bytes) -> None:
    store = MemoryStore()
    publish_many(open_files(store), 1)
    store.put(BOUNDARY, data)
    with pytest.raises(CorruptObject) as caught:
        open_files(store).latest()
    assert caught.value.name == BOUNDARY
    assert len(str(caught.value)) < 300


# Updates


def append(part: bytes) -> Callable[[Version | None], bytes]:
    return lambda base: (base.data if base else b"") + part


def test_an_update_is_repeated_on_the_newer_version_after_a_pause() -> None:
    clock, inner = ManualClock(), MemoryStore()
    event = lambda: open_files(inner).update(append(b"b"), clock, random.Random(1))  # noqa: E731
    files = open_files(Meanwhile(inner, "create", event, after=False))
    before_s = clock.monotonic_s()
    assert files.update(append(b"a"), clock, random.Random(2)) == Version(2, b"ba")
    assert clock.monotonic_s() > before_s


def test_an_update_that_changes_nothing_writes_nothing() -> None:
    store = CountingStore(MemoryStore())
    files = open_files(store)
    assert files.update(lambda _: None, ManualClock(), random.Random(0)) is None
    base = publish_many(files, 1)
    store.reset()
    assert files.update(lambda _: None, ManualClock(), random.Random(0)) == base
    assert Verb.PUT not in store.requests


def test_an_update_gives_up_after_a_finite_number_of_conflicts() -> None:
    inner, clock = MemoryStore(), ManualClock()
    tries = []

    class Overtaken(WrappedStore):
        def create(self, key: str, data: bytes, put_id: str | None = None) -> str | None:
            tries.append(key)
            self.inner.create(key, b"faster")
            return self.inner.create(key, data, put_id)

    with pytest.raises(VersionConflict):
        open_files(Overtaken(inner)).update(append(b"a"), clock, random.Random(0))
    assert len(set(tries)) == len(tries) == MAX_UPDATE_TRIES
    assert 0 < clock.monotonic_s() < 60


def test_a_crash_at_any_call_of_an_update_leaves_the_old_or_the_new_version() -> None:
    def make() -> MemoryStore:
        store = MemoryStore()
        publish_many(open_files(store), 2)
        return store

    outcomes = set()
    for site, left in crash_at_every_call(
        make, lambda store: open_files(store).update(append(b"+"), ManualClock(), random.Random(0))
    ):
        latest = open_files(left).latest()
        landed = [call for call in ("create",) if site.call.method == call and site.after]
        assert latest in (Version(2, b"value 2"), Version(3, b"value 2+")), site
        assert latest == Version(3, b"value 2+") or not landed, site
        outcomes.add(latest)
        assert open_files(left).update(append(b"!"), ManualClock(), random.Random(0)) is not None
    assert len(outcomes) == 2


# Writing without waiting for the proof


def write(files: VersionedFiles, part: bytes) -> tuple[Version | None, PendingVersion]:
    return files.write(append(part), ManualClock(), random.Random(0))


def test_what_is_written_is_known_before_it_is_proved_to_count() -> None:
    asked = threading.Event()
    waiting = threading.Event()

    class Slow(WrappedStore):
        def get(self, key: str) -> bytes:
            if key == BOUNDARY:
                asked.set()
                assert waiting.wait(60)
            return self.inner.get(key)

    inner = MemoryStore()
    base = publish_many(open_files(inner), 1)
    store = CountingStore(Slow(inner))
    files = open_files(store)
    waiting.set()
    assert files.latest() == base
    waiting.clear()
    asked.clear()
    version, counts = write(files, b"+")
    assert version == files.known() == Version(2, b"value 1+")
    assert asked.wait(60), "the proof is under way"
    waiting.set()
    assert counts()
    assert files.known() == version


def test_who_has_nothing_to_write_has_nothing_to_prove() -> None:
    files = open_files(MemoryStore())
    base = publish_many(files, 1)
    version, counts = files.write(lambda _: None, ManualClock(), random.Random(0))
    assert version == base
    assert counts()


def test_nothing_is_built_on_what_was_written_behind_the_boundary() -> None:
    store = MemoryStore()
    sleeper = open_files(store)
    publish_many(sleeper, 1)
    publish_many(open_files(store), 8)
    collect(store, 8)
    version, counts = write(sleeper, b"too late")
    assert version == sleeper.known() == Version(2, b"value 1too late")
    with pytest.raises(VersionConflict, match="collected"):
        sleeper.publish(version, b"on top")
    assert not counts()
    assert sleeper.latest() == Version(9, b"value 9")


def test_what_was_written_just_behind_the_boundary_has_a_successor_already() -> None:
    store = MemoryStore()
    sleeper = open_files(store)
    publish_many(sleeper, 1)
    publish_many(open_files(store), 2)
    collect(store, 2)
    version, counts = write(sleeper, b"too late")
    with pytest.raises(VersionConflict):
        sleeper.publish(version, b"on top")
    assert not counts()
    assert sleeper.latest() == Version(3, b"value 3")


def test_a_proof_that_could_not_be_had_can_be_asked_for_again() -> None:
    store = FaultyStore.scripted(MemoryStore(), {4: StoreFault.FAIL_BEFORE})
    version, counts = write(open_files(store), b"mine")
    assert store.calls[2].method == "create"
    with pytest.raises(StoreError):
        counts()
    assert counts()
    assert version == Version(1, b"mine")
