"""Databases and readers of the official `slatedb` client, as synchronous, typed objects.

The official client is asynchronous; one event loop in a background thread runs all its calls here.

1. A database is named by a path or a URL (`file:///…`, `s3://bucket/…`). The store is opened at its
   root (the file system, the bucket) and the rest is the database's path inside it, as the client
   wants it.
2. Databases open with settings for tests: no coordinator, no garbage collector, quick polling, and a
   finite number of retries, so that a damaged object is an error and not a hang.
3. Every call has a timeout. A call that exceeds it raises `JudgeTimeout`: a hang fails the test.

Failures of the client are its own exceptions, `Error` (with subclasses `Data`, `Invalid`, `Closed`, …)
and `InternalError` (a panic inside the client).
"""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack
from urllib.parse import urlsplit

from slatedb.uniffi import Error, InternalError

from slatedb import uniffi

ResultT = TypeVar("ResultT")
Target = str | Path
MergeFunction = Callable[[bytes, bytes | None, bytes], bytes]

DEFAULT_TIMEOUT_S = 60.0
SCAN_BATCH_ROWS = 4096
MAX_RETRIES = 2
DEFAULT_BLOCK_SIZE = 4096

TEST_SETTINGS: Mapping[str, object] = {
    "compactor_options": None,
    "garbage_collector_options": None,
    "flush_interval": "10ms",
    "manifest_poll_interval": "50ms",
    "object_store_max_retries": MAX_RETRIES,
    "l0_max_ssts": 1000,
    "l0_max_ssts_per_key": 1000,
}
BLOCK_SIZES = {
    1024: uniffi.SstBlockSize.BLOCK1_KIB,
    2048: uniffi.SstBlockSize.BLOCK2_KIB,
    4096: uniffi.SstBlockSize.BLOCK4_KIB,
    8192: uniffi.SstBlockSize.BLOCK8_KIB,
    16384: uniffi.SstBlockSize.BLOCK16_KIB,
    32768: uniffi.SstBlockSize.BLOCK32_KIB,
    65536: uniffi.SstBlockSize.BLOCK64_KIB,
}


class JudgeTimeout(AssertionError):
    """The official client did not answer in time."""


@lru_cache(maxsize=1)
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="official-client", daemon=True).start()
    return loop


