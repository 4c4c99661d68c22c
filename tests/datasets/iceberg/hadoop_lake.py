"""Tables that Java Iceberg writes by itself, of any format version, and PyIceberg commits to as well.

The catalog is a folder, as Java's `HadoopCatalog` keeps it: metadata files are numbered, and of two writers
of the same number one succeeds. So both programs work on the same tables, with no server between them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io import load_file_io
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate

from lithify.datasets.iceberg.io.closed_catalogs import ClosedCatalog
from tests.judge.iceberg_java import IcebergJava

LINEAGE = "_row_id, _last_updated_sequence_number"
"""The columns of a row's identity in SQL."""
_VERSION = re.compile(r"v(\d+)\.metadata\.json")
_names = itertools.count(1)


class FolderCatalog(ClosedCatalog, MetastoreCatalog, NoopCatalog):
    """A folder of tables, opened as Lithify opens catalogs."""

    def __init__(self, folder: Path) -> None:
        super().__init__("test", warehouse=folder.as_uri())
        self._folder = folder

    def load_table(self, identifier: Any) -> Table:
        """Return the table in its newest version."""
        name = self.identifier_to_tuple(identifier)
        found = [path for path in self._place(name).glob("v*.metadata.json") if _number(path)]
        if not found:
            raise NoSuchTableError(".".join(name))
        location = str(max(found, key=_number))
        io = load_file_io(self.properties, location)
        return Table(name, FromInputFile.table_metadata(io.new_input(location)), location, io, self)

    def list_tables(self, namespace: Any) -> list[tuple[str, ...]]:
        """Return the names of all tables."""
        levels = self.identifier_to_tuple(namespace)
        place = self._folder.joinpath(*levels)
        return [(*levels, path.name) for path in place.iterdir()] if place.is_dir() else []

    def list_namespaces(self, namespace: Any = ()) -> list[tuple[str, ...]]:
        """Return the names of all namespaces."""
        return [(path.name,) for path in self._folder.iterdir()] if not namespace else []

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Write the next version, unless another writer has."""
        now = self.load_table(table.name())
        staged = self._update_and_stage_table(now, table.name(), requirements, updates)
        number = _number(Path(now.metadata_location)) + 1
        path = self._place(table.name()) / f"v{number}.metadata.json"
        if path.exists():
            raise CommitFailedException(f"{path} exists")
        self._write_metadata(staged.metadata, staged.io, str(path))
        (path.parent / "version-hint.text").write_text(str(number))
        answer = {"metadata": staged.metadata, "metadata-location": str(path)}
        return CommitTableResponse.model_validate(answer)

    def _place(self, name: Sequence[str]) -> Path:
        return self._folder.joinpath(*name, "metadata")


def _number(path: Path) -> int:
    found = _VERSION.fullmatch(path.name)
    return int(found.group(1)) if found else 0


@dataclass(frozen=True)
class HadoopLake:
    """A folder of tables as Java and PyIceberg see it."""

    catalog: Catalog
    java: IcebergJava
    name: str
    """The catalog's name in SQL."""

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement in which `events` is the table."""
        return self.java.sql(re.sub(r"\bevents\b", f"{self.name}.db.events", statement)).values

    def call(self, procedure: str, **arguments: str) -> list[tuple[Any, ...]]:
        """Run one of Java's procedures on the table; arguments as SQL writes them."""
        given = "".join(f", {name} => {value}" for name, value in arguments.items())
        return self.java.sql(f"CALL {self.name}.system.{procedure}(table => 'db.events'{given})").values

    @property
    def table(self) -> Table:
        """The table as it is now."""
        return self.catalog.load_table(("db", "events"))

    def identities(self, snapshot_id: int | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of a snapshot with their `_row_id` and `_last_updated_sequence_number`."""
        which = "" if snapshot_id is None else f" VERSION AS OF {snapshot_id}"
        return sorted(self.sql(f"SELECT {LINEAGE}, * FROM events{which}"), key=repr)


def hadoop_lake(folder: Path, java: IcebergJava) -> HadoopLake:
    """Return an empty folder of tables; both programs know it."""
    name = f"hadoop{next(_names)}"
    prefix = f"spark.sql.catalog.{name}"
    for key, value in {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "hadoop",
        ".warehouse": str(folder),
        ".cache-enabled": "false",
    }.items():
        java.sql(f"SET `{prefix}{key}`=`{value}`")
    return HadoopLake(FolderCatalog(folder), java, name)
