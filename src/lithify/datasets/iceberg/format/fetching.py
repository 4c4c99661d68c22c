"""Whole files of a table fetched ahead, many at once, while one of them is decoded. Of what is there and not
decoded yet, never more than so many bytes are held, and decoding is left to who takes them: so it takes no
memory that nobody has asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.snapshots import Snapshot

from lithify.base import concurrency
from lithify.datasets.iceberg.format.listing import MAX_READERS
from lithify.datasets.iceberg.format.manifests import bytes_of

MAX_AHEAD_BYTES = 64 * 1024 * 1024
"""Of manifests that were fetched and not yet decoded, or are being sent; at least one is."""

ItemT = TypeVar("ItemT")
Fetched = Iterator[tuple[ItemT, Callable[[], bytes]]]
"""What was asked for, and what gives its bytes, or raises what reading them did."""


def fetched_manifests(io: FileIO, manifests: Iterable[ManifestFile]) -> Fetched[ManifestFile]:
    """Manifests in this order."""
    return _fetched(io, manifests, lambda one: one.manifest_path, lambda one: one.manifest_length)


def fetched_lists(io: FileIO, snapshots: Iterable[Snapshot]) -> Fetched[Snapshot]:
    """Manifest lists of these snapshots, in this order."""
    # Nothing says how large they are: a few kilobytes for each hundred manifests.
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
