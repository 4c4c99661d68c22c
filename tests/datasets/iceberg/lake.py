"""A catalog on which Java Iceberg and PyIceberg both work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from tests.datasets.iceberg.tables import NAME
from tests.judge.iceberg_java import IcebergJava


@dataclass(frozen=True)
class Lake:
    """A catalog as Java sees it."""

    catalog: Catalog
    java: IcebergJava
    name: str
    """Of the catalog in SQL."""

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement in which `events` is the table."""
        return self.java.sql(statement.replace("events", f"{self.name}.db.events")).values

    def call(self, procedure: str, **arguments: str) -> list[tuple[Any, ...]]:
        """Run one of Java's procedures on the table; arguments as SQL writes them."""
        given = "".join(f", {name} => {value}" for name, value in arguments.items())
        return self.java.sql(f"CALL {self.name}.system.{procedure}(table => 'db.events'{given})").values

    @property
    def table(self) -> Table:
        return self.catalog.load_table(NAME)
