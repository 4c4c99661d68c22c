"""How tests reach a server: by boto3, by obstore, and by bytes on a socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from obstore.store import S3Store

KEYS = {"aws_access_key_id": "id", "aws_secret_access_key": "key"}
REGION = "us-east-1"
BUCKET = "bucket"


def boto(url: str, **config: Any) -> Any:
    """A boto3 client that tries once."""
    once = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, **config)
    return boto3.client("s3", endpoint_url=url, region_name=REGION, config=once, **KEYS)


def rust(url: str, **retry: Any) -> S3Store:
    """A store of obstore's, which tries once unless told otherwise."""
    config: Any = {"max_retries": 0, **retry}
    return S3Store(
        BUCKET,
        endpoint=url,
        region=REGION,
        client_options={"allow_http": True, "timeout": "5s"},
        retry_config=config,
        **KEYS,  # type: ignore[arg-type]
    )


class Socket:
    """Bytes to a server, and its answers."""

    def __init__(self, url: str) -> None:
        self._socket = socket.create_connection((urlsplit(url).hostname or "", urlsplit(url).port or 0), 10)
        self._file = self._socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next answer (no body after 100)."""
        status = int(self._file.readline().split()[1])
        headers = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode("latin-1").partition(": ")
            headers[name.lower()] = value
        return status, headers, self._file.read(int(headers.get("content-length", 0)))

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@contextmanager
def connected(url: str) -> Iterator[Socket]:
    """One connection."""
    opened = Socket(url)
    try:
        yield opened
    finally:
        opened.close()
