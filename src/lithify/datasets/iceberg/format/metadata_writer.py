"""Writing metadata files of format version 3, which PyIceberg reads and changes but does not write.

A commit is written as the difference between two states, applied to the document that the table has:

1. A part that the commit did not change is written as it is stored. So fields that PyIceberg does not know,
   and spellings that it would change, are kept.
2. A snapshot never changes once it is written. (PyIceberg forgets a snapshot's parent when that expires; the
   specification and Java keep the parent's id.)
3. An expired snapshot hides the log before it: a reader that asks for the snapshot of an earlier time would
   get the wrong one (Iceberg format: snapshot log).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyiceberg.io import FileIO, OutputFile
from pyiceberg.serializers import Compressor
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

Document = dict[str, Any]
_GZIP = b"\x1f\x8b"


def write_metadata(
    metadata: TableMetadata, io: FileIO, output: OutputFile, *, overwrite: bool = False
) -> None:
    """Write the metadata that a commit made of those in the last file of their log."""
    location = metadata.metadata_log[-1].metadata_file
    with io.new_input(location).open() as stream:
        stored = _read(stream.read())
    document = changed(stored, TableMetadataUtil.parse_raw(json.dumps(stored)), metadata)
    data = Compressor.get_compressor(output.location).bytes_compressor()(json.dumps(document).encode())
    with output.create(overwrite=overwrite) as out:
        out.write(data)


def changed(stored: Mapping[str, Any], before: TableMetadata, after: TableMetadata) -> Document:
    """Return the stored document of `before` with the changes that lead to `after` (pure)."""
    then, now = before.model_dump(mode="json"), after.model_dump(mode="json")
    written = {snapshot["snapshot-id"]: snapshot for snapshot in then["snapshots"]}
    now["snapshots"] = [written.get(one["snapshot-id"], one) for one in now["snapshots"]]
    now["snapshot-log"] = _log(then["snapshot-log"], now["snapshot-log"], {*written} - _ids(now["snapshots"]))
    document: Document = _merged(dict(stored), then, now)
    return document


def _read(data: bytes) -> Document:
    """Return the document in a metadata file, which may be compressed."""
    document: Document = json.loads(gzip.decompress(data) if data.startswith(_GZIP) else data)
    return document


def _ids(entries: Iterable[Mapping[str, Any]]) -> set[int]:
    return {entry["snapshot-id"] for entry in entries}


def _log(then: Sequence[Document], now: Sequence[Document], expired: set[int]) -> list[Document]:
    """Return the entries of the log after the last one whose snapshot expired."""
    last = max((n for n, entry in enumerate(then) if entry["snapshot-id"] in expired), default=-1)
    hidden = [entry for entry in then[: last + 1] if entry["snapshot-id"] not in expired]
    return list(now[len(hidden) :])


def _merged(stored: Any, then: Any, now: Any) -> Any:
    """Return `now`, with all parts that are the same in `then` as they are stored."""
    if now == then:
        return stored
    if isinstance(stored, dict) and isinstance(then, dict) and isinstance(now, dict):
        kept = {key: value for key, value in stored.items() if key in now or key not in then}
        return kept | {
            key: _merged(stored[key], then[key], value) if key in stored and key in then else value
            for key, value in now.items()
            if key in stored or key not in then or value != then[key]
        }
    if isinstance(stored, list) and isinstance(then, list) and isinstance(now, list):
        if len(stored) != len(then):
            return now
        as_stored = {_key(part): one for part, one in zip(then, stored, strict=True)}
        return [as_stored.get(_key(part), part) for part in now]
    return now


def _key(part: Any) -> str:
    return json.dumps(part, sort_keys=True)
