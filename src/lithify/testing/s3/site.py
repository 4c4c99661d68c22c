"""The state of one server without its connections: buckets, weather, log.

Only the thread of the event loop uses it.
"""

from __future__ import annotations

import mmap
import random
from pathlib import Path

from lithify.testing.s3.bodies import Bodies
from lithify.testing.s3.buckets import Buckets
from lithify.testing.s3.log import LoggedRequest
from lithify.testing.s3.objects import Buffer, StoredObject
from lithify.testing.s3.operations import Operations
from lithify.testing.s3.pipes import Pipe
from lithify.testing.s3.weather import Weather

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
