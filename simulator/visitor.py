"""Everybody else who writes to a database: readers that pin a manifest, people who meddle.

1. A reader publishes the manifest with a checkpoint of its own, reads every row of that version while
   time passes, and takes the checkpoint out again, or is gone and lets it expire.
2. A person submits compactions, most of them not sensible: only the newest L0 SST, sources that are not
   neighbours or not there, a destination that is taken, a drain of the root, the same work twice. And
   cancels compactions, and tries again what failed.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from lithify.base.errors import ObjectNotFound, Refused
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.format.ledger import SlateLedger
from lithify.datasets.slatedb.format.paths import MANIFEST_SUFFIX, DatabasePaths
from lithify.datasets.slatedb.model import Checkpoint, DrainSpec, Manifest, Spec, TieredSpec
from lithify.protocol import transitions
from lithify.protocol.model import Compaction
from lithify.service import control
from lithify.store.versions import Version, VersionedFiles
from simulator import rules
from simulator.replaced import simulated_dataset
from simulator.scenario import MAX_SKEW_MS
from simulator.world import ROOT, Process

_PATHS = DatabasePaths(ROOT)
_MAX_REST_MS = 6_000
_LIFETIME_S = 15
_MAX_READ_MS = 1_500


def run_reader(process: Process) -> None:
    """Pin, read, let go; until killed."""
    rng = process.rng
    while True:
        process.sleep_ms(rng.randint(1, _MAX_REST_MS))
        if process.world.is_quiet:
            continue
        checkpoint_id = process.ids.uuid()
        expires_s = process.clock.now_ms() // 1000 + _LIFETIME_S if rng.random() < 0.9 else 0
        pinned = publish_manifest(process, partial(_pin, process, checkpoint_id, expires_s))
        process.world.count("event: reader pinned a manifest")
        _read(process, next(c for c in pinned.checkpoints if c.id == checkpoint_id))
        if expires_s == 0 or rng.random() < 0.7:
            publish_manifest(process, partial(_without, checkpoint_id))


def forgive_failures(process: Process) -> None:
    """What a person does about work that has failed: after a few failures the coordinator leaves the same
    sources alone for up to an hour, and the writer stalls meanwhile."""
    journal = simulated_dataset(process).journal
    for failure in journal.failures():
        journal.forgive(failure.compaction)


def remove_eternal_checkpoints(process: Process) -> None:
    """What a person does about checkpoints without an end whose readers are gone."""

    def change(latest: Manifest, _: int) -> Manifest:
        return replace(latest, checkpoints=tuple(c for c in latest.checkpoints if c.expire_time_s))

    process.world.keeps_eternal_checkpoints = False
    publish_manifest(process, change)


def publish_manifest(process: Process, change: Callable[[Manifest, int], Manifest]) -> Manifest:
    """Publish `change` of the latest manifest, given the number it will have; nothing if that is the
    same. Gives what is the latest then."""
    files = VersionedFiles(
        process.store,
        _PATHS.manifest_folder,
        MANIFEST_SUFFIX,
        _PATHS.manifest_boundary,
        process.ids,
        clock=process.clock,
    )
    published: Manifest | None = None

    def apply(version: Version | None) -> bytes | None:
        nonlocal published
        assert version is not None
        latest = process.world.codecs.decode_manifest(version.data)
        published = change(latest, version.id + 1)
        return None if published == latest else process.world.codecs.encode_manifest(published)

    files.update(apply, process.clock, process.rng)
    assert published is not None
    return published


def _pin(
    process: Process, checkpoint_id: uuid.UUID, expires_s: int, latest: Manifest, number: int
) -> Manifest:
    if any(checkpoint.id == checkpoint_id for checkpoint in latest.checkpoints):
        return latest  # published already, and the answer was lost
    created_s = process.clock.now_ms() // 1000
    checkpoint = Checkpoint(checkpoint_id, number, expires_s, created_s, process.name)
    return replace(latest, checkpoints=(*latest.checkpoints, checkpoint))


def _without(checkpoint_id: uuid.UUID, latest: Manifest, _: int) -> Manifest:
    return replace(latest, checkpoints=tuple(c for c in latest.checkpoints if c.id != checkpoint_id))


def _read(process: Process, checkpoint: Checkpoint) -> None:
    """Read the pinned version and all its SSTs. While the checkpoint lives, none may be missing."""
    dataset = simulated_dataset(process)
    try:
        pinned = dataset.manifest(checkpoint.manifest_id)
        for tree in pinned.trees():
            for view in tree.views():
                process.sleep_ms(process.rng.randint(1, _MAX_READ_MS))
                process.store.get(_PATHS.sst(view.sst.id))
    except ObjectNotFound as error:
        expires_ms = checkpoint.expire_time_s * 1000
        world = process.world
        lives = world.now_ms < expires_ms - 2 * MAX_SKEW_MS if expires_ms else world.keeps_eternal_checkpoints
        if lives:
            raise world.fail(rules.KEPT, f"reader {process.name}: {error}") from None


def run_person(process: Process) -> None:
    """Submit, cancel and try again what comes to mind; until killed."""
    dataset = simulated_dataset(process)
    while True:
        process.sleep_ms(process.rng.randint(1, _MAX_REST_MS))
        if process.world.is_calm:
            continue
        # Refused: what a person is told, and there is no ledger yet.
        with suppress(Refused):
            process.rng.choice((_submit, _submit, _cancel, _retry))(process, dataset)


def _submit(process: Process, dataset: SlateDataset) -> None:
    """As SlateDB's own tool does it: whatever it is."""
    spec = _any_spec(dataset.snapshot(), process.rng)

    def add(ledger: SlateLedger) -> SlateLedger:
        now_ms = transitions.next_id_ms(ledger, process.clock.now_ms())
        return transitions.submit(ledger, Compaction(process.ids.ulid(now_ms), spec))

    dataset.update_ledger(add)
    process.log(f"submitted {spec}")
    process.world.count("event: person submitted")


