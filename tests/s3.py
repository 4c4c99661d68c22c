"""An S3 server in memory (`lithify.testing.s3`), for every test that needs S3 over HTTP.

`serve_s3` is behind the session fixture `s3` of `tests/conftest.py`. `S3.bucket()` makes a
new bucket; `S3.options` are the store options, `S3.environment` the variables, that reach it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import boto3

from lithify.testing.s3 import S3Server

_ACCESS_KEY = "test"
_SECRET_KEY = "test-secret"
REGION = "us-east-1"


def store_options(endpoint: str) -> dict[str, str]:
    """What `open_store` and the official client need to reach a server."""
    return {
        "aws_endpoint": endpoint,
        "aws_allow_http": "true",
        "aws_access_key_id": _ACCESS_KEY,
        "aws_secret_access_key": _SECRET_KEY,
        "aws_region": REGION,
    }


@dataclass(frozen=True)
class S3:
    """A running server."""

    server: S3Server
    _names: Iterator[int] = field(default_factory=itertools.count)

    @property
    def endpoint(self) -> str:
        return self.server.url

    @property
    def options(self) -> dict[str, str]:
        """What `open_store` needs."""
        return store_options(self.endpoint)

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
        self.server.create_bucket(name)
        return name


@contextmanager
def serve_s3(*, whole_seconds: bool = False) -> Iterator[S3]:
    """A server on a free port of the loopback interface."""
    with S3Server(whole_seconds=whole_seconds) as server:
        yield S3(server)
