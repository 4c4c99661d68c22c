"""The manifest and the ledger of one SlateDB database: numbered files, decoded.

Reading returns the latest version as a value; the version decoded last is not decoded again. A change is a
function: it is applied to the cached version and the result is published as the next one; after each conflict
it is applied to the latest version (`lithify.store.versions`). A published version is therefore always made
from its predecessor, and keeps everything that the writer, readers or garbage collectors published meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar, cast

from lithify.base.clock import Clock
from lithify.base.concurrency import both
from lithify.base.errors import DatasetNotFound, Refused, Replaced
from lithify.base.ids import Ids
from lithify.datasets.discovery import found_instead
from lithify.datasets.slatedb.format.ledger import SlateLedger, decode_ledger, encode_ledger
from lithify.datasets.slatedb.format.manifest import decode_manifest, encode_manifest, may_follow
from lithify.datasets.slatedb.format.paths import (
    COMPACTIONS_SUFFIX,
    MANIFEST_SUFFIX,
    DatabasePaths,
    check_whole,
)
from lithify.datasets.slatedb.model import Manifest
from lithify.protocol.model import Ledger
from lithify.store.objects import ObjectStore
from lithify.store.versions import Bond, Change, PendingVersion, Version, VersionedFiles

ResultT = TypeVar("ResultT")


class DatabaseFiles:
    """The manifests and ledgers of the database at `paths`; errors call it `url`."""

    def __init__(
        self, store: ObjectStore, paths: DatabasePaths, url: str, clock: Clock, ids: Ids, rng: random.Random
    ) -> None:
        self.url = url
        self._root = paths.root
        self._store = store
        self._clock = clock
        self._rng = rng
        self._bond = Bond()
        self._manifests = VersionedFiles(
            store,
            paths.manifest_folder,
            MANIFEST_SUFFIX,
            paths.manifest_boundary,
            ids,
            clock=clock,
            bond=self._bond,
        )
        self._ledgers = VersionedFiles(
            store,
            paths.compactions_folder,
            COMPACTIONS_SUFFIX,
            paths.compactions_boundary,
            ids,
            clock=clock,
            bond=self._bond,
        )
        self._decoded: dict[str, tuple[int, Any]] = {}

    def latest_manifest(self) -> tuple[int, Manifest]:
        """Return the latest manifest and its id. Raise `Refused` if there is no database."""
        return self._manifest_of(self._manifests.confirmed())

    def glance(self) -> tuple[SlateLedger | None, Manifest]:
        """Read ledger and manifest in the time of one request; see the contract of datasets."""
        ledger, manifest = both(self.ledger, self._manifests.latest)
        return ledger, self._manifest_of(manifest)[1]

    def known(self) -> tuple[SlateLedger | None, Manifest]:
        """Return ledger and manifest as this process last read or published them."""
        ledger = self._ledgers.known()
        return None if ledger is None else self._ledger_of(ledger), self._manifest_of(
            self._manifests.known()
        )[1]

    def manifest(self, manifest_id: int) -> Manifest:
        """Return one version of the manifest, as a checkpoint pins it."""
        return decode_manifest(self._manifests.read(manifest_id), self._manifests.key(manifest_id))

    def known_manifest_id(self) -> int:
        """Return the id of the manifest that this process last read or published. Raise `Refused` if there is
        no database."""
        return self._manifest_of(self._manifests.known())[0]

    def has_mark(self, manifest_id: int, mark: bytes) -> bool:
        """Return whether a version of the manifest exists, is valid, and was written with `mark`."""
        return self._manifests.has_mark(manifest_id, mark)

    def manifest_ids(self) -> list[int]:
        """Return the numbers of all existing manifests, ascending."""
        return self._manifests.ids()

    def ledger_ids(self) -> list[int]:
        """Return the numbers of all existing compactions files, ascending."""
        return self._ledgers.ids()

    def ledger(self) -> SlateLedger | None:
        """Return the latest ledger, or a stale one on which publishing fails; `None` if no coordinator ever
        ran."""
        version = self._ledgers.latest()
        return None if version is None else self._ledger_of(version)

    def update_manifest(self, change: Callable[[int, Manifest], Manifest | None], mark: bytes = b"") -> None:
        """Apply `change` to the cached manifest and its id, after each conflict to the latest, and publish
        the result with `mark`. Publish nothing if `change` returns `None`."""

        def apply(version: Version | None) -> bytes | None:
            changed = change(*self._manifest_of(version))
            return None if changed is None else encode_manifest(changed, mark)

        self._manifests.update(apply, self._clock, self._rng)

    def update_ledger(
        self, change: Callable[[SlateLedger], SlateLedger], first: SlateLedger | None = None
    ) -> SlateLedger:
        """Apply `change` to the cached ledger, after each conflict to the latest, and publish the result
        unless the latest ledger already equals it; return the result. If there is no ledger, apply `change`
        to `first`."""
        return self._change_ledger(change, first, self._ledgers.update)[0]

    def write_ledger(
        self, change: Callable[[SlateLedger], SlateLedger], first: SlateLedger | None = None
    ) -> tuple[SlateLedger, PendingVersion]:
        """Do the same without waiting for the proof that the new version is valid."""
        changed, (_, counts) = self._change_ledger(change, first, self._ledgers.write)
        return changed, counts

    def _change_ledger(
        self,
        change: Callable[[SlateLedger], SlateLedger],
        first: SlateLedger | None,
        publish: Callable[[Change, Clock, random.Random], ResultT],
    ) -> tuple[SlateLedger, ResultT]:
        changed: SlateLedger = Ledger()
        if first is None and self._ledgers.known() is None:
            self._ledgers.latest()  # another process may have created one since

        def apply(version: Version | None) -> bytes | None:
            nonlocal changed
            ledger = first if version is None else self._ledger_of(version)
            if ledger is None:
                raise Refused(f"{self.url} has no compactions file; start a coordinator first")
            changed = change(ledger)
            return encode_ledger(changed) if version is None or changed != ledger else None

        result = publish(apply, self._clock, self._rng)
        return changed, result

    def _manifest_of(self, version: Version | None) -> tuple[int, Manifest]:
        try:
            check_whole(self.url, self._root, has_manifest=version is not None)
        except DatasetNotFound as missing:
            instead = found_instead(self._store, self._root)
            if not instead:
                raise
            raise DatasetNotFound(f"{str(missing).removesuffix('; check the URL')}; {instead}") from missing
        assert version is not None
        before = self._decoded.get(self._manifests.folder)
        manifest = cast(Manifest, self._decode(self._manifests, version, decode_manifest))
        if before is not None and before[0] < version.id and not may_follow(before[1], manifest):
            error = Replaced(
                f"{self._manifests.key(version.id)} is behind manifest {before[0]} in numbers that only "
                f"grow: {self.url} was created again or restored from a backup"
            )
            self._bond.break_off(error)
            raise error
        return version.id, manifest

    def _ledger_of(self, version: Version) -> SlateLedger:
        return cast(SlateLedger, self._decode(self._ledgers, version, decode_ledger))

    def _decode(self, files: VersionedFiles, version: Version, decode: Callable[[bytes, str], Any]) -> Any:
        cached = self._decoded.get(files.folder)
        if cached is None or cached[0] != version.id:
            cached = (version.id, files.decode(version, decode))
            self._decoded[files.folder] = cached
        return cached[1]
