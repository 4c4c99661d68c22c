"""Fetches whole files of a table concurrently, while the caller decodes one at a time. The bytes fetched
ahead are limited."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.snapshots import Snapshot

from lithify.base import concurrency
from lithify.datasets.iceberg.format.manifests import bytes_of

MAX_READERS = 32
"""The most manifests that are read concurrently."""
MAX_AHEAD_BYTES = 64 * 1024 * 1024
"""The most bytes of files that are being fetched or wait to be decoded; one file is always allowed."""

ItemT = TypeVar("ItemT")
Fetched = Iterator[tuple[ItemT, Callable[[], bytes]]]
"""The items, each with a function that returns its bytes or raises the error of reading them."""


def fetched_manifests(io: FileIO, manifests: Iterable[ManifestFile]) -> Fetched[ManifestFile]:
    return _fetched(io, manifests, lambda one: one.manifest_path, lambda one: one.manifest_length)


def fetched_lists(io: FileIO, snapshots: Iterable[Snapshot]) -> Fetched[Snapshot]:
    # Their sizes are not recorded anywhere: a few kilobytes per hundred manifests.
    return _fetched(io, snapshots, lambda one: one.manifest_list, lambda one: MAX_AHEAD_BYTES // MAX_READERS)


def _fetched(
    io: FileIO, items: Iterable[ItemT], path_of: Callable[[ItemT], str], bytes_in: Callable[[ItemT], int]
) -> Fetched[ItemT]:
    ahead: deque[tuple[ItemT, Callable[[], bytes]]] = deque()
    ahead_bytes = 0
    for item in items:
        ahead.append((item, concurrency.background.start(partial(bytes_of, io, path_of(item)))))
        ahead_bytes += bytes_in(item)
        while len(ahead) > MAX_READERS or (len(ahead) > 1 and ahead_bytes > MAX_AHEAD_BYTES):
            first, fetched = ahead.popleft()
            ahead_bytes -= bytes_in(first)
            yield first, fetched
    while ahead:
        yield ahead.popleft()
