"""Reading the entries of manifests.

PyIceberg derives a reader for every manifest, which takes ten times as long as reading a small one. Manifests
of one program and table schema share an Avro schema, so readers are cached by its text. `avro_file` reads the
bytes; PyIceberg does the rest, except that

- entries have the fields of format version 3: manifests of version 2 may have some, and a rewrite must not
  lose them;
- references to named types of fixed length, as Java writes them for partition fields, are resolved: PyIceberg
  does not know such names;
- partition values come in the order of the spec's fields, matched by id. PyIceberg keeps the manifest's
  order, which Java's readers allow to differ;
- a manifest list may lack the numbers of files and rows, as in format version 1 and from old programs;
- a data file without a first row id inherits it from its manifest (Iceberg format: first row id inheritance).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, TypeAlias

from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
    _inherit_from_manifest,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.delete_file_index import PATH_FIELD_ID
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record
from pyiceberg.types import StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from lithify.base.errors import CorruptObject, LithifyError, Unsupported
from lithify.datasets.iceberg.format.avro_file import (
    BlockReader,
    RecordReader,
    RememberingReader,
    read_records,
)

ENTRY_VERSION: Final = 3
"""The format version of the fields that entries and their data files have in memory; those that a manifest
does not have are null."""
FILE_FIELDS: Final = tuple(field.field_id for field in DATA_FILE_TYPE[ENTRY_VERSION].fields)
"""The ids of the fields of data files in memory, in order."""
_REFERENCED = FILE_FIELDS.index(143)
_OFFSET = FILE_FIELDS.index(144)
_CONTENT_SIZE = FILE_FIELDS.index(145)
_FIRST_ROW_ID = FILE_FIELDS.index(142)
_PARTITION = FILE_FIELDS.index(102)
_CHECKED = itemgetter(*(FILE_FIELDS.index(field) for field in (134, 100, 103, 104)))
"""Content, path, number of rows, size in bytes."""
_STATUSES = (ManifestEntryStatus.ADDED, ManifestEntryStatus.EXISTING, ManifestEntryStatus.DELETED)
_COUNTS = (504, 505, 506, 512, 513, 514)
"""The fields of a manifest list for numbers of files, then of rows; each in the order of `_STATUSES`."""
LIST_VERSION: Final = 3
"""The format version of the fields that entries of manifest lists have in memory."""
_LISTED = MANIFEST_LIST_FILE_SCHEMAS[LIST_VERSION].fields
_PLACES = [[field.field_id for field in _LISTED].index(count) for count in _COUNTS]
_LIST_SCHEMA = Schema(
    *(f.model_copy(update={"required": False}) if f.field_id in _COUNTS else f for f in _LISTED)
)
_LIST_FIRST_ROW_ID = [field.field_id for field in _LISTED].index(520)
_ENCRYPTED = b"AGS1"
"""The first bytes of an encrypted file (Iceberg format: AES GCM stream)."""
MAX_SCHEMAS = 64
"""The size of the caches by Avro schema."""


def manifests_of(io: FileIO, snapshot: Snapshot) -> list[ManifestFile]:
    """Return the manifests of a snapshot. Raise `CorruptObject` if its list does not decode."""
    path = snapshot.manifest_list
    with decoding(path):
        return _listed(bytes_of(io, path), _list_reader)


class ManifestLists:
    """Decodes the manifest lists of many snapshots. They repeat most entries byte for byte, so decoded
    entries are cached."""

    def __init__(self) -> None:
        self._readers: dict[str, RecordReader] = {}

    def manifests(self, path: str, data: bytes) -> list[ManifestFile]:
        """Return the manifests in a list with this content, not to be changed. Raise `CorruptObject` if it
        does not decode."""
        with decoding(path):
            return _listed(data, self._reader)

    def _reader(self, schema: str) -> RecordReader:
        reader = self._readers.get(schema)
        if reader is None:
            decoding_reader = _list_reader(schema)
            is_named = json.loads(schema)["fields"][0]["type"] == "string"
            reader = RememberingReader(decoding_reader) if is_named else decoding_reader
            self._readers[schema] = reader
        return reader


def _listed(data: bytes, reader_of: Callable[[str], RecordReader]) -> list[ManifestFile]:
    found = list(read_records(data, reader_of))
    for manifest in found:
        _check_listed(manifest)
    return found


def live_entries(
    io: FileIO, manifest: ManifestFile, spec: PartitionSpec | None = None
) -> list[ManifestEntry]:
    """Return a manifest's entries that are not deleted. Without its `spec`, their partitions must not be
    used. Raise `CorruptObject` if it does not decode."""
    return list(entries_in(manifest, bytes_of(io, manifest.manifest_path), spec))


def entries_in(
    manifest: ManifestFile,
    data: bytes,
    spec: PartitionSpec | None = None,
    reader_of: Callable[[str], RecordReader | BlockReader] | None = None,
) -> Iterator[ManifestEntry]:
    """Yield the entries that are not deleted from a manifest's content. Without its `spec`, their partitions
    must not be used. `reader_of` returns the reader for an Avro schema. Raise `CorruptObject` at the first
    entry that does not decode."""
    path, live, next_row_id = manifest.manifest_path, 0, first_row_id_of(manifest)
    fields = tuple(field.field_id for field in spec.fields) if spec is not None else ()
    order: tuple[int, ...] | None = None

    def read_by(schema: str) -> RecordReader | BlockReader:
        nonlocal order
        order = _order_of(schema, fields)
        return entry_reader(schema) if reader_of is None else reader_of(schema)

    with decoding(path):
        for entry in read_records(data, read_by):
            if entry.status == ManifestEntryStatus.DELETED:
                continue
            found = _inherited(entry, manifest)
            if order is not None:
                values = found.data_file.partition
                found.data_file[_PARTITION] = Record(*(values[place] for place in order))
            _check(found)
            next_row_id = _assign_row_ids(found.data_file, next_row_id)
            if (found.sequence_number or 0) > manifest.sequence_number:
                number = manifest.sequence_number
                raise ValueError(
                    f"a file has the sequence number {found.sequence_number}, but its manifest has {number}"
                )
            live += 1
            yield found
        counted = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
        if live < counted:
            raise ValueError(f"it has {live} live files, but its manifest list states {counted}")


def _inherited(entry: ManifestEntry, manifest: ManifestFile) -> ManifestEntry:
    _, snapshot_id, number, of_file, file = entry._data
    if snapshot_id is None or number is None or of_file is None:
        return _inherit_from_manifest(entry, manifest)
    # Runs for every file; the plain setter is slow.
    object.__setattr__(file, "_spec_id", manifest.partition_spec_id)
    return entry


def _assign_row_ids(file: DataFile, next_row_id: int | None) -> int | None:
    """Set a file's inherited first row id. Return that of the next file in the manifest that has none of its
    own. In a manifest without a first row id, files have none either: the table was upgraded to format
    version 3, and no commit followed."""
    own = file._data[_FIRST_ROW_ID]
    if next_row_id is None:
        if own is not None:
            file._data[_FIRST_ROW_ID] = None
        return None
    if own is not None:
        return next_row_id
    file._data[_FIRST_ROW_ID] = next_row_id
    return next_row_id + file.record_count


def first_row_id_of(manifest: ManifestFile) -> int | None:
    """Return a manifest's first row id; `None` if it has none, as those of delete files."""
    values = manifest._data
    found: int | None = values[_LIST_FIRST_ROW_ID] if len(values) > _LIST_FIRST_ROW_ID else None
    return found


