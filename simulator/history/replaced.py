"""What this world puts in place of the real thing, and nothing more.

1. The bytes of manifests, manifest lists and former metadata files: the values are looked up (`lake`).
2. The store in which a checkpoint lies: it is the one store there is, as the process reaches it.
3. Threads that work side by side: everything runs in the calling fiber, in some order.
4. Keys of paths are worked out once each.
5. Errors are not searched for secrets, and the log is silent; the trace has it all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lithify.datasets.iceberg.format import lineage as lineage_module
from lithify.datasets.iceberg.io import places as places_module
from lithify.datasets.iceberg.maintenance import expired_files as expired_files_module
from lithify.datasets.iceberg.maintenance import reachable as reachable_module
from lithify.datasets.iceberg.maintenance import readers as readers_module
from lithify.store.objects import ObjectStore
from simulator.core.replacing import replacing
from simulator.core.waiting import AnyTime
from simulator.history.lake import FilesView
from simulator.history.world import World

_keys_of = lru_cache(maxsize=1 << 14)(places_module.keys_of)


@contextmanager
def replacements(world: World) -> Iterator[None]:
    """The replacements above, for as long as the simulation of `world` runs."""
    with replacing(AnyTime(world.rng)) as put:
        put(reachable_module, "fetched_lists", _lists)
        put(reachable_module, "fetched_manifests", _manifests)
        put(reachable_module, "ManifestLists", _Decoded)
        put(reachable_module, "entries_in", lambda manifest, entries, reader_of: entries)
        put(reachable_module, "keys_of", _keys_of)
        for module in (expired_files_module, lineage_module):
            put(module, "_metadata_in", lambda table, path: table.io.metadata_in(path))
        put(readers_module, "_open_like_the_table", _checkpoint)
        yield


def _lists(io: FilesView, snapshots: Iterable[Snapshot]) -> Iterator[tuple[Snapshot, Callable[[], Any]]]:
    return ((snapshot, partial(io.manifests_of, snapshot)) for snapshot in snapshots)


def _manifests(io: FilesView, manifests: Iterable[Any]) -> Iterator[tuple[Any, Callable[[], Any]]]:
    return ((manifest, partial(io.live_entries, manifest)) for manifest in manifests)


class _Decoded:
    """Of what is looked up there is nothing to decode."""

    def manifests(self, path: str, found: Sequence[Any]) -> Sequence[Any]:
        return found


def _checkpoint(url: str, table: Table) -> tuple[ObjectStore, str]:
    """The URLs of checkpoints are keys of the store."""
    io: Any = table.io
    store: ObjectStore = io.process.store
    return store, url
