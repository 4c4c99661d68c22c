"""Processes that tests race or kill while they write.

`python -m tests.store.writing FOLDER for-ever` writes large objects one after another, by every way
there is, until it is killed; `… half` stops in the middle of two uploads. Each object is one byte
repeated; `whole` says whether one is complete.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.synchronize import Barrier

from lithify.base.errors import ObjectExists, PreconditionFailed
from lithify.store.urls import open_store

OBJECT_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 20


def whole(data: bytes) -> bool:
    """Whether these are all bytes of an object written here."""
    return len(data) == OBJECT_BYTES and data.count(data[:1]) == len(data)


def write_for_ever(folder: str) -> None:
    """Stream, create and replace objects; a line on standard output says that the first is there."""
    store, prefix = open_store(folder)
    for number in itertools.count():
        fill = bytes([number % 256])
        with store.open_writer(f"{prefix}/streamed/{number % 3}") as writer:
            for _ in range(OBJECT_BYTES // _CHUNK_BYTES):
                writer.write(fill * _CHUNK_BYTES)
            writer.commit()
        store.create(f"{prefix}/created/{number}", fill * OBJECT_BYTES)
        store.put(f"{prefix}/put", fill * OBJECT_BYTES)
        etag = store.head(f"{prefix}/put").etag
        assert etag is not None
        store.replace(f"{prefix}/put", fill * OBJECT_BYTES, etag)
        store.delete(f"{prefix}/created/{number - 3}")
        if not number:
            print("ready", flush=True)


def write_half(folder: str) -> None:
    """Begin to stream a new object and one over an old one, and wait to be killed."""
    store, prefix = open_store(folder)
    store.put(f"{prefix}/put", b"o" * OBJECT_BYTES)
    writers = [store.open_writer(f"{prefix}/{name}") for name in ("new", "put")]
    for writer in writers:
        writer.write(b"x" * (OBJECT_BYTES // 2))
    print("ready", flush=True)
    sys.stdin.read()


_barriers: list[Barrier] = []


def start_together(barrier: Barrier) -> None:
    """Prepare this process for a race."""
    _barriers.append(barrier)
    barrier.wait()


def create_all(url: str, options: Mapping[str, str], author: str, names: Sequence[str]) -> list[str]:
    """The names that this process was the one to create; all processes try each at the same time."""
    store, prefix = open_store(url, options)
    won = []
    for name in names:
        _barriers[0].wait()
        try:
            store.create(f"{prefix}/{name}", author.encode())
        except ObjectExists:
            continue
        won.append(name)
    return won


def increment(url: str, times: int) -> None:
    """Raise the number in the object `counter` by compare and replace."""
    store, prefix = open_store(url)
    done = 0
    while done < times:
        data, meta = store.get_with_meta(f"{prefix}/counter")
        assert meta.etag is not None
        try:
            store.replace(f"{prefix}/counter", b"%d" % (int(data) + 1), meta.etag)
        except PreconditionFailed:
            continue
        done += 1


if __name__ == "__main__":
    {"for-ever": write_for_ever, "half": write_half}[sys.argv[2]](sys.argv[1])
