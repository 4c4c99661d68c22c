"""Ports of a session: a process that does not belong to it is refused before anything it sends is read.

Spark's messages are Java objects, which run code while they are read. The judge is Spark's own client, in a
JVM without the secret, and one that speaks the protocol by hand.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lithify.engine.classic import SECRET_BYTES, ClassicSession, open_classic
from tests.cluster import cluster_conf, standalone_cluster
from tests.engine.waiting import child_environment, descendants

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("no_shared_engine")]
REPLY_LIMIT_S = 20.0
READS = b"ObjectInputStream"
"""In the trace of who has begun to read an object."""


@contextlib.contextmanager
def session(**conf: str) -> Iterator[ClassicSession]:
    made = open_classic("local[1]", conf={name.replace("__", "."): value for name, value in conf.items()})
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def opened(no_shared_engine: None) -> Iterator[ClassicSession]:
    with session() as made:
        yield made


def driver_port(session: ClassicSession) -> int:
    return int(session._context.getConf().get("spark.driver.port"))


def block_port(session: ClassicSession) -> int:
    addresses = session._context._jsc.sc().getExecutorMemoryStatus().keySet().toString()
    return int(re.findall(r":(\d+)", addresses)[0])


def ask(port: int, body: bytes) -> bytes:
    """What the server answers to a message of Spark's RPC, or nothing when it hangs up."""
    message = struct.pack(">bqi", 3, 1, len(body)) + body
    with socket.create_connection(("127.0.0.1", port), REPLY_LIMIT_S) as connection:
        connection.sendall(struct.pack(">q", 8 + len(message)) + message)
        answer = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            while len(answer) < 8 or len(answer) < int.from_bytes(answer[:8], "big"):
                if not (more := connection.recv(65536)):
                    break
                answer += more
    return answer


def rpc(port: int) -> bytes:
    """A message from nobody for the endpoint that all drivers have, whose object is none."""

    def text(value: str) -> bytes:
        return struct.pack(">H", len(value)) + value.encode()

    address = b"\x01" + text("127.0.0.1") + struct.pack(">i", port)
    return b"\0" + address + text("HeartbeatReceiver") + b"not an object"


def upload() -> bytes:
    """A block to be stored, whose metadata is an object that is none."""
    texts = b"".join(struct.pack(">i", len(text)) + text for text in (b"app", b"driver", b"rdd_0_0"))
    metadata = b"not an object"
    return b"\1" + texts + struct.pack(">i", len(metadata)) + metadata + struct.pack(">i", 0)


OUTSIDER = """
import sys
from lithify.engine.classic import open_classic

session = open_classic("local[1]")
spark = session._context._jvm.org.apache.spark
conf = spark.SparkConf(False)
for name in ("spark.rpc.lookupTimeout", "spark.rpc.askTimeout"):
    conf.set(name, "20s")
second, third = (getattr(spark.SecurityManager, f"$lessinit$greater$default${n}")() for n in (2, 3))
manager = spark.SecurityManager(conf, second, third)
client = spark.rpc.RpcEnv.create("outsider", "127.0.0.1", 0, conf, manager, True)
try:
    address = spark.rpc.RpcAddress("127.0.0.1", int(sys.argv[1]))
    client.setupEndpointRef(address, "HeartbeatReceiver")
    print("found")
except Exception as error:
    print("refused", str(error))
session.close()
"""


def find_endpoint(port: int) -> str:
    """What Spark's own client gets that looks for an endpoint of the driver, without a secret."""
    command = [sys.executable, "-c", OUTSIDER, str(port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=child_environment())
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sparks_own_client_without_the_secret_is_refused(opened: ClassicSession) -> None:
    assert find_endpoint(driver_port(opened)).startswith("refused")


def test_a_client_by_hand_is_refused_before_its_object_is_read(opened: ClassicSession) -> None:
    for answer in (ask(driver_port(opened), rpc(driver_port(opened))), ask(block_port(opened), upload())):
        assert b"SaslMessage" in answer
        assert READS not in answer


def test_work_goes_on_and_the_secret_shows_nowhere(opened: ClassicSession) -> None:
    ask(driver_port(opened), rpc(driver_port(opened)))
    assert opened._context.parallelize([1, 2], 1).map(abs).sum() == 3
    shown = dict(opened._context.getConf().getAll())
    assert shown["spark.authenticate"] == "true"
    assert not [name for name in shown if "secret" in name], "Spark keeps the one that it has made to itself"


def test_the_gateway_of_python_asks_for_its_token(opened: ClassicSession) -> None:
    port = opened._context._gateway.gateway_parameters.port
    with socket.create_connection(("127.0.0.1", port), REPLY_LIMIT_S) as connection:
        connection.sendall(b"c\nz:java.lang.System\nexit\ni3\ne\n")
        assert connection.recv(1000).startswith(b"!x")
    assert opened._context.parallelize([1], 1).sum() == 1


def test_the_sockets_of_pythons_workers_are_where_no_other_user_can_come(opened: ClassicSession) -> None:
    opened._context.parallelize([1], 1).map(abs).sum()
    folder = Path(opened._context.getConf().get("spark.python.unix.domain.socket.dir"))
    assert [path for path in folder.iterdir() if path.is_socket()]
    assert folder.stat().st_mode & 0o077 == 0


def test_without_authentication_anybody_is_let_in(opened: ClassicSession) -> None:
    """So that the other tests can fail."""
    opened.close()
    with session(spark__authenticate="false") as made:
        port = driver_port(made)
        assert find_endpoint(port).startswith("found")
        assert READS in ask(port, rpc(port))
        assert READS in ask(block_port(made), upload())


def test_a_cluster_in_this_jvm_has_a_secret_too() -> None:
    made = open_classic("local-cluster[1,1,512]", conf=cluster_conf())
    try:
        port = driver_port(made)
        secret = made._context.getConf().get("spark.authenticate.secret")
        assert len(secret) == 2 * SECRET_BYTES
        assert made._context.parallelize([1, 2], 1).map(abs).sum() == 3
        assert READS not in ask(port, rpc(port))
        lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(os.getpid())]
        assert any(b"CoarseGrainedExecutorBackend" in line for line in lines)
        assert not any(secret.encode() in line for line in lines)
        assert secret not in made.log_tail()
    finally:
        made.close()


@pytest.mark.whole
def test_a_standalone_cluster_whose_operator_has_set_a_secret_is_used_with_it(tmp_path: Path) -> None:
    secret = secrets.token_hex(SECRET_BYTES)
    conf = {"spark.authenticate": "true", "spark.authenticate.secret": secret}
    with standalone_cluster(tmp_path, 1, conf=conf) as url:
        made = open_classic(url, conf=conf | cluster_conf())
        try:
            assert made._context.parallelize([1, 2], 1).map(abs).sum() == 3
            port = driver_port(made)
            assert READS not in ask(port, rpc(port))
        finally:
            made.close()
