"""What the simulation puts in place of the real thing, and nothing more.

1. Cutting a compaction into ranges reads SSTs of the simulation instead of SlateDB's.
2. A worker that waits for its tasks lets virtual time pass.
3. Requests that go out together, which run in threads, run in the fiber of its process, in any order.
4. Errors are not searched for secrets, and the log is silent; the trace has it all.
5. Names of SSTs are parsed once each.
6. In most seeds manifests and ledgers are not really encoded (`codecs`).
7. The times of the coordinator's lease are shorter.

Everything else of coordinator, worker, their loops, the dataset, its validation, commit and
garbage collection is what runs in production.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType

import lithify.coordination.leadership
import lithify.service.worker
import lithify.service.worker_pool
from lithify.datasets.slatedb import dataset as dataset_module
from lithify.datasets.slatedb.compaction import split as split_module
from lithify.datasets.slatedb.compaction.split import CompactionSplit, Foreseen
from lithify.datasets.slatedb.compaction.task import DEFAULT_BLOCK_SIZE, SourceSst, SstOptions
from lithify.datasets.slatedb.dataset import SlateDataset, SlateOptions
from lithify.datasets.slatedb.format import ledger as ledger_module
from lithify.datasets.slatedb.format import manifest as manifest_module
from lithify.datasets.slatedb.format.paths import parse_sst_key
from lithify.datasets.slatedb.garbage import collection as garbage_module
from lithify.datasets.slatedb.garbage import retention as retention_module
from lithify.datasets.slatedb.planning.plan import TieredPolicy
from lithify.store.objects import ObjectStore
from simulator.core.replacing import replacing
from simulator.core.waiting import AnyTime, wait_for_futures
from simulator.rows import ROW_BYTES, cut, decode_rows
from simulator.scenario import (
    CHECKPOINT_LIFETIME_S,
    LEASE_MS,
    LOOK_AFTER_MS,
    RENEW_AFTER_MS,
)
from simulator.world import ROOT, Process, World

_LEASE_TIMES = {"LEASE_MS": LEASE_MS, "LOOK_AFTER_MS": LOOK_AFTER_MS, "RENEW_AFTER_MS": RENEW_AFTER_MS}
_parse_sst_key = lru_cache(maxsize=4096)(parse_sst_key)


def simulated_dataset(process: Process) -> SlateDataset:
    """The database as one process opens it."""
    scenario = process.world.scenario
    options = SlateOptions(
        policy=TieredPolicy(min_compaction_sources=scenario.min_compaction_sources),
        checkpoint_lifetime_s=CHECKPOINT_LIFETIME_S,
        max_sst_size=scenario.rows_per_sst * ROW_BYTES,
        block_size=DEFAULT_BLOCK_SIZE,
    )
    return SlateDataset(process.store, ROOT, process.clock, process.ids, options=options, rng=process.rng)


@contextmanager
def replacements(world: World) -> Iterator[None]:
    """The replacements above, for as long as the simulation of `world` runs."""

    def plan_ranges(
        store: ObjectStore,
        sources: Sequence[Sequence[SourceSst]],
        options: SstOptions,
        slots: int,
        foreseen: Foreseen,
    ) -> CompactionSplit:
        parts = [part for source in sources for part in source]
        keys = [row.key for part in parts for row in decode_rows(store.get(part.key))]
        return CompactionSplit(options, cut(keys, world.scenario.keys_per_range))

    with replacing(AnyTime(world.rng)) as put:
        put(split_module, "plan_ranges", plan_ranges)
        wait = wait_for_futures(world.scheduler)
        put(lithify.service.worker, "wait", wait)
        put(lithify.service.worker_pool, "wait", wait)
        for name, ms in _LEASE_TIMES.items():
            put(lithify.coordination.leadership, name, ms)
        for module in (garbage_module, retention_module):
            put(module, "parse_sst_key", _parse_sst_key)
        for module, name in users_of_codecs():
            put(module, name, getattr(world.codecs, name))
        yield


def users_of_codecs() -> list[tuple[ModuleType, str]]:
    """Every module of the dataset that has imported a codec, and the name of the codec."""
    package = dataset_module.__name__.rpartition(".")[0]
    homes = (ledger_module.__name__, manifest_module.__name__)
    modules = [m for n, m in sys.modules.items() if n.startswith(f"{package}.") and n not in homes]
    names = ("encode_manifest", "decode_manifest", "encode_ledger", "decode_ledger")
    return [(module, name) for module in modules for name in names if hasattr(module, name)]
