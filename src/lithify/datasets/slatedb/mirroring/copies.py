"""Mirrors and restores of SlateDB databases, as commands use them (`lithify.datasets.copies`)."""

from __future__ import annotations

import random
from dataclasses import dataclass

from lithify.base.clock import Clock
from lithify.base.errors import Refused
from lithify.base.ids import Ids
from lithify.config.model import Config
from lithify.datasets.copies import Copies, MirrorSession
from lithify.datasets.slatedb.files import DatabaseFiles
from lithify.datasets.slatedb.format.paths import DatabasePaths
from lithify.datasets.slatedb.mirroring import view
from lithify.datasets.slatedb.mirroring.copying import ObjectCopier
from lithify.datasets.slatedb.mirroring.mirror import DatabaseMirror
from lithify.datasets.slatedb.mirroring.restore import restore
from lithify.datasets.slatedb.mirroring.state import KeepPolicy
from lithify.datasets.slatedb.mirroring.target import MirrorTarget
from lithify.datasets.waiting import command_waiting
from lithify.store.keys import url_of
from lithify.store.objects import ObjectStore
from lithify.store.proof import proved
from lithify.store.urls import open_store

_Place = tuple[ObjectStore, DatabasePaths]


@dataclass(frozen=True, slots=True)
class _Session:
    """A session with its policy (`MirrorSession`)."""

    mirror: DatabaseMirror
    policy: KeepPolicy
    url: str
    target: str

    def take_point(self) -> view.Shown:
        return view.show_mirrored(self.url, self.target, self.mirror.take_point(self.policy))


class DatabaseCopies:
    """`Copies` of databases."""

    def mirror(
        self,
        url: str,
        target: str,
        config: Config,
        clock: Clock,
        ids: Ids,
        *,
        keep_ms: int,
        min_points: int,
    ) -> MirrorSession:
        source, paths = _opened(url, config, ids)
        to, to_paths = _opened(target, config, ids)
        _check_apart(source, paths, to, to_paths)
        source_url = url_of(source.url, paths.root)
        files = DatabaseFiles(source, paths, source_url, clock, ids, random.Random())
        mirror = DatabaseMirror(
            paths,
            files,
            MirrorTarget(to, to_paths.root, clock, ids),
            ObjectCopier(source, to, _is_same(url, target, config, source, to)),
            clock,
            ids,
        )
        policy = KeepPolicy(keep_ms, min_points)
        return _Session(mirror, policy, source_url, url_of(to.url, to_paths.root))

    def restore(
        self, target: str, url: str, config: Config, clock: Clock, ids: Ids, *, at_ms: int | None
    ) -> view.Shown:
        source, paths = _opened(target, config, ids)
        to, place = _opened(url, config, ids)
        _check_apart(source, paths, to, place)
        mirror = MirrorTarget(source, paths.root, clock, ids)
        copier = ObjectCopier(source, to, _is_same(target, url, config, source, to))
        report = restore(mirror, copier, place, at_ms, clock, ids)
        return view.show_restored(mirror.url, url_of(to.url, place.root), report)


COPIES: Copies = DatabaseCopies()


def _opened(url: str, config: Config, ids: Ids) -> _Place:
    store, root = open_store(url, config.store_options_of(url), command_waiting(url, config))
    paths = DatabasePaths(root)
    return proved(store, paths.own_folder, ids), paths


def _is_same(url: str, other: str, config: Config, store: ObjectStore, other_store: ObjectStore) -> bool:
    same_options = config.store_options_of(url) == config.store_options_of(other)
    return store.url == other_store.url and same_options


def _check_apart(store: ObjectStore, paths: DatabasePaths, other: ObjectStore, others: DatabasePaths) -> None:
    """Raise `Refused` if one place is within the other."""
    if store.url != other.url:
        return
    one, two = f"{paths.root}/".lstrip("/"), f"{others.root}/".lstrip("/")
    if one.startswith(two) or two.startswith(one):
        raise Refused(
            f"{url_of(store.url, paths.root)} and {url_of(other.url, others.root)} overlap; use two "
            "places of which none is within the other"
        )
