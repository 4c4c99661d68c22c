"""A synchronous, typed facade over the official `slatedb` client.

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
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from slatedb import uniffi
from slatedb.uniffi import Error, InternalError

__all__ = [
    "Admin",
    "CompactionReport",
    "Database",
    "Error",
    "InternalError",
    "JudgeTimeout",
    "Reader",
    "RunShape",
    "Snapshot",
    "TreeShape",
    "ViewShape",
    "compact_officially",
    "concat",
    "copy_database",
    "full_compaction",
    "open_db",
    "open_reader",
    "run_officially_until_quiet",
    "shape",
]

ResultT = TypeVar("ResultT")
Target = str | Path
MergeFunction = Callable[[bytes, bytes | None, bytes], bytes]

DEFAULT_TIMEOUT_S = 20.0
SCAN_BATCH_ROWS = 4096
SETTLED_STATUSES = (uniffi.CompactionStatus.COMPLETED, uniffi.CompactionStatus.FAILED)
QUIET_S = 0.5
"""An official scheduler without active work for this long has nothing left to do."""

TEST_SETTINGS: Mapping[str, object] = {
    "compactor_options": None,
    "garbage_collector_options": None,
    "flush_interval": "10ms",
    "manifest_poll_interval": "50ms",
    "object_store_max_retries": 2,
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


# --- the event loop ----------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="official-client", daemon=True).start()
    return loop


def _run(work: Coroutine[Any, Any, ResultT], what: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> ResultT:
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return future.result(timeout_s)
    except TimeoutError as late:
        future.cancel()
        raise JudgeTimeout(f"the official client did not finish '{what}' in {timeout_s} s") from late


# --- where a database is -----------------------------------------------------------------------


def _split(target: Target) -> tuple[str, str]:
    """Root URL of the store and the path in it."""
    text = str(target)
    if "://" not in text:
        return "file:///", str(Path(text).absolute()).lstrip("/")
    parts = urlsplit(text)
    return f"{parts.scheme}://{parts.netloc}/", parts.path.strip("/")


def _store(root: str, options: Mapping[str, str]) -> Any:
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
    root, path = _split(target)
    if not root.startswith("file:"):
        raise ValueError(f"{target} is not local")
    return Path("/") / path


def copy_database(source: Target, destination: Target) -> Path:
    """Copy every object of a local database that no process writes to; the destination's folder."""
    return Path(shutil.copytree(local_path(source), local_path(destination)))


# --- callbacks ---------------------------------------------------------------------------------


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


# --- reading -----------------------------------------------------------------------------------


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
        return _run(work, what, self._timeout_s)

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


# --- databases ---------------------------------------------------------------------------------


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
        """Close; with `flush` what is in memory becomes an L0, else it stays in the WAL."""
        kind = uniffi.FlushType.MEM_TABLE if flush else uniffi.FlushType.WAL
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


