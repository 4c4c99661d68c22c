"""Which files beside a table are its own: names that prove who wrote them.

1. Every file that Lithify writes for a table is named `lithify-<mark>-…`, followed by what no other file has:
   the compaction, the range and random digits of a data file, random digits of a manifest or delete file.
2. The mark is a hash of the table's UUID and location. Tables that share a folder for data have different
   marks, and so has a copy of a table, which keeps the UUID but lies elsewhere. A location that is only
   written in another way, `s3a://…` for `s3://…`, is the same one.
3. A listed object and a path in a manifest are the same file if these names are. That holds however the path
   is written: percent signs, `//`, `..`, links, another scheme or another name of the bucket change the
   folders only.

Invariant: a file without the mark is somebody else's, whatever it is called and wherever it lies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256

from pyiceberg.table.metadata import TableMetadata

from lithify.base.ids import Ulid
from lithify.datasets.iceberg.io.places import spellings

OWN_FOLDER = "_lithify"
"""Under a table's location, Lithify's alone. Iceberg's removal of orphan files leaves names with an
underscore alone."""
FILE_PREFIX = "lithify-"
"""Of the names of everything Lithify writes for a table."""
_MARK_DIGITS = 16
_DATA_NAME = r"(?P<compaction>[0-9A-HJKMNP-TV-Z]{26})-\d{5}-[0-9a-f]{32}-\d{5}\.[a-z]+"
_MANIFEST_NAME = r"[0-9a-f]{32}-[0-9a-z-]+\.avro"
_DELETES_NAME = r"[0-9a-f]{32}-deletes-\d+\.parquet"
_NAME = re.compile(
    # Some locations have a hash and a dash before the name.
    rf"(?:^|[/-])(?P<name>{FILE_PREFIX}(?P<mark>[0-9a-f]{{{_MARK_DIGITS}}})-"
    rf"(?:{_DATA_NAME}|{_MANIFEST_NAME}|{_DELETES_NAME}))\Z"
)


@dataclass(frozen=True, slots=True)
class OwnName:
    """What the name of a file of Lithify's says."""

    name: str
    """No two files have the same."""
    mark: str
    """Of the table it was written for."""
    compaction: Ulid | None
    """`None` for a manifest, and for a delete file: no compaction writes these."""


def mark_of(metadata: TableMetadata) -> str:
    """The mark in the names of new files of the table."""
    return _mark(metadata, metadata.location.rstrip("/"))


def _mark(metadata: TableMetadata, location: str) -> str:
    owner = f"{metadata.table_uuid}\n{location}"
    return sha256(owner.encode()).hexdigest()[:_MARK_DIGITS]


def marks_of(metadata: TableMetadata) -> frozenset[str]:
    """The marks that files of the table may have: its location may be written in several ways."""
    ways = spellings(metadata.location)
    return frozenset(_mark(metadata, location) for location in ways)


def data_prefix(mark: str, compaction_id: Ulid, index: int) -> str:
    """How the names of the data files of one range begin; the attempt and a number follow."""
    return f"{FILE_PREFIX}{mark}-{compaction_id}-{index:05d}"


def manifest_prefix(mark: str, unique: str) -> str:
    """How the names of the manifests of one snapshot begin; `unique` is 32 hexadecimal digits."""
    return f"{FILE_PREFIX}{mark}-{unique}"


def parse_name(path: str) -> OwnName | None:
    """What the last part of a path or key says; `None` when Lithify gives no such names."""
    found = _NAME.search(path)
    if found is None:
        return None
    compaction = found["compaction"]
    return OwnName(found["name"], found["mark"], None if compaction is None else Ulid(compaction))
