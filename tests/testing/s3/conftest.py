from __future__ import annotations

from collections.abc import Iterator

import pytest

from lithify.testing.s3 import S3Server
from tests.testing.s3.reaching import BUCKET


@pytest.fixture
def server() -> Iterator[S3Server]:
    """A server in the best of weathers, with one bucket."""
    with S3Server() as server:
        server.create_bucket(BUCKET)
        yield server