def open_db(
    target: Target,
    *,
    settings: Mapping[str, object] | None = None,
    block_size: int = 4096,
    merge_operator: MergeFunction | None = None,
    segment_prefix_len: int | None = None,
    filter_bits_per_key: int | None = None,
    store_options: Mapping[str, str] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Database:
    """Open (and create when there is none) a database for reading and writing.

    `settings` are the client's own, by name, on top of `TEST_SETTINGS`.
    """
    root, path = _split(target)
    builder = uniffi.DbBuilder(path, _store(root, store_options or {}))
    builder.with_settings(official_settings(settings or {}))
    builder.with_sst_block_size(BLOCK_SIZES[block_size])
    if merge_operator is not None:
        builder.with_merge_operator(_MergeOperator(merge_operator))
    if segment_prefix_len is not None:
        builder.with_segment_extractor(_FixedPrefix(segment_prefix_len))
    if filter_bits_per_key is not None:
        policies = [uniffi.FilterPolicy.bloom(filter_bits_per_key)] if filter_bits_per_key else []
        builder.with_filter_policies(policies)
    return Database(_run(builder.build(), f"open {target}", timeout_s), timeout_s)


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
    root, path = _split(target)
    builder = uniffi.DbReaderBuilder(path, _store(root, store_options or {}))
    builder.with_options(
        uniffi.ReaderOptions(
            manifest_poll_interval_ms=poll_ms,
            checkpoint_lifetime_ms=600_000,
            max_memtable_bytes=64 * 1024 * 1024,
            skip_wal_replay=False,
            object_store_max_retries=2,
        )
    )
    if checkpoint is not None:
        builder.with_reader_mode(uniffi.ReaderMode.CHECKPOINT(checkpoint))
    if merge_operator is not None:
        builder.with_merge_operator(_MergeOperator(merge_operator))
    if segment_prefix_len is not None:
        builder.with_segment_extractor(_FixedPrefix(segment_prefix_len))
    return Reader(_run(builder.build(), f"open a reader of {target}", timeout_s), timeout_s)


# --- the shape of a database -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ViewShape:
    """One view of a tree, as the official client reports it."""

    id: str
    sst_id: str
    sst_info: Any
    """The client's `SsTableInfo`."""
    visible_start: bytes | None = None
    visible_start_inclusive: bool = True
    visible_end: bytes | None = None
    visible_end_inclusive: bool = False


@dataclass(frozen=True, slots=True)
class RunShape:
    """One sorted run."""

    id: int
    views: tuple[ViewShape, ...]


@dataclass(frozen=True, slots=True)
class TreeShape:
    """One LSM tree; the root tree has the empty prefix. Everything newest first."""

    prefix: bytes
    marker: str | None
    l0: tuple[ViewShape, ...]
    runs: tuple[RunShape, ...]


def _view_shape(view: Any) -> ViewShape:
    visible = view.visible_range
    if visible is None:
        return ViewShape(view.id, view.sst.id.value, view.sst.info)
    return ViewShape(
        view.id,
        view.sst.id.value,
        view.sst.info,
        visible.start,
        visible.start_inclusive,
        visible.end,
        visible.end_inclusive,
    )


def _tree_shape(prefix: bytes, tree: Any) -> TreeShape:
    return TreeShape(
        prefix,
        tree.last_compacted_l0_sst_view_id,
        tuple(_view_shape(view) for view in tree.l0),
        tuple(RunShape(run.id, tuple(_view_shape(view) for view in run.sst_views)) for run in tree.compacted),
    )


def shape(manifest: Any) -> tuple[TreeShape, ...]:
    """The trees of a `VersionedManifest`: the root tree, then the segments."""
    return (
        _tree_shape(b"", manifest),
        *(_tree_shape(bytes(segment.prefix), segment) for segment in manifest.segments),
    )


# --- administration ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CloneSource:
    """A database to clone from: all of it, or its keys from `start` (inclusive) to `end` (exclusive)."""

    target: Target
    checkpoint: str | None = None
    start: bytes | None = None
    end: bytes | None = None


def _clone_source(source: CloneSource) -> Any:
    projection = None
    if source.start is not None or source.end is not None:
        projection = uniffi.KeyRange(
            start=source.start,
            start_inclusive=source.start is not None,
            end=source.end,
            end_inclusive=False,
        )
    return uniffi.CloneSourceSpec(
        path=_split(source.target)[1], checkpoint=source.checkpoint, projection_range=projection
    )


class Admin:
    """The official administration of one database. Manifests and compactions come as the client's own
    values (`VersionedManifest`, `VersionedCompactions`); `shape` makes typed values of the trees."""

    def __init__(
        self,
        target: Target,
        *,
        store_options: Mapping[str, str] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._target = target
        self._root, path = _split(target)
        self._options = dict(store_options or {})
        self._admin = uniffi.AdminBuilder(path, _store(self._root, self._options)).build()
        self._timeout_s = timeout_s

    def _do(self, work: Coroutine[Any, Any, Any], what: str) -> Any:
        return _run(work, f"{what} of {self._target}", self._timeout_s)

    def read_manifest(self, manifest_id: int | None = None) -> Any:
        """One version of the manifest, the latest by default; `None` when there is none."""
        return self._do(self._admin.read_manifest(manifest_id), "read the manifest")

    def list_manifests(self) -> list[Any]:
        """Every stored version of the manifest."""
        return list(self._do(self._admin.list_manifests(None, None), "list the manifests"))

    def trees(self) -> tuple[TreeShape, ...]:
        """The shape of the latest manifest's trees."""
        return shape(self.read_manifest())

    def read_compactions(self, compactions_id: int | None = None) -> Any:
        """One version of the compactions file; `None` when there is none."""
        return self._do(self._admin.read_compactions(compactions_id), "read the compactions")

    def read_compaction(self, compaction_id: str) -> Any:
        """One compaction of the latest compactions file; `None` when it is not there."""
        return self._do(self._admin.read_compaction(compaction_id, None), "read a compaction")

    def submit_compaction(
        self, l0_view_ids: Sequence[str], sorted_runs: Sequence[int], destination: int, segment: bytes = b""
    ) -> str:
        """Submit a tiered compaction; its id. Both lists are newest first."""
        sources = [uniffi.SourceId.SST_VIEW(view_id) for view_id in l0_view_ids]
        sources += [uniffi.SourceId.SORTED_RUN(run_id) for run_id in sorted_runs]
        spec = uniffi.CompactionSpec.TIERED(segment=segment, sources=sources, destination=destination)
        return str(self._do(self._admin.submit_compaction(spec), "submit a compaction").id)

    def create_checkpoint(
        self, *, name: str | None = None, lifetime_ms: int | None = None, source: str | None = None
    ) -> str:
        """Create a checkpoint of the latest manifest (or a copy of another checkpoint); its id."""
        options = uniffi.CheckpointOptions(lifetime_ms=lifetime_ms, source=source, name=name)
        return str(self._do(self._admin.create_detached_checkpoint(options), "create a checkpoint").id)

    def list_checkpoints(self) -> list[Any]:
        """The client's `Checkpoint` values."""
        return list(self._do(self._admin.list_checkpoints(None), "list the checkpoints"))

    def delete_checkpoint(self, checkpoint_id: str) -> None:
        self._do(self._admin.delete_checkpoint(checkpoint_id), "delete a checkpoint")

    def clone_from(self, *sources: CloneSource) -> None:
        """Make this database a clone of the sources (same store). Projections must not overlap."""
        builder = self._admin.create_clone_builder_from_source(_clone_source(sources[0]))
        for source in sources[1:]:
            builder.with_source(_clone_source(source))
        self._do(builder.build(), "build a clone")

    def run_gc(self, *, min_age_ms: int = 0) -> None:
        """Run the official garbage collector once over manifests, compactions and SSTs."""
        folder = uniffi.GarbageCollectorDirectoryOptions(
            interval_ms=None, min_age_ms=min_age_ms, dry_run=False
        )
        options = uniffi.GarbageCollectorOptions(
            manifest_options=folder,
            wal_options=folder,
            compacted_options=folder,
            compactions_options=folder,
        )
        self._do(self._admin.run_gc_once(options), "collect garbage")


# --- official compactions ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """What an official compaction took, from submission to commit, in this process."""

    wall_s: float
    cpu_s: float
    """User and system time of all threads of this process, the client's own polling included."""
    compaction_ids: tuple[str, ...]


def compactor_settings(
    *,
    poll_ms: int = 50,
    max_subcompactions: int = 4,
    max_sst_size: int = 256 * 1024 * 1024,
    scheduler: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """`compactor_options` of an embedded coordinator and worker that poll every `poll_ms`."""
    every = f"{poll_ms}ms"
    return {
        "poll_interval": every,
        "commit_compacted_interval": every,
        "object_store_max_retries": 2,
        "scheduler_options": dict(
            scheduler if scheduler is not None else {"min_compaction_sources": "1000000"}
        ),
        "worker": {
            "compactions_poll_interval": every,
            "max_subcompactions": max_subcompactions,
            "max_sst_size": max_sst_size,
        },
    }


def full_compaction(tree: TreeShape, trees: Sequence[TreeShape]) -> tuple[list[str], list[int], int]:
    """Sources (view ids, run ids) and destination that merge all of `tree` into one run."""
    run_ids = [run.id for run in tree.runs]
    taken = [run.id for other in trees for run in other.runs]
    destination = min(run_ids) if run_ids else max(taken, default=-1) + 1
    return [view.id for view in tree.l0], run_ids, destination


@contextmanager
def _timed(report: list[tuple[float, float]]) -> Iterator[None]:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    yield
    report.append((time.perf_counter() - wall_s, time.process_time() - cpu_s))


def _await_settled(admin: Admin, compaction_id: str, poll_ms: int, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        found = admin.read_compaction(compaction_id)
        if found is not None and found.status in SETTLED_STATUSES:
            if found.status == uniffi.CompactionStatus.FAILED:
                raise AssertionError(f"the official coordinator failed compaction {compaction_id}")
            return
        time.sleep(poll_ms / 1000)
    raise JudgeTimeout(f"the official compactor did not finish {compaction_id} in {timeout_s} s")


def compact_officially(
    target: Target,
    *,
    poll_ms: int = 50,
    max_subcompactions: int = 4,
    max_sst_size: int = 256 * 1024 * 1024,
    settings: Mapping[str, object] | None = None,
    block_size: int = 4096,
    merge_operator: MergeFunction | None = None,
    segment_prefix_len: int | None = None,
    store_options: Mapping[str, str] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> CompactionReport:
    """Let the official compactor merge every tree of a database into one run.

    The database is opened as a writer for that time. `settings` carry what shapes the outputs
    (`compression_codec`, `min_filter_keys`).
    """
    compactor = compactor_settings(
        poll_ms=poll_ms, max_subcompactions=max_subcompactions, max_sst_size=max_sst_size
    )
    admin = Admin(target, store_options=store_options, timeout_s=timeout_s)
    ids: list[str] = []
    times: list[tuple[float, float]] = []
    with open_db(
        target,
        settings={**(settings or {}), "compactor_options": compactor},
        block_size=block_size,
        merge_operator=merge_operator,
        segment_prefix_len=segment_prefix_len,
        store_options=store_options,
        timeout_s=timeout_s,
    ):
        _await_compactions_file(admin, timeout_s)
        with _timed(times):
            for tree in admin.trees():
                if not tree.l0 and not tree.runs:
                    continue
                views, runs, destination = full_compaction(tree, admin.trees())
                ids.append(admin.submit_compaction(views, runs, destination, tree.prefix))
                _await_settled(admin, ids[-1], max(1, poll_ms // 5), timeout_s)
    (wall_s, cpu_s) = times[0]
    return CompactionReport(wall_s, cpu_s, tuple(ids))


def _await_compactions_file(admin: Admin, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while admin.read_compactions() is None:
        if time.monotonic() > deadline_s:
            raise JudgeTimeout(f"the official coordinator did not start in {timeout_s} s")
        time.sleep(0.002)


def run_officially_until_quiet(
    target: Target,
    *,
    poll_ms: int = 50,
    scheduler: Mapping[str, str] | None = None,
    settings: Mapping[str, object] | None = None,
    block_size: int = 4096,
    merge_operator: MergeFunction | None = None,
    segment_prefix_len: int | None = None,
    store_options: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
) -> CompactionReport:
    """Let the official scheduler (size-tiered, `scheduler` options) compact until it finds nothing more.

    Quiet means: no active compaction and no new manifest for `QUIET_S`. The time of that last wait is
    not counted.
    """
    compactor = compactor_settings(poll_ms=poll_ms, scheduler=scheduler if scheduler is not None else {})
    admin = Admin(target, store_options=store_options, timeout_s=timeout_s)
    ids: dict[str, None] = {}
    with open_db(
        target,
        settings={**(settings or {}), "compactor_options": compactor},
        block_size=block_size,
        merge_operator=merge_operator,
        segment_prefix_len=segment_prefix_len,
        store_options=store_options,
        timeout_s=timeout_s,
    ):
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        busy_s, busy_cpu_s = start_s, start_cpu_s
        seen: tuple[object, ...] = ()
        while time.perf_counter() - busy_s < QUIET_S:
            if time.perf_counter() - start_s > timeout_s:
                raise JudgeTimeout(f"the official scheduler was still busy after {timeout_s} s")
            compactions = admin.read_compactions()
            entries = [] if compactions is None else compactions.recent_compactions
            ids.update((str(entry.id), None) for entry in entries)
            now = (admin.read_manifest().id, None if compactions is None else compactions.id)
            if now != seen or any(entry.active for entry in entries):
                busy_s, busy_cpu_s, seen = time.perf_counter(), time.process_time(), now
            time.sleep(poll_ms / 1000)
    return CompactionReport(busy_s - start_s, busy_cpu_s - start_cpu_s, tuple(ids))
