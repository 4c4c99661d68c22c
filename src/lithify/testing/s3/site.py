"""The state of one server without its connections: buckets, weather, log.

Only the thread of the event loop uses it.
"""

from __future__ import annotations

import mmap
import random
import tempfile
from pathlib import Path

import numpy as np

from lithify.testing.s3.buckets import Buckets
from lithify.testing.s3.log import LoggedRequest
from lithify.testing.s3.objects import Buffer, StoredObject
from lithify.testing.s3.operations import Operations
from lithify.testing.s3.weather import Weather


class Pipe:
    """A pipe that bytes pass one after the other."""

    def __init__(self) -> None:
        self._free_s = 0.0

    def take(self, size: int, rate: float | None, earliest_s: float) -> float:
        """Return when the last of `size` bytes has passed at `rate` bytes per second. The first cannot begin
        before `earliest_s`; an `earliest_s` in the past catches up on lost time."""
        if rate is None:
            return earliest_s
        self._free_s = max(self._free_s, earliest_s) + size / rate
        return self._free_s


MIN_FILE_BYTES = 1024 * 1024
"""Smaller bodies stay in memory."""


class Bodies:
    """Allocates bodies; large ones in files of `folder` if there is one, for more data than memory can hold.
    The files have no name, and disappear with the process or their last use."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def room(self, size: int) -> memoryview | mmap.mmap:
        """Return a writable buffer of `size` bytes. Raise `OSError` if the folder is full or too many files
        are open."""
        if self._folder is None or size < MIN_FILE_BYTES:
            return np.empty(size, np.uint8).data  # a bytearray would be filled with zeros
        with tempfile.TemporaryFile(dir=self._folder) as file:
            file.truncate(size)
            return mmap.mmap(file.fileno(), size)


_POPULATE: int = getattr(mmap, "MAP_POPULATE", 0)
"""Only on Linux."""


class Site:
    """The state of a server. `seed` determines its chance. Large bodies are kept in files of `folder` if
    there is one. With `whole_seconds` it lists times as AWS does."""

    def __init__(
        self, weather: Weather, seed: int, folder: Path | None = None, *, whole_seconds: bool = False
    ) -> None:
        self.bodies = Bodies(folder)
        self.buckets = Buckets()
        self.operations = Operations(self.buckets, whole_seconds=whole_seconds)
        self.weather = weather
        self.rng = random.Random(seed)
        self.log: list[LoggedRequest] = []
        self.up, self.down = Pipe(), Pipe()
        """Shared by all connections."""

    def load(self, folder: Path, bucket: str, prefix: str) -> int:
        """Create objects under `prefix` from all files under `folder`, without a copy: their pages are loaded
        into the page cache now, so that no request waits for the disk. The files must not change. Return
        their number."""
        there = self.buckets.create(bucket)
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        for path in files:
            key = "/".join(filter(None, (prefix, path.relative_to(folder).as_posix())))
            there.put(key, StoredObject([_mapped(path)], {"Content-Type": "binary/octet-stream"}))
        return len(files)

    def delete(self, bucket: str, prefix: str) -> int:
        """Delete all objects and uploads under `prefix`. Return the number of objects."""
        there = self.buckets.get(bucket)
        keys = list(there.keys_under(prefix))
        for key in keys:
            there.delete(key)
        for upload_id in [i for i, upload in there.uploads.items() if upload.key.startswith(prefix)]:
            del there.uploads[upload_id]
        return len(keys)

    def age(self, bucket: str, seconds: float) -> None:
        """Move the modification times of everything in `bucket` back by `seconds`."""
        there = self.buckets.get(bucket)
        for key in there.keys_under(""):
            there.get(key).modified_s -= seconds


def _mapped(path: Path) -> Buffer:
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            return b""
        return memoryview(mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | _POPULATE, prot=mmap.PROT_READ))
