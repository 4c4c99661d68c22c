"""A FlatBuffers reader that checks every bound, and a writer.

The official Python package trusts its input: a damaged offset gives garbage or an `IndexError`. And its
builder takes four times as long as this writer, for the same bytes. Here the shape of a buffer is data
(`TableType`), and one reader turns untrusted bytes into records (named tuples, one field per slot) or a clear
error. The writer uses the same shape, so reading and writing cannot disagree.

Reading a table at position `p`:

1. `p` leads to its vtable. The vtable is checked once per table type: it lies in the buffer, every slot lies
   in the table, slots do not overlap, their alignment is consistent. The result is a `struct` that fetches
   all present slots in one call.
2. The table itself must lie in the buffer and be aligned.
3. References (byte vectors, strings, vectors, tables, unions) are followed forwards and checked in the same
   way.

Writing proceeds from the end of the buffer to its start, as in the reference implementation, so that all
references lead forwards. Positions count from the end until the buffer is complete. The layout of a table
depends on which of its slots are present and on its alignment, and few such combinations occur: each form is
computed once, as a `struct` and a vtable.

Invariants:

- Every violation is `CorruptObject`. A present slot, or a union member, that the type does not know is
  `Unsupported`: a newer writer's field would be lost if the object were written again. A vtable that is
  longer only by empty entries is accepted, because nothing would be lost.
- Depth is bounded, because a type refers only to types that were made before it.
- References may share bytes, so a small buffer can represent a huge value. Everything visited is charged to a
  budget that is a small multiple of the buffer's size; exceeding it is a violation.
- A record holds `None` for an absent reference, and the slot's default for an absent scalar. An empty vector
  is present: `b""` or `()`.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, TypeVar

from lithify.base.errors import CorruptObject, Unsupported

RecordT = TypeVar("RecordT", bound=tuple[Any, ...])

MAX_BUFFER_BYTES = (1 << 31) - 1
"""Offsets are 32 bits, and the format stops at 2 GiB."""
SHARING_FACTOR = 2
"""The largest size of a value, as a multiple of the buffer's size; references that share bytes can make it
larger than 1. No client's writer shares any; each value takes many times its bytes in memory."""
SHARING_ALLOWANCE_BYTES = 1 << 16

_REF_BYTES = 4
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_MAX_ALIGNMENT = 8
_VTABLE_HEAD = struct.Struct("<HH")


# --------------------------------------------------------------------------------------- shapes


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number stored in the table itself. A default of `None` distinguishes absent from zero."""

    code: str
    """Its `struct` code."""
    size: int
    low: int
    high: int
    default: int | None = 0


def _scalar(code: str, size: int, *, signed: bool = False) -> Scalar:
    bits = 8 * size
    return (
        Scalar(code, size, -(1 << bits - 1), (1 << bits - 1) - 1)
        if signed
        else Scalar(code, size, 0, (1 << bits) - 1)
    )


BOOL = Scalar("B", 1, 0, 1)
U8 = _scalar("B", 1)
I8 = _scalar("b", 1, signed=True)
U32 = _scalar("I", 4)
U64 = _scalar("Q", 8)
I64 = _scalar("q", 8, signed=True)
OPTIONAL_U16 = Scalar("H", 2, 0, (1 << 16) - 1, default=None)


@dataclass(frozen=True, slots=True)
class Ref:
    """A slot that holds an offset. `read` turns the absolute position of the target into a value, `write` a
    value into the writer's position of the finished target."""

    read: Callable[[_Reader, int], Any]
    write: Callable[[_Writer, Any], int]
    required: bool = False


@dataclass(frozen=True, slots=True)
class Union:
    """The value slot of a union; the slot before it holds the member's number."""

    members: dict[int, TableType[Any]]
    required: bool = False


Slot = Scalar | Ref | Union


