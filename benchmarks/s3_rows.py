"""What a database holds, told by the official client: `python -m benchmarks.s3_rows URL STORE_OPTIONS KEYS`.

It is read in windows of keys (those of `benchmarks.data`, numbered below KEYS), because Python takes several
times the memory of what it holds. What is before the first and behind the last window is read too.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.judge.official import Admin, open_reader

from benchmarks.child import run_child
from benchmarks.data import copy_for_a_run

READ_TIMEOUT_S = 600.0
WINDOW_KEYS = 200_000


@dataclass(frozen=True, slots=True)
class Contents:
    """Rows as a digest, and the shape of the tree."""

    rows: int
    digest: str
    l0s: int
    runs: int


def contents_of(url: str, store_options: Mapping[str, str], keys: int) -> Contents:
    """Read everything in a child process."""
    return Contents(**run_child("benchmarks.s3_rows", url, json.dumps(dict(store_options)), str(keys)))


def contents_of_kept(database: Path, keys: int) -> Contents:
    """The same of a database that never changes; read once, then kept beside it."""
    kept = database.parent / "contents.json"
    if not kept.exists():
        copy = copy_for_a_run(database, database.parent / f"read-{os.getpid()}")
        try:
            contents = contents_of(str(copy), {}, keys)
        finally:
            shutil.rmtree(copy)
        kept.write_text(json.dumps(asdict(contents)))
    return Contents(**json.loads(kept.read_text()))


def _contents(url: str, store_options: Mapping[str, str], keys: int) -> Contents:
    digest, rows = hashlib.sha256(), 0
    (tree,) = Admin(url, store_options=store_options).trees()
    ends = [b"user%012d" % number for number in range(0, keys, WINDOW_KEYS)]
    with open_reader(url, store_options=store_options, poll_ms=60_000, timeout_s=READ_TIMEOUT_S) as reader:
        for start, end in itertools.pairwise([None, *ends, None]):
            for key, value in reader.scan(start, end):
                digest.update(b"%d %d " % (len(key), len(value)) + key + value)
                rows += 1
    return Contents(rows, digest.hexdigest(), len(tree.l0), len(tree.runs))


if __name__ == "__main__":
    print(json.dumps(asdict(_contents(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])))))
