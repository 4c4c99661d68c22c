"""Checks before anything is written: which tables are refused, and which files are skipped.

Each part of maintenance has its own preconditions, and an unmet one stops only that part (`refused_parts`).
Single files that cannot be rewritten are skipped, with a note, and the others are compacted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from pyiceberg.manifest import DataFile
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2, TableMetadataV3
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType

from lithify.base.errors import CorruptObject, Refused, Unsupported
from lithify.datasets.iceberg.deletes.position_deletes import READABLE
from lithify.datasets.iceberg.deletes.vectors import MAX_VECTOR_BYTES
from lithify.datasets.iceberg.errors import NEWEST_FORMAT, newer_format
from lithify.datasets.iceberg.format.bloom_filters import without_filters
from lithify.datasets.iceberg.format.columns import why_opaque
from lithify.datasets.iceberg.format.manifest_list import next_row_id
from lithify.datasets.iceberg.format.manifests import content_bytes, is_vector, why_unreadable
from lithify.datasets.iceberg.format.row_ids import check_names
from lithify.datasets.iceberg.format.sorting import unsortable
from lithify.datasets.iceberg.format.table_properties import ignored, properties_of
from lithify.datasets.iceberg.format.write_options import check_delete_options, check_writing
from lithify.datasets.iceberg.io.reach import ALLOWED, EVERYWHERE, REACH
from lithify.datasets.maintenance import ORPHANS

MAX_FIELD_ID = (1 << 31) - 201
"""The highest field id that is not reserved (Iceberg format: reserved field ids)."""
MAX_SEQUENCE_NUMBER = (1 << 63) - 1


def check_data(metadata: TableMetadata, branch: str | None, url: str) -> str:
    """Return the branch to compact. Raise `Refused` when the table's data cannot be compacted."""
    _check_version(metadata, url)
    if _is_encrypted(metadata):
        raise Unsupported(f"{url}: the table is encrypted, and outputs would not be; this is not supported")
    written = properties_of(metadata).get("write.format.default", "parquet")
    if written.lower() != "parquet":
        raise Unsupported(f"{url}: write.format.default is {written}; only Parquet can be written")
    _check_sound(metadata, url)
    if metadata.format_version > 2:
        check_names(metadata.schema(), url)
    for field in metadata.sort_order().fields:
        if metadata.schema().find_column_name(field.source_id) is None:
            raise Unsupported(
                f"{url}: the sort order uses a column that was dropped, so catalogs would refuse every "
                "commit; change the sort order"
            )
    check_writing(metadata, url)
    return _branch(metadata, branch, url)


def check_manifests(metadata: TableMetadata, branch: str | None, url: str) -> str:
    """Return the branch whose manifests are rewritten. Raise `Refused` when the table's cannot be."""
    _check_version(metadata, url)
    if _is_encrypted(metadata):
        raise Unsupported(
            f"{url}: the table is encrypted, and rewritten metadata and delete files would not be; this is "
            "not supported"
        )
    _check_sound(metadata, url)
    check_writing(metadata, url)
    return _branch(metadata, branch, url)


def check_deletes(metadata: TableMetadata, branch: str | None, url: str) -> str:
    """Return the branch whose delete files are rewritten. Raise `Refused` when the table's cannot be."""
    branch = check_manifests(metadata, branch, url)
    check_delete_options(metadata, url)
    return branch


def _is_encrypted(metadata: TableMetadata) -> bool:
    return any(key.startswith("encryption.") for key in properties_of(metadata))


def check_deletable(metadata: TableMetadata, url: str) -> None:
    """Raise `Refused` when it is not certain which files the table's snapshots need."""
    _check_version(metadata, url)
    if metadata.format_version > 2 and _is_encrypted(metadata):
        raise Unsupported(
            f"{url}: the table is encrypted, so it cannot be known which files it needs, and nothing is "
            "expired or removed; this is not supported"
        )


