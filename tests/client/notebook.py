"""What somebody does in a notebook: `python -m tests.client.notebook MASTER FOLDER [NAME=VALUE...]`.

The session is theirs, for other things too; Lithify borrows it.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from pyspark.sql import SparkSession

import lithify
from lithify.base import events
from tests.judge.official import Put, open_db
from tests.judge.rows import read_database, visible_rows


def main(master: str, folder: Path, conf: dict[str, str]) -> None:
    builder = SparkSession.builder.appName("notebook")
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = (builder.remote(master) if master.startswith("sc://") else builder.master(master)).getOrCreate()
    paths = [folder / name for name in ("once", "served")]
    for path in paths:
        write(path)
    rows = [visible_rows(read_database(path)) for path in paths]

    with lithify.open(str(paths[0]), spark=spark) as db:
        for proposal in db.plan(full=True):
            print(proposal.unit, proposal.bytes, proposal.reason)
        result = db.compact(full=True)
        print(len(result.committed), result.bytes_read, result.rows["rows_in"])
    assert spark.range(3).count() == 3, "the session is not Lithify's to stop"

    stop = threading.Event()

    def look(event: events.Event) -> None:
        if isinstance(event, events.Committed):
            stop.set()

    with lithify.Service([str(paths[1])], spark=spark, on_event=look) as service:
        service.run(stop)
    assert spark.range(3).count() == 3
    spark.stop()
    assert rows == [visible_rows(read_database(path)) for path in paths]
    with lithify.open(str(paths[0]), spark=spark) as db:
        write(paths[0])
        try:
            db.compact(full=True)
        except lithify.EngineDown as error:
            print("told:", error)


def write(path: Path) -> None:
    with open_db(path) as database:
        for n in range(5):
            database.write_batch([Put(b"k%03d" % k, b"%d" % n) for k in range(100)])
            database.flush()


if __name__ == "__main__":
    pairs = [argument.partition("=") for argument in sys.argv[3:]]
    main(sys.argv[1], Path(sys.argv[2]), {name: value for name, _, value in pairs})
