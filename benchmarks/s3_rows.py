"""What a database holds, told by the official client: `python -m benchmarks.s3_rows URL STORE_OPTIONS KEYS
READER READERS`.

It is read in windows of keys (those of `benchmarks.data`, numbered below KEYS), because Python takes several
times the memory of what it holds. What is before the first and behind the last window is read too. As many
processes as there are cores read consecutive windows each.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.judge.official import Admin, open_reader

from benchmarks.child import run_child
from benchmarks.data import copy_for_a_run
from lithify.engine.settings import usable_cpus

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
    """Read everything in child processes."""
    readers = usable_cpus()
    options = json.dumps(dict(store_options))

    def read(number: int) -> dict[str, Any]:
        found: dict[str, Any] = run_child(
            "benchmarks.s3_rows", url, options, str(keys), str(number), str(readers)
        )
        return found

    with ThreadPoolExecutor(readers) as threads:
        found = list(threads.map(read, range(readers)))
    digest = hashlib.sha256("".join(window for part in found for window in part["digests"]).encode())
    rows = sum(part["rows"] for part in found)
    return Contents(rows, digest.hexdigest(), found[0]["l0s"], found[0]["runs"])


def contents_of_kept(database: Path, keys: int) -> Contents:
    """The same of a database that never changes; read once, then kept beside it."""
    kept = database.parent / "rows.json"
    if not kept.exists():
        copy = copy_for_a_run(database, database.parent / f"read-{os.getpid()}")
        try:
            contents = contents_of(str(copy), {}, keys)
        finally:
            shutil.rmtree(copy)
        kept.write_text(json.dumps(asdict(contents)))
    return Contents(**json.loads(kept.read_text()))


def _read(url: str, store_options: Mapping[str, str], keys: int, reader: int, readers: int) -> dict[str, Any]:
    """What one of the readers finds, with a digest for each of its windows."""
    rows, digests = 0, []
    (tree,) = Admin(url, store_options=store_options).trees()
    ends = [b"user%012d" % number for number in range(0, keys, WINDOW_KEYS)]
    windows = list(itertools.pairwise([None, *ends, None]))
    mine = windows[len(windows) * reader // readers : len(windows) * (reader + 1) // readers]
    with open_reader(url, store_options=store_options, poll_ms=60_000, timeout_s=READ_TIMEOUT_S) as opened:
        for start, end in mine:
            digest = hashlib.sha256()
            for key, value in opened.scan(start, end):
                digest.update(b"%d %d " % (len(key), len(value)) + key + value)
                rows += 1
            digests.append(digest.hexdigest())
    return {"rows": rows, "digests": digests, "l0s": len(tree.l0), "runs": len(tree.runs)}


if __name__ == "__main__":
    print(json.dumps(_read(sys.argv[1], json.loads(sys.argv[2]), *map(int, sys.argv[3:]))))