@dataclass(frozen=True, slots=True, eq=False)
class TableType(Generic[RecordT]):
    """The shape of a table: its name and its slots, in the order of the record's fields."""

    name: str
    record: type[RecordT]
    slots: tuple[Slot, ...]
    make: Callable[[Sequence[Any]], RecordT] = field(init=False)
    defaults: tuple[int | None, ...] = field(init=False)
    write_order: tuple[int, ...] = field(init=False)
    """Slots in the reference implementation's layout order: large before small, last before first."""
    ref_slots: tuple[int, ...] = field(init=False)
    narrow_slots: tuple[int, ...] = field(init=False)
    """Numbers that do not use the whole range of their size."""
    forms: dict[tuple[tuple[bool, ...], int], _Form] = field(init=False, default_factory=dict)
    """The writer's computed forms: by which slots are present, and the position modulo the largest
    alignment."""

    def __post_init__(self) -> None:
        if len(self.slots) != len(self.names):
            raise ValueError(f"{self.name} has {len(self.slots)} slots and {len(self.names)} fields")
        set_once = object.__setattr__
        set_once(self, "make", self.record._make)  # type: ignore[attr-defined]  # a named tuple
        set_once(self, "defaults", tuple(s.default if isinstance(s, Scalar) else None for s in self.slots))
        order = sorted(range(len(self.slots)), key=lambda i: (-_slot_size(self.slots[i]), -i))
        set_once(self, "write_order", tuple(order))
        numbered = tuple(enumerate(self.slots))
        set_once(self, "ref_slots", tuple(i for i, s in numbered if not isinstance(s, Scalar)))
        set_once(self, "narrow_slots", tuple(i for i, s in numbered if s is BOOL))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the slots."""
        return self.record._fields  # type: ignore[attr-defined, no-any-return]  # a named tuple


def _slot_size(slot: Slot) -> int:
    return slot.size if isinstance(slot, Scalar) else _REF_BYTES


def required(slot: Ref) -> Ref:
    """Return the same slot, but with its absence as a violation."""
    return Ref(slot.read, slot.write, required=True)


def table(kind: TableType[Any]) -> Ref:
    """Return a reference to a table."""
    return Ref(
        lambda reader, position: reader.table(position, kind),
        lambda writer, record: writer.table(kind, record),
    )


def tables(kind: TableType[Any]) -> Ref:
    """Return a reference to a vector of tables."""
    return Ref(
        lambda reader, position: reader.tables(position, kind),
        lambda writer, records: writer.tables(kind, records),
    )


BYTES = Ref(
    lambda reader, position: reader.bytes(position),
    lambda writer, value: writer.vector(value, len(value)),
)
STRING = Ref(
    lambda reader, position: reader.string(position),
    lambda writer, value: writer.vector(value.encode() + b"\0", len(value.encode())),
)
U32S = Ref(
    lambda reader, position: reader.u32s(position),
    lambda writer, values: writer.u32s(values),
)


# -------------------------------------------------------------------------------------- reading


def read(data: bytes, kind: TableType[RecordT], name: str) -> RecordT:
    """Return the root table of a buffer. `name` is the object named in errors."""
    reader = _Reader(data, name)
    return reader.table(reader.root(), kind)


@dataclass(frozen=True, slots=True)
class _TableLayout:
    """The positions in a table of the slots of one checked vtable."""

    size: int
    residue: int
    """The remainder of the table's position modulo `modulus` that aligns its slots."""
    modulus: int
    fetch: Callable[[bytes, int], tuple[Any, ...]]
    present: tuple[int, ...]
    """The slot of each fetched value."""
    refs: tuple[tuple[int, int, Callable[[_Reader, int], Any]], ...]
    """Slot, offset in the table, and how to read the target."""
    unions: tuple[tuple[int, int, Union], ...]
    """Slot, offset in the table (0 when absent), and the members."""


