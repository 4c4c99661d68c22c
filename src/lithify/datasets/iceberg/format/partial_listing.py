"""Listing of a very large table only what a compaction asks: about some of its data files, and the deletes.

A whole entry takes a few kilobytes. Where a table has more of them than `listing` keeps anyway, manifests of
data files are read one after the other, slim (`slim_entries`), for the paths in them. Those that name a file
that was asked for are decoded whole, the others are forgotten again.

1. To rewrite files, or to compare them, a listing of nothing but these files will do (`list_files`).
2. To put a snapshot on top of another one, all other manifests have to be known as well, and all other files
   to be gone through: slim, each time anew (`list_around`). Manifests with a file that is replaced are
   written anew, so the entries in them are whole.
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
    """All live entries of one snapshot, whole in manifests that have one of the files that were asked for,
    and in those of deletes. Only files in these can be looked up by their paths."""

    @property
    def untouched(self) -> Sequence[ManifestFile]:
        return self.data_manifests

    def findable(self, *contents: DataFileContent) -> Iterable[ManifestEntry]:
        return Listing.entries(self, *contents)


def list_files(table: Table, snapshot: Snapshot, cache: ManifestCache, paths: Set[str]) -> Listing:
    """The live entries of these data files and of all deletes; perhaps more."""
    found = _read(table, snapshot, cache, paths)
    if found is None:
        return list_snapshot(table, snapshot, cache)
    deletes, touched, _ = found
    chosen = ((m, [e for e in entries if e.data_file.file_path in paths]) for m, entries in touched)
    return Listing(table.metadata, snapshot, (*deletes, *chosen))


def list_around(table: Table, snapshot: Snapshot, cache: ManifestCache, paths: Set[str]) -> Listing:
    """The live entries of a snapshot of which these paths, and those of deletes, are looked up."""
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
    """Manifests of deletes, manifests with one of the paths, both with their entries, and the others; `None`
    where all can be listed whole."""
    manifests = listed_manifests(table, snapshot, cache)
    if listed_entries(manifests) <= cache.max_entries:
        return None
    with translated(f"listing {'.'.join(table.name())}"):
        of_deletes = [m for m in manifests if m.content == ManifestContent.DELETES]
        entries_of = cache.read(table.io, of_deletes, table.metadata.specs())
        deletes = tuple(zip(of_deletes, entries_of, strict=True))
        # A path that is that of a delete file too is no data file's alone.
        asked = paths | {e.data_file.file_path for _, entries in deletes for e in entries}
        touched: list[_Read] = []
        untouched: list[ManifestFile] = []
        data = [m for m in manifests if m.content != ManifestContent.DELETES]
        for manifest, fetched in fetched_manifests(table.io, data):
            content, spec = fetched(), table.metadata.specs()[manifest.partition_spec_id]
            slim = entries_in(manifest, content, reader_of=partial(slim_reader, column=NO_COLUMN))
            # All of it is read: what comes later may be damaged.
            if sum(entry.data_file.file_path in asked for entry in slim):
                touched.append((manifest, list(entries_in(manifest, content, spec))))
            else:
                untouched.append(manifest)
    return deletes, touched, untouched
