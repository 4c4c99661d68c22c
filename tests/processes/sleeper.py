"""A process of the official client that writes for ever: `python -m tests.processes.sleeper DATABASE`. It
prints the number of each batch when it is durable."""

from __future__ import annotations

import itertools
import sys
import time

from tests.judge.official import Put, open_db

ROWS = 20


def rows_of(batch: int) -> dict[bytes, bytes]:
    """What a batch writes; later ones overwrite half of it."""
    return {b"k%06d" % (batch * ROWS // 2 + n): b"%d" % batch for n in range(ROWS)}


def main(path: str) -> None:
    """Write until killed."""
    with open_db(path, timeout_s=120.0) as database:
        for batch in itertools.count():
            database.write_batch([Put(key, value) for key, value in rows_of(batch).items()])
            database.flush()
            print(batch, flush=True)
            time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1])