class _Reader:
    __slots__ = ("_budget", "_data", "_layouts", "_name", "_size")

    def __init__(self, data: bytes, name: str) -> None:
        self._data = data
        self._name = name
        self._size = len(data)
        self._budget = SHARING_FACTOR * self._size + SHARING_ALLOWANCE_BYTES
        self._layouts: dict[tuple[TableType[Any], int], _TableLayout] = {}
        if self._size > MAX_BUFFER_BYTES:
            self.fail(f"{self._size} bytes are more than a FlatBuffer can hold")

    def fail(self, reason: str) -> NoReturn:
        raise CorruptObject(self._name, reason)

    def root(self) -> int:
        """Return the position of the root table."""
        if self._size < _REF_BYTES:
            self.fail(f"a FlatBuffer of {self._size} bytes is too short to hold anything")
        return int(_U32.unpack_from(self._data, 0)[0])

    def table(self, position: int, kind: TableType[RecordT]) -> RecordT:
        if position + 4 > self._size:
            self.fail(f"table {kind.name} at {position} lies outside the {self._size} bytes")
        vtable = position - _I32.unpack_from(self._data, position)[0]
        layout = self._layouts.get((kind, vtable))
        if layout is None:
            layout = self._layouts[kind, vtable] = self._layout(vtable, kind)
        if position + layout.size > self._size:
            self.fail(f"table {kind.name} at {position} reaches beyond the {self._size} bytes")
        if position % layout.modulus != layout.residue:
            self.fail(f"table {kind.name} at {position} is not aligned")
        self._charge(layout.size)
        values: list[Any] = list(kind.defaults)
        for slot, value in zip(layout.present, layout.fetch(self._data, position), strict=True):
            values[slot] = value
        for slot, offset, follow in layout.refs:
            values[slot] = follow(self, position + offset + values[slot])
        for slot, offset, union in layout.unions:
            values[slot] = self._union(kind, slot, union, values[slot - 1], position, offset, values[slot])
        return kind.make(values)

    def tables(self, position: int, kind: TableType[RecordT]) -> tuple[RecordT, ...]:
        start, count = self._vector(position, _REF_BYTES)
        offsets = struct.unpack_from(f"<{count}I", self._data, start)
        read_table = self.table
        return tuple([read_table(start + 4 * i + offset, kind) for i, offset in enumerate(offsets)])

    def bytes(self, position: int) -> bytes:
        start, count = self._vector(position, 1)
        return self._data[start : start + count]

    def u32s(self, position: int) -> tuple[int, ...]:
        start, count = self._vector(position, 4)
        return struct.unpack_from(f"<{count}I", self._data, start)

    def string(self, position: int) -> str:
        start, count = self._vector(position, 1)
        if self._data[start + count : start + count + 1] != b"\0":
            self.fail(f"the string at {position} has no terminator")
        try:
            return self._data[start : start + count].decode()
        except UnicodeDecodeError as error:
            raise CorruptObject(self._name, f"the string at {position} is not UTF-8: {error}") from error

    def _charge(self, size: int) -> None:
        self._budget -= size
        if self._budget < 0:
            self.fail(f"its references make more than {SHARING_FACTOR} times its {self._size} bytes")

    def _vector(self, position: int, item_size: int) -> tuple[int, int]:
        """Return where the items of a vector start, and how many there are."""
        if position + 4 > self._size:
            self.fail(f"vector at {position} lies outside the {self._size} bytes")
        if position % 4:
            self.fail(f"vector at {position} is not aligned")
        count = int(_U32.unpack_from(self._data, position)[0])
        start = position + 4
        if count * item_size > self._size - start:
            self.fail(f"vector at {position} of {count} items reaches beyond the {self._size} bytes")
        self._charge(4 + count * item_size)
        return start, count

    def _union(
        self,
        kind: TableType[Any],
        slot: int,
        union: Union,
        member: int,
        position: int,
        offset: int,
        jump: int,
    ) -> Any:
        where = f"{kind.name}.{kind.names[slot]}"
        if (member == 0) != (offset == 0):
            self.fail(f"union {where} has a type without a value, or a value without a type")
        if member == 0:
            if union.required:
                self.fail(f"required union {where} is missing")
            return None
        if member not in union.members:
            raise Unsupported(
                f"{self._name}: union {where} has member {member}, which this version of Lithify does not "
                "know; upgrade Lithify"
            )
        return self.table(position + offset + jump, union.members[member])

    def _layout(self, vtable: int, kind: TableType[Any]) -> _TableLayout:
        """Check a vtable against a type."""
        offsets, size = self._slot_offsets(vtable, kind)
        present = sorted((offset, slot) for slot, offset in enumerate(offsets) if offset)
        code, end, residue, modulus = "<", 0, 0, 4
        for offset, slot in present:
            shape = kind.slots[slot]
            width = _slot_size(shape)
            if offset < max(end, 4) or offset + width > size:
                self.fail(f"slot {slot} of table {kind.name} overlaps another one or leaves the table")
            if width == 8:
                if modulus == 8 and residue != -offset % 8:
                    self.fail(f"slot {slot} of table {kind.name} is not aligned")
                residue, modulus = -offset % 8, 8
            elif offset % width:
                self.fail(f"slot {slot} of table {kind.name} is not aligned")
            code += "x" * (offset - end) + (shape.code if isinstance(shape, Scalar) else "I")
            end = offset + width
        if residue % 4:
            self.fail(f"a slot of table {kind.name} is not aligned")
        for slot, shape in enumerate(kind.slots):
            if isinstance(shape, Ref) and shape.required and not offsets[slot]:
                self.fail(f"required field {kind.name}.{kind.names[slot]} is missing")
        return _TableLayout(
            size=size,
            residue=residue,
            modulus=modulus,
            fetch=struct.Struct(code).unpack_from,
            present=tuple(slot for _, slot in present),
            refs=tuple(
                (i, offsets[i], s.read) for i, s in enumerate(kind.slots) if isinstance(s, Ref) and offsets[i]
            ),
            unions=tuple((i, offsets[i], s) for i, s in enumerate(kind.slots) if isinstance(s, Union)),
        )

    def _slot_offsets(self, vtable: int, kind: TableType[Any]) -> tuple[list[int], int]:
        """Return the offset of every known slot (0 when absent), and the size of the table."""
        if vtable < 0 or vtable % 2 or vtable + 4 > self._size:
            self.fail(f"the vtable of table {kind.name} lies at {vtable}, outside the {self._size} bytes")
        vtable_size, table_size = _VTABLE_HEAD.unpack_from(self._data, vtable)
        if vtable_size < 4 or vtable_size % 2 or vtable + vtable_size > self._size or table_size < 4:
            self.fail(f"the vtable of table {kind.name} at {vtable} has impossible sizes")
        count = (vtable_size - 4) // 2
        offsets = list(struct.unpack_from(f"<{count}H", self._data, vtable + 4))
        known = len(kind.slots)
        for slot, offset in enumerate(offsets[known:], known):
            if offset:
                raise Unsupported(
                    f"{self._name}: table {kind.name} has a field in slot {slot}, which this version of "
                    "Lithify does not know and would lose; upgrade Lithify"
                )
        return offsets[:known] + [0] * (known - count), table_size


