"""Deletes metadata files that have dropped out of a table's log, if the table sets
`write.metadata.delete-after-commit.enabled`.

The log is a list of paths that any writer of the table can set. So a file in it is deleted only if it is
named like a metadata file and contains this table's UUID. An unreadable file stays. Errors here are logged,
not raised, because the commit has succeeded.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Iterable

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.utils.properties import property_as_bool

from lithify.base.defects import contained
from lithify.base.errors import LithifyError
from lithify.datasets.iceberg.errors import said, translated
from lithify.datasets.iceberg.format.table_properties import properties_of

HEAD_BYTES = 8 * 1024
"""Bytes read of a metadata file: every writer puts the table's UUID among the first fields."""
_NAME = re.compile(r"/[^/]+\.metadata\.json(?:\.gz)?\Z")
_UUID = re.compile(rb'"table-uuid"\s*:\s*"([^"]{1,100})"')
_GZIP = b"\x1f\x8b"
_WITH_GZIP_HEADER = 16 + zlib.MAX_WBITS

_log = logging.getLogger("lithify")


def delete_old_metadata(io: FileIO, before: TableMetadata, after: TableMetadata) -> None:
    """Delete the metadata files in the log of `before` that are not in the log of `after`, its successor."""
    try:
        is_wanted = property_as_bool(
            properties_of(after), "write.metadata.delete-after-commit.enabled", False
        )
    except ValueError:  # as in Java, what is not "true" is false
        is_wanted = False
    if not is_wanted:
        return
    kept = {entry.metadata_file for entry in after.metadata_log}
    _delete(io, (e.metadata_file for e in before.metadata_log if e.metadata_file not in kept), after)


def _delete(io: FileIO, paths: Iterable[str], metadata: TableMetadata) -> None:
    for path in paths:
        what = f"deleting the old metadata file {path}"
        try:
            with contained(what), translated(what):
                if _NAME.search(path) and uuid_in(_head(io, path)) == str(metadata.table_uuid):
                    io.delete(path)
        except FileNotFoundError:
            continue
        except LithifyError as error:
            _log.warning("it is kept: %s", said(error))


def uuid_in(head: bytes) -> str | None:
    """Return the table's UUID from the beginning of a metadata file, which may be compressed (pure); `None`
    if it is not there."""
    if head.startswith(_GZIP):
        try:
            head = zlib.decompressobj(_WITH_GZIP_HEADER).decompress(head, HEAD_BYTES)
        except zlib.error:
            return None
    found = _UUID.search(head)
    return None if found is None else found.group(1).decode(errors="replace")


def _head(io: FileIO, path: str) -> bytes:
    with io.new_input(path).open() as stream:
        return bytes(stream.read(HEAD_BYTES))
