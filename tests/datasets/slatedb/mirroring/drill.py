"""Mirrors of local databases in tests, restored and read by the official client."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lithify.base.clock import Clock, SystemClock
from lithify.base.ids import RandomIds
from lithify.datasets.slatedb.files import DatabaseFiles
from lithify.datasets.slatedb.format.paths import DatabasePaths
from lithify.datasets.slatedb.mirroring.copying import ObjectCopier
from lithify.datasets.slatedb.mirroring.mirror import DatabaseMirror
from lithify.datasets.slatedb.mirroring.needs import lacking
from lithify.datasets.slatedb.mirroring.restore import restore
from lithify.datasets.slatedb.mirroring.state import KeepPolicy, MirrorState
from lithify.datasets.slatedb.mirroring.target import MirrorTarget
from lithify.store.objects import ObjectStore
from lithify.store.urls import open_store
from tests.judge.official import open_db, open_reader

ALL = KeepPolicy(keep_ms=86_400_000)
IDS = RandomIds()


def as_it_is(store: ObjectStore) -> ObjectStore:
    return store


@dataclass
class Drill:
    """A database at `folder/db` and its mirror at `folder/mirror`."""

    folder: Path
    clock: Clock = field(default_factory=SystemClock)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def database(self) -> Path:
        return self.folder / "db"

    @property
    def target(self) -> Path:
        return self.folder / "mirror"

    def session(self, wrap: Callable[[ObjectStore], ObjectStore] = as_it_is) -> DatabaseMirror:
        """A new session, whose every request goes through `wrap`."""
        store, root = open_store(str(self.database))
        store, paths = wrap(store), DatabasePaths(root)
        files = self.files(store)
        target = MirrorTarget(store, open_store(str(self.target))[1], self.clock, IDS, random.Random(2))
        return DatabaseMirror(paths, files, target, ObjectCopier(store, store, False), self.clock, IDS)

    def files(self, store: ObjectStore | None = None) -> DatabaseFiles:
        """The manifests of the database."""
        opened, root = open_store(str(self.database))
        return DatabaseFiles(
            store or opened, DatabasePaths(root), str(self.database), self.clock, IDS, random.Random(1)
        )

    def mirror(self) -> MirrorTarget:
        store, root = open_store(str(self.target))
        return MirrorTarget(store, root, self.clock, IDS)

    def state(self) -> MirrorState:
        return self.mirror().read()

    def problems(self) -> list[str]:
        """What any point of the mirror lacks."""
        mirror = self.mirror()
        state = mirror.find()
        if state is None:
            return []
        ssts, wal = mirror.ssts(), mirror.wal()
        return [
            text
            for point in state.points
            for text in lacking(
                point, mirror.manifest(point.manifest_id), mirror.copied(point.manifest_id), ssts, wal
            )
        ]

    def restore(
        self, at_ms: int | None = None, wrap: Callable[[ObjectStore], ObjectStore] = as_it_is, to: str = ""
    ) -> Path:
        """Restore to a new place, or to the one named `to`."""
        place = self.folder / (to or f"restored-{next(self._numbers)}")
        store, root = open_store(str(place))
        store = wrap(store)
        mirror = self.mirror()
        copier = ObjectCopier(mirror.store, store, False)
        restore(mirror, copier, DatabasePaths(root), at_ms, self.clock, IDS)
        return place

    def rows(self, at_ms: int | None = None) -> dict[bytes, bytes]:
        """What the official client reads in the restored database."""
        return rows_of(self.restore(at_ms))


def rows_of(place: Path) -> dict[bytes, bytes]:
    """What a writer reads that opens the database, after a reader has read the same."""
    with open_reader(place) as reader:
        seen = dict(reader.scan())
    with open_db(place) as database:
        rows = dict(database.scan())
        assert database.get_many(rows) == rows
    assert seen == rows
    return rows