def _check_version(metadata: TableMetadata, url: str) -> None:
    """Raise `Unsupported` for a version that PyIceberg reads and Lithify does not know."""
    if metadata.format_version > NEWEST_FORMAT:
        raise Unsupported(newer_format(url, metadata.format_version))


def refused_parts(
    metadata: TableMetadata, branch: str | None, url: str, check_compaction: Callable[[], object]
) -> dict[str, str]:
    """Return why each part of maintenance cannot be done with the table, by part, as far as its metadata
    show. `check_compaction` raises `Refused` when the table's data cannot be compacted."""
    checks: dict[str, Callable[[], object]] = {
        "data": check_compaction,
        "deletes": lambda: check_deletes(metadata, branch, url),
        "manifests": lambda: check_manifests(metadata, branch, url),
        "expiry": lambda: check_deletable(metadata, url),
        ORPHANS: lambda: check_deletable(metadata, url),
    }
    refused: dict[str, str] = {}
    for part, check in checks.items():
        try:
            check()
        except Refused as error:
            refused[part] = str(error)
    return refused


def _check_sound(metadata: TableMetadata, url: str) -> None:
    """Check the properties on which readers and commits must agree (Iceberg format: table metadata)."""
    what = f"the metadata of {url}"
    if not metadata.sort_orders:
        raise CorruptObject(what, "have no sort order, so catalogs would refuse every commit")
    odd = [
        field for schema in metadata.schemas for field in schema.field_ids if not 0 <= field <= MAX_FIELD_ID
    ]
    if odd:
        raise CorruptObject(what, f"have a column with the id {odd[0]}, which readers cannot resolve")
    if not all(field.name for spec in metadata.partition_specs for field in spec.fields):
        raise CorruptObject(what, "have a partition field without a name, which manifests cannot contain")
    numbers = [snapshot.sequence_number or 0 for snapshot in metadata.snapshots]
    last = max(numbers, default=0)
    if isinstance(metadata, TableMetadataV2 | TableMetadataV3):
        last = metadata.last_sequence_number
    if isinstance(metadata, TableMetadataV3):
        _check_row_ids(metadata, what)
    if last >= MAX_SEQUENCE_NUMBER:
        raise CorruptObject(what, f"name {last} as the last sequence number, so there is no next one")
    wrong = [number for number in numbers if not 0 <= number <= last]
    if wrong:
        raise CorruptObject(
            what,
            f"name {last} as the last sequence number, but a snapshot has {wrong[0]}, so deletes would "
            "apply to the wrong rows; restore older metadata",
        )
    main = metadata.refs.get(MAIN_BRANCH)
    head = main.snapshot_id if main is not None else None
    if head != metadata.current_snapshot_id:
        raise CorruptObject(
            what,
            f"name {metadata.current_snapshot_id} as the current snapshot, but {head} as the head of "
            f"{MAIN_BRANCH}, so readers see different rows; restore older metadata",
        )


def _check_row_ids(metadata: TableMetadataV3, what: str) -> None:
    """Raise `CorruptObject` if the next row id may have been given already."""
    following = next_row_id(metadata)
    used = max(((one.first_row_id or 0) + (one.added_rows or 0) for one in metadata.snapshots), default=0)
    if used > following:
        raise CorruptObject(
            what,
            f"name {following} as the next row id, but a snapshot has assigned ids up to {used}, so two rows "
            "would get the same id; restore older metadata",
        )


def branches_of(metadata: TableMetadata) -> list[str]:
    """Return the names of the table's branches."""
    return [n for n, ref in metadata.refs.items() if ref.snapshot_ref_type == SnapshotRefType.BRANCH]


def _branch(metadata: TableMetadata, wanted: str | None, url: str) -> str:
    branches = branches_of(metadata)
    if wanted is not None:
        if wanted not in branches and (wanted != MAIN_BRANCH or metadata.refs.get(wanted) is not None):
            raise Refused(
                f"{url}: there is no branch {wanted!r}; its branches are {', '.join(sorted(branches))}"
            )
        return wanted
    if len(branches) > 1:
        raise Refused(
            f"{url}: has several branches ({', '.join(sorted(branches))}); name the one to compact in the "
            "table property lithify.branch"
        )
    return branches[0] if branches else MAIN_BRANCH


