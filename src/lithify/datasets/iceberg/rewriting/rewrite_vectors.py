"""Rewriting the deletes of a table of format version 3: position delete files become deletion vectors.

1. A data file to which position delete files apply gets one vector with all their positions. One that has a
   vector already has no others: readers ignore position delete files for it.
2. A position delete file is removed when no data file needs it any more. Delete files and vectors that apply
   to no data file are removed too (`obsolete_deletes`).
3. Of a Puffin file most of whose bytes no live vector uses, the live vectors are moved to a new file.

All new vectors are in one Puffin file. Left alone are data files that are inputs of active compactions, which
remove their deletes, files whose path is listed more than once, and those with deletes that are encrypted or
in a format that cannot be read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set
from dataclasses import dataclass, field

import numpy as np
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry

from lithify.datasets.iceberg.compaction.task import SourceFile, without_statistics
from lithify.datasets.iceberg.deletes.deleted_rows import DeletedRows
from lithify.datasets.iceberg.deletes.position_deletes import READABLE
from lithify.datasets.iceberg.deletes.vectors import DeletionVector, NewVector, write_vectors
from lithify.datasets.iceberg.format.listing import Listing
from lithify.datasets.iceberg.format.manifests import (
    ContentKey,
    content_bytes,
    is_vector,
    key_of,
    vector_place,
)
from lithify.datasets.iceberg.format.replace import Added, Replacement, obsolete_deletes

MIN_LIVE_PERCENT = 50
"""A Puffin file with less than this share of its bytes in live vectors is rewritten."""


@dataclass(slots=True)
class VectorPlan:
    """The deletes of a snapshot that are rewritten."""

    data: list[tuple[ManifestEntry, tuple[DataFile, ...]]] = field(default_factory=list)
    """Data files that get a new vector, with the deletes that it replaces: position delete files, or one
    vector that is moved."""
    removed: dict[ContentKey, ManifestEntry] = field(default_factory=dict)
    dangling: int = 0
    """The number of removed ones that delete nothing."""


def plan_vectors(listing: Listing, busy: Set[str]) -> VectorPlan:
    """Plan by the rules of the module. `busy` has the inputs of active compactions."""
    plan = VectorPlan(removed=obsolete_deletes(listing, Replacement()))
    moved = _mostly_dead(listing)
    needed: set[ContentKey] = set()
    used: dict[ContentKey, ManifestEntry] = {}
    by_key = {key_of(e.data_file): e for e in listing.entries(DataFileContent.POSITION_DELETES)}
    for entry in listing.entries(DataFileContent.DATA):
        deletes = tuple(sorted(listing.deletes_of(entry), key=lambda file: file.file_path))
        keys = [key_of(file) for file in deletes]
        if not deletes or (is_vector(deletes[0]) and keys[0] not in moved):
            continue
        if _can_rewrite(listing, entry, deletes, busy):
            plan.data.append((entry, deletes))
            used |= {key: by_key[key] for key in keys}
        else:
            needed.update(keys)
    plan.removed |= {
        key: entry
        for key, entry in by_key.items()
        if not (is_vector(entry.data_file) or key in used or key in needed or key in listing.repeated)
    }
    plan.dangling = len(plan.removed)
    plan.removed |= {key: entry for key, entry in used.items() if key not in needed}
    return plan


def write_planned(io: FileIO, path: str, listing: Listing, plan: VectorPlan) -> Replacement:
    """Write the new vectors to `path`, if there are any."""
    replacement = Replacement(removed=dict(plan.removed))
    if plan.data:
        number = listing.snapshot.sequence_number or 0
        files = write_vectors(io, path, _vectors(io, plan))
        replacement.added += [Added(file, number) for file in files]
    return replacement


def _vectors(io: FileIO, plan: VectorPlan) -> Iterator[NewVector]:
    sources = [
        SourceFile(
            n,
            without_statistics(entry.data_file),
            tuple(map(without_statistics, deletes)),
            True,
            entry.sequence_number or 0,
        )
        for n, (entry, deletes) in enumerate(plan.data)
    ]
    deleted = DeletedRows(io, sources)
    for source, (entry, _) in zip(sources, plan.data, strict=True):
        file = entry.data_file
        positions = deleted.of(source).between(0, file.record_count)
        if len(positions):
            vector = DeletionVector.of(positions.astype(np.int64, copy=False))
            yield NewVector(file.file_path, vector, file.spec_id, file.partition)


def _mostly_dead(listing: Listing) -> set[ContentKey]:
    """Return the live vectors in Puffin files that are mostly dead."""
    files: defaultdict[str, list[DataFile]] = defaultdict(list)
    for data_path, entries in listing.vectors.items():
        for entry in entries if data_path in listing.data else ():
            files[entry.data_file.file_path].append(entry.data_file)
    return {
        key_of(vector)
        for vectors in files.values()
        if sum(map(content_bytes, vectors)) * 100 < vectors[0].file_size_in_bytes * MIN_LIVE_PERCENT
        and _has_dead(vectors)
        for vector in vectors
    }


def _has_dead(vectors: list[DataFile]) -> bool:
    """Return whether a Puffin file has vectors that are not live: their bytes lie between others."""
    end = _MAGIC_BYTES
    for offset, size_bytes in sorted(map(vector_place, vectors)):
        if offset != end:
            return True
        end = offset + size_bytes
    return vectors[0].file_size_in_bytes - end > _FOOTER_BYTES * (len(vectors) + 1)


_MAGIC_BYTES = 4
_FOOTER_BYTES = 2048
"""More than a footer describes a vector with: its data file's path, and numbers."""


def _can_rewrite(
    listing: Listing, entry: ManifestEntry, deletes: tuple[DataFile, ...], busy: Set[str]
) -> bool:
    path = entry.data_file.file_path
    if len(deletes) > 1 and any(map(is_vector, deletes)):
        return False
    if path in busy or path not in listing.data or entry.data_file.key_metadata is not None:
        return False
    return all(
        key_of(file) not in listing.repeated
        and file.key_metadata is None
        and (is_vector(file) or file.file_format in READABLE)
        for file in deletes
    )
