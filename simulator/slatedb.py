"""A SlateDB process with a coordinator inside, which Lithify must not close unasked.

1. Opening takes the next compactor epoch in the manifest, then writes it into the ledger, and makes that if
   there is none. Of marks it knows nothing.
2. It finds nothing to do: at rest it writes nothing, so nothing shows that it is alive.
3. It is closed by its user after a while, or by a newer epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lithify.base.errors import Fenced
from lithify.datasets.slatedb.format.paths import (
    COMPACTIONS_SUFFIX,
    MANIFEST_SUFFIX,
    DatabasePaths,
)
from lithify.protocol import transitions
from lithify.protocol.model import Ledger
from lithify.store.versions import Version, VersionedFiles
from simulator.world import ROOT, Process

_PATHS = DatabasePaths(ROOT)
_MIN_LIFE_MS, _MAX_LIFE_MS = 2_000, 15_000
_POLL_MS = 1_000


@dataclass
class _Coordinator:
    """What the judge has to know of it."""

    epoch: int


def run_slatedb_process(process: Process) -> None:
    """Open, rest, close."""
    world, codecs = process.world, process.world.codecs
    manifests = VersionedFiles(
        process.store,
        _PATHS.manifest_folder,
        MANIFEST_SUFFIX,
        _PATHS.manifest_boundary,
        process.ids,
        clock=process.clock,
    )
    ledgers = VersionedFiles(
        process.store,
        _PATHS.compactions_folder,
        COMPACTIONS_SUFFIX,
        _PATHS.compactions_boundary,
        process.ids,
        clock=process.clock,
    )
    held = process.coordinator = _Coordinator(0)

    def epoch() -> int:
        version = manifests.latest()
        assert version is not None
        return codecs.decode_manifest(version.data).compactor_epoch

    def raise_epoch(version: Version | None) -> bytes:
        assert version is not None
        manifest = codecs.decode_manifest(version.data)
        held.epoch = manifest.compactor_epoch + 1
        return codecs.encode_manifest(replace(manifest, compactor_epoch=held.epoch))

    def take_ledger(version: Version | None) -> bytes:
        if version is None:
            return codecs.encode_ledger(Ledger())
        return codecs.encode_ledger(transitions.recover(codecs.decode_ledger(version.data), held.epoch))

    manifests.update(raise_epoch, process.clock, process.rng)
    taken = ledgers.update(take_ledger, process.clock, process.rng)
    if taken is not None and taken.id == 1:
        ledgers.update(take_ledger, process.clock, process.rng)
    world.count("event: SlateDB's coordinator opened")
    closes_ms = world.now_ms + process.rng.randint(_MIN_LIFE_MS, _MAX_LIFE_MS)
    while world.now_ms < closes_ms and not world.is_calm:
        process.sleep_ms(_POLL_MS)
        if epoch() != held.epoch:
            raise Fenced(f"SlateDB's coordinator (epoch {held.epoch}) is closed")
