"""One catalog for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from tests.datasets.iceberg.lake import Lake
from tests.datasets.iceberg.rest import serve_rest
from tests.datasets.iceberg.tables import new_catalog
from tests.judge.iceberg_java import IcebergJava


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    """An empty catalog in SQLite."""
    return new_catalog(tmp_path)


@pytest.fixture
def lake(catalog: Catalog, java: IcebergJava) -> Iterator[Lake]:
    """The same, on which Java works too."""
    with serve_rest(catalog) as rest:
        yield Lake(catalog, java, java.catalog(str(rest.properties["uri"])))
