"""Fixtures for the tests of stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.s3 import S3, serve_s3


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """An S3 server that lives as long as the test session."""
    with serve_s3() as server:
        yield server
