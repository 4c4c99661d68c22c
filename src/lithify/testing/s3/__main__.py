"""The server as a command; it prints its endpoint and serves until it is stopped.

    python -m lithify.testing.s3 --port 9000 --bucket lake --latency-ms 20 --bandwidth 90
    python -m lithify.testing.s3 --latency-ms GET=20:60,PUT=40:120 --slowed-down 0.05 --cut-answers 0.01

Its weather and its log are at http://HOST:PORT/_admin/weather and /_admin/log (`lithify.testing.s3.admin`).
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import signal
from collections.abc import Sequence
from pathlib import Path

from lithify.base.allocator import ALL_BYTES, keep_freed_memory
from lithify.testing.s3.server import listen, new_event_loop
from lithify.testing.s3.site import Site
from lithify.testing.s3.weather import Weather, parse_latency

_MB = 1e6


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGINT or SIGTERM."""
    options = _parser().parse_args(arguments)
    # Keep all memory: a real store does not wait for memory, but a machine whose host must provide freed
    # memory again does.
    keep_freed_memory(ALL_BYTES)
    site = Site(_weather(options), options.seed, options.folder)
    if options.folder is not None:  # each large part needs a file
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for bucket in options.bucket:
        site.buckets.create(bucket)
    loop = new_event_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, loop.stop)
    listener = loop.run_until_complete(listen(site, options.host, options.port))
    print(f"http://{options.host}:{listener.port}", flush=True)
    loop.run_forever()
    listener.close()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def _weather(options: argparse.Namespace) -> Weather:
    def bytes_per_s(megabytes: float | None) -> float | None:
        return None if megabytes is None else megabytes * _MB

    return Weather(
        latency=options.latency_ms,
        bandwidth=bytes_per_s(options.bandwidth),
        total_bandwidth=bytes_per_s(options.total_bandwidth),
        slowed_down=options.slowed_down,
        lost_requests=options.lost_requests,
        lost_answers=options.lost_answers,
        cut_answers=options.cut_answers,
        hung=options.hung,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lithify.testing.s3",
        description="An S3 in memory that can be slow, flaky and down.",
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any that is free (default)")
    parser.add_argument("--bucket", action="append", default=[], help="create it; can be given several times")
    parser.add_argument("--seed", type=int, default=0, help="of chance")
    parser.add_argument("--folder", type=Path, help="keep large objects in files there")
    parser.add_argument(
        "--latency-ms",
        type=parse_latency,
        default={},
        metavar="MEDIAN[:P99]",
        help="to the first byte of an answer; or VERB=MEDIAN[:P99],… of GET HEAD PUT POST LIST DELETE",
    )
    parser.add_argument("--bandwidth", type=float, metavar="MB/S", help="of each connection, each way")
    parser.add_argument("--total-bandwidth", type=float, metavar="MB/S", help="of all connections")
    for name, what in (
        ("slowed-down", "answered by 503 SlowDown"),
        ("lost-requests", "reset before they take effect"),
        ("lost-answers", "reset after they took effect"),
        ("cut-answers", "reset in the middle of the answer"),
        ("hung", "never answered"),
    ):
        parser.add_argument(f"--{name}", type=float, default=0.0, metavar="SHARE", help=f"of requests {what}")
    return parser


if __name__ == "__main__":
    main()
