"""What only the local file system shows: staged files, durability, and a full disk."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from lithify.base.errors import ObjectExists, ObjectNotFound, StoreError
from lithify.store import local
from lithify.store.local import LocalStore
from lithify.store.objects import ObjectStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path))


def stream(store: ObjectStore, key: str, data: bytes) -> None:
    with store.open_writer(key) as writer:
        writer.write(data)
        writer.commit()


def replace(store: ObjectStore, key: str, data: bytes) -> None:
    etag = store.head(key).etag
    assert etag is not None
    store.replace(key, data, etag)


WAYS = [
    pytest.param(lambda store, key, data: store.create(key, data), False, id="create"),
    pytest.param(lambda store, key, data: store.put(key, data), True, id="put"),
    pytest.param(replace, True, id="replace"),
    pytest.param(stream, True, id="open_writer"),
]
Write = Callable[[ObjectStore, str, bytes], None]


def test_staging_names_are_not_listed(store: LocalStore, tmp_path: Path) -> None:
    store.put("db/object", b"x")
    for leftover in ("db/object#1", "db/object#123456789012345678", "db/never#0", "db/sub/never#77"):
        (tmp_path / leftover).parent.mkdir(exist_ok=True)
        (tmp_path / leftover).write_bytes(b"part")
    assert [meta.key for meta in store.list("db")] == ["db/object"]
    store.create("db/never", b"now")
    assert store.get("db/never") == b"now"


@pytest.mark.parametrize(("write", "over_old"), WAYS)
def test_bytes_are_durable_before_the_name_and_the_name_before_the_answer(
    write: Write, over_old: bool, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "new" / "folder" / "object"
    if over_old:
        store.put("new/folder/object", b"old")
    synced: list[tuple[Path, bytes | None]] = []
    sync = os.fsync

    def note(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        synced.append((path, target.read_bytes() if target.exists() else None))
        sync(fd)

    monkeypatch.setattr(os, "fsync", note)
    write(store, "new/folder/object", b"new")
    old = b"old" if over_old else None
    staged = [seen for path, seen in synced if path.name.startswith("object#")]
    assert staged == [old]
    assert synced[-1] == (target.parent, b"new")
    if not over_old:
        assert {tmp_path, tmp_path / "new"} <= {path for path, _ in synced}, "new folders are durable too"


@pytest.mark.parametrize(("write", "over_old"), WAYS)
def test_a_disk_that_does_not_take_the_bytes_leaves_the_old_object(
    write: Write, over_old: bool, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if over_old:
        store.put("db/object", b"old")
    (tmp_path / "db").mkdir(exist_ok=True)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"db/object.*No space left"):
        write(store, "db/object", b"new")
    assert [path.name for path in (tmp_path / "db").iterdir() if not path.name.endswith("#0")] == (
        ["object"] if over_old else []
    )
    if over_old:
        assert store.get("db/object") == b"old"


def test_a_file_where_a_folder_should_be(store: LocalStore) -> None:
    store.put("db", b"a file")
    with pytest.raises(ObjectNotFound):
        store.get("db/object")
    for write in (store.put, store.create):
        with pytest.raises(StoreError) as caught:
            write("db/object", b"x")
        assert not isinstance(caught.value, ObjectExists | ObjectNotFound)


def test_a_folder_where_the_object_should_be(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "db" / "object").mkdir(parents=True)
    with pytest.raises(StoreError):
        store.put("db/object", b"x")
    with pytest.raises(ObjectExists):
        store.create("db/object", b"x")
    assert [path.name for path in (tmp_path / "db").iterdir()] == ["object"]


def test_deleting_while_listing(store: LocalStore) -> None:
    for number in range(10):
        store.put(f"db/{number}", b"x")
    seen = []
    for meta in store.list("db"):
        seen.append(meta.key)
        store.delete("db/5")
    assert seen == [f"db/{number}" for number in range(10) if number != 5]


def test_no_file_stays_open(store: LocalStore, tmp_path: Path) -> None:
    def use() -> None:
        store.put("db/object", b"0123456789")
        store.get_range("db/object", 2, 5)
        store.get("db/object")
        with store.open_writer("db/other") as writer:
            writer.write(b"x")

    def is_open(file: Path) -> bool:
        with suppress(FileNotFoundError):  # other threads of this process close theirs
            return file.readlink().is_relative_to(tmp_path)
        return False

    use()
    with (tmp_path / "db" / "object").open("rb"):
        assert sum(map(is_open, Path("/proc/self/fd").iterdir())) == 1
    assert not any(map(is_open, Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("off_s", [3600.0, -3600.0])
def test_objects_are_as_old_as_the_disk_says(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off_s: float
) -> None:
    """Whatever this process takes the time for: on a shared disk others' clocks are right."""
    right_s, right_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: right_s() + off_s)
    monkeypatch.setattr(time, "time_ns", lambda: right_ns() + int(off_s * 10**9))
    before_ms = right_s() * 1000
    for write in (LocalStore.create, LocalStore.put, replace, stream):
        write(store, "k", b"data")
        assert abs(store.head("k").last_modified_ms - before_ms) < 60_000


