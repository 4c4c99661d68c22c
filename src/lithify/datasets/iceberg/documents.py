"""A table's specs, ranges and outputs as JSON for the ledger."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

from lithify.base.jsonvalues import text, whole_number
from lithify.coordination.ledger_documents import Fields, LedgerFormat, Values
from lithify.datasets.iceberg.model import (
    ChunkSpec,
    Lane,
    LeftAlone,
    NewFile,
    Output,
    SpecPart,
    TimeRange,
    WorkRange,
)
from lithify.planning.timeline.model import ChunkBucket, ChunkKey

MAX_INPUTS = 1_000_000
"""The maximum number of inputs of a compaction. A document with more is damaged."""

_MAX_INT, _MAX_CRC, _MAX_LONG = (1 << 31) - 1, (1 << 32) - 1, (1 << 63) - 1


OF_SEVERAL_LANES = 2
"""The version of documents with specs of several parts, or with inputs that were skipped."""
OF_PACKS = 3
"""The version of documents with specs of packs, whose ranges name inputs."""


def _of_spec(spec: ChunkSpec) -> Fields:
    first, *others = spec.parts
    fields = {
        "task": spec.task,
        "snapshot_id": spec.snapshot_id,
        **_of_part(first),
        "chunks": [[key.group, int(key.bucket), key.start_us] for key in spec.chunks],
        "sort_order_id": spec.sort_order_id,
    }
    return {**fields, "more": [_of_part(part) for part in others]} if others else fields


def _spec(fields: Fields) -> ChunkSpec:
    return ChunkSpec(
        task=text(fields["task"]),
        snapshot_id=int(fields["snapshot_id"]),
        chunks=tuple(ChunkKey(text(g), ChunkBucket(b), int(s)) for g, b, s in fields["chunks"]),
        parts=(_part(fields), *map(_part, fields.get("more", ()))),
        sort_order_id=int(fields["sort_order_id"]),
    )


def _of_part(part: SpecPart) -> Fields:
    return {
        "spec_id": part.lane.spec_id,
        "partition": part.lane.partition,
        "cuts": list(part.cuts),
        "inputs": list(part.inputs),
    }


def _part(fields: Fields) -> SpecPart:
    return SpecPart(
        lane=Lane(int(fields["spec_id"]), text(fields["partition"])),
        cuts=tuple(map(int, fields["cuts"])),
        inputs=tuple(map(text, fields["inputs"])),
    )


def _needed_version(spec: ChunkSpec) -> int:
    if any(key.bucket is ChunkBucket.NULL for key in spec.chunks):
        return OF_PACKS
    return 1 if len(spec.parts) == 1 else OF_SEVERAL_LANES


def _of_work(work: WorkRange) -> list[Any]:
    """Encode one time range of a spec's first part as that range, any other work as a list of ranges with
    their parts and inputs."""
    if len(work) == 1 and not work[0].part and work[0].inputs is None:
        return _of_range(work[0])
    return [[*_of_range(one), one.part, *(one.inputs or ())] for one in work]


def _work(fields: Any) -> WorkRange:
    if fields and isinstance(fields[0], list):
        return tuple(_range(*one) for one in fields)
    return (_range(*fields),)


def _of_range(part: TimeRange) -> list[Any]:
    return [part.start_us, part.end_us, list(part.cuts), part.with_nulls]


def _range(
    start: Any, end: Any, cuts: Any, with_nulls: Any, part: Any = 0, first: Any = None, after: Any = None
) -> TimeRange:
    return TimeRange(
        _optional(start),
        _optional(end),
        tuple(map(int, cuts)),
        bool(with_nulls),
        whole_number(part, most=MAX_INPUTS),
        None
        if first is None
        else (whole_number(first, most=MAX_INPUTS), whole_number(after, most=MAX_INPUTS)),
    )


def _optional(value: Any) -> int | None:
    return None if value is None else int(value)


_COUNTS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
_BOUNDS = ("lower_bounds", "upper_bounds")


def _of_output(output: Output) -> Fields:
    if isinstance(output, LeftAlone):
        return {"left": output.name, "sources": _of_positions(output.sources), "reason": output.reason}
    return _of_file(output)


def _output(fields: Fields) -> Output:
    if "left" in fields:
        sources = _positions(fields["sources"])
        if not sources:
            raise ValueError("nothing was left alone")
        return LeftAlone(text(fields["left"]), sources, text(fields["reason"]))
    return _file(fields)


def _of_file(file: NewFile) -> Fields:
    return {
        "path": file.path,
        "size_bytes": file.size_bytes,
        "rows": file.rows,
        "sort_order_id": file.sort_order_id,
        "split_offsets": list(file.split_offsets),
        "sources": None if file.sources is None else _of_positions(file.sources),
        **({} if file.row_map is None else {"row_map": file.row_map}),
        **{name: {str(k): v for k, v in getattr(file, name).items()} for name in _COUNTS},
        **{name: {str(k): b64encode(v).decode() for k, v in getattr(file, name).items()} for name in _BOUNDS},
    }


def _file(fields: Fields) -> NewFile:
    size_bytes, rows = _count(fields["size_bytes"]), _count(fields["rows"])
    if size_bytes < 1 or rows < 1:
        raise ValueError(f"an output of {size_bytes} bytes and {rows} rows")
    return NewFile(
        path=text(fields["path"]),
        size_bytes=size_bytes,
        rows=rows,
        sort_order_id=None if fields["sort_order_id"] is None else _id(fields["sort_order_id"]),
        split_offsets=tuple(map(_count, fields["split_offsets"])),
        sources=_positions(fields.get("sources")),
        row_map=None if fields.get("row_map") is None else whole_number(fields["row_map"], most=_MAX_CRC),
        column_sizes=_counts(fields["column_sizes"]),
        value_counts=_counts(fields["value_counts"]),
        null_value_counts=_counts(fields["null_value_counts"]),
        nan_value_counts=_counts(fields["nan_value_counts"]),
        lower_bounds=_bounds(fields["lower_bounds"]),
        upper_bounds=_bounds(fields["upper_bounds"]),
    )


def _of_positions(positions: Sequence[int]) -> list[list[int]]:
    """Encode positions as runs: the first and last of each. A compaction may have many thousand inputs."""
    runs: list[list[int]] = []
    for position in positions:
        if runs and position == runs[-1][1] + 1:
            runs[-1][1] = position
        else:
            runs.append([position, position])
    return runs


def _positions(runs: Any) -> tuple[int, ...] | None:
    if runs is None:
        return None
    found: list[int] = []
    for first, last in runs:
        if not (found[-1] if found else -1) < int(first) <= int(last) < MAX_INPUTS:
            raise ValueError(f"the sources of an output do not ascend: {first} to {last}")
        found.extend(range(int(first), int(last) + 1))
    return tuple(found)


def _counts(fields: Fields) -> dict[int, int]:
    return {_id(column): _count(count) for column, count in fields.items()}


def _bounds(fields: Fields) -> dict[int, bytes]:
    return {_id(column): b64decode(bound, validate=True) for column, bound in fields.items()}


def _count(value: Any) -> int:
    """Decode a number that fits into a manifest's field."""
    return whole_number(value, most=_MAX_LONG)


def _id(value: Any) -> int:
    """Decode the id of a column or a sort order; a column's id is a JSON key, so it is text."""
    return whole_number(int(value), most=_MAX_INT)


LEDGERS = LedgerFormat(
    Values(_of_spec, _spec, _needed_version), Values(_of_work, _work), Values(_of_output, _output)
)