def run(work: Coroutine[Any, Any, ResultT], what: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> ResultT:
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return future.result(timeout_s)
    except TimeoutError as late:
        future.cancel()
        raise JudgeTimeout(f"the official client did not finish '{what}' in {timeout_s} s") from late


def split_target(target: Target) -> tuple[str, str]:
    """Root URL of the store and the path in it."""
    text = str(target)
    if "://" not in text:
        return "file:///", str(Path(text).absolute()).lstrip("/")
    parts = urlsplit(text)
    return f"{parts.scheme}://{parts.netloc}/", parts.path.strip("/")


def open_store(root: str, options: Mapping[str, str]) -> Any:
    if root.startswith("file:"):
        return uniffi.ObjectStore.resolve(root)
    kinds = {
        "s3": uniffi.ObjectStoreType.S3,
        "gs": uniffi.ObjectStoreType.GCS,
        "az": uniffi.ObjectStoreType.AZURE,
    }
    builder = uniffi.ObjectStoreBuilder.from_env(kinds[root.partition(":")[0]])
    builder.with_url(root)
    for key, value in options.items():
        builder.with_config(key, value)
    return builder.build()


def local_path(target: Target) -> Path:
    """The folder of a database on the local file system."""
    root, path = split_target(target)
    if not root.startswith("file:"):
        raise ValueError(f"{target} is not local")
    return Path("/") / path


def copy_database(source: Target, destination: Target) -> Path:
    """Copy every object of a local database that no process writes to; the destination's folder."""
    return Path(shutil.copytree(local_path(source), local_path(destination)))


def concat(_key: bytes, existing: bytes | None, operand: bytes) -> bytes:
    """An associative merge operator: appends the operand."""
    return (existing or b"") + operand


class _MergeOperator(uniffi.MergeOperator):  # type: ignore[misc]  # the client has no types
    def __init__(self, function: MergeFunction) -> None:
        self._function = function

    def merge(self, key: bytes, existing_value: bytes | None, operand: bytes) -> bytes:
        return self._function(
            bytes(key), None if existing_value is None else bytes(existing_value), bytes(operand)
        )


class _FixedPrefix(uniffi.PrefixExtractor):  # type: ignore[misc]  # the client has no types
    """The first `length` bytes of a key name its segment."""

    def __init__(self, length: int) -> None:
        self._length = length

    def name(self) -> str:
        return f"fixed-{self._length}"

    def prefix_len(self, target: Any) -> int | None:
        text = target.key if target.is_point() else target.prefix
        return self._length if len(text) >= self._length else None


async def _scan(source: Any, start: bytes | None, end: bytes | None) -> list[tuple[bytes, bytes]]:
    key_range = uniffi.KeyRange(start=start, start_inclusive=start is not None, end=end, end_inclusive=False)
    iterator = await source.scan(key_range)
    found: list[tuple[bytes, bytes]] = []
    while batch := await iterator.next_batch(SCAN_BATCH_ROWS):
        found.extend((bytes(row.key), bytes(row.value)) for row in batch)
    return found


class _Readable:
    """Reads shared by an open database, a reader and a snapshot."""

    def __init__(self, handle: Any, timeout_s: float) -> None:
        self._handle = handle
        self._timeout_s = timeout_s

    def _do(self, work: Coroutine[Any, Any, ResultT], what: str) -> ResultT:
        return run(work, what, self._timeout_s)

    def get(self, key: bytes) -> bytes | None:
        value = self._do(self._handle.get(key), "get")
        return None if value is None else bytes(value)

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, bytes | None]:
        """`get` of every key, one after another, in one call."""

        async def read() -> dict[bytes, bytes | None]:
            return {key: await self._handle.get(key) for key in keys}

        return self._do(read(), "get_many")

    def scan(self, start: bytes | None = None, end: bytes | None = None) -> list[tuple[bytes, bytes]]:
        """Live rows from `start` (inclusive) to `end` (exclusive)."""
        return self._do(_scan(self._handle, start, end), "scan")

    def iterate(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """As `scan`, but row by row, while the caller does other things in between."""
        key_range = uniffi.KeyRange(
            start=start, start_inclusive=start is not None, end=end, end_inclusive=False
        )
        iterator = self._do(self._handle.scan(key_range), "open a scan")
        while (row := self._do(iterator.next(), "next row of a scan")) is not None:
            yield bytes(row.key), bytes(row.value)


class Snapshot(_Readable):
    """A snapshot of an open database. The database keeps what it shows until `release`."""

    def release(self) -> None:
        """Let the snapshot go."""
        self._handle = None


def _ttl(ttl_ms: int | None) -> Any:
    return uniffi.Ttl.DEFAULT() if ttl_ms is None else uniffi.Ttl.EXPIRE_AFTER_MILLIS(ttl_ms)


@dataclass(frozen=True, slots=True)
class Put:
    """A put in a batch."""

    key: bytes
    value: bytes
    ttl_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """A delete in a batch."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Merge:
    """A merge operand in a batch."""

    key: bytes
    value: bytes
    ttl_ms: int | None = None


Write = Put | Delete | Merge


def _batch(writes: Iterable[Write]) -> Any:
    batch = uniffi.WriteBatch()
    for write in writes:
        match write:
            case Put(key, value, None):
                batch.put(key, value)
            case Put(key, value, ttl_ms):
                batch.put_with_options(key, value, uniffi.PutOptions(ttl=_ttl(ttl_ms)))
            case Delete(key):
                batch.delete(key)
            case Merge(key, value, ttl_ms):
                batch.merge_with_options(key, value, uniffi.MergeOptions(ttl=_ttl(ttl_ms)))
    return batch


class Database(_Readable):
    """An open database. A context manager; leaving it closes the database."""

    def __init__(self, handle: Any, timeout_s: float, *, has_wal: bool = True) -> None:
        super().__init__(handle, timeout_s)
        self._has_wal = has_wal

    def put(self, key: bytes, value: bytes, ttl_ms: int | None = None) -> None:
        """Write a row; `ttl_ms` makes it expire so many milliseconds from now."""
        options = uniffi.PutOptions(ttl=_ttl(ttl_ms))
        self._do(self._handle.put_with_options(key, value, options, uniffi.WriteOptions()), "put")

    def delete(self, key: bytes) -> None:
        self._do(self._handle.delete(key), "delete")

    def merge(self, key: bytes, operand: bytes, ttl_ms: int | None = None) -> None:
        options = uniffi.MergeOptions(ttl=_ttl(ttl_ms))
        self._do(self._handle.merge_with_options(key, operand, options, uniffi.WriteOptions()), "merge")

    def write_batch(self, writes: Iterable[Write]) -> None:
        """Write rows atomically; all get one sequence number."""
        self._do(self._handle.write(_batch(writes)), "write a batch")

    def write_each(self, writes: Iterable[Write]) -> None:
        """Write rows one by one, each with a sequence number of its own, in one call."""

        async def write_all() -> None:
            for write in writes:
                await self._handle.write(_batch((write,)))

        self._do(write_all(), "write one by one")

    def flush(self) -> None:
        """Write the memtable to a new L0."""
        options = uniffi.FlushOptions(flush_type=uniffi.FlushType.MEM_TABLE)
        self._do(self._handle.flush_with_options(options), "flush the memtable")

    def flush_wal(self) -> None:
        """Make everything written durable without a new L0."""
        options = uniffi.FlushOptions(flush_type=uniffi.FlushType.WAL)
        self._do(self._handle.flush_with_options(options), "flush the WAL")

    def snapshot(self) -> Snapshot:
        """A snapshot of now."""
        return Snapshot(self._do(self._handle.snapshot(), "take a snapshot"), self._timeout_s)

    def is_closed(self) -> bool:
        """Whether the client has given up, for instance because it was fenced."""
        return self._handle.status().close_reason is not None

    def close(self, *, flush: bool = True) -> None:
        """Close; with `flush` what is in memory becomes an L0, else it stays in the WAL (and is lost
        where there is none)."""
        without = uniffi.FlushType.WAL if self._has_wal else None
        kind = uniffi.FlushType.MEM_TABLE if flush else without
        options = uniffi.CloseOptions(flush_type=kind)
        self._do(self._handle.shutdown_with_options(options), "close the database")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close(flush=False)
        except (Error, InternalError, JudgeTimeout) as second:
            error.add_note(f"closing the database failed as well: {second}")


class Reader(_Readable):
    """An open read-only reader. A context manager."""

    def close(self) -> None:
        self._do(self._handle.shutdown(), "close the reader")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _deep_update(base: dict[str, Any], changes: Mapping[str, object]) -> dict[str, Any]:
    """`base` with `changes` on top; objects merge field by field, everything else replaces."""
    merged = dict(base)
    for name, value in changes.items():
        old = merged.get(name)
        if isinstance(old, dict) and isinstance(value, Mapping):
            merged[name] = _deep_update(old, value)
        else:
            merged[name] = value
    return merged


def official_settings(overrides: Mapping[str, object]) -> Any:
    """The client's `Settings`: its defaults, then `TEST_SETTINGS`, then `overrides`."""
    defaults = json.loads(uniffi.Settings.default().to_json_string())
    return uniffi.Settings.from_json_string(
        json.dumps(_deep_update(defaults, {**TEST_SETTINGS, **overrides}))
    )


class OpenOptions(TypedDict, total=False):
    """How a database is opened. All are optional."""

    settings: Mapping[str, object]
    """The client's own settings, by name, on top of `TEST_SETTINGS`."""
    block_size: int
    merge_operator: MergeFunction | None
    segment_prefix_len: int | None
    """So many first bytes of a key name its segment."""
    filter_bits_per_key: int
    """0 writes no filters."""
    filter_prefix_len: int
    """Filters of so many first bytes of keys too."""
    filter_whole_keys: bool
    """Whether filters are of whole keys."""
    metrics: Any
    """A `DefaultMetricsRecorder` of the client."""
    store_options: Mapping[str, str]
    """Configuration of the object store, by the names of its S3, GCS or Azure client."""
    timeout_s: float


def open_db(target: Target, **options: Unpack[OpenOptions]) -> Database:
    """Open (and create when there is none) a database for reading and writing."""
    root, path = split_target(target)
    timeout_s = options.get("timeout_s", DEFAULT_TIMEOUT_S)
    builder = uniffi.DbBuilder(path, open_store(root, options.get("store_options", {})))
    settings = options.get("settings", {})
    builder.with_settings(official_settings(settings))
    builder.with_sst_block_size(BLOCK_SIZES[options.get("block_size", DEFAULT_BLOCK_SIZE)])
    merge_operator = options.get("merge_operator")
    if merge_operator is not None:
        builder.with_merge_operator(_MergeOperator(merge_operator))
    segment_prefix_len = options.get("segment_prefix_len")
    if segment_prefix_len is not None:
        builder.with_segment_extractor(_FixedPrefix(segment_prefix_len))
    if "filter_bits_per_key" in options or "filter_prefix_len" in options:
        bits = options.get("filter_bits_per_key", 10)
        whole_keys = options.get("filter_whole_keys", True)
        how = uniffi.BloomFilterOptions(bits_per_key=bits, whole_key_filtering=whole_keys)
        extractor = _FixedPrefix(options["filter_prefix_len"]) if "filter_prefix_len" in options else None
        policies = [uniffi.FilterPolicy.bloom_with_options(how, extractor)] if bits else []
        builder.with_filter_policies(policies)
    if "metrics" in options:
        builder.with_metrics_recorder(options["metrics"])
    handle = run(builder.build(), f"open {target}", timeout_s)
    return Database(handle, timeout_s, has_wal=settings.get("wal_enabled") is not False)


def open_reader(
    target: Target,
    *,
    checkpoint: str | None = None,
    merge_operator: MergeFunction | None = None,
    segment_prefix_len: int | None = None,
    poll_ms: int = 50,
    store_options: Mapping[str, str] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Reader:
    """Open a reader that follows the database, or shows the checkpoint of that id."""
    root, path = split_target(target)
    builder = uniffi.DbReaderBuilder(path, open_store(root, store_options or {}))
    builder.with_options(
        uniffi.ReaderOptions(
            manifest_poll_interval_ms=poll_ms,
            checkpoint_lifetime_ms=600_000,
            max_memtable_bytes=64 * 1024 * 1024,
            skip_wal_replay=False,
            object_store_max_retries=MAX_RETRIES,
        )
    )
    if checkpoint is not None:
        builder.with_reader_mode(uniffi.ReaderMode.CHECKPOINT(checkpoint))
    if merge_operator is not None:
        builder.with_merge_operator(_MergeOperator(merge_operator))
    if segment_prefix_len is not None:
        builder.with_segment_extractor(_FixedPrefix(segment_prefix_len))
    return Reader(run(builder.build(), f"open a reader of {target}", timeout_s), timeout_s)