def _cancel(process: Process, dataset: SlateDataset) -> None:
    ledger = dataset.ledger()
    active = ledger.active() if ledger is not None else ()
    if active:
        control.cancel(dataset, process.clock, [process.rng.choice(active).id])
        process.world.count("event: person cancelled")


def _retry(process: Process, dataset: SlateDataset) -> None:
    failures = dataset.journal.failures()
    if failures:
        control.retry(dataset, process.clock, process.ids, [process.rng.choice(failures).compaction])
        process.world.count("event: person tried again")


def _any_spec(manifest: Manifest, rng: random.Random) -> Spec:
    """A spec over one tree: sources at random, or a whole end of the tree, which is sensible."""
    tree = rng.choice(manifest.trees())
    l0 = [view.id for view in tree.l0]
    runs = [run.id for run in tree.runs]
    all_runs = [run.id for t in manifest.trees() for run in t.runs]
    match rng.randrange(6):
        case 0:  # the oldest L0s and the newest runs
            l0 = l0[rng.randint(0, len(l0)) :]
            runs = runs[: rng.randint(0, len(runs))]
        case 1:  # the newest L0 alone: its commit would lose the older ones
            l0, runs = l0[:1], []
        case 2:  # anything
            l0 = [view_id for view_id in l0 if rng.random() < 0.5]
            runs = [run_id for run_id in runs if rng.random() < 0.5]
        case 3:  # everything there is
            pass
        case 4:  # a run that does not exist
            l0, runs = [], [rng.randint(0, 1000)]
        case _:
            return DrainSpec(b"", tuple(l0), tuple(runs))
    fresh = max(all_runs, default=-1) + 1
    return TieredSpec(tree.prefix, tuple(l0), tuple(runs), rng.choice((min(runs, default=fresh), fresh)))
