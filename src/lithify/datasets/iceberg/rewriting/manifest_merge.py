"""Rewriting a group's manifests, in order, in bounded memory.

1. Many files are fetched ahead concurrently, and decoded one entry at a time.
2. Each live entry is packed as an existing one. Inherited sequence numbers and the inherited id of the
   snapshot that added it are written explicitly; all other fields are unchanged.
3. Packed entries are sorted (`entry_sorter`) and written, in blocks, to manifests of the target size on the
   local disk.
4. All manifests are uploaded to the table's location at the end. So an uncommitted manifest is never old, and
   garbage collection, which selects files by age alone, does not delete it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pyiceberg.io import FileIO, InputFile, OutputFile, OutputStream
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import TableVersion

from lithify.base.concurrency import all_of
from lithify.datasets.iceberg.format.entry_order import EntryOrder
from lithify.datasets.iceberg.format.fetching import MAX_AHEAD_BYTES, MAX_READERS, fetched_manifests
from lithify.datasets.iceberg.format.manifest_writer import EntryPacker, Packed, SpecManifestWriter
from lithify.datasets.iceberg.format.manifests import decoding, entries_in
from lithify.datasets.iceberg.rewriting.entry_sorter import BUFFER_BYTES, EntrySorter

MAX_BLOCK_BYTES = 64 * 1024
"""The maximum size of a block before compression."""


class Staged(OutputFile):
    """A file that is written to the local disk and uploaded to the table's location later."""

    def __init__(self, location: str, local: Path) -> None:
        super().__init__(location)
        self.local = local

    def __len__(self) -> int:
        return self.local.stat().st_size

    def exists(self) -> bool:
        return self.local.exists()

    def to_input_file(self) -> InputFile:
        return PyArrowFileIO().new_input(self.local.as_uri())

    def create(self, overwrite: bool = False) -> OutputStream:
        return self.local.open("wb" if overwrite else "xb")


class ManifestRoll:
    """A writer of packed entries, in order of arrival, to manifests of the target size."""

    def __init__(self, open_writer: Callable[[], SpecManifestWriter], target_bytes: int) -> None:
        self._open = open_writer
        self._target_bytes = target_bytes
        self._block_bytes = min(MAX_BLOCK_BYTES, target_bytes // 8)
        self._writer: SpecManifestWriter | None = None
        self._block: list[Packed] = []
        self._held_bytes = 0
        self._done: list[ManifestFile] = []
        self.entries = 0

    def add(self, entry: Packed) -> None:
        """Add the next entry."""
        self._block.append(entry)
        self._held_bytes += len(entry.data)
        self.entries += 1
        if self._held_bytes >= self._block_bytes:
            self._flush()

    def close(self) -> list[ManifestFile]:
        """Finish, and return all written manifests."""
        if self._block:
            self._flush()
        self._finish()
        return self._done

    def _flush(self) -> None:
        if self._writer is None:
            self._writer = self._open()
            self._writer.__enter__()
        self._writer.add_packed(self._block)
        self._block, self._held_bytes = [], 0
        if self._writer.tell() >= self._target_bytes:
            self._finish()

    def _finish(self) -> None:
        if self._writer is not None:
            self._writer.__exit__(None, None, None)
            self._done.append(self._writer.to_manifest_file())
            self._writer = None


class ManifestMerge:
    """A writer of groups of one table's manifests into `folder`."""

    def __init__(
        self,
        io: FileIO,
        folder: Path,
        new_path: Callable[[], str],
        snapshot_id: int,
        format_version: TableVersion,
        target_bytes: int,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        """`new_path` returns the location of each new manifest in the table."""
        self._io = io
        self._folder = folder
        self._new_path = new_path
        self._snapshot_id = snapshot_id
        self._format_version = format_version
        self._target_bytes = target_bytes
        self._buffer_bytes = buffer_bytes
        self._staged: dict[str, Path] = {}

    def merge(
        self, manifests: Sequence[ManifestFile], spec: PartitionSpec, schema: Schema, order: EntryOrder
    ) -> tuple[list[ManifestFile], int]:
        """Write and return the new manifests of a group, all of one content and spec, with their number of
        entries."""
        packer = EntryPacker(spec, schema, self._format_version)
        sorter = EntrySorter(self._folder, self._buffer_bytes)
        for manifest, data in fetched_manifests(self._io, manifests):
            for entry in entries_in(manifest, data(), spec):
                with decoding(manifest.manifest_path):
                    packed = packer.pack(entry)
                sorter.add(order.key(entry), packed)
        content = manifests[0].content

        def open_writer() -> SpecManifestWriter:
            return self._writer(content, spec, schema)

        roll = ManifestRoll(open_writer, self._target_bytes)
        for packed in sorter.drain():
            roll.add(packed)
        return roll.close(), roll.entries

    def upload(self) -> None:
        """Upload all written manifests to the table's location."""

        def put(path: str) -> None:
            with self._io.new_output(path).create() as stream:
                stream.write(self._staged[path].read_bytes())

        at_once = min(MAX_READERS, max(1, MAX_AHEAD_BYTES // self._target_bytes))
        all_of((partial(put, path) for path in self._staged), at_once)

    def _writer(self, content: ManifestContent, spec: PartitionSpec, schema: Schema) -> SpecManifestWriter:
        path = self._new_path()
        local = self._staged[path] = self._folder / f"manifest-{len(self._staged)}"
        output = Staged(path, local)
        return SpecManifestWriter(content, spec, schema, output, self._snapshot_id, self._format_version)
