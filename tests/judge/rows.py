"""Every row version of a database on the local file system, in the shape of its trees.

The shape comes from the official client's reading of the manifest, the rows from `tests.judge.sst`.
The manifest's info of an SST must be the one inside the file. A view shows the rows of its visible
range only; SSTs of a clone's parents are read where the parents keep them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from slatedb import uniffi
from tests.judge.admin import Admin, TreeShape, ViewShape
from tests.judge.client import Target, local_path
from tests.judge.sst import Info, Row, SstFile, read_sst

Rows = tuple[Row, ...]

CODEC_NUMBERS = {
    None: 0,
    uniffi.CompressionCodec.SNAPPY: 1,
    uniffi.CompressionCodec.ZLIB: 2,
    uniffi.CompressionCodec.LZ4: 3,
    uniffi.CompressionCodec.ZSTD: 4,
}


@dataclass(frozen=True, slots=True)
class TreeRows:
    """The rows of one tree, source by source, newest first."""

    l0: tuple[Rows, ...]
    runs: tuple[tuple[int, Rows], ...]
    """Run id and rows; the rows of a run's SSTs follow one another."""


def read_database(target: Target, manifest_id: int | None = None) -> dict[bytes, TreeRows]:
    """The rows of every tree of a local database, by prefix. Checks every SST on the way."""
    admin = Admin(target)
    manifest = admin.read_manifest(manifest_id)
    folders = _folders(target, manifest)
    return {tree.prefix: _read_tree(tree, folders) for tree in admin.trees(manifest_id)}


def read_file(path: Path) -> SstFile:
    """One SST file, checked."""
    return read_sst(path.read_bytes())


def visible_rows(trees: Mapping[bytes, TreeRows]) -> dict[bytes, bytes]:
    """What a scan shows of rows without merges and without expiry: the newest version of each key."""
    newest: dict[bytes, Row] = {}
    for tree in trees.values():
        for rows in (*tree.l0, *(rows for _, rows in tree.runs)):
            for row in rows:
                if row.key not in newest or newest[row.key].seq < row.seq:
                    newest[row.key] = row
    assert all(row.kind != "merge" for row in newest.values()), "merge rows need the client to be read"
    return {key: row.value for key, row in sorted(newest.items()) if row.kind == "put"}


def _folders(target: Target, manifest: Any) -> dict[str, Path]:
    """Folder of every SST that lies in another database."""
    local_path(target)
    return {
        sst_id.value: Path("/") / external.path / "compacted"
        for external in manifest.external_dbs
        for sst_id in external.sst_ids
    } | {"": local_path(target) / "compacted"}


def _read_tree(tree: TreeShape, folders: Mapping[str, Path]) -> TreeRows:
    l0 = tuple(_read_views([view], folders) for view in tree.l0)
    return TreeRows(l0, tuple((run.id, _read_views(run.views, folders)) for run in tree.runs))


def _read_views(views: Iterable[ViewShape], folders: Mapping[str, Path]) -> Rows:
    rows: list[Row] = []
    for view in views:
        sst = read_file(folders.get(view.sst_id, folders[""]) / f"{view.sst_id}.sst")
        assert sst.info == _manifest_info(view.sst_info), f"the manifest's info of {view.sst_id}"
        rows += [row for row in sst.rows if view.shows(row.key)]
    for before, after in pairwise(rows):
        assert (before.key, -before.seq) < (after.key, -after.seq), f"order of a run at {after.key!r}"
    return tuple(rows)


def _manifest_info(info: Any) -> Info:
    return Info(
        first_entry=info.first_entry,
        index_offset=info.index_offset,
        index_len=info.index_len,
        filter_offset=info.filter_offset,
        filter_len=info.filter_len,
        compression_format=CODEC_NUMBERS[info.compression_codec],
        sst_type=info.sst_type.value,
        last_entry=info.last_entry,
        stats_offset=info.stats_offset,
        stats_len=info.stats_len,
        filter_format=info.filter_format.value,
    )
