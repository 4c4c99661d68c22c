"""File names that prove which files are the table's own.

1. Every file that Lithify writes for a table is named `lithify-<mark>-…` and a unique part: compaction, range
   and random digits for a data file, random digits for a manifest or delete file.
2. The mark is a hash of the table's UUID and location. So tables that share a data folder have different
   marks, and so has a copy, which keeps the UUID. Spellings of one location (`s3a://…`, `s3://…`) count as
   the same.
3. A listed object and a path in a manifest are the same file if their names are equal. Other spellings of a
   path (percent signs, `//`, `..`, links, another scheme or bucket name) change only the folders.

Invariant: a file without the mark is not Lithify's, whatever its name and folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256

from pyiceberg.table.metadata import TableMetadata

from lithify.base.ids import Ulid
from lithify.datasets.iceberg.io.places import spellings

OWN_FOLDER = "_lithify"
"""Lithify's folder in a table's location. Iceberg's removal of orphan files ignores names that begin with an
underscore."""
FILE_PREFIX = "lithify-"
"""The beginning of the name of each file that Lithify writes for a table."""
_MARK_DIGITS = 16
_DATA_NAME = r"(?P<compaction>[0-9A-HJKMNP-TV-Z]{26})-\d{5}-[0-9a-f]{32}-\d{5}\.[a-z]+"
_MANIFEST_NAME = r"[0-9a-f]{32}-[0-9a-z-]+\.avro"
_DELETES_NAME = r"[0-9a-f]{32}-deletes-\d+\.(?:parquet|puffin)"
_NAME = re.compile(
    # Some location providers put a hash and a dash before the name.
    rf"(?:^|[/-])(?P<name>{FILE_PREFIX}(?P<mark>[0-9a-f]{{{_MARK_DIGITS}}})-"
    rf"(?:{_DATA_NAME}|{_MANIFEST_NAME}|{_DELETES_NAME}))\Z"
)


@dataclass(frozen=True, slots=True)
class OwnName:
    name: str
    """Unique among all files."""
    mark: str
    """The mark of the table that the file was written for."""
    compaction: Ulid | None
    """`None` for manifests and delete files, which no compaction writes."""


def mark_of(metadata: TableMetadata) -> str:
    """Return the mark for new files of the table."""
    return _mark(metadata, metadata.location.rstrip("/"))


def _mark(metadata: TableMetadata, location: str) -> str:
    owner = f"{metadata.table_uuid}\n{location}"
    return sha256(owner.encode()).hexdigest()[:_MARK_DIGITS]


def marks_of(metadata: TableMetadata) -> frozenset[str]:
    """Return the possible marks of the table's files, one for each spelling of its location."""
    ways = spellings(metadata.location)
    return frozenset(_mark(metadata, location) for location in ways)


def data_prefix(mark: str, compaction_id: Ulid, index: int) -> str:
    """Return the prefix of one range's data file names; the attempt and a number follow."""
    return f"{FILE_PREFIX}{mark}-{compaction_id}-{index:05d}"


def manifest_prefix(mark: str, unique: str) -> str:
    """Return the prefix of one snapshot's manifest names; `unique` is 32 hexadecimal digits."""
    return f"{FILE_PREFIX}{mark}-{unique}"


def parse_name(path: str) -> OwnName | None:
    """Parse the last part of a path or key; `None` if the name is not in Lithify's form."""
    found = _NAME.search(path)
    if found is None:
        return None
    compaction = found["compaction"]
    return OwnName(found["name"], found["mark"], None if compaction is None else Ulid(compaction))
