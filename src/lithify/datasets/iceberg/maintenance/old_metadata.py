"""Deleting metadata files that have fallen out of a table's log, where the table asks for that with
`write.metadata.delete-after-commit.enabled`.

The log is a list of paths in the table's metadata, so anybody who may change the table writes it. A file that
it names is deleted only if it is named like a metadata file and says itself that it is of this table. What
cannot be read stays. After a commit nothing that goes wrong here is an error: the commit stands.
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
"""Of a metadata file: the table's UUID is among the first fields that any writer writes."""
_NAME = re.compile(r"/[^/]+\.metadata\.json(?:\.gz)?\Z")
_UUID = re.compile(rb'"table-uuid"\s*:\s*"([^"]{1,100})"')
_GZIP = b"\x1f\x8b"
_WITH_GZIP_HEADER = 16 + zlib.MAX_WBITS

_log = logging.getLogger("lithify")


def delete_old_metadata(io: FileIO, before: TableMetadata, after: TableMetadata) -> None:
    """Delete what the log of `before` names and that of `after`, its successor, does not."""
    if not property_as_bool(properties_of(after), "write.metadata.delete-after-commit.enabled", False):
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
            _log.warning("it stays: %s", said(error))


def uuid_in(head: bytes) -> str | None:
    """Return the UUID of the table that a metadata file is of, by the beginning of the file, which may be
    compressed (pure); `None` where it does not say."""
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
