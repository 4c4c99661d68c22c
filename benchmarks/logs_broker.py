"""A full read of a topic of small objects through its broker, by librdkafka, before and after Lithify.

1. An S3 server and a broker on it; librdkafka writes `OBJECTS` objects of `OBJECT_ROWS` rows.
2. The store becomes as slow as a real one (`tests.judge.kafka_broker.LIKE_S3`), and a new consumer reads all.
3. The broker is stopped, `lithify compact` compacts the topic in its place, the broker starts again.
4. Another new consumer reads all, over the same slow store. Both have to hold what was written.

The broker lists all objects for each answer, so with more of them the first read takes far longer still;
with so many it ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.judge.kafka_broker import CLUSTER, LIKE_S3, broker, read_topic, write_topic
from tests.s3 import serve_s3

from lithify.testing.s3 import Weather

OBJECTS, OBJECT_ROWS, KEYS, SEED = 2_000, 20, 4_000, 3
PATIENCE_S = 900.0
TOPIC = "small"


def measure_reads(scale: float) -> dict[str, dict[str, Any]]:
    """What each full read took; `scale` is the fraction of the objects."""
    objects = max(20, round(OBJECTS * scale))
    end = objects * OBJECT_ROWS
    found: dict[str, dict[str, Any]] = {}
    with serve_s3() as s3, TemporaryDirectory() as folder:
        bucket, log = s3.bucket(), Path(folder) / "log"
        with broker(s3, bucket, log) as address:
            model = write_topic(address, TOPIC, objects, OBJECT_ROWS, KEYS, SEED)
        for when in ("before", "after"):
            if when == "after":
                url = f"kafka+s3://{bucket}/clusters/{CLUSTER}/topics/{TOPIC}"
                command = [sys.executable, "-m", "lithify.cli.main", "compact", "--quiet-period", "0s", url]
                environment = {**os.environ, **s3.environment}
                subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
            with broker(s3, bucket, log) as address:
                s3.server.weather = LIKE_S3
                read = read_topic(address, TOPIC, end, PATIENCE_S)
                s3.server.weather = Weather()
            if not read.is_whole or read.held != model:
                raise ValueError(f"{when}: the topic holds something else, or {PATIENCE_S} s were not enough")
            found[when] = {"rows": read.rows, "wall_s": read.seconds}
    return found
