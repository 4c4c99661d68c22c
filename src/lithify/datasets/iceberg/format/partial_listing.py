"""Listing only some data files of a very large table, and all its delete files.

If a table has more entries than the cache of `listing` keeps (a whole one takes a few kilobytes), manifests
of data files are scanned one after the other with slim entries (`manifest_scan`). Those with a requested file
are decoded whole.

1. `list_files`, for rewriting or comparing files, returns only the requested files and the deletes.
2. `list_around`, for a new snapshot, also has the other manifests, and reads their files slim at each
   iteration. Manifests with a replaced file are rewritten, so they are whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from functools import partial

from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lithify.datasets.iceberg.errors import translated
from lithify.datasets.iceberg.format.fetching import fetched_manifests
from lithify.datasets.iceberg.format.listing import (
    Listing,
    ManifestCache,
    list_snapshot,
    listed_entries,
    listed_manifests,
)
from lithify.datasets.iceberg.format.manifest_scan import NO_COLUMN, slim_reader
from lithify.datasets.iceberg.format.manifests import entries_in
from lithify.datasets.iceberg.format.slim_listing import SlimListing

_Read = tuple[ManifestFile, Sequence[ManifestEntry]]


@dataclass(frozen=True)
class ChosenListing(SlimListing):
    """A listing that is whole in manifests of deletes and in those with a requested file, else slim. Only
    files in the whole ones can be found by path."""

    @property
    def untouched(self) -> Sequence[ManifestFile]:
        return self.data_manifests

    def findable(self, *contents: DataFileContent) -> Iterable[ManifestEntry]:
        return Listing.entries(self, *contents)


def list_files(table: Table, snapshot: Snapshot, cache: ManifestCache, paths: Set[str]) -> Listing:
    """Return the live entries of these data files and of all deletes; perhaps more."""
    found = _read(table, snapshot, cache, paths)
    if found is None:
        return list_snapshot(table, snapshot, cache)
    deletes, touched, _ = found
    chosen = ((m, [e for e in entries if e.data_file.file_path in paths]) for m, entries in touched)
    return Listing(table.metadata, snapshot, (*deletes, *chosen))


def list_around(table: Table, snapshot: Snapshot, cache: ManifestCache, paths: Set[str]) -> Listing:
    """Return the live entries of a snapshot in which these paths, and those of deletes, can be found."""
    found = _read(table, snapshot, cache, paths)
    if found is None:
        return list_snapshot(table, snapshot, cache)
    deletes, touched, untouched = found
    return ChosenListing(
        table.metadata,
        snapshot,
        (*deletes, *touched),
        name=".".join(table.name()),
        io=table.io,
        column=NO_COLUMN,
        data_manifests=untouched,
    )


def _read(
    table: Table, snapshot: Snapshot, cache: ManifestCache, paths: Set[str]
) -> tuple[Sequence[_Read], Sequence[_Read], Sequence[ManifestFile]] | None:
    """Return the manifests of deletes and those with one of the paths, both with entries, and the others;
    `None` if the table is listed whole."""
    manifests = listed_manifests(table, snapshot, cache)
    if listed_entries(manifests) <= cache.max_entries:
        return None
    with translated(f"listing {'.'.join(table.name())}"):
        of_deletes = [m for m in manifests if m.content == ManifestContent.DELETES]
        entries_of = cache.read(table.io, of_deletes, table.metadata.specs())
        deletes = tuple(zip(of_deletes, entries_of, strict=True))
        # A path may be listed as a delete file and as a data file.
        asked = paths | {e.data_file.file_path for _, entries in deletes for e in entries}
        touched: list[_Read] = []
        untouched: list[ManifestFile] = []
        data = [m for m in manifests if m.content != ManifestContent.DELETES]
        for manifest, fetched in fetched_manifests(table.io, data):
            content, spec = fetched(), table.metadata.specs()[manifest.partition_spec_id]
            slim = entries_in(manifest, content, reader_of=partial(slim_reader, column=NO_COLUMN))
            # Read all entries, not only up to the first match: later ones may be damaged.
            if sum(entry.data_file.file_path in asked for entry in slim):
                touched.append((manifest, list(entries_in(manifest, content, spec))))
            else:
                untouched.append(manifest)
    return deletes, touched, untouched
