"""The section `[iceberg]` of the settings."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from pydantic import Field

from lithify.config.durations import Duration
from lithify.config.sections import CollectionSettings, OwnSection, Section, Text, Texts


class TableCollectionSettings(CollectionSettings):
    """How one type of a table's garbage is collected."""

    min_age: Duration = Field(default=timedelta(hours=1), description="Younger garbage is kept")


class TableGarbageSettings(Section):
    """How a table's garbage is collected."""

    data_files: TableCollectionSettings = TableCollectionSettings()
    manifests: TableCollectionSettings = TableCollectionSettings()
    ledger_versions: TableCollectionSettings = TableCollectionSettings()
    lithify: TableCollectionSettings = TableCollectionSettings()


class IcebergSettings(OwnSection):
    """The settings of Iceberg tables."""

    NAME: ClassVar = "iceberg"
    FORMERLY: ClassVar = {
        "table_options": "properties",
        "garbage_collector_options.compacted_options": "garbage.data_files",
        "garbage_collector_options.manifest_options": "garbage.manifests",
        "garbage_collector_options.compactions_options": "garbage.ledger_versions",
        "garbage_collector_options.lithify_options": "garbage.lithify",
    }

    OF_DATASETS: ClassVar = ("properties", "garbage")

    properties: Texts = Field(
        default_factory=dict,
        description="How tables are compacted, such as granularity; overrides their properties lithify.…",
    )
    unrelated_tables: Text = Field(
        default="",
        description="Tables of a catalog that share no folder with other tables, such as broken.t or "
        "other.*, separated by commas: they need not be readable when files are deleted",
    )
    state_location: Text = Field(
        default="",
        description="Where Lithify keeps its state of tables (holds, readers, leases), such as "
        "s3://other/lithify; the same in every process; empty: _lithify, under each table's location",
    )
    garbage: TableGarbageSettings = TableGarbageSettings()

    @property
    def unrelated(self) -> tuple[str, ...]:
        """Return the names and patterns in `unrelated_tables`."""
        return tuple(filter(None, (name.strip() for name in self.unrelated_tables.split(","))))
