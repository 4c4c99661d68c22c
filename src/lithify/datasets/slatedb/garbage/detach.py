"""Detaching a clone from the databases it was cloned from (SlateDB format: garbage collection).

A clone that no longer reads anything of a parent still pins a checkpoint there. To end that:

1. Find the parent. Its path is relative to the root of the store that the clone's creator used, which may be
   any folder above the clone: the parent is the database at one of these places that holds the checkpoint. If
   none has it, a database without the checkpoint is accepted: an earlier run crashed after step 2.
2. Delete the checkpoint from the parent's manifest.
3. Remove the reference from the clone's manifest, unless it names SSTs again.

In this order a crash leaves a reference to a deleted checkpoint, and the next run finishes; in the opposite
order the parent would keep the checkpoint for ever.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from lithify.base.clock import Clock
from lithify.base.errors import LithifyError, Refused
from lithify.base.ids import Ids
from lithify.datasets.slatedb.format.manifest import decode_manifest, encode_manifest
from lithify.datasets.slatedb.format.paths import MANIFEST_SUFFIX, DatabasePaths
from lithify.datasets.slatedb.model import ExternalDb, Manifest
from lithify.store.objects import ObjectStore
from lithify.store.versions import Version, VersionedFiles


class Detacher:
    """Detaches the clone at `paths`."""

    def __init__(
        self, store: ObjectStore, paths: DatabasePaths, clock: Clock, ids: Ids, rng: random.Random
    ) -> None:
        self._store = store
        self._paths = paths
        self._clock = clock
        self._ids = ids
        self._rng = rng

    def detach(self, manifests: VersionedFiles, ties: Sequence[ExternalDb]) -> None:
        """Remove the references `ties`, which must be detachable. `manifests` are the clone's. If one parent
        is unreachable, the others are still detached; the first failure is raised at the end."""
        released: set[object] = set()
        failures: list[LithifyError] = []
        for tie in ties:
            try:
                self._release(tie)
            except LithifyError as error:
                failures.append(error)
            else:
                released.add(tie.final_checkpoint_id)

        def untie(version: Version | None) -> bytes | None:
            manifest = _decode(manifests, version)
            if manifest is None:
                return None
            kept = tuple(
                db for db in manifest.external_dbs if db.sst_ids or db.final_checkpoint_id not in released
            )
            if len(kept) == len(manifest.external_dbs):
                return None
            return encode_manifest(replace(manifest, external_dbs=kept))

        if released:
            manifests.update(untie, self._clock, self._rng)
        if failures:
            raise failures[0]

    def _release(self, tie: ExternalDb) -> None:
        """Delete the parent's checkpoint, if it still exists."""
        is_database = False
        for parent in self._candidates(tie):
            manifest = _decode(parent, parent.latest())
            if manifest is None:
                continue
            is_database = True
            if any(c.id == tie.final_checkpoint_id for c in manifest.checkpoints):
                self._delete_checkpoint(parent, tie)
                return
        if not is_database:
            raise Refused(
                f"the database at {tie.path!r}, which this one was cloned from, was not found from the "
                f"store {self._store.url}, so its checkpoint {tie.final_checkpoint_id} is kept; collect "
                "garbage through the store that contains both"
            )

    def _delete_checkpoint(self, parent: VersionedFiles, tie: ExternalDb) -> None:
        def change(version: Version | None) -> bytes | None:
            manifest = _decode(parent, version)
            if manifest is None:
                return None
            kept = tuple(c for c in manifest.checkpoints if c.id != tie.final_checkpoint_id)
            if len(kept) == len(manifest.checkpoints):
                return None
            return encode_manifest(replace(manifest, checkpoints=kept))

        parent.update(change, self._clock, self._rng)

    def _candidates(self, tie: ExternalDb) -> Iterator[VersionedFiles]:
        parts = self._paths.root.split("/")
        for depth in range(len(parts)):
            paths = DatabasePaths("/".join([*parts[:depth], tie.path.strip("/")]))
            yield VersionedFiles(
                self._store,
                paths.manifest_folder,
                MANIFEST_SUFFIX,
                paths.manifest_boundary,
                self._ids,
                clock=self._clock,
            )


def _decode(files: VersionedFiles, version: Version | None) -> Manifest | None:
    return None if version is None else decode_manifest(version.data, files.key(version.id))
