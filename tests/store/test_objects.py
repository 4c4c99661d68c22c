"""The contract of an object store, held by every implementation."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from lithify.base.errors import ObjectExists, ObjectNotFound, PreconditionFailed, StoreError
from lithify.store.objects import ObjectStore
from lithify.store.urls import open_store
from lithify.testing import ManualClock, MemoryStore
from tests.s3 import S3

MB = 1 << 20


@dataclass(frozen=True)
class Place:
    """A store and a folder in it that is the test's own."""

    store: ObjectStore
    folder: str
    keeps_put_ids: bool = True

    def key(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def names(self, folder: str = "") -> list[str]:
        prefix = f"{self.folder}/{folder}".rstrip("/")
        return [meta.key.removeprefix(f"{self.folder}/") for meta in self.store.list(prefix)]


@pytest.fixture(params=["local", "memory", "testing", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "local":
        store, folder = open_store(str(tmp_path / "new" / "folder"))
        return Place(store, folder, keeps_put_ids=False)
    if request.param == "memory":
        return Place(*open_store(f"memory://{tmp_path.name}/some/folder"))
    if request.param == "testing":
        return Place(MemoryStore(ManualClock()), "some/folder")
    server: S3 = request.getfixturevalue("s3")
    return Place(*open_store(f"s3://{server.bucket()}/some/folder", server.options))


def test_put_replaces_and_get_returns_the_whole_object(place: Place) -> None:
    key = place.key("deep/er/object")
    place.store.put(key, b"first")
    place.store.put(key, b"second one")
    assert place.store.get(key) == b"second one"
    data, meta = place.store.get_with_meta(key)
    assert (data, meta.key, meta.size) == (b"second one", key, 10)
    assert meta.etag
    assert place.store.head(key) == meta
    assert place.names() == ["deep/er/object"]


@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, 11), (4, 1 << 40), (1 << 62, 1), (1 << 63, 1), (1 << 64, 1), (5, (1 << 64) - 1), (-1, 5), (5, -1)],
)
def test_a_range_that_the_object_does_not_have(place: Place, offset: int, length: int) -> None:
    """Whatever the numbers are: they may come from a damaged file. No memory is taken for them."""
    key = place.key("object")
    place.store.put(key, b"ten bytes.")
    for read in (place.store.get_range, place.store.get_buffer):
        with pytest.raises(StoreError):
            read(key, offset, length)
    if 0 < length < 100:
        with pytest.raises(StoreError):
            place.store.get_range_into(key, offset, memoryview(bytearray(length)))


def test_an_empty_object_is_an_object(place: Place) -> None:
    place.store.create(place.key("empty"), b"")
    assert place.store.get(place.key("empty")) == b""
    assert place.store.head(place.key("empty")).size == 0


@pytest.mark.parametrize(
    "read",
    [
        lambda store, key: store.get(key),
        lambda store, key: store.get_with_meta(key),
        lambda store, key: store.head(key),
        lambda store, key: store.get_range(key, 0, 1),
        lambda store, key: store.get_buffer(key, 0, 1),
        lambda store, key: store.get_range_into(key, 0, memoryview(bytearray(1))),
    ],
)
def test_reading_what_is_not_there(place: Place, read: Callable[[ObjectStore, str], object]) -> None:
    place.store.put(place.key("folder/object"), b"x")
    for missing in ("nothing", "no/folder/nothing", "folder"):
        with pytest.raises(ObjectNotFound, match=missing):
            read(place.store, place.key(missing))


def test_ranges(place: Place) -> None:
    key = place.key("ranges")
    place.store.put(key, bytes(range(100)))
    for offset, length in ((0, 100), (0, 1), (99, 1), (10, 20), (5, 0)):
        expected = bytes(range(offset, offset + length))
        assert place.store.get_range(key, offset, length) == expected
        assert place.store.get_buffer(key, offset, length) == expected
        target = bytearray(length)
        place.store.get_range_into(key, offset, memoryview(target))
        assert target == expected


