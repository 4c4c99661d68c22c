"""Values of any nested type are after a projection what they were before, wherever nulls are."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, ListType, LongType, MapType, NestedField, StringType, StructType

from lithify.datasets.iceberg.format.columns import columns_of, open_file, why_unfit
from lithify.datasets.iceberg.format.projection import Projection

Shape = Any
"""`int`, `str`, or a tuple of what it is made of and its parts."""

SHAPES: st.SearchStrategy[Shape] = st.recursive(
    st.sampled_from([int, str]),
    lambda inner: (
        st.tuples(st.just("list"), inner)
        | st.tuples(st.just("map"), inner)
        | st.lists(inner, min_size=1, max_size=3).map(lambda parts: ("struct", *parts))
    ),
    max_leaves=5,
)


def type_of(shape: Shape, ids: list[int], number: Any) -> Any:
    """The Iceberg type of a shape; `number` is that of its numbers."""

    def next_id() -> int:
        ids.append(len(ids) + 10)
        return ids[-1]

    if shape is int:
        return number
    if shape is str:
        return StringType()
    kind, *parts = shape
    if kind == "list":
        return ListType(next_id(), type_of(parts[0], ids, number), element_required=False)
    if kind == "map":
        key, value = next_id(), next_id()
        return MapType(key, StringType(), value, type_of(parts[0], ids, number), value_required=False)
    fields = [NestedField(next_id(), f"f{n}", type_of(part, ids, number)) for n, part in enumerate(parts)]
    return StructType(*fields)


def values_of(shape: Shape) -> st.SearchStrategy[Any]:
    """Values of a shape, null among them, as Arrow gives them back."""
    if shape is int:
        return st.none() | st.integers(-(1 << 31), (1 << 31) - 1)
    if shape is str:
        return st.none() | st.text(max_size=3)
    kind, *parts = shape
    if kind == "list":
        return st.none() | st.lists(values_of(parts[0]), max_size=3)
    if kind == "map":
        pairs = st.tuples(st.text(max_size=2), values_of(parts[0]))
        return st.none() | st.lists(pairs, max_size=3, unique_by=lambda pair: pair[0])
    return st.none() | st.fixed_dictionaries({f"f{n}": values_of(part) for n, part in enumerate(parts)})


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_values_stay(data: st.DataObject) -> None:
    """Written with small numbers, read with large ones, a slice at a time and with a column more."""
    shape = data.draw(SHAPES)
    rows = data.draw(st.lists(values_of(shape), min_size=1, max_size=8))
    had = schema_to_pyarrow(Schema(NestedField(1, "v", type_of(shape, [], IntegerType()))))
    wanted = Schema(NestedField(2, "more", LongType()), NestedField(1, "w", type_of(shape, [], LongType())))
    stream = io.BytesIO()
    pq.write_table(pa.table([pa.array(rows, had.field(0).type)], schema=had), stream)
    file = open_file(stream)
    assert why_unfit(file, wanted, None) is None
    projection = Projection(columns_of(file.schema_arrow, None), schema_to_pyarrow(wanted), {}, "x")
    (batch,) = file.iter_batches()
    start = data.draw(st.integers(0, len(rows) - 1))
    for chosen in (batch, batch.slice(start), batch.filter(pa.array([n >= start for n in range(len(rows))]))):
        found = projection.apply(chosen)
        found.validate(full=True)
        assert found.column("w").to_pylist() == rows[len(rows) - chosen.num_rows :]
        assert found.column("more").null_count == chosen.num_rows