# -------------------------------------------------------------------------------------- writing


def write(kind: TableType[RecordT], record: RecordT) -> bytes:
    """Return a buffer whose root table is `record`. Raise `ValueError` for a record the type cannot
    express."""
    return _Writer().finish(kind, record)


@dataclass(frozen=True, slots=True)
class _Form:
    """The layout of tables of one type that have the same slots and alignment."""

    size: int
    pack: Callable[..., bytes]
    """Takes the offset of the vtable and then the values of `order`."""
    order: Callable[[Sequence[Any]], Sequence[Any]]
    refs: tuple[tuple[int, int], ...]
    """Slot and offset in the table."""
    vtable: bytes
    alignment: int


class _Writer:
    __slots__ = ("_alignment", "_chunks", "_size", "_vtables")

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        """Last one first."""
        self._size = 0
        self._alignment = _REF_BYTES
        self._vtables: dict[bytes, int] = {}

    def finish(self, kind: TableType[Any], record: Sequence[Any]) -> bytes:
        root = self.table(kind, record)
        self._pad(self._alignment, _REF_BYTES)
        self._push(_U32.pack(self._size + _REF_BYTES - root))
        if self._size > MAX_BUFFER_BYTES:
            raise ValueError(f"{self._size} bytes are more than a FlatBuffer can hold")
        return b"".join(reversed(self._chunks))

    def table(self, kind: TableType[Any], record: Sequence[Any]) -> int:
        values = list(record)
        for i in kind.ref_slots:
            if values[i] is not None:
                values[i] = self._ref(kind, i, record)
        key = (tuple(map(operator.ne, record, kind.defaults)), self._size % _MAX_ALIGNMENT)
        form = kind.forms.get(key)
        if form is None:
            form = kind.forms[key] = _form(kind, *key)
        for i in kind.narrow_slots:
            _check_number(kind, i, record[i])
        position = self._size + form.size
        for i, offset in form.refs:
            values[i] = position - offset - values[i]
        vtable = self._vtables.get(form.vtable)
        is_new = vtable is None
        if vtable is None:
            vtable = self._vtables[form.vtable] = position + len(form.vtable)
        try:
            self._push(form.pack(vtable - position, *form.order(values)))
        except struct.error:
            for i, slot in enumerate(kind.slots):
                if isinstance(slot, Scalar) and key[0][i]:
                    _check_number(kind, i, record[i])
            raise
        if is_new:
            self._push(form.vtable)
        self._alignment = max(self._alignment, form.alignment)
        return position

    def tables(self, kind: TableType[Any], records: Sequence[Any]) -> int:
        positions = [self.table(kind, record) for record in records]
        count = len(positions)
        self._pad(_REF_BYTES, _REF_BYTES * count)
        first = self._size + _REF_BYTES * count
        offsets = [first - _REF_BYTES * i - position for i, position in enumerate(positions)]
        self._push(struct.pack(f"<I{count}I", count, *offsets))
        return self._size

    def u32s(self, values: Sequence[int]) -> int:
        try:
            return self.vector(struct.pack(f"<{len(values)}I", *values), len(values))
        except struct.error as error:
            raise ValueError(f"a vector element of {values!r} is outside {U32.low}..{U32.high}") from error

    def vector(self, data: bytes, count: int) -> int:
        self._pad(_REF_BYTES, len(data))
        self._push(data)
        self._push(_U32.pack(count))
        return self._size

    def _ref(self, kind: TableType[Any], i: int, record: Sequence[Any]) -> int:
        """Write the target of slot `i`."""
        slot = kind.slots[i]
        if isinstance(slot, Ref):
            return slot.write(self, record[i])
        assert isinstance(slot, Union)
        member = slot.members.get(record[i - 1])
        if member is None:
            raise ValueError(f"union {kind.name}.{kind.names[i]} has a value of member {record[i - 1]}")
        return self.table(member, record[i])

    def _pad(self, alignment: int, ahead: int) -> None:
        """Pad so that the data that ends `ahead` bytes further on begins at a multiple of `alignment`."""
        padding = -(self._size + ahead) % alignment
        if padding:
            self._push(bytes(padding))

    def _push(self, data: bytes) -> None:
        self._chunks.append(data)
        self._size += len(data)


