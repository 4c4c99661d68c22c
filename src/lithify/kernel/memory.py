"""Raw memory in compiled code: loads, stores, copies, and calls of functions by address.

An *address* is a signed 64-bit number. Nothing here checks bounds: callers first compare every length from a
file with the memory, and Python keeps the owners of buffers alive while their addresses are in use.

Every buffer has `SLACK` spare bytes after its end. Word and vector accesses may read past the data, and
`copy_16`, `copy_32`, `copy_row` and `copy_key` may write past them, by less than that.

Addresses, lengths and small numbers are int64; sequence numbers, hashes and key words are uint64. numba
converts a mixed pair to float, so they are only combined after `signed` or `unsigned`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lithify.kernel.cache import inlined

SLACK = 64

_BYTE = ir.IntType(8)
_WORD = ir.IntType(64)
_BIT = ir.IntType(1)
_SHORT_COPY = 2048


def _load(width: int, big_endian: bool, result: Any) -> Callable[[int], Any]:
    integer = ir.IntType(width)

    @intrinsic  # type: ignore[untyped-decorator]
    def load(_typing: Any, address: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            value = builder.load(builder.inttoptr(arguments[0], integer.as_pointer()), align=1)
            if big_endian:
                value = builder.bswap(value)
            return value if width == 64 else builder.zext(value, _WORD)

        return result(types.int64), generate

    return load  # type: ignore[no-any-return]


load_u8: Callable[[int], int] = _load(8, False, types.int64)
load_u16_be: Callable[[int], int] = _load(16, True, types.int64)
load_u16: Callable[[int], int] = _load(16, False, types.int64)
load_u32_be: Callable[[int], int] = _load(32, True, types.int64)
load_u32: Callable[[int], int] = _load(32, False, types.int64)
load_i64: Callable[[int], int] = _load(64, False, types.int64)
load_i64_be: Callable[[int], int] = _load(64, True, types.int64)
load_u64 = _load(64, False, types.uint64)
load_u64_be = _load(64, True, types.uint64)


def _store(width: int, big_endian: bool) -> Callable[[int, Any], None]:
    integer = ir.IntType(width)

    @intrinsic  # type: ignore[untyped-decorator]
    def store(_typing: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            stored = arguments[1]
            if width < 64:
                stored = builder.trunc(stored, integer)
            if big_endian:
                stored = builder.bswap(stored)
            builder.store(stored, builder.inttoptr(arguments[0], integer.as_pointer()), align=1)
            return context.get_dummy_value()

        number = types.uint64 if value == types.uint64 else types.int64
        return types.void(types.int64, number), generate

    return store  # type: ignore[no-any-return]


store_u8 = _store(8, False)
store_u16 = _store(16, False)
store_u16_be = _store(16, True)
store_u32 = _store(32, False)
store_u32_be = _store(32, True)
store_64 = _store(64, False)
store_64_be = _store(64, True)


@intrinsic  # type: ignore[untyped-decorator]
def copy_bytes(_typing: Any, target: Any, source: Any, length: Any) -> Any:
    """Copy exactly `length` bytes between places that do not overlap."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = _BYTE.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, pointer, _WORD, _BIT])
        copy = builder.module.declare_intrinsic("llvm.memcpy", [pointer, pointer, _WORD], kind)
        to, origin = (builder.inttoptr(argument, pointer) for argument in arguments[:2])
        builder.call(copy, [to, origin, arguments[2], _BIT(0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _copy(width_bytes: int) -> Callable[[int, int], None]:
    vector = ir.VectorType(_BYTE, width_bytes)

    @intrinsic  # type: ignore[untyped-decorator]
    def copy(_typing: Any, target: Any, source: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            to, origin = (builder.inttoptr(argument, vector.as_pointer()) for argument in arguments)
            builder.store(builder.load(origin, align=1), to, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return copy  # type: ignore[no-any-return]


copy_16 = _copy(16)
copy_32 = _copy(32)


@intrinsic  # type: ignore[untyped-decorator]
def _trailing_zeros(_typing: Any, word: Any) -> Any:
    """Return how many low bits of a word are zero (64 if all are)."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], _BIT(0))

    return types.int64(types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _signed(_typing: Any, word: Any) -> Any:
    """Reinterpret 64 bits as a signed number."""
    return types.int64(types.uint64), lambda _context, _builder, _signature, arguments: arguments[0]


signed: Callable[[Any], int] = _signed
trailing_zeros: Callable[[Any], int] = _trailing_zeros


@intrinsic  # type: ignore[untyped-decorator]
def unsigned(_typing: Any, word: Any) -> Any:
    """Reinterpret 64 bits as an unsigned number."""
    return types.uint64(types.int64), lambda _context, _builder, _signature, arguments: arguments[0]


@intrinsic  # type: ignore[untyped-decorator]
def borrowed(_typing: Any, array: Any) -> Any:
    """Return the array without reference counting, for callers that keep it alive. Otherwise numba counts
    references at every access to an element, often with locked instructions in loops."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        counted = context.make_array(signature.return_type)(context, builder, value=arguments[0])
        counted.meminfo = cgutils.get_null_value(counted.meminfo.type)
        counted.parent = cgutils.get_null_value(counted.parent.type)
        return counted._getvalue()

    return array(array), generate


def _caller(*widths: int) -> Callable[..., int]:
    """Return a call of the C function at an address; `widths` are the bits of its result and arguments."""
    result, *parameters = (ir.IntType(width) for width in widths)
    kind = ir.FunctionType(result, parameters)

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], kind.as_pointer())
        passed = [
            argument if parameter.width == 64 else builder.trunc(argument, parameter)
            for argument, parameter in zip(arguments[1:], parameters, strict=True)
        ]
        value = builder.call(pointer, passed)
        return value if result.width == 64 else builder.sext(value, _WORD)

    return _INTRINSICS[len(parameters)](generate)


def _intrinsic_of_4(generate: Any) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def call(_typing: Any, function: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        return types.int64(*[types.int64] * 5), generate

    return call


def _intrinsic_of_5(generate: Any) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def call(_typing: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
        return types.int64(*[types.int64] * 6), generate

    return call


def _intrinsic_of_6(generate: Any) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def call(_typing: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Any:
        return types.int64(*[types.int64] * 7), generate

    return call


_INTRINSICS: dict[int, Callable[[Any], Callable[..., int]]] = {
    4: _intrinsic_of_4,
    5: _intrinsic_of_5,
    6: _intrinsic_of_6,
}

call_decompressor = _caller(64, 64, 64, 64, 64, 64)
"""`size_t f(context, target, capacity, source, length)`"""
call_compressor = _caller(64, 64, 64, 64, 64, 64, 32)
"""`size_t f(context, target, capacity, source, length, int level)`"""
call_lz4_compressor = _caller(32, 64, 64, 32, 32)
"""`int f(source, target, int length, int capacity)`"""


@inlined
def copy_row(target: int, source: int, length: int) -> None:
    """Copy `length` bytes, fast for short ones; may read and write up to 31 bytes past the ends."""
    if length > _SHORT_COPY:
        copy_bytes(target, source, length)
        return
    done = 0
    while done < length:
        copy_32(target + done, source + done)
        done += 32


@inlined
def copy_key(target: int, source: int, length: int) -> None:
    """Copy a key; may read and write up to 15 bytes past the ends."""
    if length <= 16:
        copy_16(target, source)
    else:
        copy_bytes(target, source, length)