def test_ranges_land_in_the_middle_of_a_larger_buffer(place: Place) -> None:
    place.store.put(place.key("ranges"), b"0123456789")
    buffer = bytearray(b"-" * 8)
    place.store.get_range_into(place.key("ranges"), 4, memoryview(buffer)[2:5])
    assert buffer == b"--456---"


@pytest.mark.parametrize(("offset", "length"), [(0, 11), (9, 2), (10, 1), (500, 1)])
def test_a_range_behind_the_end_is_an_error(place: Place, offset: int, length: int) -> None:
    key = place.key("short")
    place.store.put(key, b"0123456789")
    for read in (place.store.get_range, place.store.get_buffer):
        with pytest.raises(StoreError, match="short"):
            read(key, offset, length)
    with pytest.raises(StoreError, match="short"):
        place.store.get_range_into(key, offset, memoryview(bytearray(length)))


def test_list_is_in_key_order_with_subfolders_and_nothing_else(place: Place) -> None:
    names = ["a/2", "a/1", "a/b/c", "a/b-c", "a/b.c", "a/x#1y", "a/x#", "a2/1", "b"]
    for name in names:
        place.store.put(place.key(name), name.encode())
    expected = ["a/1", "a/2", "a/b-c", "a/b.c", "a/b/c", "a/x#", "a/x#1y"]
    assert place.names("a") == expected
    assert [meta.key for meta in place.store.list(place.key("a/"))] == [place.key(name) for name in expected]
    assert [meta.size for meta in place.store.list(place.key("a"))] == [len(name) for name in expected]
    assert place.names("nothing") == place.names("b") == []


def test_create_takes_a_name_once(place: Place) -> None:
    key = place.key("once")
    place.store.create(key, b"first", "id1")
    with pytest.raises(ObjectExists, match="once"):
        place.store.create(key, b"second", "id2")
    data, meta = place.store.get_with_meta(key)
    assert data == b"first"
    assert meta.put_id == ("id1" if place.keeps_put_ids else None)
    assert place.names() == ["once"]


