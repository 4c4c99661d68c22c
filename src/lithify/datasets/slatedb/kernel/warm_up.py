"""Compiles or loads all compiled code before the first task.

A tiny real merge in a temporary folder uses everything that enters compiled code: a filter, a fold, and
resuming after an output. So exactly the signatures that tasks use are compiled, and their machine code is on
disk afterwards. No thread is started: Spark forks its Python workers after this, and a process forked while
other threads run may hang.
"""

from __future__ import annotations

import struct

import numpy as np

from lithify.base.clock import SystemClock
from lithify.base.ids import RandomIds, Ulid
from lithify.base.scratch import Scratch
from lithify.datasets.slatedb.compaction.execute import run_merge
from lithify.datasets.slatedb.compaction.task import MergeTask, RowRules, SourceSst, SstOptions, sst_key
from lithify.datasets.slatedb.format.block_size import read_block_size
from lithify.datasets.slatedb.format.index import BlockIndex, encode_index
from lithify.datasets.slatedb.format.sst import encode_tail, seal
from lithify.datasets.slatedb.kernel.layout import MERGE
from lithify.datasets.slatedb.kernel.ready import KERNEL
from lithify.datasets.slatedb.model import Codec, KeyRange, Sst, SstInfo
from lithify.kernel.cache import all_is_compiled
from lithify.store.objects import ObjectStore
from lithify.store.urls import open_store

_KEY = b"k"


def warm_up() -> None:
    """Compile the kernel or load it from the cache; further calls are cheap."""
    with Scratch() as scratch:
        store, folder = open_store(str(scratch.path))
        sources = tuple((_one_row_sst(store, folder, seq),) for seq in (2, 1))
        result = run_merge(_task(folder, sources), store, RandomIds(), SystemClock())
        resumed = _task(folder, sources, result.outputs)
        run_merge(resumed, store, RandomIds(), SystemClock())
        read_block_size(store, [SourceSst(sst_key(folder, sst.id), sst) for sst in result.outputs])
    all_is_compiled(KERNEL)


def concatenate(key: bytes, existing: bytes | None, operand: bytes) -> bytes:
    return (existing or b"") + operand


def _task(
    folder: str, sources: tuple[tuple[SourceSst, ...], ...], resume_outputs: tuple[Sst, ...] = ()
) -> MergeTask:
    return MergeTask(
        store_url="",
        store_options={},
        output_folder=folder,
        min_output_ms=0,
        sources=sources,
        range=KeyRange(b"", _KEY, end_inclusive=True),
        rules=RowRules(True, 0, 3, merge_operator=f"{__name__}:concatenate"),
        options=SstOptions(min_filter_keys=0),
        resume_outputs=resume_outputs,
    )


def _one_row_sst(store: ObjectStore, folder: str, seq: int) -> SourceSst:
    row = b"\x00\x01\x01" + _KEY + b"v" + struct.pack(">QB", seq, MERGE)
    block = seal(row + struct.pack(">HH", 0, 1), Codec.NONE)
    offsets = np.array([0, len(block)], np.int64)
    no_keys = BlockIndex(offsets, np.empty(0, np.uint8), np.zeros(2, np.int64))
    index = seal(encode_index(no_keys), Codec.NONE)
    info = SstInfo(_KEY, _KEY, len(block), len(index), len(block), 0, 0, 0)
    sst = Sst(Ulid(RandomIds().ulid(0)), info)
    store.put(sst_key(folder, sst.id), block + index + encode_tail(info, len(block) + len(index)))
    return SourceSst(sst_key(folder, sst.id), sst)
