"""An S3 server on this machine (moto), for every test that needs S3 over HTTP.

`serve_s3` is behind the session fixture `s3` of `tests/conftest.py`. `S3.bucket()` makes a
new bucket; `S3.options` are the store options, `S3.environment` the variables, that reach it.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import boto3
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer

_ACCESS_KEY = "test"
_SECRET_KEY = "test-secret"
REGION = "us-east-1"


@dataclass(frozen=True)
class S3:
    """A running server."""

    endpoint: str
    _names: Iterator[int] = field(default_factory=itertools.count)

    @property
    def options(self) -> dict[str, str]:
        """What `open_store` needs."""
        return {
            "aws_endpoint": self.endpoint,
            "aws_allow_http": "true",
            "aws_access_key_id": _ACCESS_KEY,
            "aws_secret_access_key": _SECRET_KEY,
            "aws_region": REGION,
        }

    @property
    def environment(self) -> dict[str, str]:
        """The same as environment variables, which other programs understand too."""
        return {name.upper(): value for name, value in self.options.items()}

    def client(self) -> Any:
        """A boto3 client."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=_ACCESS_KEY,
            aws_secret_access_key=_SECRET_KEY,
            region_name=REGION,
        )

    def bucket(self) -> str:
        """The name of a new, empty bucket."""
        name = f"bucket-{next(self._names)}"
        self.client().create_bucket(Bucket=name)
        return name


@contextmanager
def serve_s3() -> Iterator[S3]:
    """A server on a free port of the loopback interface."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    with _writing_in_turn():
        server.start()
        try:
            host, port = server.get_host_and_port()
            yield S3(f"http://{host}:{port}")
        finally:
            server.stop()


@contextmanager
def _writing_in_turn() -> Iterator[None]:
    """S3 writes an object under a condition as one step. moto looks first and writes then, each request in a
    thread of its own, so of two that create an object both can succeed."""
    lock, put_object = threading.Lock(), S3Response.put_object

    def put_in_turn(response: S3Response) -> Any:
        with lock:
            return put_object(response)

    with mock.patch.object(S3Response, "put_object", put_in_turn):
        yield
