"""The checked FlatBuffers reader, against buffers of the official builder and against damaged ones."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import flatbuffers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.base.errors import CorruptObject, Unsupported
from lithify.datasets.slatedb.format.flatbuffer import (
    BYTES,
    I8,
    I64,
    OPTIONAL_U16,
    STRING,
    U8,
    U32,
    U32S,
    U64,
    Scalar,
    TableType,
    Union,
    read,
    required,
    table,
    tables,
    write,
)
from tests.datasets.slatedb.values import i64s, keys, texts, u16s, u32s, u64s

NAME = "some/object"


class Leaf(NamedTuple):
    number: int
    data: bytes | None


class Other(NamedTuple):
    value: int


class Root(NamedTuple):
    small: int
    big: int
    maybe: int | None
    data: bytes | None
    text: str | None
    numbers: tuple[int, ...] | None
    leaf: Leaf | None
    leaves: tuple[Leaf, ...] | None
    kind: int
    choice: Leaf | Other | None
    wide: int


LEAF = TableType("Leaf", Leaf, (U64, BYTES))
OTHER = TableType("Other", Other, (U32,))
ROOT = TableType(
    "Root",
    Root,
    (
        I8,
        I64,
        OPTIONAL_U16,
        BYTES,
        STRING,
        U32S,
        table(LEAF),
        tables(LEAF),
        U8,
        Union({1: LEAF, 2: OTHER}),
        U32,
    ),
)
EMPTY = Root(0, 0, None, None, None, None, None, None, 0, None, 0)

leaves = st.builds(Leaf, u64s, st.none() | keys)
choices = st.just((0, None)) | st.tuples(st.just(1), leaves) | st.tuples(st.just(2), st.builds(Other, u32s))
roots = st.builds(
    lambda chosen, **fields: Root(kind=chosen[0], choice=chosen[1], **fields),
    choices,
    small=st.integers(-128, 127),
    big=i64s,
    maybe=st.none() | u16s,
    data=st.none() | keys,
    text=st.none() | texts,
    numbers=st.none() | st.lists(u32s, max_size=4).map(tuple),
    leaf=st.none() | leaves,
    leaves=st.none() | st.lists(leaves, max_size=4).map(tuple),
    wide=u32s,
)


@settings(deadline=None)
@given(roots)
def test_a_record_reads_back_as_it_was_written(root: Root) -> None:
    assert read(write(ROOT, root), ROOT, NAME) == root


def built(builder: flatbuffers.Builder, kind: TableType[Any], record: tuple[Any, ...]) -> int:
    """The record by the official builder: references first, then numbers and references by size."""
    targets: dict[int, int] = {}
    for i, (slot, value) in enumerate(zip(kind.slots, record, strict=True)):
        if value is None or isinstance(slot, Scalar):
            continue
        if isinstance(slot, Union):
            targets[i] = built(builder, slot.members[record[i - 1]], value)
        elif isinstance(value, bytes):
            targets[i] = builder.CreateByteVector(value)
        elif isinstance(value, str):
            targets[i] = builder.CreateString(value)
        elif isinstance(value, Leaf):
            targets[i] = built(builder, LEAF, value)
        else:
            items = [built(builder, LEAF, item) if isinstance(item, Leaf) else item for item in value]
            builder.StartVector(4, len(items), 4)
            for item in reversed(items):
                if slot is kind.slots[5]:
                    builder.PrependUint32(item)
                else:
                    builder.PrependUOffsetTRelative(item)
            targets[i] = builder.EndVector()
    builder.StartObject(len(kind.slots))
    prepend = {
        "b": builder.PrependInt8,
        "B": builder.PrependUint8,
        "H": builder.PrependUint16,
        "I": builder.PrependUint32,
        "q": builder.PrependInt64,
        "Q": builder.PrependUint64,
    }
    for i in kind.write_order:
        slot = kind.slots[i]
        if isinstance(slot, Scalar) and record[i] != slot.default:
            prepend[slot.code](record[i])
            builder.Slot(i)
        elif i in targets:
            builder.PrependUOffsetTRelative(targets[i])
            builder.Slot(i)
    return int(builder.EndObject())


@settings(deadline=None)
@given(roots)
def test_the_bytes_are_those_of_the_official_builder(root: Root) -> None:
    builder = flatbuffers.Builder(64)
    builder.Finish(built(builder, ROOT, root))
    assert write(ROOT, root) == bytes(builder.Output())


@pytest.mark.parametrize(
    ("absent", "present"),
    [
        (EMPTY, EMPTY._replace(data=b"")),
        (EMPTY, EMPTY._replace(text="")),
        (EMPTY, EMPTY._replace(numbers=())),
        (EMPTY, EMPTY._replace(leaves=())),
        (EMPTY, EMPTY._replace(maybe=0)),
        (EMPTY, EMPTY._replace(leaf=Leaf(0, None))),
    ],
)
def test_absent_and_empty_are_told_apart(absent: Root, present: Root) -> None:
    assert read(write(ROOT, absent), ROOT, NAME) == absent
    assert read(write(ROOT, present), ROOT, NAME) == present


@pytest.mark.parametrize(
    "root",
    [
        EMPTY._replace(small=128),
        EMPTY._replace(wide=-1),
        EMPTY._replace(big=1 << 63),
        EMPTY._replace(maybe=1 << 16),
        EMPTY._replace(numbers=(1 << 32,)),
        EMPTY._replace(kind=3, choice=Leaf(1, None)),
        EMPTY._replace(kind=1),
        EMPTY._replace(choice=Leaf(1, None)),
    ],
)
def test_what_cannot_be_expressed_is_not_written(root: Root) -> None:
    with pytest.raises(ValueError, match=r"Root\.|vector element"):
        write(ROOT, root)


def test_a_type_needs_a_field_for_each_slot() -> None:
    with pytest.raises(ValueError, match="2 slots and 1 fields"):
        TableType("Other", Other, (U32, U32))


# ------------------------------------------------------------------------------- damaged buffers


def leaf_buffer(*, slots: int = 2, extra: Callable[[flatbuffers.Builder], object] | None = None) -> bytes:
    """A `Leaf` of the official builder, with data `abcd`, perhaps with more slots."""
    builder = flatbuffers.Builder(64)
    data = builder.CreateByteVector(b"abcd")
    builder.StartObject(slots)
    builder.PrependUint64Slot(0, 7, 0)
    builder.PrependUOffsetTRelativeSlot(1, data, 0)
    if extra is not None:
        extra(builder)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def patched(data: bytes, position: int, layout: str, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(layout, changed, position, value)
    return bytes(changed)


GOOD = leaf_buffer()
TABLE = struct.unpack_from("<I", GOOD)[0]
VTABLE = TABLE - struct.unpack_from("<i", GOOD, TABLE)[0]
NUMBER = TABLE + struct.unpack_from("<H", GOOD, VTABLE + 4)[0]
REFERENCE = TABLE + struct.unpack_from("<H", GOOD, VTABLE + 6)[0]
VECTOR = REFERENCE + struct.unpack_from("<I", GOOD, REFERENCE)[0]


def test_the_undamaged_buffer_reads() -> None:
    assert read(GOOD, LEAF, NAME) == Leaf(7, b"abcd")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "too short"),
        (b"\0\0\0", "too short"),
        (patched(GOOD, 0, "<I", len(GOOD)), "outside"),
        (patched(GOOD, 0, "<I", 0xFFFFFFFC), "outside"),
        (patched(GOOD, 0, "<I", TABLE + 1), "vtable|aligned|beyond|outside"),
        (patched(GOOD, TABLE, "<i", TABLE + 2), "outside"),
        (patched(GOOD, TABLE, "<i", -len(GOOD)), "outside"),
        (patched(GOOD, TABLE, "<i", TABLE - VTABLE + 1), "outside|impossible"),
        (patched(GOOD, VTABLE, "<H", 3), "impossible"),
        (patched(GOOD, VTABLE, "<H", 7), "impossible"),
        (patched(GOOD, VTABLE, "<H", 0xFFFE), "impossible"),
        (patched(GOOD, VTABLE + 2, "<H", 2), "impossible"),
        (patched(GOOD, VTABLE + 2, "<H", 0xFFFF), "beyond"),
        (patched(GOOD, VTABLE + 4, "<H", 2), "overlaps|leaves"),
        (patched(GOOD, VTABLE + 4, "<H", NUMBER - TABLE - 4), "overlaps|leaves|aligned"),
        (patched(GOOD, VTABLE + 4, "<H", NUMBER - TABLE + 4), "leaves|aligned"),
        (patched(GOOD, VTABLE + 6, "<H", REFERENCE - TABLE + 2), "overlaps|aligned"),
        (patched(GOOD, VTABLE + 6, "<H", NUMBER - TABLE), "overlaps"),
        (patched(GOOD, REFERENCE, "<I", 0xFFFFFFFF), "outside"),
        (patched(GOOD, REFERENCE, "<I", VECTOR - REFERENCE + 1), "aligned|outside"),
        (patched(GOOD, VECTOR, "<I", 0xFFFFFFFF), "beyond"),
        (patched(GOOD, VECTOR, "<I", 9), "beyond"),
    ],
)
def test_damage_is_named(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptObject, match=reason) as caught:
        read(data, LEAF, NAME)
    assert caught.value.name == NAME


@pytest.mark.parametrize("length", range(len(GOOD)))
def test_a_truncated_buffer_is_refused(length: int) -> None:
    with pytest.raises(CorruptObject):
        read(GOOD[:length], LEAF, NAME)


def test_a_required_field_must_be_there() -> None:
    strict = TableType("Leaf", Leaf, (U64, required(BYTES)))
    with pytest.raises(CorruptObject, match=r"required field Leaf\.data is missing"):
        read(write(LEAF, Leaf(7, None)), strict, NAME)
    with pytest.raises(ValueError, match=r"required field Leaf\.data is missing"):
        write(strict, Leaf(7, None))


def test_a_string_must_be_utf8_with_its_terminator() -> None:
    class Text(NamedTuple):
        text: str | None

    class Raw(NamedTuple):
        data: bytes | None

    text, raw = TableType("Text", Text, (STRING,)), TableType("Text", Raw, (BYTES,))
    with pytest.raises(CorruptObject, match="not UTF-8"):
        read(write(raw, Raw(b"\xff\0\0")), TableType("Text", Text, (STRING,)), NAME)
    with pytest.raises(CorruptObject, match="no terminator"):
        read(write(raw, Raw(b"abcd")), text, NAME)


# ---------------------------------------------------------------------------------- newer writers


def test_a_newer_writers_field_is_refused() -> None:
    newer = leaf_buffer(slots=4, extra=lambda builder: builder.PrependUint8Slot(3, 1, 0))
    with pytest.raises(Unsupported, match=r"some/object: table Leaf has a field in slot 3"):
        read(newer, LEAF, NAME)


def test_a_longer_vtable_with_nothing_in_it_is_accepted() -> None:
    class Five(NamedTuple):
        a: int
        b: bytes | None
        c: int
        d: int
        e: int

    # A vtable of five slots whose last entry is wiped.
    five = TableType("Leaf", Five, (U64, BYTES, U8, U8, U8))
    data = write(five, Five(7, b"abc", 0, 0, 1))
    at = struct.unpack_from("<I", data)[0]
    vtable = at - struct.unpack_from("<i", data, at)[0]
    assert struct.unpack_from("<H", data, vtable)[0] == 4 + 2 * 5
    assert read(patched(data, vtable + 4 + 2 * 4, "<H", 0), LEAF, NAME) == Leaf(7, b"abc")


def test_an_unknown_union_member_is_refused() -> None:
    wider = TableType("Root", Root, (*ROOT.slots[:9], Union({1: LEAF, 2: OTHER, 3: OTHER}), U32))
    data = write(wider, EMPTY._replace(kind=3, choice=Other(1)))
    with pytest.raises(Unsupported, match=r"union Root\.choice has member 3"):
        read(data, ROOT, NAME)


class Loose(NamedTuple):
    kind: int
    choice: Any


@pytest.mark.parametrize("loose", [Loose(1, None), Loose(0, Leaf(1, None))])
def test_a_union_needs_type_and_value(loose: Loose) -> None:
    plain = TableType("Loose", Loose, (U8, table(LEAF)))
    union = TableType("Loose", Loose, (U8, Union({1: LEAF})))
    with pytest.raises(CorruptObject, match="without"):
        read(write(plain, loose), union, NAME)


# ----------------------------------------------------------------------------------- shared bytes


def test_references_that_share_bytes_cannot_blow_up() -> None:
    """A vector of 4,000 references to one table, which holds 4,000 bytes: 16 MB from 20 KB."""
    builder = flatbuffers.Builder(64)
    data = builder.CreateByteVector(bytes(4000))
    builder.StartObject(2)
    builder.PrependUOffsetTRelativeSlot(1, data, 0)
    leaf = builder.EndObject()
    builder.StartVector(4, 4000, 4)
    for _ in range(4000):
        builder.PrependUOffsetTRelative(leaf)
    vector = builder.EndVector()
    builder.StartObject(len(ROOT.slots))
    builder.PrependUOffsetTRelativeSlot(7, vector, 0)
    builder.Finish(builder.EndObject())
    with pytest.raises(CorruptObject, match="more than 2 times"):
        read(bytes(builder.Output()), ROOT, NAME)


def test_a_shared_vector_is_accepted() -> None:
    builder = flatbuffers.Builder(64)
    data = builder.CreateByteVector(b"shared")
    found = []
    for number in (1, 2):
        builder.StartObject(2)
        builder.PrependUint64Slot(0, number, 0)
        builder.PrependUOffsetTRelativeSlot(1, data, 0)
        found.append(builder.EndObject())
    builder.StartVector(4, 2, 4)
    for leaf in reversed(found):
        builder.PrependUOffsetTRelative(leaf)
    vector = builder.EndVector()
    builder.StartObject(len(ROOT.slots))
    builder.PrependUOffsetTRelativeSlot(7, vector, 0)
    builder.Finish(builder.EndObject())
    root = read(bytes(builder.Output()), ROOT, NAME)
    assert root.leaves == (Leaf(1, b"shared"), Leaf(2, b"shared"))