class Refusals:
    """The reasons to refuse a table's files."""

    def __init__(self, metadata: TableMetadata, properties: Mapping[str, Any]) -> None:
        """`properties` are those of the table's file access."""
        schema = metadata.schema()
        self._reach = properties.get(REACH, EVERYWHERE)
        self._gone = {
            spec_id
            for spec_id, spec in metadata.specs().items()
            if any(schema.find_column_name(field.source_id) is None for field in spec.fields)
        }
        """Partition specs made from columns that no longer exist."""
        self._opaque = why_opaque(schema)

    def why_left_alone(
        self, data_file: DataFile, unfit_deletes: str | None, position_deletes: Collection[DataFile]
    ) -> str | None:
        """Return why a file cannot be rewritten; `None` when it can, provided its times are known.
        `unfit_deletes` is the reason why its equality deletes cannot be applied here; `position_deletes` are
        those that apply to it."""
        if not self._reach.allows(data_file.file_path):
            return f"lie outside the folders that this table's files may use ({ALLOWED} of the catalog)"
        unreadable = why_unreadable(data_file)
        if unreadable is not None:
            return unreadable
        if self._opaque is not None:
            return self._opaque
        if unfit_deletes is not None:
            return f"have equality deletes that apply and {unfit_deletes}; rewrite these deletes"
        if sum(map(is_vector, position_deletes)) > 1:
            return "have more than one deletion vector, of which readers choose different ones"
        for delete in position_deletes:
            if not self._reach.allows(delete.file_path):
                return (
                    f"have position deletes outside the folders that this table's files may use ({ALLOWED} "
                    "of the catalog)"
                )
            if delete.key_metadata is not None:
                return "have position deletes that are encrypted"
            if is_vector(delete):
                if content_bytes(delete) > MAX_VECTOR_BYTES:
                    return f"have a deletion vector of more than {MAX_VECTOR_BYTES // (1024 * 1024)} MiB"
            elif delete.file_format not in READABLE:
                return f"have position deletes in the format {delete.file_format.value}, not Parquet"
        if data_file.spec_id in self._gone:
            return f"are partitioned by a column that was dropped (partition spec {data_file.spec_id})"
        return None


def table_notes(metadata: TableMetadata) -> tuple[str, ...]:
    """Return notes on properties of the table that a rewrite ignores."""
    return (*_unused(metadata), *_unsorted(metadata), *_no_blooms(metadata))


def _unsorted(metadata: TableMetadata) -> tuple[str, ...]:
    part = unsortable(metadata, metadata.sort_order())
    if part is None:
        return ()
    return (
        f"the table's sort order is not followed, because it uses {part}; outputs are recorded as not sorted",
    )


def _unused(metadata: TableMetadata) -> tuple[str, ...]:
    names = ignored(metadata)
    if not names:
        return ()
    return (
        f"the table's properties {_shown(names)} are ignored: code, hosts and credentials come from the "
        "configuration of the catalog",
    )


def _no_blooms(metadata: TableMetadata) -> tuple[str, ...]:
    names = without_filters(properties_of(metadata), metadata.schema())
    if not names:
        return ()
    return (
        f"outputs have no bloom filters for {_shown(names)}, although the table requests them: a filter of "
        "floating-point numbers would hide rows, because 0.0 equals -0.0, and Parquet has none for booleans",
    )


def _shown(names: Sequence[str]) -> str:
    return f"{', '.join(names[:3])}{', …' if len(names) > 3 else ''}"


def count_notes(reasons: Iterable[str], of: str = "file(s)") -> tuple[str, ...]:
    """Return one note for each reason why files (or other objects) are skipped."""
    return tuple(
        f"{count} {of} are left alone: they {why}" for why, count in sorted(Counter(reasons).items())
    )
