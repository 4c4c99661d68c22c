"""Every kind keeps the contract, on files and in memory."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lithify.base.ids import RandomIds
from lithify.datasets.iceberg.dataset import IcebergDataset
from lithify.datasets.iceberg.io.catalogs import TableUrl, store_of
from lithify.datasets.iceberg.kind import KIND as ICEBERG
from lithify.datasets.kafka.dataset import LogDataset
from lithify.datasets.kafka.kind import KIND as KAFKA
from lithify.datasets.kafka.settings import KafkaSettings
from lithify.datasets.kind import DatasetPort
from lithify.datasets.slatedb.dataset import SlateDataset
from lithify.datasets.slatedb.kind import KIND as SLATEDB
from lithify.store.objects import ObjectStore
from lithify.store.urls import open_store
from lithify.testing import ManualClock
from lithify.testing.conformance import CHECKS, World, Wrap, check_kills_lose_nothing
from tests.datasets.iceberg.tables import append, make_rows, new_catalog, new_table, read
from tests.datasets.kafka import folders, logs
from tests.judge.official import Put, open_db
from tests.judge.rows import read_database, visible_rows
from tests.kinds.texts import KIND as TEXTS
from tests.kinds.texts import TextDataset, TextSettings

_numbers = itertools.count()


def store_for(place: str, folder: Path) -> tuple[ObjectStore, str]:
    """An empty store and a prefix in it."""
    return open_store(str(folder) if place == "files" else f"memory://conformance-{next(_numbers)}/dataset")


def copy(source: tuple[ObjectStore, str], target: tuple[ObjectStore, str]) -> None:
    there = {meta.key: meta.size for meta in target[0].list(target[1])}
    for meta in source[0].list(source[1]):
        key, data = target[1] + meta.key.removeprefix(source[1]), source[0].get(meta.key)
        if there.get(key) != meta.size or target[0].get(key) != data:
            target[0].put(key, data)


def database(place: str, folder: Path, clock: ManualClock) -> World:
    """Its program works on files; a database in memory is copied to and fro."""
    store, root = store_for(place, folder / "db")
    path = folder / "db"
    on_disk = open_store(str(path))

    def write() -> None:
        if place == "memory":
            copy((store, root), on_disk)
        with open_db(path) as opened:
            for n in range(4):
                opened.write_batch([Put(b"k%02d" % k, b"%d" % next(_numbers)) for k in range(n, 20)])
                opened.flush()
        if place == "memory":
            copy(on_disk, (store, root))

    def open_it(wrap: Wrap) -> DatasetPort:
        return SlateDataset(wrap(store), root, clock, RandomIds())

    def rows() -> object:
        if place == "memory":
            copy((store, root), on_disk)
        return visible_rows(read_database(path))

    write()
    return World(SLATEDB, clock, open_it, write, rows)


def table(place: str, folder: Path, clock: ManualClock) -> World:
    """What is its own lies on files always, what is Lithify's beside it or in memory."""
    opened = new_table(new_catalog(folder), properties={"lithify.min-saved-files": "1"})
    own = store_of(opened) if place == "files" else store_for(place, folder)

    def write() -> None:
        for _ in range(3):
            append(opened, make_rows(5))

    def open_it(wrap: Wrap) -> DatasetPort:
        url = TableUrl("test", opened.name())
        return IcebergDataset(
            opened.catalog, url, clock, RandomIds(), open_place=lambda _: (wrap(own[0]), own[1])
        )

    write()
    return World(ICEBERG, clock, open_it, write, lambda: read(opened))


def texts(place: str, folder: Path, clock: ManualClock, kind: type[TextDataset] = TextDataset) -> World:
    store, root = store_for(place, folder / "texts")

    def open_it(wrap: Wrap) -> TextDataset:
        return kind("texts:///x", wrap(store), root, clock, RandomIds(), TextSettings())

    def write() -> None:
        for _ in range(4):
            open_it(lambda inner: inner).add(b"line %d\n" % next(_numbers))

    def whole() -> object:
        found = open_it(lambda inner: inner)
        return b"".join(store.get(name) for name, _ in found.snapshot())

    write()
    return World(TEXTS, clock, open_it, write, whole)