ManifestKey: TypeAlias = tuple[str, int | None]
"""A manifest's path and first row id, on which the row ids of its files depend. The first commit after an
upgrade to format version 3 gives an old manifest an id, on every branch another one."""


def manifest_key(manifest: ManifestFile) -> ManifestKey:
    return manifest.manifest_path, first_row_id_of(manifest)


def is_counted(manifest: ManifestFile) -> bool:
    """Return whether the manifest list has all numbers."""
    return all(manifest[place] is not None for place in _PLACES)


def gets_row_ids(manifest: ManifestFile, format_version: int) -> bool:
    """Return whether a list of this format version assigns row ids to a manifest."""
    is_data = manifest.content == ManifestContent.DATA
    return format_version > 2 and is_data and first_row_id_of(manifest) is None


def counted(io: FileIO, manifest: ManifestFile, format_version: int) -> ManifestFile:
    """Return the manifest with all numbers that a manifest list of this version requires, counted from its
    entries if missing. Raise `CorruptObject` if it does not decode. If the list assigns row ids to it, all
    are counted: with a wrong number, two rows would get the same id."""
    is_anew = gets_row_ids(manifest, format_version)
    if is_counted(manifest) and not is_anew:
        return manifest
    counts = dict.fromkeys(_PLACES, 0)
    with decoding(manifest.manifest_path):
        for entry in read_records(bytes_of(io, manifest.manifest_path), entry_reader):
            _check(entry)
            status = _STATUSES.index(entry.status)
            counts[_PLACES[status]] += 1
            counts[_PLACES[status + len(_STATUSES)]] += entry.data_file.record_count
    found = ManifestFile(*manifest._data)
    for place, count in counts.items():
        if found[place] is None or is_anew:
            found[place] = count
    return found


