"""The compression libraries' functions, as addresses that compiled code can call.

1. zstd and LZ4 are extension modules whose shared objects export the C functions. A task looks their
   addresses up when it starts, so cached machine code stays valid.
2. If a build does not export them, and always for zlib, a callback with the same C signature uses the
   package's Python interface and takes the GIL for each block. Its exceptions are stored until compiled code
   has returned with a failure (`Codecs.cause`).

zstd contexts belong to one task and are freed with it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import lz4.block
import numpy as np
import zstandard

from lithify.datasets.slatedb.kernel import snappy
from lithify.datasets.slatedb.kernel.codecs import TARGET_TOO_SHORT
from lithify.datasets.slatedb.kernel.layout import CODECS
from lithify.datasets.slatedb.model import Codec
from lithify.kernel.buffers import Bound

ZSTD_LEVEL = 3
ZLIB_LEVEL = 6
_FAILED = -1
_REFUSALS = (zlib.error, zstandard.ZstdError, lz4.block.LZ4BlockError, EOFError)
"""Errors that the libraries, or `_inflate`, raise for invalid data."""
_PIECE_BYTES = 1 << 14

_Decompressor = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t
)
_Compressor = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
)
_Lz4Compressor = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)

_ZSTD_MODULES = ("zstandard._cffi", "zstandard.backend_c")
_ZSTD_SYMBOLS = (
    "ZSTD_createCCtx",
    "ZSTD_freeCCtx",
    "ZSTD_compressCCtx",
    "ZSTD_createDCtx",
    "ZSTD_freeDCtx",
    "ZSTD_decompressDCtx",
)
_LZ4_MODULES = ("lz4.block._block",)
_LZ4_SYMBOLS = ("LZ4_compress_default",)


def find_library(modules: Iterable[str], symbols: Iterable[str]) -> ctypes.CDLL | None:
    """Return the first of the extension modules that exports all symbols, or `None`."""
    wanted = tuple(symbols)
    for module in modules:
        try:
            found = importlib.util.find_spec(module)
        except ImportError:
            continue
        if found is None or found.origin is None:
            continue
        try:
            library = ctypes.CDLL(found.origin)
        except OSError:
            continue
        if all(hasattr(library, symbol) for symbol in wanted):
            return library
    return None


def _guarded(
    raised: list[BaseException],
    work: Callable[[bytes], Iterable[bytes]],
    target: int,
    capacity: int,
    source: int,
    length: int,
) -> int:
    """Run a Python codec, which yields its result in pieces, on memory. Append exceptions to `raised`: they
    must not pass through compiled code."""
    size = 0
    try:
        for piece in work(ctypes.string_at(source, length)):
            if len(piece) > capacity - size:
                return TARGET_TOO_SHORT
            ctypes.memmove(target + size, piece, len(piece))
            size += len(piece)
    except BaseException as error:
        raised.append(error)
        return _FAILED
    return size


def _inflate(data: bytes) -> Iterator[bytes]:
    """Yield the content in pieces of at most some megabytes."""
    stream = zlib.decompressobj()
    for position in range(0, len(data), _PIECE_BYTES):
        yield stream.decompress(data[position : position + _PIECE_BYTES])
        if stream.eof:
            return
    raise EOFError("the stream is cut short")


def _zlib_decompress(
    raised: list[BaseException], _context: int, target: int, capacity: int, source: int, length: int
) -> int:
    return _guarded(raised, _inflate, target, capacity, source, length)


def _compressor(pack: Callable[[bytes, int], bytes]) -> Callable[..., int]:

    def compress(
        raised: list[BaseException],
        _context: int,
        target: int,
        capacity: int,
        source: int,
        length: int,
        level: int,
    ) -> int:
        return _guarded(raised, lambda data: [pack(data, level)], target, capacity, source, length)

    return compress


_zlib_compress = _compressor(lambda data, level: zlib.compress(data, level))
_zstd_compress = _compressor(lambda data, level: zstandard.ZstdCompressor(level=level).compress(data))


def _zstd_decompress(
    raised: list[BaseException], _context: int, target: int, capacity: int, source: int, length: int
) -> int:
    def work(data: bytes) -> list[bytes]:
        return [zstandard.ZstdDecompressor().decompress(data, max_output_size=capacity)]

    return _guarded(raised, work, target, capacity, source, length)


def _lz4_compress(raised: list[BaseException], source: int, target: int, length: int, capacity: int) -> int:
    def work(data: bytes) -> list[bytes]:
        return [bytes(lz4.block.compress(data, store_size=False))]

    return _guarded(raised, work, target, capacity, source, length)


def _address(function: Any) -> int:
    value = ctypes.cast(function, ctypes.c_void_p).value
    assert value is not None
    return value


class Codecs:
    """The codecs record of one task."""

    def __init__(self, inputs: Iterable[Codec], output: Codec, *, native: bool = True) -> None:
        self.records = np.zeros(1, CODECS)
        self.bound = Bound(self.records[0])
        self._keep_alive: list[Any] = []
        self._release: list[Callable[[], object]] = []
        self._raised: list[BaseException] = []
        """Exceptions of callbacks since the last call of `cause`."""
        self._native = native
        wanted = set(inputs)
        if Codec.ZLIB in wanted:
            self.bound["zlib_decompress"] = self._callback(_Decompressor, _zlib_decompress)
        if Codec.ZSTD in wanted:
            self._load_zstd_decompressor()
        match output:
            case Codec.SNAPPY:
                self.bound.attach("snappy_table", np.zeros(snappy.TABLE_BYTES, np.uint8))
            case Codec.ZLIB:
                self.bound["compress"] = self._callback(_Compressor, _zlib_compress)
                self.bound["level"] = ZLIB_LEVEL
            case Codec.LZ4:
                self._load_lz4_compressor()
            case Codec.ZSTD:
                self._load_zstd_compressor()
                self.bound["level"] = ZSTD_LEVEL
            case Codec.NONE:
                pass

    def close(self) -> None:
        """Free the libraries' contexts."""
        while self._release:
            self._release.pop()()

    def cause(self) -> BaseException | None:
        """Return the codec error that made compiled code fail, if a callback caught one. Raise any other
        exception: it is not about the data."""
        raised = self._raised.pop() if self._raised else None
        self._raised.clear()
        if raised is not None and not isinstance(raised, _REFUSALS):
            raise raised
        return raised

    def _library(self, modules: Iterable[str], symbols: Iterable[str]) -> ctypes.CDLL | None:
        return find_library(modules, symbols) if self._native else None

    def _callback(self, kind: Any, function: Callable[..., int]) -> int:
        thunk = kind(partial(function, self._raised))
        self._keep_alive.append(thunk)
        return _address(thunk)

    def _context(self, create: Any, free: Any) -> int:
        create.restype = ctypes.c_void_p
        free.argtypes = [ctypes.c_void_p]
        context = create()
        if not context:
            raise MemoryError("zstd cannot create a context")
        self._release.append(lambda: free(context))
        return int(context)

    def _load_zstd_decompressor(self) -> None:
        library = self._library(_ZSTD_MODULES, _ZSTD_SYMBOLS)
        if library is None:
            self.bound["zstd_decompress"] = self._callback(_Decompressor, _zstd_decompress)
            return
        self._keep_alive.append(library)
        self.bound["zstd_decompress"] = _address(library.ZSTD_decompressDCtx)
        self.bound["zstd_decompress_context"] = self._context(library.ZSTD_createDCtx, library.ZSTD_freeDCtx)

    def _load_zstd_compressor(self) -> None:
        library = self._library(_ZSTD_MODULES, _ZSTD_SYMBOLS)
        if library is None:
            self.bound["compress"] = self._callback(_Compressor, _zstd_compress)
            return
        self._keep_alive.append(library)
        self.bound["compress"] = _address(library.ZSTD_compressCCtx)
        self.bound["compress_context"] = self._context(library.ZSTD_createCCtx, library.ZSTD_freeCCtx)

    def _load_lz4_compressor(self) -> None:
        library = self._library(_LZ4_MODULES, _LZ4_SYMBOLS)
        if library is None:
            self.bound["compress"] = self._callback(_Lz4Compressor, _lz4_compress)
            return
        self._keep_alive.append(library)
        self.bound["compress"] = _address(library.LZ4_compress_default)
