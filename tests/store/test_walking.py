"""Listing very many objects: what stores give as a stream and as folders, and the walk of several threads."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from queue import Queue

import pytest

from lithify.base.errors import StoreError
from lithify.store import remote, walking
from lithify.store.objects import FolderListing, ObjectMeta, ObjectStore
from lithify.store.urls import open_store
from lithify.store.walking import walk
from lithify.store.wrapped import Call, WrappedStore
from lithify.testing import MemoryStore
from tests.s3 import S3
from tests.store.interrupting import interrupting

LIMIT_S = 20.0

Open = Callable[[], tuple[ObjectStore, str]]


@pytest.fixture(params=["files", "memory", "dictionary", "s3"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ObjectStore, str]:
    """An empty store and a folder in it."""
    if request.param == "files":
        return open_store(str(tmp_path / "root"))
    if request.param == "dictionary":
        return MemoryStore(), "root"
    if request.param == "s3":
        s3: S3 = request.getfixturevalue("s3")
        return open_store(f"s3://{s3.bucket()}/root", s3.options)
    return open_store(f"memory://walking-{tmp_path.name}/root")


def keys_of(objects: Iterator[ObjectMeta]) -> list[str]:
    return [meta.key for meta in objects]


def fill(store: ObjectStore, root: str, names: list[str]) -> list[str]:
    for name in names:
        store.put(f"{root}/{name}", b"12345")
    return sorted(f"{root}/{name}" for name in names)


NAMES = ["data/a/1", "data/a/2", "data/b/1", "data/c", "data-2/x", "metadata/1", "metadata/2", "top"]


def test_what_stores_give(opened: tuple[ObjectStore, str], monkeypatch: pytest.MonkeyPatch) -> None:
    store, root = opened
    keys = fill(store, root, NAMES)
    fill(store, f"{root}er", ["next/1"])
    for first in (1, 2, 3, 1000):
        monkeypatch.setattr(remote, "FIRST_PAGE", first)
        monkeypatch.setattr(remote, "PAGE", 2 * first)
        assert sorted(keys_of(store.stream(root))) == keys
        assert keys_of(store.stream(f"{root}/nothing")) == []
    assert [meta.size for meta in store.stream(f"{root}/data-2")] == [5]
    folder = store.folder(root)
    assert set(folder.folders) == {f"{root}/data", f"{root}/data-2", f"{root}/metadata"}
    assert [meta.key for meta in folder.objects] == [f"{root}/top"]
    assert store.folder(f"{root}/nothing") == FolderListing((), ())
    assert sorted(keys_of(walk(store, root))) == keys


def test_markers_of_folders_are_passed_over(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are shown without their slash, which puts them behind what comes after them."""
    bucket, client = s3.bucket(), s3.client()
    store, root = open_store(f"s3://{bucket}/root", s3.options)
    keys = fill(store, root, ["a", "x", "x-1", "x-2", "x/1", "x/y/1", "x/y-1", "z"])
    for marker in ("", "x/", "x/y/", "zz/"):
        client.put_object(Bucket=bucket, Key=f"{root}/{marker}", Body=b"")
    for first in (1, 2, 3, 4, 1000):
        monkeypatch.setattr(remote, "FIRST_PAGE", first)
        monkeypatch.setattr(remote, "PAGE", first)
        found = list(store.stream(root))
        assert [meta.key for meta in found if meta.size] == keys
        assert sum(not meta.size for meta in found) == 4
        assert sorted(meta.key for meta in walk(store, root) if meta.size) == sorted(keys)


def test_walks_of_all_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walking, "PAGE", 3)
    rng = random.Random(1)
    for _ in range(30):
        store = MemoryStore()
        names = {
            "/".join(rng.choice("abcdef") for _ in range(rng.randint(1, 5)))
            for _ in range(rng.randint(0, 60))
        }
        # In a dictionary a name can be a folder's as well; what counts is that each is given once.
        keys = fill(store, "root", sorted(names))
        assert sorted(keys_of(walk(store, "root", rng.randint(1, 4)))) == keys


class Broken(WrappedStore):
    """Its listings of one folder fail, after a while."""

    def stream(self, prefix: str) -> Iterator[ObjectMeta]:
        yield from super().stream(prefix)
        if prefix.endswith("b"):
            raise StoreError("disk on fire")

    def around(self, call: Call, action: Callable[[], object]) -> object:  # type: ignore[override]
        return action()


def test_an_error_ends_the_walk() -> None:
    store = MemoryStore()
    fill(store, "root", [f"{folder}/{n}" for folder in "abc" for n in range(3)])
    with pytest.raises(StoreError, match="disk on fire"):
        list(walk(Broken(store), "root"))


class Hanging(Broken):
    """Lists two objects of a folder before it hangs, until it is told to go on."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.may_go_on = threading.Event()
        self.begun, self.ended = Queue[str](), Queue[str]()

    def stream(self, prefix: str) -> Iterator[ObjectMeta]:
        found = self.inner.stream(prefix)
        if prefix == "root":
            yield from found
            return
        self.begun.put(prefix)
        yield from islice(found, 2)
        assert self.may_go_on.wait(LIMIT_S)
        self.ended.put(prefix)
        yield from found


def test_who_stops_early_waits_for_no_thread_and_none_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walking, "PAGE", 1)
    store = MemoryStore()
    fill(store, "root", [f"{folder}/{n}" for folder in "abcdefgh" for n in range(20)])
    hanging = Hanging(store)
    monkeypatch.setattr(walking, "MAX_LEVELS", 1)
    found = walk(hanging, "root", threads=2)
    assert len(list(islice(found, 2))) == 2
    for _ in range(2):
        hanging.begun.get(timeout=LIMIT_S)
    found.close()  # type: ignore[attr-defined]
    assert hanging.ended.empty()
    hanging.may_go_on.set()
    for _ in range(2):
        hanging.ended.get(timeout=LIMIT_S)
    assert hanging.begun.empty()


def test_an_interrupt_is_not_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walking, "MAX_LEVELS", 1)
    store = MemoryStore()
    fill(store, "root", [f"{folder}/{n}" for folder in "ab" for n in range(3)])
    hanging = Hanging(store)

    def interrupt_when_both_hang() -> None:
        for _ in range(2):
            hanging.begun.get(timeout=LIMIT_S)
        interrupt()

    try:
        with interrupting() as interrupt:
            threading.Thread(target=interrupt_when_both_hang).start()
            with pytest.raises(KeyboardInterrupt):
                list(walk(hanging, "root", threads=2))
        assert hanging.ended.empty()
    finally:
        hanging.may_go_on.set()