def _check_listed(manifest: ManifestFile) -> None:
    """Check required fields (Iceberg format: manifest lists)."""
    path = _path(manifest.manifest_path)
    spec_id, sequence = manifest.partition_spec_id, manifest.sequence_number
    for what, number in (("partition spec", spec_id), ("sequence number", sequence)):
        if type(number) is not int or number < 0:
            raise ValueError(f"{path} has the {what} {number}")
    first_row_id = first_row_id_of(manifest)
    if first_row_id is not None and (first_row_id < 0 or manifest.content != ManifestContent.DATA):
        raise ValueError(f"{path} has the first row id {first_row_id}")
    for count in (manifest.added_files_count, manifest.existing_files_count):
        if count is not None and count < 0:
            raise ValueError(f"{path} has {count} files")


def _path(found: object) -> str:
    if not isinstance(found, str) or not found:
        raise ValueError(f"a file has the path {found!r}")
    return found


def _check(entry: ManifestEntry) -> None:
    """Check required fields, as PyIceberg does not (Iceberg format: manifests)."""
    file = entry.data_file
    # Read by position, not by name: tables have millions of files.
    content, path, rows, size_bytes = _CHECKED(file._data)
    _path(path)
    if type(rows) is not int or rows < 0:
        raise ValueError(f"{path} has {rows} rows")
    if type(size_bytes) is not int or size_bytes < 0:
        raise ValueError(f"{path} has {size_bytes} bytes")
    _, _, sequence, of_file, _ = entry._data
    if (sequence is not None and sequence < 0) or (of_file is not None and of_file < 0):
        raise ValueError(f"{path} has the sequence number {sequence}, as a file {of_file}")
    first_row_id = file._data[_FIRST_ROW_ID]
    if first_row_id is not None and (first_row_id < 0 or content != DataFileContent.DATA):
        raise ValueError(f"{path} has the first row id {first_row_id}")
    if file.file_format == FileFormat.PUFFIN:
        _check_vector(file)
    # PyIceberg decodes the bounds of a delete file's paths as text whenever it searches for deletes.
    if content == DataFileContent.POSITION_DELETES:
        for bounds in (file.lower_bounds, file.upper_bounds):
            (bounds or {}).get(PATH_FIELD_ID, b"").decode()


def _check_vector(file: DataFile) -> None:
    """Check required fields of a deletion vector (Iceberg format: deletion vectors)."""
    path, size_bytes = file.file_path, file.file_size_in_bytes
    if file.content != DataFileContent.POSITION_DELETES:
        raise ValueError(f"{path} is a Puffin file with the content {file.content}")
    if not file._data[_REFERENCED]:
        raise ValueError(f"{path} has a deletion vector for no data file")
    offset, content_bytes = file._data[_OFFSET], file._data[_CONTENT_SIZE]
    for number in (offset, content_bytes):
        if type(number) is not int or number < 0:
            raise ValueError(f"{path} has a deletion vector of {content_bytes} bytes at {offset}")
    if offset + content_bytes > size_bytes:
        raise ValueError(
            f"{path} has {size_bytes} bytes, but a deletion vector ends at {offset + content_bytes}"
        )


def is_vector(file: DataFile) -> bool:
    """Return whether a delete file's entry is a deletion vector: a part of a Puffin file that deletes rows of
    one data file."""
    return bool(file.file_format == FileFormat.PUFFIN)


