"""An Iceberg table that new processes can open by its URL, with the rows it must show."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.datasets.iceberg.tables import Row, append, files_of, fresh, make_rows, new_catalog, new_table

EAGER = {"lithify.min-saved-files": "1", "lithify.min-new-percent": "0"}


class Lake:
    """One table of small files in a catalog of its own."""

    url = "iceberg://lake/db.events"

    def __init__(
        self, folder: Path, warehouse: str | None = None, properties: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """In a `warehouse` elsewhere, if given, which these properties reach."""
        uri = f"sqlite:///{folder}/catalog.db"
        self.environment: Mapping[str, str] = {
            "PYICEBERG_HOME": str(folder),
            **{_variable(name): value for name, value in {"uri": uri, **properties}.items()},
        }
        """With which a process knows the catalog."""
        self.catalog = new_catalog(folder, name="lake", warehouse=warehouse, properties=properties)
        self._table = new_table(self.catalog, properties=EAGER)
        self._rows: list[Row] = []

    def add(self, files: int = 3) -> None:
        """Append small files, all of one day."""
        for _ in range(files):
            self._rows += append(self._table, make_rows(50))

    def make_anew(self) -> None:
        """Drop it, and make another of its name in its place, without rows."""
        self.catalog.drop_table(self._table.name())
        self._table, self._rows = new_table(self.catalog, properties=EAGER), []

    @property
    def is_compacted(self) -> bool:
        return len(files_of(self._table)) == 1

    def check(self) -> None:
        """PyIceberg shows all rows, each once."""
        shown = [tuple(row.values()) for row in fresh(self._table).scan().to_arrow().to_pylist()]
        assert sorted(shown) == sorted(self._rows)


def s3_properties(options: Mapping[str, str]) -> dict[str, str]:
    """What PyIceberg needs to reach a store with these options of `tests.s3`."""
    names = {
        "aws_endpoint": "s3.endpoint",
        "aws_access_key_id": "s3.access-key-id",
        "aws_secret_access_key": "s3.secret-access-key",
        "aws_region": "s3.region",
    }
    return {names[name]: value for name, value in options.items() if name in names}


def _variable(name: str) -> str:
    return f"PYICEBERG_CATALOG__LAKE__{name.replace('.', '__').replace('-', '_').upper()}"
