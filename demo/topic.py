"""A topic of a broker without disks: 10,000 small objects, compacted in its bucket, judged by librdkafka.

1. Start an S3 server and a broker on it, and write a topic with librdkafka: small batches, keys that are
   written again and again, some of them deleted. Remember every row in a dictionary, the model.
2. Read it with librdkafka for a while, as a new consumer does, and show what Lithify would do.
3. Stop the broker, run `lithify compact` in a process of its own, start the broker again.
4. Read it all with librdkafka, and compare with the model.

The broker and librdkafka are packages of PyPI (`tests/judge/broker.txt`). Where they cannot be had, this part
says so.
"""

from __future__ import annotations

from pathlib import Path

from tests.judge.kafka_broker import CLUSTER, LIKE_S3, PACKAGE, Model, broker, read_topic, write_topic
from tests.s3 import S3, serve_s3

from demo.shell import lithify, say
from lithify.testing.s3 import Weather

TOPIC = "orders"
BATCHES = 10_000
BATCH_ROWS = 10
KEYS = 5_000
PATIENCE_S = 20.0
"""How long a reader may take for what nobody has compacted."""
SEED = 7


def demonstrate(folder: Path) -> bool:
    """Whether every row was right; also where the broker cannot be had."""
    if not (PACKAGE / ".installed").exists():
        say("   skipped: the broker and librdkafka could not be installed (tests/judge/broker.txt)")
        return True
    folder.mkdir(parents=True)
    with serve_s3() as s3:
        bucket = s3.bucket()
        url = f"kafka+s3://{bucket}/clusters/{CLUSTER}/topics/{TOPIC}"
        with broker(s3, bucket, folder / "broker.log") as address:
            say(f"1. Writing a topic through a broker: {url}")
            model = write_topic(address, TOPIC, BATCHES, BATCH_ROWS, KEYS, SEED)
            end = BATCHES * BATCH_ROWS
            say(f"   {BATCHES:,} objects, {end:,} rows, {len(model):,} keys are left")
            say("\n2. Reading it with librdkafka, and what Lithify would do; the store is as slow as S3")
            _tell(s3, address, end)
            lithify("plan", url, environment=s3.environment)
        say("\n3. Compacting it on Spark, while the broker is stopped")
        # The broker is known to be stopped, so nobody has to see it stand still.
        lithify("compact", "--quiet-period", "0s", url, environment=s3.environment)
        say("\n4. Reading it all with librdkafka")
        with broker(s3, bucket, folder / "broker.log") as address:
            is_right = _tell(s3, address, end) == model
            say(f"   librdkafka: {'every row is right' if is_right else 'WRONG ROWS'}")
    return is_right


def _tell(s3: S3, address: str, end: int) -> Model:
    """Say how far a new consumer gets; what it holds then."""
    s3.server.weather = LIKE_S3
    found = read_topic(address, TOPIC, end, PATIENCE_S)
    s3.server.weather = Weather()
    said = "all there is" if found.is_whole else f"not finished after {PATIENCE_S:g} s"
    say(f"   {found.rows:,} rows in {found.seconds:.1f} s, {said}")
    return found.held