def log(place: str, folder: Path, clock: ManualClock) -> World:
    """A stopped broker's partition, which grows by three segments at a time. A reader sees the newest row of
    each key, the same in the compacted folder if there is one of what the partition is now."""
    source, output = store_for(place, folder / "orders-0"), store_for(place, folder / "out")
    store = source[0]
    root = f"{source[1]}/orders-0"

    def open_it(wrap: Wrap) -> LogDataset:
        into = output[0] if place == "memory" else store
        places = (wrap(store), root), (wrap(into), output[1])
        return LogDataset("kafka+file:///x", *places, clock, RandomIds(), KafkaSettings())

    def write() -> None:
        end = 1000 * len(list(store.list(root)))
        made = [
            [logs.data(start + 50 * n, (f"k{n}", f"{next(_numbers)}"), ("both", "x")) for n in range(4)]
            for start in (end, end + 1000, end + 2000, end + 3000)
        ]
        folders.put_segments(store, root, made)

    def rows() -> object:
        seen = folders.latest(folders.read_rows(store, root))
        dataset = open_it(lambda inner: inner)
        found = dataset.snapshot().round("orders-0")
        if found is not None and found.new_segments:
            compacted = dataset.output_folder(found.done[-1], "orders-0")
            rows = folders.read_rows(dataset.store, compacted)
            assert len(rows) < len(folders.read_rows(store, root))
            assert folders.latest(rows) == seen
        return seen

    write()
    return World(KAFKA, clock, open_it, write, rows)


KINDS: dict[str, Callable[[str, Path, ManualClock], World]] = {
    "slatedb": database,
    "iceberg": table,
    "texts": texts,
    "log": log,
}


def contract() -> Iterator[Any]:
    """Of every kind, in every place; kills, which take the longest, in memory alone but for `make whole`."""
    for kind, place, check in itertools.product(KINDS, ("files", "memory"), CHECKS):
        is_rest = check is check_kills_lose_nothing and place == "files"
        name = f"{kind}-{place}-{check.__name__.removeprefix('check_')}"
        yield pytest.param(kind, place, check, id=name, marks=[pytest.mark.whole] if is_rest else [])


@pytest.mark.parametrize(("kind", "place", "check"), list(contract()))
def test_the_contract(kind: str, place: str, check: Callable[[World], None], tmp_path: Path) -> None:
    check(KINDS[kind](place, tmp_path, ManualClock(int(time.time() * 1000))))


class Unfenced(TextDataset):
    """Commits whoever leads."""

    def commit(self, compactions: Any, epoch: int, tell_dropped: Any = None) -> Any:
        return super().commit(compactions, self.epoch(), tell_dropped)


class Forgetful(TextDataset):
    """What came meanwhile is gone after a commit."""

    def commit(self, compactions: Any, epoch: int, tell_dropped: Any = None) -> Any:
        verdicts = super().commit(compactions, epoch, tell_dropped)
        self._change(lambda texts: tuple(out for c in compactions for out in c.outputs))
        return verdicts


class Repeating(TextDataset):
    """Commits what is committed once more."""

    def commit(self, compactions: Any, epoch: int, tell_dropped: Any = None) -> Any:
        verdicts = super().commit(compactions, epoch, tell_dropped)
        again = [out for c in compactions if verdicts[c.id] is not None for out in c.outputs]
        self._change(lambda texts: (*texts, *again))
        return verdicts


class Stubborn(TextDataset):
    """Proposes what it was told to leave alone."""

    def propose(self, snapshot: Any, ledger: Any, held: Any = None, least: int | None = None) -> Any:
        return super().propose(snapshot, ledger, {}, least)


class Restless(TextDataset):
    """Finds something to do for ever."""

    def propose(self, snapshot: Any, ledger: Any, held: Any = None, least: int | None = None) -> Any:
        return super().propose(snapshot, ledger, held or {}, 1)


class Hasty(TextDataset):
    """Lists its outputs before they are committed."""

    def prepare(self, compaction: Any, snapshot: Any, slots: int = 0) -> Any:
        self.add(b"too early")
        return super().prepare(compaction, snapshot)


class Gullible(TextDataset):
    """Takes anything for a spec."""

    def decode_spec(self, text: str) -> Any:
        return ()


@pytest.mark.parametrize("broken", [Unfenced, Forgetful, Repeating, Stubborn, Restless, Hasty, Gullible])
def test_broken_kinds_are_found(broken: type[TextDataset], tmp_path: Path) -> None:
    found = []
    for check in CHECKS:
        if check is check_kills_lose_nothing:
            continue  # the others find them sooner
        world = texts("memory", tmp_path, ManualClock(int(time.time() * 1000)), broken)
        try:
            check(world)
        except AssertionError:
            found.append(check)
    assert found
