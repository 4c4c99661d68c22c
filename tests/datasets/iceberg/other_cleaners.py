"""Programs that remove what no metadata of a table names, hidden folders too: iceberg-go's removal of orphan
files by its rules, and what a rule of a bucket or a person does."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from pyiceberg.table import Table

from tests.datasets.iceberg.tables import fresh, named_paths

THREE_DAYS_S = 72 * 3600
"""iceberg-go's own default."""


def root_of(table: Table) -> Path:
    return Path(table.location().removeprefix("file://"))


def own_folder(table: Table) -> Path:
    """Lithify's."""
    return root_of(table) / "_lithify" / str(table.metadata.table_uuid)


def remove_orphans_as_iceberg_go(table: Table, older_than_s: float = THREE_DAYS_S) -> list[str]:
    """Delete every file under the location that is older and that neither the present metadata file, nor its
    log, nor a snapshot names; their paths from the location."""
    now, root = fresh(table), root_of(table)
    named = named_paths(now) | {entry.metadata_file for entry in now.metadata.metadata_log}
    named |= {now.metadata_location, f"{now.location()}/metadata/version-hint.text"}
    before_s, gone = time.time() - older_than_s, []
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.stat().st_mtime < before_s and path.as_uri() not in named:
            path.unlink()
            gone.append(str(path.relative_to(root)))
    return gone


def remove_folder(table: Table) -> None:
    """All that Lithify keeps beside the table."""
    shutil.rmtree(own_folder(table))
