"""Damaged metadata ends in a value or a clear error: never another exception, a hang, or much memory."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator

import pytest

from lithify.datasets.slatedb.format.index import decode_blocks, decode_index, encode_index
from lithify.datasets.slatedb.format.ledger import (
    SlateCompaction,
    SlateLedger,
    SlateProgress,
    decode_ledger,
    encode_ledger,
)
from lithify.datasets.slatedb.format.manifest import decode_manifest, encode_manifest
from lithify.datasets.slatedb.format.sst import encode_tail, read_info, seal, unseal
from lithify.datasets.slatedb.format.stats import decode_stats, encode_stats
from lithify.datasets.slatedb.model import Codec, DrainSpec, KeyRange, SstInfo, TieredSpec
from lithify.protocol.model import (
    AssignedWorker,
    Compaction,
    CompactionState,
    Ledger,
    Progress,
    RangeProgress,
)
from lithify.testing.memory import MemoryStore
from tests.datasets.slatedb.fuzz import ACCEPTED, Target, fuzz
from tests.datasets.slatedb.test_index import GOOD_METAS, index_of
from tests.datasets.slatedb.test_old_databases import latest_manifest
from tests.datasets.slatedb.test_stats import Block, Root, stats_of
from tests.judge.old import OLD_DATABASES, kept_old_database

CASES = 6000
MEMORY_BYTES = 64 << 20
"""Inputs are a few kilobytes; this is far above what they need and far below what a length may claim."""
NAME = "fuzzed"
INFO = SstInfo(b"a", b"zz", 40, 10, 40, 0, 0, 0)


def sst_info(data: bytes) -> object:
    store = MemoryStore()
    store.put(NAME, data)
    return read_info(store, NAME)


def manifest_and_back(data: bytes) -> None:
    """What is accepted can be written, and means the same."""
    value = decode_manifest(data, NAME)
    assert decode_manifest(encode_manifest(value), NAME) == value


def ledger_and_back(data: bytes) -> None:
    value = decode_ledger(data, NAME)
    assert decode_ledger(encode_ledger(value), NAME) == value


def index_and_back(data: bytes) -> None:
    index = decode_index(data, INFO, NAME)
    assert decode_index(encode_index(index), INFO, NAME) == index


def part_of_index(data: bytes) -> None:
    first, part = decode_blocks(data, INFO, NAME, b"a", b"bc")
    assert first >= 0
    assert len(part)


def stats_and_back(data: bytes) -> None:
    stats = decode_stats(data, NAME)
    assert decode_stats(encode_stats(stats), NAME) == stats


def sealed(codec: Codec) -> Callable[[bytes], None]:
    """Damage behind a checksum that fits: what the codec is given."""

    def use(data: bytes) -> None:
        index_and_back(bytes(unseal(data + struct.pack(">I", zlib.crc32(data)), codec, NAME)))

    return use


def ledger() -> SlateLedger:
    """A ledger that has everything a ledger can have."""
    _, manifest = latest_manifest(kept_old_database("slatedb-0.15.0"))
    ssts = tuple(view.sst for view in manifest.root.views())
    ids = tuple(sorted(sst.id for sst in ssts))
    progress: SlateProgress = Progress(
        (RangeProgress(KeyRange(None, b"m"), ssts[:2]), RangeProgress(KeyRange(b"m"))), 7
    )
    running: SlateCompaction = Compaction(
        id=ids[0],
        spec=TieredSpec(b"segment", ids, (5, 3), 3),
        state=CompactionState.RUNNING,
        worker=AssignedWorker("worker", 5),
        progress=progress,
    )
    drained: SlateCompaction = Compaction(
        id=ids[1], spec=DrainSpec(b"s", ids, (1,)), state=CompactionState.COMPLETED, outputs=ssts
    )
    return Ledger(3, (running, drained))


def targets() -> Iterator[Target]:
    for version in OLD_DATABASES:
        path, value = latest_manifest(kept_old_database(version))
        yield Target(f"manifest 1 of {version}", path.read_bytes(), manifest_and_back)
        yield Target(f"manifest 2 of {version}", encode_manifest(value), manifest_and_back)
        compactions = max((kept_old_database(version) / "compactions").iterdir())
        yield Target(f"compactions of {version}", compactions.read_bytes(), ledger_and_back)
    yield Target("compactions", encode_ledger(ledger()), ledger_and_back)
    index = encode_index(index_of(GOOD_METAS, 40))
    yield Target("index", index, index_and_back)
    yield Target("part of an index", index, part_of_index)
    blocks = tuple(Block(n, n % 2, n % 3) for n in range(20))
    yield Target("stats", encode_stats(stats_of(Root(100, 10, 5, 7, 8, blocks))), stats_and_back)
    yield Target("tail", bytes(60) + encode_tail(INFO, 60), sst_info)
    for codec in Codec:
        yield Target(f"sealed {codec.name.lower()}", seal(index, codec)[:-4], sealed(codec))


@pytest.fixture(scope="module")
def all_targets() -> list[Target]:
    return list(targets())


def test_the_undamaged_bytes_are_accepted(all_targets: list[Target]) -> None:
    for target in all_targets:
        target.use(target.data)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [1, 2])
def test_damage_ends_in_a_value_or_a_clear_error(seed: int, all_targets: list[Target]) -> None:
    for target in all_targets:
        target.use(target.data)  # whatever is compiled and cached now takes no memory below
    tracemalloc.start()
    try:
        outcomes = fuzz(all_targets, CASES // 2, seed)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < MEMORY_BYTES
    assert outcomes.total() == CASES // 2
    # Damage must reach every target. A bloom filter is just bits: whatever has a count is a filter.
    refused = {what.split(": ")[0] for what in outcomes if not what.endswith(ACCEPTED)}
    assert refused | {"bloom"} >= {target.name for target in all_targets}
    assert any(what.endswith(ACCEPTED) for what in outcomes)