def test_permissions_follow_the_umask(store: LocalStore, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        store.create("db/created", b"x")
        stream(store, "db/streamed", b"x")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "db").iterdir()} == {0o640}


def test_what_killed_writers_left_is_listed_apart_and_deleted(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.put("db/a", b"object")
    store.open_writer("db/b").write(b"half")
    for name in ("a#0", "a#1", "sub/c#12#3"):
        (tmp_path / "db" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "db" / name).write_bytes(b"left")
    assert [m.key for m in store.list("db")] == ["db/a"]
    staged = [m.key for m in store.list_staged("db")]
    assert [key.partition("#")[0] for key in staged] == ["db/a", "db/b", "db/sub/c"]
    for key in (*staged, "db/a#1"):
        store.delete_staged(key)
    assert list(store.list_staged("db")) == []
    assert {p.name for p in (tmp_path / "db").iterdir()} == {"a", "a#0", "sub"}
    for key in ("db/a", "db/a#0", "db/../x#1"):
        with pytest.raises(StoreError):
            store.delete_staged(key)
    assert store.get("db/a") == b"object"


def test_a_lock_file_goes_with_its_object_unless_somebody_holds_the_lock(
    store: LocalStore, tmp_path: Path
) -> None:
    etag = store.create("probe", b"1")
    store.replace("probe", b"2", etag)
    assert (tmp_path / "probe#0").exists()
    with (tmp_path / "probe#0").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        store.delete("probe")
        assert (tmp_path / "probe#0").exists()
    store.delete("probe")
    assert list(tmp_path.iterdir()) == []


def test_a_lock_on_a_file_that_is_gone_counts_for_nothing(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening the lock file and locking it, somebody deletes the object, and a third one replaces its
    successor: who locked the file of before must not go on beside that one."""
    etag = store.create("lease", b"1")
    wait_for, opened = local._wait_for, list[int]()

    def slow(fd: int, path: Path, ends_s: float) -> None:
        if not opened:
            (tmp_path / "lease#0").unlink()
            (tmp_path / "lease#0").touch()
        opened.append(fd)
        wait_for(fd, path, ends_s)

    monkeypatch.setattr(local, "_wait_for", slow)
    store.replace("lease", b"2", etag)
    assert len(opened) == 2
    assert store.get("lease") == b"2"


def test_who_was_suspended_while_it_replaced_keeps_others_waiting_for_a_finite_time(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "MAX_LOCK_WAIT_S", 0.05)
    etag = store.create("lease", b"1")
    with (tmp_path / "lease#0").open("w") as suspended:
        fcntl.flock(suspended, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="suspended"):
            store.replace("lease", b"2", etag)
        assert store.get("lease") == b"1"
    store.replace("lease", b"2", etag)
    assert store.get("lease") == b"2"