def why_unreadable(file: DataFile) -> str | None:
    """Return why the rows of a data file, or the keys of an equality delete file, cannot be read ("they …");
    `None` if they can."""
    if file.key_metadata is not None:
        return "are encrypted"
    if file.file_format != FileFormat.PARQUET:
        return f"are in the format {file.file_format.value}, not Parquet"
    return None


ContentKey: TypeAlias = str | tuple[str, int]
"""The identity of an entry's content: its file's path, and of a deletion vector also its offset there."""


def key_of(file: DataFile) -> ContentKey:
    """Return the identity of an entry's content."""
    return (file.file_path, file._data[_OFFSET]) if is_vector(file) else file.file_path


def vector_place(file: DataFile) -> tuple[Any, Any]:
    """Return the offset and the size of a deletion vector in its file, as its entry states them."""
    return file._data[_OFFSET], file._data[_CONTENT_SIZE]


def first_row_id(file: DataFile) -> int | None:
    """Return the first row id of a data file of a listing; `None` if it has none."""
    values = file._data
    found: int | None = values[_FIRST_ROW_ID] if len(values) > _FIRST_ROW_ID else None
    return found


def content_bytes(file: DataFile) -> int:
    """Return the size that an entry adds to its table: for a deletion vector that of the vector, because
    several of them may share a file."""
    size_bytes: int = file._data[_CONTENT_SIZE] if is_vector(file) else file.file_size_in_bytes
    return size_bytes


def referenced_data_file(delete_file: DataFile) -> str | None:
    """Return the data file that a delete file's entry names, if any."""
    path: str | None = delete_file._data[_REFERENCED]
    return path


@contextmanager
def decoding(path: str) -> Iterator[None]:
    """Raise errors as `CorruptObject`, except `LithifyError` and `OSError`: damaged bytes can make PyIceberg
    raise any class."""
    try:
        yield
    except (LithifyError, OSError):
        raise
    except Exception as error:
        raise CorruptObject(path, f"does not decode: {type(error).__name__}: {error}") from error


def bytes_of(io: FileIO, path: str) -> bytes:
    """Return the content of a manifest or manifest list. Raise `Unsupported` if it is encrypted."""
    with io.new_input(path).open() as stream:
        data: bytes = stream.read()
    if data.startswith(_ENCRYPTED):
        raise Unsupported(f"{path} is encrypted, which is not supported")
    return data


@lru_cache(MAX_SCHEMAS)
def entry_reader(schema: str) -> Reader:
    """Return the stateless reader of entries written with this Avro schema."""
    return resolve_reader(
        AvroSchemaConversion().avro_to_iceberg(_spelled_out(json.loads(schema), {})),
        MANIFEST_ENTRY_SCHEMAS[ENTRY_VERSION],
        {-1: ManifestEntry, 2: DataFile},
        {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    )


@lru_cache(MAX_SCHEMAS)
def _order_of(schema: str, fields: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return these partition fields' positions in entries of this Avro schema. `None` if they are in order,
    or if the ids differ: in format version 1 ids may have changed, but not the order."""
    if not fields:
        return None
    found = AvroSchemaConversion().avro_to_iceberg(_spelled_out(json.loads(schema), {})).find_type(102)
    there = [field.field_id for field in found.fields] if isinstance(found, StructType) else []
    if there == list(fields) or sorted(there) != sorted(fields):
        return None
    return tuple(there.index(field) for field in fields)


@lru_cache(MAX_SCHEMAS)
def _list_reader(schema: str) -> Reader:
    return resolve_reader(
        AvroSchemaConversion().avro_to_iceberg(json.loads(schema)),
        _LIST_SCHEMA,
        {-1: ManifestFile, 508: PartitionFieldSummary},
        {517: ManifestContent},
    )


def _spelled_out(kind: Any, known: dict[str, Any]) -> Any:
    """Replace references to types of fixed length by their definitions."""
    if isinstance(kind, str):
        return known.get(kind, kind)
    if isinstance(kind, list):
        return [_spelled_out(option, known) for option in kind]
    if kind["type"] == "fixed":
        known[kind["name"]] = kind
    whole = {part: _spelled_out(kind[part], known) for part in ("type", "items", "values") if part in kind}
    if "fields" in kind:
        whole["fields"] = [{**field, "type": _spelled_out(field["type"], known)} for field in kind["fields"]]
    return {**kind, **whole}
