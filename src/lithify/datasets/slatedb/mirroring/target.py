"""The folder of a mirror: its state as numbered files, and its objects (`state`)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial

from lithify.base.clock import Clock
from lithify.base.concurrency import each_of
from lithify.base.errors import CorruptObject, DatasetNotFound, ObjectExists, ObjectNotFound, Refused
from lithify.base.ids import Ids, Ulid
from lithify.datasets.slatedb.format.manifest import decode_manifest
from lithify.datasets.slatedb.format.paths import DatabasePaths, parse_sst_key, parse_wal_key
from lithify.datasets.slatedb.mirroring.state import (
    FORMAT,
    CopiedManifest,
    Doomed,
    MirrorState,
    RestorePoint,
    decode_copied,
    decode_state,
    encode_copied,
    encode_state,
    owned,
)
from lithify.datasets.slatedb.model import Manifest
from lithify.store.deleting import Deleting, delete_listed
from lithify.store.keys import format_id, join, url_of
from lithify.store.objects import ObjectMeta, ObjectStore
from lithify.store.proof import MEMORY, PROBES
from lithify.store.versions import Version, VersionedFiles

KEPT_VERSIONS = 20
MANIFESTS_AT_ONCE = 8
_SUFFIX = ".json"


class MirrorTarget:
    """The mirror whose folder is `root` of `store`."""

    def __init__(
        self, store: ObjectStore, root: str, clock: Clock, ids: Ids, rng: random.Random | None = None
    ) -> None:
        self.store = store
        self.root = root
        self.url = url_of(store.url, root)
        self.paths = DatabasePaths(root)
        self._clock = clock
        self._rng = rng if rng is not None else random.Random()
        folder, boundary = join(root, "mirror"), join(root, "mirror.boundary")
        self._files = VersionedFiles(store, folder, _SUFFIX, boundary, ids, clock=clock)

    # The state

    def find(self) -> MirrorState | None:
        """Return the state, or `None` if there is no mirror."""
        version = self._files.confirmed()
        return None if version is None else self._decode(version)

    def read(self) -> MirrorState:
        """Return the state. Raise `DatasetNotFound` if there is no mirror."""
        state = self.find()
        if state is None:
            raise DatasetNotFound(f"there is no mirror at {self.url}; check the URL")
        return state

    def begin(self, source: str, session: str) -> MirrorState:
        """Make `session` the only one that may change the mirror of `source`. Create the mirror if the place
        is empty. Raise `Refused` if it is not, or if the mirror is another database's."""
        if self._files.latest() is None and (found := first_object(self.store, self.paths)):
            raise Refused(
                f"{self.url} is not empty and no mirror: it has {found}; use an empty place, or the place of "
                "a mirror of this database"
            )

        def change(version: Version | None) -> bytes:
            if version is None:
                state = MirrorState(FORMAT, source, session, (), (), Doomed(), 0)
            else:
                state = self._decode(version)
                if state.source != source:
                    raise Refused(f"{self.url} is the mirror of {state.source}; use another place")
                state = replace(state, session=session)
            return encode_state(state, self.url)

        return self._updated(change)

    def change(self, session: str, change: Callable[[MirrorState], MirrorState]) -> MirrorState:
        """Apply `change` to the latest state and publish the result. Raise `Fenced` if another session has
        begun."""

        def changed(version: Version | None) -> bytes | None:
            if version is None:
                raise DatasetNotFound(f"the mirror at {self.url} is gone")
            before = owned(self._decode(version), session, self.url)
            after = change(before)
            return None if after == before else encode_state(after, self.url)

        return self._updated(changed)

    def trim(self) -> None:
        """Delete old versions of the state."""
        old = self._files.ids()[:-KEPT_VERSIONS]
        if old:
            self._files.advance_boundary(old[-1])
            for version_id in old:
                self.store.delete(self._files.key(version_id))

    def _updated(self, change: Callable[[Version | None], bytes | None]) -> MirrorState:
        version = self._files.update(change, self._clock, self._rng)
        assert version is not None
        return self._decode(version)

    def _decode(self, version: Version) -> MirrorState:
        return self._files.decode(version, decode_state)

    def changed_ms(self) -> int:
        """Return when the state was changed last, by the store's clock."""
        version = self._files.confirmed()
        assert version is not None
        return self.store.head(self._files.key(version.id)).last_modified_ms

    # Objects

    def manifest_key(self, manifest_id: int) -> str:
        return join(self.root, "manifests", f"{format_id(manifest_id)}.manifest")

    def copied_key(self, manifest_id: int) -> str:
        return join(self.root, "manifests", f"{format_id(manifest_id)}{_SUFFIX}")

    def manifest_bytes(self, manifest_id: int) -> bytes:
        return self.store.get(self.manifest_key(manifest_id))

    def manifest(self, manifest_id: int) -> Manifest:
        return decode_manifest(self.manifest_bytes(manifest_id), self.manifest_key(manifest_id))

    def copied(self, manifest_id: int) -> CopiedManifest:
        key = self.copied_key(manifest_id)
        return decode_copied(self.store.get(key), key)

    def add_manifest(self, manifest_id: int, data: bytes, copied: CopiedManifest) -> None:
        """Write a manifest and its list. All its SSTs must be there."""
        self._create_once(self.copied_key(manifest_id), encode_copied(copied))
        self._create_once(self.manifest_key(manifest_id), data)

    def _create_once(self, key: str, data: bytes) -> None:
        try:
            self.store.create(key, data)
        except ObjectExists:
            if self.store.get(key) != data:
                raise CorruptObject(
                    key,
                    "differs from the manifest of the database with this number: the database was created "
                    "again or restored; mirror it to another place",
                ) from None

    def ssts(self) -> dict[Ulid, ObjectMeta]:
        """List the copies of SSTs."""
        listed = self.store.list(self.paths.compacted_folder)
        named = ((parse_sst_key(meta.key), meta) for meta in listed)
        return {i: meta for i, meta in named if i is not None and meta.key == self.paths.sst(i)}

    def wal(self) -> dict[int, ObjectMeta]:
        """List the copies of files of the write-ahead log."""
        listed = self.store.list(self.paths.wal_folder)
        named = ((parse_wal_key(meta.key), meta) for meta in listed)
        return {i: meta for i, meta in named if i is not None and meta.key == self.paths.wal(i)}

    def uses(self, points: Iterable[RestorePoint]) -> Counter[Ulid]:
        """Return how many manifests of the points name each SST."""
        manifest_ids = sorted({point.manifest_id for point in points})
        found: Counter[Ulid] = Counter()
        for named in each_of((partial(self.named_by, i) for i in manifest_ids), MANIFESTS_AT_ONCE):
            found.update(named)
        return found

    def named_by(self, manifest_id: int) -> Collection[Ulid]:
        """Return the SSTs that a manifest of a point names; none if its list is lost, so that they are never
        deleted with it."""
        try:
            return self.copied(manifest_id).ssts.keys()
        except (ObjectNotFound, CorruptObject):
            return ()

    def delete(self, doomed: Doomed) -> int:
        """Delete doomed objects, if they are still those listed now. Return their number."""
        with Deleting() as deleting:
            listed = list(self._listed(doomed))
            return sum(deleting.all(partial(delete_listed, self.store, meta) for meta in listed))

    def _listed(self, doomed: Doomed) -> Iterator[ObjectMeta]:
        if doomed.manifests:
            names = {key(i) for i in doomed.manifests for key in (self.manifest_key, self.copied_key)}
            listed = self.store.list(join(self.root, "manifests"))
            yield from (meta for meta in listed if meta.key in names)
        if doomed.ssts:
            there = self.ssts()
            yield from (there[i] for i in doomed.ssts if i in there)
        if doomed.wal_to:
            yield from (meta for i, meta in self.wal().items() if i <= doomed.wal_to)


def first_object(store: ObjectStore, paths: DatabasePaths) -> str | None:
    """Return the key of an object at the place, or `None` if it is empty. The objects by which the store was
    tested do not count."""
    record, probes = join(paths.own_folder, MEMORY), f"{join(paths.own_folder, PROBES)}/"
    found = (meta.key for meta in store.stream(paths.root))
    return next((key for key in found if key != record and not key.startswith(probes)), None)
