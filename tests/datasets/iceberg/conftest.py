"""One catalog for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from tests.datasets.iceberg.tables import new_catalog


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    """An empty catalog in SQLite."""
    return new_catalog(tmp_path)
