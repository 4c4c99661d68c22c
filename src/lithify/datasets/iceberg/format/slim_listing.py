"""Listing a very large table for planning, with only the fields that planning needs.

If a table has more entries than the cache of `listing` keeps (a whole one takes a few kilobytes), those of
data files are read slim (`manifest_scan`), one manifest after the other, at each iteration. Delete files are
few and are listed whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table

from lithify.base.errors import CorruptObject
from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.format.fetching import fetched_manifests
from lithify.datasets.iceberg.format.listing import (
    Listing,
    ManifestCache,
    list_snapshot,
    listed_entries,
    listed_manifests,
)
from lithify.datasets.iceberg.format.manifest_scan import slim_reader
from lithify.datasets.iceberg.format.manifests import entries_in


@dataclass(frozen=True)
class SlimListing(Listing):
    name: str = field(kw_only=True)
    """The table's name, for errors."""
    io: FileIO = field(kw_only=True, repr=False, compare=False)
    column: int = field(kw_only=True)
    """The id of the time column."""
    data_manifests: Sequence[ManifestFile] = field(kw_only=True)

    def entries(self, *contents: DataFileContent) -> Iterator[ManifestEntry]:
        yield from super().entries(*contents)
        if DataFileContent.DATA in contents:
            with translated(f"listing {self.name}"):
                for manifest, fetched in fetched_manifests(self.io, self.data_manifests):
                    yield from self._slim(manifest, fetched())

    def _slim(self, manifest: ManifestFile, data: bytes) -> Iterator[ManifestEntry]:
        spec = self.metadata.specs()[manifest.partition_spec_id]
        slim = partial(slim_reader, column=self.column)
        for entry in entries_in(manifest, data, spec, reader_of=slim):
            if entry.data_file.content != DataFileContent.DATA:
                says = "is listed as a manifest of data files and has delete files"
                raise CorruptObject(manifest.manifest_path, says)
            yield entry


def listing_for_plan(table: Table, branch: str, cache: ManifestCache, column: int) -> Listing | None:
    """Return the live entries of the branch's head, with at least this column's bounds; `None` without a
    snapshot."""
    snapshot = table.metadata.snapshot_by_name(branch)
    if snapshot is None:
        return None
    manifests = listed_manifests(table, snapshot, cache)
    if listed_entries(manifests) <= cache.max_entries:
        return list_snapshot(table, snapshot, cache)
    name = ".".join(table.name())
    deletes = [m for m in manifests if m.content == ManifestContent.DELETES]
    with translated(f"listing {name}"):
        entries_of = cache.read(table.io, deletes, table.metadata.specs())
        of_deletes = tuple(zip(deletes, entries_of, strict=True))
    data = [m for m in manifests if m.content != ManifestContent.DELETES]
    return SlimListing(
        table.metadata, snapshot, of_deletes, name=name, io=table.io, column=column, data_manifests=data
    )
