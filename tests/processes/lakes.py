"""An Iceberg table that new processes can open by its URL, with the rows it must show."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.datasets.iceberg.tables import Row, append, files_of, fresh, make_rows, new_catalog, new_table

EAGER = {"lithify.min-saved-files": "1", "lithify.min-new-percent": "0"}


class Lake:
    """One table of small files in a catalog of its own."""

    url = "iceberg://lake/db.events"

    def __init__(self, folder: Path) -> None:
        self.environment: Mapping[str, str] = {
            "PYICEBERG_HOME": str(folder),
            "PYICEBERG_CATALOG__LAKE__URI": f"sqlite:///{folder}/catalog.db",
        }
        """With which a process knows the catalog."""
        self._table = new_table(new_catalog(folder, name="lake"), properties=EAGER)
        self._rows: list[Row] = []

    def add(self, files: int = 3) -> None:
        """Append small files, all of one day."""
        for _ in range(files):
            self._rows += append(self._table, make_rows(50))

    @property
    def is_compacted(self) -> bool:
        return len(files_of(self._table)) == 1

    def check(self) -> None:
        """PyIceberg shows all rows, each once."""
        shown = [tuple(row.values()) for row in fresh(self._table).scan().to_arrow().to_pylist()]
        assert sorted(shown) == sorted(self._rows)
