"""Large objects on a local disk: every byte arrives, whatever the sizes and addresses of the pieces."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.base.errors import StoreError
from lithify.store.direct import BUFFER_BYTES, PAGE_BYTES
from lithify.store.local import LocalStore

SIZES = (0, 1, PAGE_BYTES, 300_000, BUFFER_BYTES - 1, BUFFER_BYTES, BUFFER_BYTES + PAGE_BYTES, 2_500_000)
CONTENT = random.Random(7).randbytes(max(SIZES))


def on_page(data: bytes) -> memoryview:
    """The bytes, from the beginning of a page."""
    memory = mmap.mmap(-1, max(len(data), 1))
    memory[: len(data)] = data
    return memoryview(memory)[: len(data)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(SIZES), st.booleans()), max_size=8))
def test_pieces_of_any_size_and_address_arrive(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[int, bool]]
) -> None:
    store = LocalStore(str(tmp_path_factory.mktemp("direct")))
    with store.open_writer("object") as writer:
        for size, aligned in pieces:
            writer.write(on_page(CONTENT[:size]) if aligned else CONTENT[:size])
        writer.commit()
    assert store.get("object") == b"".join(CONTENT[:size] for size, _ in pieces)


@pytest.mark.parametrize("aligned", [False, True])
def test_a_file_system_without_direct_writes_gets_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aligned: bool
) -> None:
    refused = []
    write = os.write

    def refuse_direct(fd: int, data: memoryview) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(len(data))
            raise OSError(errno.EINVAL, "no direct writes here")
        return write(fd, data)

    monkeypatch.setattr("lithify.store.direct.os.write", refuse_direct)
    store = LocalStore(str(tmp_path))
    with store.open_writer("object") as writer:
        for _ in range(3):
            writer.write(on_page(CONTENT) if aligned else CONTENT)
        writer.commit()
    assert store.get("object") == CONTENT * 3
    assert len(refused) == 1


def test_a_failed_write_is_raised_and_nothing_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(fd: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    store = LocalStore(str(tmp_path))
    monkeypatch.setattr("lithify.store.direct.os.write", full_disk)
    with store.open_writer("object") as writer:
        writer.write(on_page(CONTENT))
        with pytest.raises(StoreError, match="no space left"):
            writer.commit()
    assert list(tmp_path.iterdir()) == []


def test_a_short_write_before_a_refused_one_repeats_no_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def short_then_refuse(fd: int, data: memoryview) -> int:
        if not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            return write(fd, data)
        if len(data) % PAGE_BYTES:
            raise OSError(errno.EINVAL, "not on a boundary")
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        written = write(fd, data[:1000])
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
        return written

    monkeypatch.setattr("lithify.store.direct.os.write", short_then_refuse)
    store = LocalStore(str(tmp_path))
    with store.open_writer("object") as writer:
        writer.write(on_page(CONTENT))
        writer.commit()
    assert store.get("object") == CONTENT


def test_after_a_failed_write_nothing_can_be_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(fd: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    store = LocalStore(str(tmp_path))
    with store.open_writer("object") as writer:
        with monkeypatch.context() as patched:
            patched.setattr("lithify.store.direct.os.write", full_disk)
            writer.write(on_page(CONTENT))
            with pytest.raises(StoreError, match="no space left"):
                writer.write(CONTENT)
        with pytest.raises(StoreError, match="no space left"):
            writer.commit()
    assert list(tmp_path.iterdir()) == []