def _form(kind: TableType[Any], present: Sequence[bool], residue: int) -> _Form:
    """Return the form of a table that is written when the position is `residue`."""
    for i in kind.ref_slots:
        slot, where = kind.slots[i], f"{kind.name}.{kind.names[i]}"
        if isinstance(slot, Union) and present[i] != present[i - 1]:
            raise ValueError(f"union {where} has a member without a value")
        if isinstance(slot, Ref | Union) and slot.required and not present[i]:
            raise ValueError(f"required field {where} is missing")
    size = 0
    ends: dict[int, int] = {}
    code = ""
    for i in kind.write_order:
        slot = kind.slots[i]
        if not present[i]:
            continue
        width = _slot_size(slot)
        padding = -(residue + size) % width
        size += padding + width
        ends[i] = size
        code = (slot.code if isinstance(slot, Scalar) else "I") + "x" * padding + code
    padding = -(residue + size) % _REF_BYTES
    size += padding + _REF_BYTES
    code = "<i" + "x" * padding + code
    last = max(ends, default=-1)
    offsets = [size - ends[i] if i in ends else 0 for i in range(last + 1)]
    vtable = struct.pack(f"<{2 + len(offsets)}H", 4 + 2 * len(offsets), size, *offsets)
    order = list(reversed(ends))
    return _Form(
        size,
        struct.Struct(code).pack,
        _picker(order),
        tuple((i, offsets[i]) for i in kind.ref_slots if i in ends),
        vtable,
        max((_slot_size(kind.slots[i]) for i in ends), default=1),
    )


def _picker(order: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    if len(order) > 1:
        pick: Callable[[Sequence[Any]], Sequence[Any]] = operator.itemgetter(*order)
        return pick
    return lambda values: [values[i] for i in order]


def _check_number(kind: TableType[Any], i: int, value: Any) -> None:
    slot = kind.slots[i]
    assert isinstance(slot, Scalar)
    if not isinstance(value, int) or not slot.low <= value <= slot.high:
        raise ValueError(f"{kind.name}.{kind.names[i]} is {value!r}, outside {slot.low}..{slot.high}")
