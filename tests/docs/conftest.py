"""The database and the table of the documents."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.utils.config import Config

from lithify.api import wiring
from lithify.testing.engine import InlineEngine
from tests.docs.showing import CATALOG_VARIABLE, catalog_uri, write_datasets


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The catalog. Work on it is done without Spark."""
    monkeypatch.setenv(CATALOG_VARIABLE, catalog_uri(tmp_path))
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    monkeypatch.setattr(wiring, "spark_engine", lambda *_: nullcontext(InlineEngine()))
    return write_datasets(tmp_path)