def test_create_by_many_threads_has_one_winner(place: Place) -> None:
    for round_number in range(5):
        key = place.key(f"race{round_number}")
        start, winners = threading.Barrier(6), []

        def create(name: bytes, key: str = key, start: threading.Barrier = start) -> None:
            start.wait()
            try:
                place.store.create(key, name)
            except ObjectExists:
                return
            winners.append(name)  # noqa: B023  # joined below, in the same round

        threads = [threading.Thread(target=create, args=(b"%d" % n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(winners) == 1
        assert place.store.get(key) == winners[0]


def test_replace_wants_the_current_etag(place: Place) -> None:
    key = place.key("boundary")
    with pytest.raises(PreconditionFailed):
        place.store.replace(key, b"0", "never seen")
    place.store.create(key, b"1")
    first = place.store.head(key).etag
    assert first is not None
    place.store.replace(key, b"2", first)
    with pytest.raises(PreconditionFailed, match="boundary"):
        place.store.replace(key, b"3", first)
    assert place.store.get(key) == b"2"
    assert place.names() == ["boundary"]


def test_conditional_writes_answer_with_the_etag_of_what_they_wrote(place: Place) -> None:
    key = place.key("lease")
    created = place.store.create(key, b"1")
    assert created is not None
    assert created == place.store.head(key).etag
    replaced = place.store.replace(key, b"2", created)
    assert replaced is not None
    assert replaced == place.store.head(key).etag != created
    place.store.replace(key, b"3", replaced)
    assert place.store.get(key) == b"3"


def test_no_etag_comes_back(place: Place) -> None:
    key = place.key("counter")
    place.store.put(key, b"10")
    seen = set()
    for number in range(11, 60):
        etag = place.store.get_with_meta(key)[1].etag
        assert etag is not None
        assert etag not in seen
        seen.add(etag)
        place.store.replace(key, b"%d" % number, etag)


def test_delete(place: Place) -> None:
    key = place.key("gone")
    place.store.put(key, b"x")
    place.store.delete(key)
    place.store.delete(key)
    place.store.delete(place.key("never/was"))
    assert place.names() == []
    place.store.create(key, b"again")


@pytest.mark.parametrize("sizes", [[], [5], [MB] * 3 + [7], [9 * MB, 1, 9 * MB], [3 * MB] * 8])
def test_a_writer_shows_nothing_until_it_commits(place: Place, sizes: list[int]) -> None:
    key = place.key("written/large")
    # Two buffers for all writes: the writer must be done with one when its next call returns. On page
    # boundaries, so that those of a local file are read meanwhile.
    buffers = [mmap.mmap(-1, max(sizes, default=0) or 1) for _ in range(2)]
    expected = b""
    with place.store.open_writer(key) as writer:
        for number, size in enumerate(sizes):
            part = bytes([number + 1]) * size
            buffers[0][:size] = part
            writer.write(memoryview(buffers[0])[:size])
            buffers.reverse()
            buffers[0][:] = b"?" * len(buffers[0])
            expected += part
        assert place.names() == []
        writer.commit()
        writer.abort()
    assert place.store.get(key) == expected
    assert place.names() == ["written/large"]


@pytest.mark.parametrize("sizes", [[], [5], [MB] * 3 + [7], [9 * MB, 1, 9 * MB], [3 * MB] * 8])
def test_what_is_given_to_a_writer_is_written_too(place: Place, sizes: list[int]) -> None:
    key = place.key("written/large")
    parts = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    with place.store.open_writer(key) as writer:
        for part in parts:
            writer.give(memoryview(part))
            writer.write(b"-")
        writer.commit()
    assert place.store.get(key) == b"".join(part + b"-" for part in parts)
    with pytest.raises(StoreError, match="closed"):
        writer.give(memoryview(b"more"))


def test_a_writer_replaces_on_commit_and_not_on_abort(place: Place) -> None:
    key = place.key("object")
    place.store.put(key, b"old")
    with place.store.open_writer(key) as writer:
        writer.write(b"new")
    assert place.store.get(key) == b"old"
    with place.store.open_writer(key) as writer:
        writer.write(b"new")
        writer.commit()
    assert place.store.get(key) == b"new"
    with pytest.raises(StoreError, match="closed"):
        writer.write(b"more")
    with pytest.raises(StoreError, match="closed"):
        writer.commit()
    assert place.store.get(key) == b"new"


def test_a_writer_that_fails_leaves_nothing(place: Place) -> None:
    def fail() -> None:
        with place.store.open_writer(place.key("never")) as writer:
            writer.write(b"x" * 9 * MB)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert place.names() == []


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/./b", "a\0b", "a/b#12"])
def test_invalid_keys_are_refused(place: Place, key: str) -> None:
    for use in (
        lambda: place.store.get(key),
        lambda: place.store.put(key, b""),
        lambda: place.store.create(key, b""),
        lambda: place.store.replace(key, b"", "etag"),
        lambda: place.store.delete(key),
        lambda: place.store.head(key),
        lambda: place.store.get_range(key, 0, 1),
        lambda: place.store.open_writer(key),
    ):
        with pytest.raises(StoreError, match="not valid"):
            use()


@pytest.mark.parametrize("name", ["with space", "ünïcode", "per%20cent", "a+b", "a=b&c", "x#y", "#1/x"])
def test_unusual_names(place: Place, name: str) -> None:
    place.store.put(place.key(name), b"data")
    assert place.store.get(place.key(name)) == b"data"
    assert place.names() == [name]


def test_its_url_opens_the_same_store(place: Place, s3: S3) -> None:
    if place.store.url == MemoryStore().url:
        pytest.skip("lives in the test only")
    place.store.put(place.key("object"), b"data")
    again, prefix = open_store(place.store.url, s3.options if place.store.url.startswith("s3") else None)
    assert prefix == ""
    assert again.get(place.key("object")) == b"data"
